"""The command line as a person meets it: help, one clear line for a mistake, machine-readable output."""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import cli
from analysis.estimate.definitions import DEFINITIONS
from analysis.figure_options import VENUES
from analysis.read.importers import IMPORTERS
from cbs.optimizers import OPTIMIZERS
from cbs.registry import listed
from cbs.workloads import WORKLOADS
from sweeps.recipes import RECIPES
from tests.cases import of_extensions
from tests.factories import Truth, sweep
from tests.parameters import COMMANDS, flags_of, kind

ROOT = Path(__file__).resolve().parents[1]
PLACES = [ROOT / "sweeps" / "commands", *ROOT.glob("analysis/*/*/commands"), *ROOT.glob("extensions/*/commands")]
EXPECTED = (
    {
        " ".join([*path.relative_to(folder).parts[:-1], path.stem.strip("_").replace("_", "-")])
        for folder in PLACES
        for path in folder.rglob("*.py")
        if path.stem != "__init__"
    }
    | {
        path.parent.name
        for folder in PLACES
        for path in folder.glob("*/__init__.py")
        if "def command(" in path.read_text()
    }
    | {
        path.parent.name.strip("_").replace("_", "-")
        for path in [*ROOT.glob("analysis/*/*/command.py"), *ROOT.glob("extensions/*/command.py")]
    }
)


COMPLETED = [package for packages in of_extensions("COMPLETED") for package in packages]

HEAVY = ("torch", "ray", "pandas", "numpy", "scipy", "matplotlib", "pyarrow")  # What help does without
UNUSED = ("torch", "ray", "matplotlib", "scipy.stats")  # What an analysis without figures does without


