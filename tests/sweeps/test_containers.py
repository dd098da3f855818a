"""Sweeps that share folders with another container or another user, in real namespaces of processes and of mounts."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cbs.trial.store import Store
from sweeps.folder import lock
from sweeps.running import scratch

PROCESSES = ("unshare", "--pid", "--fork", "--mount-proc")
MOUNTS = ("unshare", "--mount")
STALE = "import tempfile; tempfile.tempdir = sys.argv[1]\nfrom sweeps.running import scratch\n"


@cache
def may(*start: str) -> bool:
    """Whether this machine and this user may make such a namespace."""
    return shutil.which(start[0]) is not None and subprocess.run([*start, "true"], capture_output=True).returncode == 0


def inside(start: tuple[str, ...], code: str, *arguments: object) -> str:
    """What a program prints that runs there."""
    if not may(*start):
        pytest.skip("namespaces cannot be made here")
    whole = [*start, sys.executable, "-c", "import sys\n" + code, *map(str, arguments)]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files of both, in which every user may do everything."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def test_a_container_leaves_the_folders_of_a_sweep_beside_it_alone(shared: Path) -> None:
    mine = scratch.temporary_folder()
    inside(PROCESSES, STALE + "scratch.remove_stale_folders()", shared)
    assert mine.exists()
    scratch.remove_folder(mine)


def test_a_sweep_leaves_the_folders_of_a_container_beside_it_alone(shared: Path) -> None:
    code = STALE + "print(scratch.temporary_folder().parent, flush=True)\nsys.stdin.read()"
    if not may(*PROCESSES):
        pytest.skip("namespaces cannot be made here")
    whole = [*PROCESSES, sys.executable, "-c", "import sys\n" + code, str(shared)]
    with subprocess.Popen(whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        folder = Path(other.stdout.readline().strip())
        assert not Path(f"/proc/{folder.name.split('-')[2]}").exists() or "-1-" in folder.name
        scratch.remove_stale_folders()
        stays = folder.exists()
        other.stdin.close()
    assert stays
    assert not folder.exists()  # it has removed its own


def test_a_container_does_not_take_the_folder_of_results_from_a_living_sweep(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    store.prepare()
    code = """
from pathlib import Path
from cbs.errors import ResultsError
from sweeps.folder.lock import check_free
try:
    check_free(Path(sys.argv[1]))
except ResultsError as error:
    print(error)
"""
    with lock.Lock(store, "cbs sweep"):
        assert "belongs to a sweep that is running" in inside(PROCESSES, code, store.root)
    lock.check_free(store.root)


def test_a_folder_that_turned_read_only_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    code = """
import subprocess
from pathlib import Path
from cbs.errors import ResultsError
from cbs.files import set_aside
subprocess.run(["mount", "--bind", sys.argv[1], sys.argv[1]], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro", sys.argv[1]], check=True)
try:
    set_aside(Path(sys.argv[1]) / "trial")
except ResultsError as error:
    print(error)
"""
    said = inside(MOUNTS, code, tmp_path)
    assert said.startswith(f"cannot rename {tmp_path}/trial, which is damaged: ")
    assert "\n" not in said
    assert (tmp_path / "trial").exists()


def test_another_user_neither_enters_nor_removes_the_folders_of_a_sweep(shared: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may become another user")
    mine, gone = scratch.temporary_folder(), subprocess.Popen(["true"])
    gone.wait()
    left = shared / f"cbs-ray-{gone.pid}-abcdefgh"
    left.mkdir()
    left.chmod(0o777)  # so that nothing protects it but the question whose it is
    (left / "owner.json").write_text((mine.parent / "owner.json").read_text().replace(str(os.getpid()), str(gone.pid)))
    code = (
        STALE
        + """
import os
from pathlib import Path
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    print(os.listdir(Path(sys.argv[2])))
except PermissionError:
    print("refused")
scratch.remove_stale_folders()
own = scratch.temporary_folder()
print(own.parent.exists())
"""
    )
    assert inside(("env",), code, shared, mine).split() == ["refused", "True"]
    assert mine.exists()
    assert left.exists()
    scratch.remove_stale_folders()
    assert not left.exists()
    scratch.remove_folder(mine)


OVERLAY = """
import subprocess
from pathlib import Path
from cbs import files
lower, upper, work, both = (Path(sys.argv[1]) / name for name in ("lower", "upper", "work", "both"))
layers = f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off"
if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, both]).returncode:
    sys.exit(print("no overlay"))
try:
    (both / "trial").rename(both / "renamed")
    sys.exit(print("can rename"))
except OSError as error:
    print(error.errno)
print(files.set_aside(both / "trial").name, *sorted(path.name for path in both.iterdir()))
print((both / "trial.damaged" / "record").read_text())
"""


def test_a_damaged_trial_in_the_lower_layer_of_a_container_is_set_aside(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "both"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / "trial").mkdir()
    (tmp_path / "lower" / "trial" / "record").write_text("kept")
    said = inside(MOUNTS, OVERLAY, tmp_path).splitlines()
    if said in (["no overlay"], ["can rename"]):
        pytest.skip("no overlay that refuses to rename can be mounted here")
    assert said == ["18", "trial.damaged trial.damaged", "kept"]
