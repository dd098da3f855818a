"""Trials that another program trains: how it is started, how its log is read while it is written, how it ends."""

import json
import math
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cbs import report, report_settings
from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from cbs.training.run import run_trial
from cbs.trial.config import OF_TRAINER, EvaluationPlan, TrialConfig
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.target import Target
from cbs.workloads import build_workload
from sweeps.external.curve import LoggedCurve, stated
from sweeps.external.process import Process
from sweeps.external.run import run_command
from sweeps.external.trainer import ExternalTrainer, trained_by
from sweeps.spec.axes import Axes, Cell
from sweeps.spec.spec import Sweep, prototype
from tests.sweeps.test_child import gone

UNITS = {"metric": "loss", "direction": "below", "metric_unit": "nats", "example_unit": "tree"}
PLACES = "{batch_size} {lr} {seed} {folder}"
ROOT = str(Path(__file__).parents[2])


def trainer(command: str = f"train {PLACES}", **options: Any) -> ExternalTrainer:
    return ExternalTrainer(**{**UNITS, "command": command, "reads": "jsonl", **options})


def trial(made: ExternalTrainer, **changes: Any) -> TrialConfig:
    target = Target(metric=made.metric, value=1.0)
    plain = {"optimizer": Choice(name="adamw"), "lr": 0.1, "batch_size": 8, "seed": 3, "max_steps": 10**9}
    return TrialConfig(**{"workload": made.choice(), "target": target, "probe": None, **plain, **changes})


