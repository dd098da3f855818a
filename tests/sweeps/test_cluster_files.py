"""The scripts and files in ``docs/examples``: for a laptop, a node, Slurm and Kubernetes; they run, with stand-ins."""

import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
import yaml
from ray._private import services

import cli
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target
from sweeps.external.asked import program_of
from sweeps.external.run import run_command
from tests.sweeps.test_kill import COMMAND, DEADLINE, ROOT, fits, reached, undisturbed

__all__ = ["undisturbed"]

FOLDER = ROOT / "docs" / "examples"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.sbatch")])
FILES = [*SCRIPTS, *sorted(FOLDER.glob("*.yaml"))]


def commands(path: Path) -> list[list[str]]:
    """The words of every ``cbs ...`` of a file."""
    text = path.read_text().replace("\\\n", " ")
    lines = re.findall(r"^ *(?:sweep=\(|sweep\+=\()?cbs (.*?)\)?$", text, re.M)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_every_flag_in_a_file_exists(path: Path) -> None:
    there = typer.main.get_command(cli.application()).commands  # type: ignore[attr-defined]
    assert commands(path)
    for name, *words in commands(path):
        known = {flag for parameter in there[name].params for flag in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.name for path in SCRIPTS])
def test_a_script_parses(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_the_job_of_kubernetes_has_what_kuberay_asks_for() -> None:
    files, claim, job = yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text())
    spec = job["spec"]["rayClusterSpec"]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"]["entrypoint"] == "bash /job/run.sh"
    assert job["spec"]["shutdownAfterJobFinishes"] is True
    assert f"ray=={spec['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (group,) = spec["workerGroupSpecs"]
    assert group["groupName"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    (output,) = re.findall(r"-o (/\w+)/", files["data"]["run.sh"])
    for part in (spec["headGroupSpec"], group):
        assert all(isinstance(value, str) for value in part["rayStartParams"].values())
        pod = part["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == [output, "/job"]
        assert [volume["name"] for volume in pod["volumes"]] == [mount["name"] for mount in container["volumeMounts"]]
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert pod["volumes"][1]["configMap"]["name"] == files["metadata"]["name"]


STAND_INS = {
    # What srun is told of nodes comes before the command.
    "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"',
    "getent": "echo 127.0.1.1 STREAM here",
    "hostname": 'echo "fe80::1 $NODE_IP 172.17.0.1"',
    "scontrol": '[[ $1 == show ]] && { echo here; echo there; exit; }\necho "$@" >>"$QUEUE"',
    "cbs": f'exec {shlex.quote(sys.executable)} {shlex.quote(str(ROOT / "cli.py"))} "$@"',
    # Ray of before symmetric-run, whose `ray stop` would end every other Ray of this user
    "ray": f'[[ $1 == symmetric-run ]] && exit 2\nexec {shlex.quote(str(Path(sys.executable).with_name("ray")))} "$@"',
}


def slurm(folder: Path, arguments: list[str], seconds: float, cores: int = 1) -> int:
    """Run the job of two nodes as Slurm would, on this machine, for so long; returns its exit code."""
    folder.mkdir(exist_ok=True)
    for name, body in STAND_INS.items():
        file = folder / name
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "NODE_IP": services.get_node_ip_address(),  # Ray takes no other for a node that others reach
        "QUEUE": str(folder / "queue"),
        "RAY_PORT": str(port),
        "RAY_USAGE_STATS_ENABLED": "0",
        "MARGIN": "0",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "[here,there]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": str(cores),
        "SLURM_JOB_END_TIME": str(int(time.time() + seconds)),
    }
    command = ["bash", str(FOLDER / "slurm.sbatch"), *arguments]
    with open(folder / "log", "a") as log:
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **job}, stdout=log, stderr=log, timeout=DEADLINE, check=False
        ).returncode


SYMMETRIC = (
    'echo "$RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT" >"$QUEUE.limit"\n'
    'while (($#)) && [[ $1 != -- ]]; do echo "$1" >>"$QUEUE.ray"; shift; done; (($#)) || exit 0; shift; exec "$@"'
)
"""``ray`` that runs what follows ``--``, and writes down what stands before."""