def one_line(text: str) -> bool:
    return text.startswith("cbs: ") and text.count("\n") == 1 and "Traceback" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_two_examples_and_nothing_cut(run, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    examples = [example.split("\n\n")[0] for example in out.split("  Example: ")[1:]]
    assert len(examples) == 2
    for example in examples:
        name, *words = shlex.split(example)[1:]
        nested = " ".join([name, *words[:1]])
        name, words = (nested, words[1:]) if nested in COMMANDS else (name, words)
        assert (f"{name} " + " ".join(words)).startswith(command)
        COMMANDS[name].make_context(name, words)


def test_rare_options_of_a_sweep_are_shown_when_asked_for(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, short, _ = run("sweep", "--help")
    code, long, _ = run("sweep", "--help-all")
    assert code == 0
    assert len(short.splitlines()) <= 52
    every = {flag for option in COMMANDS["sweep"].params for flag in option.opts}
    assert {flag for flag in every if re.search(rf"(?<![\w-]){flag}(?![\w-])", long)} == every
    assert {"--optim", "--target", "--command", "--help-all"} <= set(short.split())
    assert {"--resume", "--schedule"}.isdisjoint(short.split())
    assert run("analyze", "--help-all")[0] == 2  # where nothing is hidden there is no such flag


@pytest.mark.parametrize("package", ["cbs.optimizers", "cbs.workloads", "sweeps.recipes", *COMPLETED])
def test_the_shell_completes_names_wherever_one_is_asked_for(package):
    names = listed(package)
    asking = [
        (command, parameter)
        for command in cli.commands().values()
        for parameter in command.params
        if names in (getattr(parameter, "help", "") or "") and parameter.name != "source"  # a folder, as a rule
    ]
    assert asking
    for command, parameter in asking:
        found = parameter.shell_complete(typer.Context(command), names[:2])
        assert names.split(", ")[0] in {entry.value for entry in found}, (command.name, parameter.name)


def test_the_commands_are_all_there_and_no_others(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("--help")
    assert code == 0
    assert set(COMMANDS) == EXPECTED
    assert "..." not in out.split("Options:")[1]  # the first sentence of each fits a terminal of 80 columns
    assert len(out.splitlines()) <= 20 + len(COMMANDS)
    under = {panel: re.findall(r"^  ([\w-]+)  ", rows, re.MULTILINE) for panel, rows in panels(out).items()}
    assert [*under] == [*cli.PANELS]
    assert all(under.values())
    assert sorted(name for names in under.values() for name in names) == sorted(
        {command.partition(" ")[0] for command in EXPECTED}
    )
    assert under["Begin"] == ["sweep", "analyze"]
    assert {"optimizers", "status"} <= {*under["Measure"]}
    assert {"fit", "compare"} <= {*under["Analyze"]}
    assert {"import"} <= {*under["Bring your data"]}


def panels(out):
    """What stands under each heading but the options, by the heading."""
    parts = re.split(r"^(\S[^\n]*):\n", out, flags=re.MULTILINE)[1:]
    return {name: rows for name, rows in zip(parts[::2], parts[1::2], strict=True) if name != "Options"}


def test_version_and_no_arguments(run):
    assert run("--version")[1].startswith("cbs 0.")
    assert "sweep" in run()[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_number_is_one_line_that_names_the_flag(run, command):
    for flag in flags_of(command):
        if flag.startswith("-") and kind(command, flag) in (int, float):
            code, out, err = run(*command.split(), flag, "many")
            assert (code, out, one_line(err)) == (2, "", True), flag
            assert re.search("valid (number|integer|float|int)", err)
            assert flag in err


IMPORTED = (
    "-o", "out", "--metric", "loss", "--direction", "below", "--target", "3", "--metric-unit", "nats",
    "--example-unit", "sequence",
)  # fmt: skip

NAMES = [
    ("sweep", "--optim", OPTIMIZERS),
    ("sweep", "--recipe", RECIPES),
    ("sweep", "--workload", WORKLOADS),
    ("optimizers", "--workload", WORKLOADS),
    ("import", "--format", IMPORTERS),
    *(names for those in of_extensions("NAMES") for names in those),
    *((command, "--definition", DEFINITIONS) for command in COMMANDS if "--definition" in flags_of(command)),
    *((command, "--figures", VENUES) for command in COMMANDS if "--figures" in flags_of(command)),
]


@pytest.mark.parametrize(("command", "flag", "names"), NAMES, ids=[" ".join(entry[:2]) for entry in NAMES])
def test_help_names_what_a_flag_takes(run, command, flag, names):
    parameters = COMMANDS[command].params
    (text,) = (each.help for each in parameters if flag in (*each.opts, each.metavar))
    assert ", ".join(names) in text


def test_help_imports_nothing_heavy():
    every = [[], ["--help"], *([*command.split(), "--help"] for command in COMMANDS)]
    code = (
        "import contextlib, io, os, sys, cli\n"
        "os.environ.pop('OPENBLAS_NUM_THREADS', None)\n"
        f"for words in {every}:\n"
        "    sys.argv = ['cbs', *words]\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): cli.main()\n"
        f"    print(words, [name for name in {HEAVY} if name in sys.modules])\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'])"  # which numpy then reads
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.splitlines() == [*(f"{words} []" for words in every), "1"]


def test_answers_without_figures_do_without_drawing_and_training(tmp_path):
    sweep(tmp_path / "there", {"adamw": Truth(), "muon": Truth()}, batch_sizes=(2, 8, 32, 128), lrs=(1e-3, 2e-3))
    (tmp_path / "steps.csv").write_text("batch_size,steps\n8,1100\n32,405\n128,233\n")
    there = [str(tmp_path / "there"), "--figures=none"]
    code = (
        "import contextlib, sys, cli\n"
        f"for words in ['fit', {str(tmp_path / 'steps.csv')!r}], {['analyze', *there]}, {['compare', *there]}:\n"
        "    sys.argv = ['cbs', *words, '--resamples', '100']\n"
        "    with contextlib.suppress(SystemExit): cli.main()\n"
        f"    print([name for name in {UNUSED} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.splitlines().count("[]") == 3
    assert answer.stdout.count("Critical batch size") >= 2
    assert "muon" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "--optim", "merti"], ["merti", "did you mean merit"]),
        (["sweep", "--optim", "muon(nestrov=false)"], ["'nestrov'", "did you mean 'nesterov'"]),
        (["sweep", "--optim", "muon(nesterov=false"], ["closing parenthesis", "name(option=value, ...)"]),
        (["sweep", "--optim", "muon", "--optim", "muon(nesterov=true)"], ["muon(nesterov=true)", "are the same run"]),
        (["sweep", "--set", "optimizer.weight_dcay=1"], ["weight_dcay", "did you mean weight_decay"]),
        (["sweep", "--recipe", "quik"], ["quik", "did you mean quick"]),
        (["sweep", "--workload", "txt"], ["txt", "did you mean text"]),
        (["sweep", "--workload", "no.such:thing"], ["no.such"]),
        (["sweep", "--batch-sizes", "4,x"], ["--batch-sizes", "whole numbers"]),
        (["sweep", "--lrs", "-1"], ["learning rates must be", "-1"]),
        (["sweep", "--workers", "0"], ["workers"]),
        (
            ["sweep", "--set", "policy=once", "--max-runs", "9"],
            ["--set policy", "--max-runs", "leave one of the two out"],
        ),
        (["sweep", "--set", "shard=2"], ["shard", "true or false"]),
        (["sweep", "--set", "shard=true"], ["--set shard needs --workers-per-trial"]),
        (["sweep", "--set", "probe=splt"], ["splt", "did you mean split"]),
        (["sweep", "--set", "probe.geometry=l3"], ["l3", "did you mean"]),
        (["sweep", "--optim", "sgd", "--set", "probe.geometry=preconditioned"], ["second moment"]),
        (["optimizers", "merti"], ["merti", "did you mean merit"]),
        (["optimizers", "--workload", "text"], ["names of optimizers"]),
        (["optimizers", "adamw", "--workload", "text"], ["adamw", "nothing to show"]),
        (["optimizers", "muon", "--workload", "text", "--set", 'muon.matrices=["bloks.*"]'], ["bloks", "blocks."]),
        (["status", "--confidence", "0.9"], ["--confidence", "has no intervals"]),
        (["sweep", "--set", "workload.data=/no/such/file.txt"], ["/no/such/file.txt"]),
        (["sweep", "--set", "device=abacus"], ["device", "abacus"]),
        (["sweep", "--target", "nan"], ["target"]),
        (["sweep", "--address", "nowhere"], ["nowhere", "host:port"]),
        (["sweep", "--target", "9"], ["before the first step", "harder"]),
        (["sweeep"], ["sweeep", "sweep"]),
        *(([command, "/no/such/folder"], ["/no/such/folder", "cbs sweep"]) for command in ("analyze", "compare")),
        *(mistake for mistakes in of_extensions("MISTAKES") for mistake in mistakes),
        *(([*command.split(), "--flag"], ["--flag", f"{command} --help"]) for command in COMMANDS),
        (["sweep", "--schedule", "saw", "--dry-run"], ["saw", "seesaw"]),
        (["sweep", "--schedule", "seesaw", "--dry-run"], ["'constant' does not decay"]),
        (["sweep", "--schedule", "norm_test", "--set", "probe=none", "--dry-run"], ["norm_test", "probe"]),
        (["sweep", "--set", "schedule.alpha=2", "--dry-run"], ["no batch schedule of the sweep (constant)", "alpha"]),
        *(
            ([command, *more, "--confidence", "2"], ["confidence", "between 0 and 1"])
            for command, *more in (["analyze"], ["compare"], ["fit", "steps.csv"])
        ),
        *(
            ([command, *more, "--resamples", "99"], ["resamples", "at least 100"])
            for command, *more in (["analyze"], ["compare"], ["fit", "steps.csv"])
        ),
        (["analyze", "--figures", "icl"], ["icl", "did you mean icml"]),
        (["compare", "--throughput", "/no/such.csv"], ["/no/such.csv"]),
        (["compare", "--throughput", "assumed(step_latency=1)"], ["assumed(examples_per_second_per_device=NUMBER)"]),
        (["fit"], ["Missing argument", "fit --help"]),
        (["fit", "/no/such.csv"], ["/no/such.csv"]),
        (["fit", "steps.csv", "--column", "steps"], ["--column", "OURS=THEIRS"]),
        (["import"], ["SOURCE", "-o FOLDER", "--metric"]),
        (["import", "/no/such.csv", *IMPORTED], ["/no/such.csv"]),
        (["import", "runs.csv", *IMPORTED, "--format", "tabel"], ["tabel", "did you mean table"]),
        (["import", "runs.csv", *IMPORTED, "--direction", "up"], ["direction", "up"]),
        (["optimizers", "muon", "--libraries"], ["--libraries", "without names"]),
        (["optimizers", "muon", "--set", "muon.matrices=all"], ["--set", "--workload"]),
        (["sweep", "--batch-sizes", "4.."], ["--batch-sizes 4..", "two ends"]),
        (["sweep", "--set", "within=0.5", "--dry-run"], ["within", "--budget"]),
        (["sweep", "--set", "cpus_per_trial=100000"], ["100000 cores", "this machine"]),
        (["sweep", "--set", "trial_timeout=0"], ["timeout", "above 0"]),
        (["status", "nowhere"], ["nowhere", "does not exist"]),
    ],
)
@pytest.mark.usefixtures("children_here")
def test_a_mistake_is_one_clear_line_and_exit_code_2(run, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments, *(["--dry-run"] if arguments[0] == "sweep" else []))
    assert code == 2, err
    assert out == ""
    assert one_line(err), err
    for word in words:
        assert word in err


def test_a_cluster_that_is_not_there_is_one_clear_line_within_seconds(run, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused at once
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = run("sweep", "--workload", "noisy_quadratic", "--address", address, "-o", tmp_path / "out")
    assert code == 2
    assert one_line(err), err
    assert address in err


def test_an_output_that_cannot_be_written_is_one_clear_line_before_anything_is_timed(run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("sweeps.launching.launch.resolve", lambda *_: pytest.fail("data would have been loaded"))
    code, _, err = run("sweep", "--workload", "noisy_quadratic", "-o", tmp_path / "file" / "results")
    assert code == 2
    assert one_line(err)
    assert str(tmp_path / "file") in err


@pytest.mark.parametrize("content", ["empty", "foreign", "half", "version"])
def test_an_unusable_results_folder_is_one_clear_line(run, tmp_path, content):
    folder = tmp_path / "results"
    folder.mkdir()
    if content == "foreign":
        (folder / "model.bin").write_bytes(b"\0" * 10)
    elif content == "half":
        (folder / "sweep.json").write_text('{"schema_version": 1, "na')
    elif content == "version":
        (folder / "sweep.json").write_text('{"schema_version": 99}')
    code, _, err = run("analyze", folder)
    assert code == 2
    assert one_line(err), err
    assert str(folder) in err


@pytest.mark.usefixtures("children_here")
def test_dry_run_counts_trials_and_runs_nothing(run, tmp_path):
    words = "sweep --recipe quick --optim adamw --optim sgd --batch-sizes 4,8 --seeds 1 --dry-run"
    arguments = words.split()
    code, out, _ = run(*arguments, "--json", "-o", tmp_path / "out")
    report = json.loads(out)
    assert code == 0
    assert 2 * 2 * 3 <= report["trials"] <= 2 * 2 * 4  # one more where the noise leaves a bracket open
    assert report["axes"]["optimizers"] == ["adamw", "sgd"]
    assert report["seconds"] > 0
    assert report["examples"] > 0
    assert not (tmp_path / "out").exists()
    code, out, _ = run(*arguments, "-o", tmp_path / "out")
    assert f"{report['trials']} to run" in out
    assert "time" in out


@pytest.mark.usefixtures("children_here")
def test_a_dry_run_refuses_a_folder_that_the_sweep_itself_refuses(run, tmp_path):
    store = sweep(tmp_path / "theirs", {"adamw": Truth()}, batch_sizes=(4, 8), lrs=(8e-3,))
    store.write_manifest({"name": "theirs", "protocol": {}, "imported": [{"source": "runs.csv"}]})
    code, _, err = run("sweep", "--optim", "adamw", "--batch-sizes", "4,8", "--dry-run", "-o", tmp_path / "theirs")
    assert (code, one_line(err)) == (2, True), err
    assert "theirs holds imported runs" in err
    words = ["sweep", "--optim", "adamw", "--batch-sizes", "4,8", "--dry-run", "-o", tmp_path / "theirs"]
    code, _, err = run(*words, "--axis", "clip_norm=1,2")  # in folders beside it
    assert code == 0, err


@pytest.mark.usefixtures("children_here")
def test_a_model_that_fails_is_one_clear_line_before_anything_is_launched(run, tmp_path, monkeypatch):
    monkeypatch.setattr("sweeps.running.cluster.PrestartedRay", lambda _: contextlib.nullcontext())
    monkeypatch.setattr("sweeps.launching.launch.sweep", lambda *_, **__: pytest.fail("it would have been launched"))
    (tmp_path / "clumsy.py").write_text(
        "from cbs.workloads import build_workload\n"
        "from cbs import Choice\n"
        "def clumsy():\n"
        "    workload = build_workload(Choice(name='noisy_quadratic'))\n"
        "    workload.example_losses = lambda model, batch: 1 / 0\n"
        "    return workload\n"
    )
    monkeypatch.chdir(tmp_path)
    code, _, err = run("sweep", "--workload", "clumsy:clumsy", "-o", tmp_path / "out")
    assert code == 2
    assert one_line(err), err
    assert "first step: ZeroDivisionError" in err
    assert not (tmp_path / "out").exists()


def test_a_locale_without_unicode_no_home_and_a_name_that_is_no_text(tmp_path):
    sweep(tmp_path / "here", batch_sizes=(4, 16, 64), lrs=(1e-3, 2e-3, 4e-3), name="größe")
    folder = os.fsencode(tmp_path) + "/größe-☃-".encode() + b"\xe9"
    os.rename(tmp_path / "here", folder)
    where = {"LC_ALL": "C.ISO-8859-1", "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(ROOT / "cli.py"), "analyze", folder, "--resamples", "100", "--figures", "none"]
    answer = subprocess.run(words, capture_output=True, env=where, cwd=tmp_path, check=False)
    assert answer.returncode == 0, answer.stderr
    assert b"Traceback" not in answer.stderr
    assert answer.stdout


def test_the_shell_completes_commands_and_flags(tmp_path):
    expected = {"cbs swe": "sweep", "cbs sweep --opt": "--optim", "cbs sweep --optim mer": "merit"}
    for words, completed in expected.items():
        place = str(words.count(" "))
        answer = subprocess.run(
            [sys.executable, "-c", "import sys, cli; sys.argv = ['cbs']; cli.main()"],
            cwd=tmp_path,
            env={**os.environ, "_CBS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place},
            capture_output=True,
            text=True,
        )
        assert answer.stdout.split() == [completed], answer.stderr
