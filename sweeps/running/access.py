"""Who may give commands to a Ray: everybody who reaches its ports and has its token, or everybody if it asks for none.

Ray listens on all addresses of a machine, and runs what it is sent as the user who started it.
"""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from cbs.errors import ConfigError

# Seconds to wait for a cluster's port to answer; Ray itself would keep trying for minutes
CONNECT_SECONDS = 5.0

# Seconds that a process may take to knock at a cluster without a token, and its exit code where it is refused
_PROBE_SECONDS, _REFUSED = 20, 3
_PROBE = f"""
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).get_all_node_info(timeout={CONNECT_SECONDS})
except AuthenticationError:
    sys.exit({_REFUSED})
"""


@contextlib.contextmanager
def token_of(address: str | None, *, insecure: bool) -> Iterator[None]:
    """Within the block Ray uses a token: a new one for a private Ray, which only this process and its children know;
    the user's own for a cluster.

    Args:
        address: address of the cluster; ``None`` for a private Ray.
        insecure: whether a cluster without tokens is used, too.
    """
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    before = {name: os.environ.get(name) for name in names}
    if address is None:
        # anybody on this machine could send jobs to a Ray without one
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    elif insecure:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    elif before["RAY_AUTH_MODE"] in (None, "disabled"):
        os.environ["RAY_AUTH_MODE"] = "token"
    _read_again()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        _read_again()


def _read_again() -> None:
    """Make a Ray that has been imported read these settings again."""
    if "ray" in sys.modules:
        from ray import _raylet

        core: Any = _raylet  # without types
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()


def check_guarded(address: str) -> None:
    """Check that a cluster refuses who has no token, by asking it without one.

    Args:
        address: ``host:port`` of its control service, or ``ray://host:port``.

    Raises:
        ConfigError: if it answers.
    """
    if os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true"):
        return  # certificates guard it
    if _answers_client(address) if address.startswith("ray://") else _answers(address):
        raise ConfigError(
            f"the cluster at {address} obeys everybody who reaches it, as it asks for no token: start it with "
            "RAY_AUTH_MODE=token (after 'ray get-auth-token --generate'), or give --insecure"
        )


def _answers(address: str) -> bool:
    """Ask in another process, because a process has one token for all that it asks."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    with contextlib.suppress(subprocess.TimeoutExpired):
        command = [sys.executable, "-c", _PROBE, address]
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=_PROBE_SECONDS)
        return done.returncode == 0
    return False


def _answers_client(address: str) -> bool:
    import grpc
    from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc

    ping = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING)
    with grpc.insecure_channel(address.removeprefix("ray://")) as channel:
        try:
            ray_client_pb2_grpc.RayletDriverStub(channel).ClusterInfo(ping, timeout=CONNECT_SECONDS)
        except grpc.RpcError:
            return False
    return True


def check_listening(address: str) -> None:
    """Check that something listens at ``host:port`` (``auto`` is left to Ray).

    Raises:
        ConfigError: if the address has no port, or nothing answers there.
    """
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--address takes host:port or auto, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot reach Ray at {address}: {error}; is the cluster up ('ray status')?") from None