@pytest.mark.parametrize("gpus", [0, 8])
def test_a_job_of_slurm_that_fails_stays_out_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    """Without Ray: a cluster that is there, and a sweep that ends with another exit code than that of its time."""
    monkeypatch.setitem(STAND_INS, "ray", SYMMETRIC)
    monkeypatch.setitem(STAND_INS, "cbs", 'echo "$@" >>"$QUEUE.asked"\nexit "$CODE"')
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", str(gpus))
    for code, requeued in {"0": False, "1": False, "2": False, "130": True}.items():
        monkeypatch.setenv("CODE", code)
        folder = tmp_path / code
        assert slurm(folder, ["--optim", "sgd"], 990.0, cores=64) == int(code)
        assert (folder / "queue").exists() == requeued
        asked = (folder / "queue.asked").read_text()
        address = re.escape(f"{services.get_node_ip_address()}:")
        cores = 8 if gpus else 1
        line = rf"sweep --set cpus_per_trial={cores} --optim sgd --address {address}\d+ --stop-after 9\d\ds\n"
        assert re.fullmatch(line, asked)
        started = (folder / "queue.ray").read_text().split()
        assert started[-3:] == ["--min-nodes", "2", "--num-cpus=64"]
        assert (folder / "queue.limit").read_text() == "600\n"


def test_the_guide_names_every_file() -> None:
    guide = (ROOT / "docs" / "clusters.md").read_text()
    assert len(FILES) == 4
    assert all(f"(examples/{path.name})" in guide for path in FILES)


@pytest.mark.parametrize(("code", "told"), [(0, 0), (1, 0), (2, 0), (130, 130), (137, 137)])
def test_a_typo_makes_no_new_cluster(tmp_path: Path, code: int, told: int) -> None:
    files = next(yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text()))
    (tmp_path / "cbs").write_text(f"#!/bin/bash\nexit {code}\n")
    (tmp_path / "cbs").chmod(0o755)
    script = files["data"]["run.sh"].replace("cd /job", f"cd {tmp_path}")
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(["bash", "-c", script], env=path, capture_output=True, text=True, check=False)
    assert ended.returncode == told
    assert ("NOT DONE" in ended.stdout) == (code in (1, 2))


@pytest.mark.slow
def test_the_job_of_slurm_goes_back_into_the_queue_until_the_sweep_is_done(undisturbed: Path, tmp_path: Path) -> None:
    output, queue, codes = tmp_path / "out", tmp_path / "slurm" / "queue", []
    for seconds in (3.0, 12.0, 24.0, 60.0, 120.0, 240.0):
        codes.append(slurm(tmp_path / "slurm", [*COMMAND[1:], "-o", str(output)], seconds))
        if codes[-1] != 130:
            break
    log = (tmp_path / "slurm" / "log").read_text()
    assert codes[-1] == 0, log
    assert len(codes) > 1, "the first job had enough time"
    assert queue.read_text() == "requeue 17\n" * (len(codes) - 1)
    assert reached(output) == reached(undisturbed)
    assert fits(output) == fits(undisturbed)


def test_a_job_of_slurm_waits_for_ray_with_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAND_INS, "ray", "[[ $1 == symmetric-run ]] && exit 2\n[[ $1 == start ]] && exec sleep 60")
    monkeypatch.setenv("PATIENCE", "0")
    assert slurm(tmp_path, [], 990.0) == 1
    assert "Ray does not start on here" in (tmp_path / "log").read_text()


SLOW = ("huggingface_trainer", "lightning_module")  # Import what takes longer to import than all else here to run


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
        for path in sorted(FOLDER.glob("*.py"))
        if "cbs sweep" in path.read_text()
    ],
)
def test_an_example_trains_to_its_target(name: str, tmp_path: Path) -> None:
    command = re.search(r"^(cbs sweep .*?)\n(?:\n|\"\"\")", (FOLDER / f"{name}.py").read_text(), re.M | re.S)
    words = shlex.split(command.group(1).replace("\\\n", " "))[2:]
    sweep = typer.main.get_command(cli.application()).commands["sweep"]  # type: ignore[attr-defined]
    asked = sweep.make_context("sweep", words).params
    program = program_of(
        command=asked["command"].replace("python ", f"{sys.executable} "),
        columns=asked["column"],
        optimizers=asked["optim"],
        **{
            key: asked[key]
            for key in (
                "reads", "metric", "direction", "metric_unit", "example_unit", "tokens_per_example",
                "resume", "target",
            )
        },
    )  # fmt: skip
    trial = TrialConfig(
        workload=program.choice(),
        optimizer=Choice(name="adamw"),
        lr=0.01,
        batch_size=16,
        seed=1,
        target=Target(metric=program.metric, value=asked["target"]),
        max_steps=10**9,
        probe=None,
    )
    result = run_command(trial, tmp_path / "run", path=str(FOLDER))
    assert result.status is TrialStatus.REACHED, (result.message, (tmp_path / "run" / "output.log").read_text()[-2000:])
    assert len(result.evaluations) >= 3
    assert result.evaluations[-1].examples == 16 * result.evaluations[-1].step