def asked(*optimizers: str) -> Sweep:
    axes = Axes(optimizers=tuple(Choice(name=name) for name in optimizers), batch_sizes=(8,))
    return Sweep(name="asked", trial=prototype(workload=Choice(name="text")), axes=axes)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Write a program, train with it, and return the record."""

    def call(program: str, *, monitor: Any = None, options: Any = None, **changes: Any) -> TrialResult:
        script = tmp_path / "program.py"
        script.write_text(
            "import json, os, sys, time\nbatch, lr, seed, out = sys.argv[1:5]\nlog = open(out + '/log.jsonl', 'a')\n"
            "def say(step, loss):\n    log.write(json.dumps({'step': step, 'loss': loss}) + '\\n'); log.flush()\n"
            + textwrap.dedent(program)
        )
        made = trainer(**{"command": f"{sys.executable} -S {script} {PLACES}", **(options or {})})
        return run_command(trial(made, **changes), tmp_path / "runs" / "one", path=str(tmp_path), monitor=monitor)

    return call


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("further", "metric", "value", "problem"),
    [
        ({}, "eval_loss", 2.0, ""),
        ({}, "loss", 2.0, ""),
        ({"eval_loss": 3.0}, "eval_loss", 3.0, ""),
        ({"eval_loss": 3.0}, "loss", 2.0, ""),
        ({"eval_loss": 3.0}, "evalloss", None, "the log has no 'evalloss'"),
    ],
)
def test_what_is_reported_is_the_metric_whatever_it_is_called(further, metric, value, problem, tmp_path) -> None:
    made = trainer(reads="report", metric=metric)
    rows = [{"step": step, "examples": 8 * step, "loss": 2.0, **further} for step in (0, 5)]
    (tmp_path / "report.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curve = LoggedCurve(made, trial(made), tmp_path, resumed=False)
    curve.update(whole=True)
    assert [row.value for row in curve.evaluations] == ([] if value is None else [value, value])
    assert problem in curve.problem


def test_every_place_is_filled_and_no_shell_is_asked() -> None:
    made = trainer(
        "A=1 B='x={seed}' train '--note=a b; rm x' --b={batch_size} {lr} {seed} {folder}/x {optimizer} {beta2} {steps} "
        "{{x}} {resume}",
        resume="--from {folder}/last",
    )
    one = trial(made, optimizer=Choice(name="adamw", options={"beta2": 0.95}), lr=1e-5, max_steps=70)
    first = [*("env", "A=1", "B=x=3", "train", "--note=a b; rm x", "--b=8", "1e-05", "3"), "there/x"]
    first += ["adamw", "0.95", "70", "{x}"]
    assert made.argv(one, Path("there"), resumed=False) == first
    assert made.argv(one, Path("there"), resumed=True) == [*first, "--from", "there/last"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"command": "train {lr} {seed} {folder}"}, "every batch size would give the same run"),
        ({"command": "train {batch_size} {seed} {folder}"}, "every learning rate would give the same run"),
        ({"command": "train {batch_size} {lr} {seed}"}, "has no {folder}, so the program cannot know"),
        ({"command": f"train {PLACES} {{lr:.2f}}"}, "the name alone"),
        ({"command": f"train {PLACES} '"}, "No closing quotation"),
        ({"command": f"train {PLACES} }}"}, "for a brace"),
        ({"command": f"train {PLACES} --r={{resume}}", "resume": "x"}, "stand alone"),
        ({"command": f"train {PLACES} {{resume}}"}, "give what replaces it"),
        ({"resume": "x"}, "has no {resume}"),
        ({"reads": "stone"}, "no such format"),
        ({"metric": "step"}, "measures progress, not quality"),
    ],
)
def test_what_would_be_wrong_in_silence_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("{", r"\{")):
        trainer(**options)


def test_what_a_program_makes_of_the_rest_is_unknown_in_protocol_and_trials() -> None:
    made = trained_by(trainer(), asked("adamw"), 1.0, ())
    told = made.trial_at(Cell("adamw", 8, 0), 0.1).to_dict()
    for data in (made.protocol(), told):
        assert {name for name, value in data.items() if value == "unknown"} == set(OF_TRAINER)
        assert "warmup" not in json.dumps(data)
    assert made.protocol_fingerprint != made.replace(unknown=()).protocol_fingerprint


@pytest.mark.parametrize(
    ("told", "stated", "said"),
    [
        ('{"warmup_steps": 3, "precision": "bfloat16"}', {"warmup_steps": 3, "precision": "bfloat16"}, ""),
        ('{"warmup": 3}', {}, "unknown setting 'warmup'; known settings are warmup_steps, clip_norm"),
        ('{"warmup_steps": 2.5}', {}, "warmup_steps must be a whole number of at least 0, got 2.5"),
        ('{"clip_norm": NaN}', {}, "clip_norm must be a finite number"),
        ('{"precision": 16}', {}, "precision must be a name, got 16"),
        ("[1]", {}, "not a JSON object"),
        ("{", {}, "cbs-settings.json: "),
    ],
)
def test_a_program_may_say_its_settings_in_a_file(run: Any, told: str, stated: dict[str, Any], said: str) -> None:
    result = run(f"open(out + '/cbs-settings.json', 'w').write({told!r}); say(0, 4.0); say(10, 0.5)")
    assert (result.status is TrialStatus.FAILED, result.stated) == (bool(said), stated), result.message
    assert said in result.message


def test_a_script_says_its_settings_as_it_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report_settings(warmup_steps=5)  # outside a sweep
    monkeypatch.setenv("CBS_FOLDER", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    report_settings(warmup_steps=5)
    assert stated(tmp_path) == {}
    monkeypatch.setenv("RANK", "0")
    report_settings(warmup_steps=5, averaging="none")
    report_settings(warmup_steps=0, schedule="cosine", clip_norm=1.0)
    assert stated(tmp_path) == {"warmup_steps": 0, "schedule": "cosine", "clip_norm": 1.0}
    with pytest.raises(ConfigError, match="clip_norm must be"):
        report_settings(clip_norm=-1.0)


# -- the end -------------------------------------------------------------------------------------------------------


def test_the_target_ends_the_program_and_all_it_has_started(run: Any, tmp_path: Path) -> None:
    result = run("""
        import subprocess
        child = subprocess.Popen(["sleep", "60"])
        open(out + "/pid", "w").write(str(child.pid))
        say(0, 4.0); say(10, 2.0); say(20, 0.5); say(30, 0.1); time.sleep(60)
    """)
    assert result.status is TrialStatus.REACHED
    assert [row.step for row in result.evaluations] == [0, 10, 20]
    assert result.steps_to_target == pytest.approx(math.exp(math.log(10) + 2 / 3 * math.log(2)))
    assert [row.examples for row in result.evaluations] == [0, 80, 160]
    assert result.timing["seconds"] < 30
    assert gone(int((tmp_path / "runs/one/pid").read_text()))


def test_a_program_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w'); time.sleep(60)"
    process = Process([sys.executable, "-S", "-c", deaf], tmp_path, str(tmp_path), {}, grace=0.2)
    until((tmp_path / "ready").exists)
    process.end()
    assert process.code == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="what left its session is found by /proc")
@pytest.mark.parametrize("ends", ["time.sleep(60)", "say(20, 2.0)"])
def test_workers_in_sessions_of_their_own_end_with_the_program(run: Any, tmp_path: Path, ends: str) -> None:
    result = run(f"""
        import subprocess
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        between = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-Sc', {{deaf!r}}]).pid)"
        made = subprocess.run([sys.executable, "-Sc", between], start_new_session=True, stdout=open(out + "/pid", "w"))
        say(0, 4.0); say(10, 0.5 if "sleep" in {ends!r} else 3.0); {ends}
    """)
    assert result.status is (TrialStatus.REACHED if "sleep" in ends else TrialStatus.BUDGET_EXHAUSTED)
    assert gone(int((tmp_path / "runs/one/pid").read_text()))


def test_a_program_does_not_outlive_a_killed_worker(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(f"""
            import sys, time
            sys.path.insert(0, {ROOT!r})
            from pathlib import Path
            from sweeps.external.process import Process
            process = Process(["sh", "-c", "echo $$ > pid; sleep 60"], Path("."), ".", {{}}, grace=1.0)
            time.sleep(60)
        """)], cwd=tmp_path,
    )  # fmt: skip
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("say(0, 4.0); say(10, float('nan'))", "DIVERGED", "loss is nan at step 10, 4 at the start"),
        ("say(0, 4.0); say(10, 40.0)", "DIVERGED", "loss is 40 at step 10, 4 at the start"),
        ("say(5, 1.001); say(10, 3.0)", "BUDGET_EXHAUSTED", "the command ended by itself at step 10; last value 3"),
        ("say(0, 0.9)", "REACHED", "before the first step"),
        ("say(7, 0.9)", "REACHED", "first evaluation, step 7: the steps are an upper bound"),
        ("say(0, 4.0); say(10, 2.0)", "BUDGET_EXHAUSTED", "the command ended by itself at step 10; last value 2"),
        ("say(0, 4.0); print('so\\n  ^^~\\nlong'); sys.exit(3)", "FAILED", "exit code 3; its last output: so | long"),
        ("say(0, 4.0); os.kill(os.getpid(), 9)", "FAILED", "signal 9 (SIGKILL); it printed nothing"),
        ("say(0, 4.0); print('\\33[2Jgone\\0'); sys.exit(3)", "FAILED", "its last output: \ufffd[2Jgone\ufffd"),
        ("__import__('shutil').rmtree(out); print('bye')", "FAILED", "after step 0; its last output: bye"),
        ("say(0, 4.0); say(10, float('inf')); sys.exit(3)", "DIVERGED", "loss is inf at step 10"),
        ("say(0, 4.0); print('bye')", "FAILED", "logged no 'loss' after step 0; its last output: bye"),
        ("print('bye')", "FAILED", "logged no 'loss' after step 0; its last output: bye"),
        ("log.write('{\"step\": 1, \"other\": 2}\\n')", "FAILED", "the log has no 'loss'; it has other"),
        ("say(1, 4.0); say(1, 5.0)", "FAILED", "two values at step 1"),
        ("say(0, 4.0); say(10, 3.0); say(5, 2.0); say(15, 0.5)", "FAILED", "the log goes back from step 10 to 5"),
        ("log.write('{\"step\": 1, ')", "FAILED", "line 1: not a JSON object"),
        ("say(-5, 4.0)", "FAILED", "at least 0"),
    ],
)  # fmt: skip
def test_every_way_to_end_has_one_line(run: Any, program: str, status: str, said: str) -> None:
    result = run(program)
    assert (str(result.status), said in result.message) == (status, True), result.message
    assert "\n" not in result.message
    assert "cbs-log-" not in result.message


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("say(0, 4.0); say(10, 0.5); say(20, 0.7)", "BUDGET_EXHAUSTED", "trained to its budget; last loss 0.7"),
        ("say(0, 4.0); say(10, 0.5)", "FAILED", "its last evaluation is at step 10 of 20: the program must make"),
        ("say(0, 4.0); say(10, 0.5); say(20, float('nan'))", "DIVERGED", "loss is nan at step 20"),
    ],
)
def test_a_program_that_trains_to_a_budget_passes_its_target_and_has_to_get_there(
    run: Any, program: str, status: str, said: str
) -> None:
    result = run(program, stops_at_target=False, max_steps=20)
    assert (str(result.status), said in result.message) == (status, True), result.message


def test_a_sweep_to_a_budget_needs_no_target_but_a_program_that_is_told_its_steps() -> None:
    with pytest.raises(ConfigError, match=r"--command has no \{steps\}"):
        trained_by(trainer(), asked("adamw"), None, (), (80,))
    made = trained_by(trainer(f"train {PLACES} {{steps}}"), asked("adamw"), None, (), (80,))
    one = made.trial_at(Cell("adamw", 8, 0), 0.1)
    assert (one.max_steps, one.stops_at_target, one.target.metric) == (10, False, "loss")
    assert trainer(f"train {PLACES} {{steps}}").argv(one, Path("x"), resumed=False)[-1] == "10"


def test_a_budget_and_a_monitor_end_it(run: Any) -> None:
    long = "for step in range(0, 4000, 10): say(step, 2.0); time.sleep(0.01)\ntime.sleep(60)"
    exhausted = run(long, max_steps=35)
    assert (exhausted.status, exhausted.final_step) == (TrialStatus.BUDGET_EXHAUSTED, 40)
    asked: list[int] = []

    def monitor(rows: Any) -> Any:
        asked.append(rows[-1].step)
        return (TrialStatus.PRUNED, "") if rows[-1].step >= 50 else None

    pruned = run(long, monitor=monitor)
    assert pruned.status is TrialStatus.PRUNED
    assert asked == sorted(set(asked))
    assert pruned.final_step == asked[-1] >= 50


def test_a_trial_that_was_cut_short_goes_on_where_it_can_and_else_starts_anew(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    left = [{"step": step, "loss": 4.0 - step / 10} for step in (0, 10, 20, 25)]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in left))
    command = f"{sys.executable} -S {tmp_path}/program.py {PLACES} {{resume}}"
    result = run(
        "assert sys.argv[5:] == ['--from', out + '/log.jsonl']; say(20, 1.9); say(30, 0.5)",
        options={"command": command, "resume": "--from {folder}/log.jsonl"},
    )
    assert [(row.step, row.value) for row in result.evaluations] == [(0, 4.0), (10, 3.0), (20, 1.9), (30, 0.5)]
    anew = run("say(0, 3.0); say(10, 0.5)")
    assert [(row.step, row.value) for row in anew.evaluations] == [(0, 3.0), (10, 0.5)]
    assert (tmp_path / "runs" / "one~1" / "log.jsonl").exists()


def test_a_program_that_resumes_and_counts_from_its_first_step_again_is_refused(run: Any, tmp_path: Path) -> None:
    options = {"command": f"{sys.executable} -S {tmp_path}/program.py {PLACES} {{resume}}", "resume": "--from x"}

    def again(program: str, *left: tuple[int, float]) -> TrialResult:
        folder = tmp_path / "runs" / "one"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.jsonl").write_text("".join(json.dumps({"step": s, "loss": v}) + "\n" for s, v in left))
        return run(program, options=options)

    for first in (0, 10):
        counted = again(f"say({first}, 2.1); say(20, 1.5); say(30, 0.5)", (0, 4.0), (10, 3.5), (20, 3.0), (30, 2.2))
        assert counted.status is TrialStatus.FAILED
        assert f"back at step {first} with 2.1, where it had" in counted.message
    anew = again("say(0, 4.1); say(10, 0.5)", (0, 4.0), (10, 3.5), (20, 3.0))  # it had saved nothing yet
    assert [row.value for row in anew.evaluations] == [4.1, 0.5]
    noisy = again("say(10, 2.2); say(30, 0.5)", (0, 4.0), (5, 3.0), (10, 2.6), (20, 2.1))
    assert [row.value for row in noisy.evaluations] == [4.0, 3.0, 2.2, 0.5]


# -- the same numbers ----------------------------------------------------------------------------------------------


def own_loop(batch_size: int, lr: float, seed: int) -> None:
    """SGD on the noisy quadratic, to the target."""
    workload = build_workload(QUADRATIC)
    with seeding.seeded(seed, "init"):
        model = workload.build_model()
    stream = workload.training_stream(seeding.generator(seed, "data"))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    step, plan, value = 0, EvaluationPlan(), workload.validate(model)
    start, before = value, None
    report(0, 0, start, validation_loss=start)
    while not TARGET.reached(value):
        latest = step, TARGET.distance(value) / TARGET.distance(start)
        until, before = plan.next_step(*latest, before), latest
        while step < until:
            step += 1
            optimizer.zero_grad()
            workload.example_losses(model, stream.next(batch_size)).mean().backward()
            optimizer.step()
        with torch.no_grad():
            value = float(workload.validate(model))
        report(step, step * batch_size, value, validation_loss=value)


QUADRATIC = Choice(name="noisy_quadratic", options={"dimension": 20})
TARGET = Target(metric="validation_loss", value=0.3)


def test_the_same_model_takes_the_same_steps_as_inside_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop runs in this process, and the program leaves what it has reported."""
    monkeypatch.setenv("CBS_FOLDER", str(tmp_path))
    own_loop(16, 0.5, 1)
    shared = {"lr": 0.5, "batch_size": 16, "seed": 1, "target": TARGET, "max_steps": 3000, "probe": None}
    plain = Choice(name="sgd", options={"momentum": 0.0})
    inside = run_trial(TrialConfig(workload=QUADRATIC, optimizer=plain, **shared))
    command = f"""sh -c 'cp "$0" "$1"' {tmp_path}/report.jsonl {{folder}} {{batch_size}} {{lr}} {{seed}}"""
    made = ExternalTrainer(**{**UNITS, "metric": "validation_loss", "command": command})
    program = TrialConfig(workload=made.choice(), optimizer=Choice(name="sgd"), **shared)
    outside = run_command(program, tmp_path / "run", path=str(tmp_path))
    assert outside.status is inside.status is TrialStatus.REACHED, outside.message
    assert outside.steps_to_target == inside.steps_to_target
    assert [(r.step, r.examples, r.value) for r in outside.evaluations] == [
        (r.step, r.examples, r.value) for r in inside.evaluations
    ]


def until(true: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
