"""Every command line of the guides and the README is understood, and those that train nothing run.

A sweep runs as ``--dry-run`` without its timing; what reads results reads a small written sweep under the name that the
page has; what reads somebody's files gets as far as looking for them.
"""

import ast
import contextlib
import functools
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cli
from analysis.read.importers.settings import FACTS
from cbs.optimizers import OPTIMIZERS
from cbs.registry.commands import INTERVALS_ANYWHERE
from sweeps.outlook.cost import Cost
from tests.cases import of_extensions
from tests.factories import LRS, Truth, sweep
from tests.kinds import kinds_of

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "results" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z,_]*\b|\.\.\.|\{|\\\|")
OTHERS = {
    *("--training.num_tokens_per_train_step", "--training.global_batch_size", "--step-batch-size-schedule"),
    "--train-samples",
    *(
        "--seq-length",
        "--master-port",
        "--main_process_port",
        "--lr_scheduler.total_steps",
        "--dump_folder",
        "--nodes",
        "--anywhere",
        "--lr_scheduler_type",
        "--save_strategy",
        "--save_steps",
        "--eval_steps",
        *("--disable_tqdm", "--decay_lr", "--device", "--compile", "--rampup-batch-size", "--train.log_interval"),
        *("--train.min_lr", "--lr_scheduler.decay_ratio"),
    ),
}
"""Flags of other programs that the pages speak of."""


STANDS_FOR = {
    "RESULTS": "results",
    "FOLDER": "results",
    "NAME": "adamw",
    "FILE": "throughput.csv",
    "RESULTS_OR_RECIPE": "quick",
}


def command_lines() -> dict[str, set[str]]:
    """The command lines, and the flags that stand alone, each with the pages that have it."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        lines = [line.strip() for block in FENCE.findall(text) for line in block.splitlines()]
        lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
        for line in lines:
            for part in line.split(" && "):
                if re.match(r"cbs [a-z]|--[a-z]", part):
                    found.setdefault(part, set()).add(page.name)
    return found


def pasted(text: str) -> list[list[str]]:
    """The words of every command of cbs that a shell makes of a text; programs of others do nothing.

    Raises:
        CalledProcessError: if a line is no command: what went before it lacks its backslash.
    """
    shell = "set -e\nPATH=\npython() { :; }\ncbs() { printf '%s\\0' \"$@\"; echo; }\n" + text
    answer = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    return [line.split("\0") for line in answer.stdout.split("\0\n")[:-1]]


EXAMPLES = {
    path.name: [part for part in said.split("\n\n") if re.search(r"^cbs ", part, re.MULTILINE)]
    for path in sorted((ROOT / "docs" / "examples").glob("*.py"))
    if (said := ast.get_docstring(ast.parse(path.read_text()))) is not None
}


def test_commands_of_the_examples_can_be_pasted() -> None:
    commands = [words for parts in EXAMPLES.values() for part in parts for words in pasted(part)]
    assert len(commands) == 5
    for words in commands:
        understood(*split(words))


def test_commands_of_several_lines_can_be_pasted() -> None:
    blocks = [block for page in PAGES for block in FENCE.findall(page.read_text()) if re.search(r"^ *cbs ", block)]
    assert sum("\\\n" in block for block in blocks) >= 10
    assert [block for block in blocks if re.search(r"[^\\]\n\s*-", block)] == []


LINES = command_lines()
COMMANDS = {line: shlex.split(line, comments=True)[1:] for line in LINES if line.startswith("cbs ")}
FLAGS = {line: shlex.split(line) for line in LINES if line.startswith("--")}


FAR = {"--address", "--gpus-per-trial", "--workers-per-trial", "--log", "--precision"}
"""Flags of a sweep that ask a server, a cluster, a device or a package, or for another flag: parsed alone."""

MODELS = {
    name[1]: block
    for page in PAGES
    for block in FENCE.findall(page.read_text())
    if (name := re.match(r"# (my_\w+)\.py\n", block))
} | {path.stem: path.read_text() for path in sorted((ROOT / "docs" / "examples").glob("my_*.py"))}
"""Files of a reader's own that pages show or link to, by their names."""

Run = Callable[..., tuple[int, str, str]]


@functools.cache
def known() -> dict[str, Any]:
    return cli.commands()


def split(words: list[str]) -> tuple[str, list[str]]:
    """The name of a command and what follows it."""
    name = " ".join(words[:2]) if " ".join(words[:2]) in known() else words[0]
    return name, words[len(name.split()) :]


def flags_of(name: str) -> set[str]:
    command = known()[name]
    everywhere = INTERVALS_ANYWHERE if getattr(command.callback, "intervals", False) else ()
    return {*everywhere, *(flag for param in command.params for flag in (*param.opts, *param.secondary_opts))}


def understood(name: str, words: list[str]) -> None:
    """Raises what the parser raises."""
    known()[name].make_context(name, list(words), resilient_parsing=False)


def complete(line: str) -> tuple[str, list[str]] | None:
    """The command and its words, placeholders filled in; ``None`` where a page only speaks of it or of a flag."""
    name, words = split(COMMANDS[line])
    if not words or "..." in words or "--help" in words:
        return None
    words = [STANDS_FOR.get(word, word) for word in words]
    with contextlib.suppress(cli.UsageError):
        understood(name, words)
        return name, words
    with contextlib.suppress(cli.UsageError):  # the page speaks of a flag alone, and not of what is read
        understood(name, ["results", *words])
        return name, ["results", *words]
    return None if len(words) == 1 and words[0] in flags_of(name) else (name, words)


def test_command_lines_are_parsed() -> None:
    for line in COMMANDS:
        name, words = split(COMMANDS[line])
        assert name in known(), line
        assert {word for word in words if re.match("--[a-z]", word)} <= flags_of(name) | {"--help"}, line
        if (found := complete(line)) is not None:
            understood(*found)


CORPUS = "\n\n".join(f"Line {n} of a text, {n * n}." for n in range(20_000))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the models, tables and texts that the pages name; nothing is timed or started ahead."""
    monkeypatch.chdir(tmp_path)
    for name, source in MODELS.items():
        (tmp_path / f"{name}.py").write_text(source)
    own = "import torch\nclass Heavy(torch.optim.SGD): ...\nclass MyOptimizer(Heavy):\n    lr_grid = (1e-3, 2e-3)\n"
    (tmp_path / "my_module.py").write_text(own)
    (tmp_path / "corpus.txt").write_text(CORPUS)
    sizes = [2**power for power in range(3, 11)]
    rows = [f"{size},{100 * (1 + 64 / size):.1f}" for size in sizes]
    (tmp_path / "steps.csv").write_text("\n".join(["batch_size,steps", *rows]))
    for name in ("train.py", "finetune.py"):
        (tmp_path / name).touch()
    monkeypatch.setattr("sweeps.external.asked.shutil.which", lambda program: program)
    monkeypatch.setattr("sweeps.launching.loop.timed_apart", lambda *arguments: Cost())
    monkeypatch.setattr("sweeps.running.child.Child", lambda *arguments: contextlib.nullcontext())
    for name in (*MODELS, "my_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


COMPLETE = {line: found for line in COMMANDS if (found := complete(line)) is not None}
STOPS = {"--from results/": "no results at results/", "--from-checkpoint": "no checkpoint at"}
"""Why sweeps that are understood end where their files are missing."""


def news(lines: list[str], of: Callable[[str], set[str]]) -> list[str]:
    """The lines that have something which none before them has."""
    seen: set[str] = set()
    return [line for line in lines if not of(line) <= seen and not seen.update(of(line))]


SWEEPS = [line for line, (name, _) in COMPLETE.items() if name == "sweep"]


def asked_of(line: str) -> set[str]:
    """Flags, and settings and choices without their values."""
    words = COMPLETE[line][1]
    return {re.split(r"[=(.]", word)[0] if word[0] != "-" else word for word in words if re.match("--|[a-z]", word)}


@pytest.mark.parametrize("line", kinds_of(SWEEPS, news(sorted(SWEEPS, key=len, reverse=True), asked_of)))
def test_a_sweep_is_planned(line: str, run: Run, place: Path) -> None:
    words = COMPLETE[line][1]
    if not FAR.isdisjoint(words):
        return
    code, out, err = run("sweep", *words, "--dry-run")
    stops = [why for part, why in STOPS.items() if part in line]
    assert code == (2 if stops else 0), err
    assert re.search(*stops, err) if stops else "trials" in out


@pytest.mark.parametrize("line", [line for line, (name, _) in COMPLETE.items() if name == "import"])
def test_an_import_asks_for_no_more_than_its_source(
    line: str, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, words = COMPLETE[line]
    monkeypatch.setitem(sys.modules, "wandb", None)  # seconds of imports, to ask a server that is not there
    code, _, err = run("import", *words)
    assert code == 2
    missing = ("missing: SOURCE",) if words == ["--add"] else (words[0].split("/")[0], "wandb", "package")
    assert any(word in err for word in missing), err


RUN = ("fit", "compare", "status", "optimizers", *(name for names in of_extensions("RUN") for name in names))
"""Those that take a second or two on a small sweep."""


BESIDE = [name for names in of_extensions("BESIDE_A_SWEEP") for name in names]
QUICK = {name: when for each in of_extensions("QUICK") for name, when in each.items()}


def is_quick(name: str, words: list[str]) -> bool:
    """Whether an extension says that this command line takes no longer, without fewer resamples."""
    return name in QUICK and QUICK[name](words)


ALIKE = {
    (name, *("results" if word.startswith("results") else word for word in words)): line
    for line, (name, words) in COMPLETE.items()
    if name in RUN or is_quick(name, words)
}
"""The lines to run; of those that differ in the folder alone, one."""


@pytest.mark.parametrize("line", kinds_of(ALIKE.values(), news([*ALIKE.values()], lambda line: {COMPLETE[line][0]})))
def test_a_command_runs(line: str, run: Run, place: Path) -> None:
    name, words = COMPLETE[line]
    if "throughput.csv" in words:
        words = [word for word in words if word not in ("--throughput", "throughput.csv")]
    for word in words:
        if word.startswith("results"):
            sweep(place / word / "a", {"adamw": Truth(), "merit": Truth()}, batch_sizes=(4, 16, 64, 256), lrs=LRS[1::2])
    quick = ["--resamples", "100"] if getattr(known()[name].callback, "intervals", False) and name in RUN else []
    code, out, err = run(*name.split(), *words, *quick)
    assert code == 0, err
    assert out


def flags_in(words: list[str]) -> set[str]:
    return {word for word in words if re.fullmatch(r"--[a-z][\w.-]*", word)} - OTHERS


def having(words: list[str]) -> list[str]:
    """The commands that have all flags; of those that have what a sweep has, the sweep."""
    names = [name for name in known() if flags_in(words) <= flags_of(name)]
    return ["sweep"] if {"sweep"} <= {*names} <= {"sweep", *BESIDE} else names


def test_flags_that_stand_alone_are_those_of_a_command() -> None:
    assert [line for line, words in FLAGS.items() if not having(words)] == []


VALUED = [
    line for line, words in FLAGS.items() if len(words) > len(flags_in(words)) > 0 and not PLACEHOLDER.search(line)
]


@pytest.mark.parametrize("line", VALUED)
def test_values_of_flags_that_stand_alone_are_taken_by_a_command(line: str, run: Run, place: Path) -> None:
    assert any(accepted(name, FLAGS[line], run) for name in having(FLAGS[line]))


def accepted(name: str, words: list[str], run: Run) -> bool:
    """Whether a command takes the flags; a sweep, and its checks, with the optimizers that are named in them."""
    try:
        understood(name, [*filled(name), *words])
    except cli.UsageError:
        return False
    if "--set" in words and name != "sweep":
        keys = {word.partition("=")[0] for before, word in itertools.pairwise(words) if before == "--set"}
        return name == "import" and keys <= {"run", *FACTS}
    if name != "sweep" or not FAR.isdisjoint(words):
        return True
    optimizers = [word.split(".")[0] for word in words if word.split(".")[0] in OPTIMIZERS.names()]
    sgd = ["sgd"] if "--axis" in words else []
    for optimizer in optimizers or sgd or ([] if "--optim" in words else ["adamw"]):
        words = ["--optim", optimizer, *words]
    code, _, err = run("sweep", *words, "--dry-run")
    return code == 0 or bool(re.search(r"needs (decay_examples|data=PATH)", err))


def filled(name: str) -> list[str]:
    """Something for everything that a command needs besides flags."""
    return ["8" for param in known()[name].params if param.param_type_name == "argument" and param.required]
