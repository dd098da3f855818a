"""What is asked is what is answered: every flag of every command reaches the function of the library it is meant for.

The functions a command calls are replaced by recorders. Flags are enumerated from the command line itself, and given a
value of their type, which must then stand in the record and must not stand there without the flag. A case says it for
those of another form: a flag with its values, and the text to find.
"""

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cbs.registry.choices import Choice
from cbs.registry.extensions import load
from tests.cases import PRESENT, TRAINING, Case, Flags, answer, of_extensions, of_program
from tests.parameters import COMMANDS, flags_of, kind

ASKED: dict[str, Case] = {"--target": (["--target", "accuracy=0.75"], "metric='accuracy'")}
COMMON: dict[str, Case] = {
    "--definition": (
        ["--definition", "pareto", "--definition", "overhead(overhead=1)"],
        "AnalysisConfig(definition='pareto', options={'overhead': {'overhead': 1.0}}",
    ),
    "--throughput": (
        ["--throughput", "assumed(examples_per_second_per_device=70, max_batch_per_device=9, step_latency=0.25)"],
        "Assumed(examples_per_second=70.0, max_batch_per_device=9, latency=0.25)",
    ),
    "--figures": (["--figures", "none"], "figures=None"),
    "--json": (["--json"], "to_json("),
}
"""Of every command that has the flag and no case of its own."""
PROGRAM = [
    "--command", "echo {batch_size} {lr} {seed} {folder}", "--reads", "csv", "--metric", "loss",
    "--direction", "above", "--target", "3", "--metric-unit", "nats", "--example-unit", "tree",
    "--optim", "adamw", "--batch-sizes", "4",
]  # fmt: skip
UNITS = [
    "runs.csv", "-o", "out", "--metric", "loss", "--direction", "below", "--target", "3",
    "--metric-unit", "nats", "--example-unit", "tree",
]  # fmt: skip

FLAGS: dict[str, Flags] = {
    "analyze": Flags(
        {"analysis.questions.analyze.critical_batch_sizes.analyze": answer, **PRESENT},
        cases={**ASKED, "--wide": (["--wide"], "suggestions=True")},
    ),
    "compare": Flags(
        {
            "analysis.questions.compare.optimizers.compare": answer,
            "analysis.read.throughput.read_throughput": "the table",
            **PRESENT,
        },
        cases=ASKED,
    ),
    "explain": Flags(
        {"sweeps.spec.reference.settings_about": answer},
        base=["trial"],
        cases={
            "words": (["pareto"], "twice the fewest steps"),
            "--settings": (["--settings"], "settings_about("),
            "--json": (["--json"], '"trial, run":'),
        },
    ),
    "fit": Flags(
        {"analysis.questions.fit.table_fit.fit_table": answer, "analysis.present.figures.save_figure": None, **PRESENT},
        base=["steps.csv"],
        cases={"--column": (["--column", "steps=mine", "--column", "lr=rate"], "{'steps': 'mine', 'lr': 'rate'}")},
    ),
    "import": Flags(
        {"analysis.read.importers.import_runs": answer},
        base=UNITS,
        cases={
            "--direction": (["--direction", "above"], "direction='above'"),
            "--batch-unit": (["--batch-unit", "tokens", "--tokens-per-example", "77"], "batch_unit='tokens'"),
            "--column": (["--column", "step=it"], "columns={'step': 'it'}"),
            "--set": (["--set", "optimizer=adamw"], "constants={'optimizer': 'adamw'}"),
        },
    ),
    "optimizers": Flags(
        {
            "sweeps.spec.catalogue.catalogue": list,
            "sweeps.spec.catalogue.overview": "the list",
            "sweeps.spec.catalogue.routed": dict,
        },
        cases={
            "names": (["muon"], "catalogue(['muon'])"),
            "--workload": (["muon", "--workload", "noisy_quadratic"], "workload=Choice(name='noisy_quadratic'"),
            "--set": (["muon", "--workload", "text", "--set", "muon.matrices=all"], "'matrices': 'all'"),
            "--libraries": (["--libraries"], "measured=False"),
            "--json": (["--json"], "printed: []"),
        },
    ),
    "sweep": Flags(
        {
            **TRAINING,
            "sweeps.launching.train.policy_of": lambda *_, **__: Choice(name="once"),
            "sweeps.running.child.Child": lambda *_: nullcontext(),
            "cbs.interrupts.time_limit": nullcontext,
            "time.monotonic": 0.0,
        },
        base=["--seeds", "2"],
        cases={
            "--optim": (["--optim", "muon", "--optim", "lion"], "optimizers=(Choice(name='muon', options={}), Choice("),
            "--recipe": (["--recipe", "quick"], "Sweep(name='quick'"),
            "--batch-sizes": (["--batch-sizes", "4..16"], "batch_sizes=(4, 8, 16)"),
            "--lrs": (["--lrs", "1e-3,2e-3"], "lrs=(0.001, 0.002)"),
            "--seeds": (["--seeds", "5,6"], "seeds=(5, 6)"),
            "--budget": (["--budget", "600k,1e6"], "budgets=(600000, 1000000)"),
            "--workload": (["--workload", "noisy_quadratic"], "workload=Choice(name='noisy_quadratic'"),
            "--schedule": (
                ["--schedule", "seesaw", "--set", "schedule.alpha=3"],
                "name='seesaw', options={'alpha': 3}",
            ),
            "--axis": (["--optim", "sgd", "--axis", "momentum=0.5,0.75"], "tuned={'sgd': ['momentum']}"),
            "--precision": (["--precision", "0.15"], "policy_of(0.15, "),
            "--max-time": (["--max-time", "2h"], "limits=Limits(deadline=7200.0"),
            "--max-examples": (["--max-examples", "1e6"], "examples=1000000.0"),
            "--max-runs": (["--max-runs", "50"], "policy_of(None, 50.0, "),
            "--set": (["--set", "max_steps=77"], "max_steps=77"),
            **of_program(PROGRAM),
            "--stop-after": (["--stop-after", "2h"], "time_limit(7200.0, 0.0)"),
        },
    ),
    "status": Flags(
        {
            "sweeps.launching.ledger.ledgers": list,
            "sweeps.launching.ledger.watch": None,
            "sweeps.launching.ledger.clean": list,
        },
        cases={
            "--clean": (["--clean", "failed"], "failed=True"),
            "--json": (["--json"], "printed: []"),
            "--watch": (["--watch"], "watch("),
        },
    ),
}
"""What cannot be seen in the types of the parameters: values of a form of their own, names that the library has for
them, flags that need another one."""

for flags in of_extensions("FLAGS"):
    FLAGS |= flags

Record = Callable[..., tuple[int, str]]


@pytest.fixture
def record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Callable[..., tuple[int, str, str]]
) -> Record:
    """Run a command; returns the exit code, and what the functions of the library were called with and what was
    printed."""

    def call(command: str, functions: dict[str, Any], *arguments: str) -> tuple[int, str]:
        seen: list[str] = []

        def recorder(path: str, result: Any) -> Callable[..., Any]:
            def recorded(*args: Any, **kwargs: Any) -> Any:
                shown = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
                seen.append(f"{path.rpartition('.')[2]}({', '.join(shown)})")
                if result is answer:
                    results.append(answer())
                    return results[-1]
                if isinstance(result, type):
                    return result()
                return result(*args, **kwargs) if callable(result) else result

            return recorded

        results: list[Mock] = []
        with monkeypatch.context() as patched:
            for path, result in functions.items():
                patched.setattr(path, recorder(path, result))
            code, out, err = run(*command.split(), *arguments)
        seen += [str(made) for result in results for made in result.mock_calls]
        return code, re.sub(r" (at 0x|id=')[0-9a-f]+'?", "", "\n".join([*seen, f"printed: {out}{err}"]))

    return call


def given(command: str, flag: str) -> list[str]:
    """A value of the type that a parameter takes, twice where it may be repeated, that no other parameter has."""
    parameter, place = flags_of(command)[flag], [*flags_of(command)].index(flag)
    takes = kind(command, flag)
    if takes is bool:
        return []
    numbers = {int: 100 + place, float: 0.25 + place / 128}
    value = str(numbers.get(takes, f"given_{parameter.name}"))
    return [value, f"{value}1"] if parameter.multiple or parameter.nargs == -1 else [value]


def words_of(command: str, flag: str) -> list[str]:
    """The parameter with its :func:`given` values; of a switch the side that is not the default."""
    parameter, values = flags_of(command)[flag], given(command, flag)
    if parameter.param_type_name == "argument":
        return values
    switched = parameter.secondary_opts[0] if parameter.default and parameter.secondary_opts else flag
    return [word for value in values for word in (flag, value)] or [switched]


def reaches(command: str, flag: str, said: str, without: str) -> bool:
    """Whether the :func:`given` values of a parameter were said, and under its name if anything was."""
    parameter = flags_of(command)[flag]
    named = "\n".join(re.findall(rf"\b{parameter.name}s?=[^=]*", said))
    switched = [] if given(command, flag) or not named else [f"{parameter.name}={not parameter.default}"]
    return said != without and all(
        value in (named or said) and value not in without for value in given(command, flag) + switched
    )


def flags_of_a_stranger(command: str) -> Flags:
    """Of a command without an entry in ``FLAGS``: the functions that it imports when it runs, and what it requires."""
    source = inspect.unwrap(COMMANDS[command].callback)
    tree = ast.parse(Path(inspect.getfile(source)).read_text())
    bodies = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "command"]
    imports = [node for body in bodies for node in ast.walk(body) if isinstance(node, ast.ImportFrom)]
    paths = [f"{node.module}.{each.name}" for node in imports for each in node.names]
    functions = [
        path for path in paths if inspect.isfunction(getattr(load(path.rpartition(".")[0]), path.split(".")[-1]))
    ]
    base = [word for flag, each in flags_of(command).items() if each.required for word in words_of(command, flag)]
    return Flags(dict.fromkeys(functions, answer) | PRESENT, base)


@pytest.fixture(scope="module")
def records_without() -> dict[str, str]:
    """What was recorded of every command without the flags of its cases."""
    return {}


def with_base(flags: Flags, flag: str, arguments: Sequence[str]) -> list[str]:
    """The arguments of a case; a positional one takes the place of that of ``base``."""
    replaced = not flag.startswith("-") and flags.base and not flags.base[0].startswith("-")
    return [*arguments, *flags.base[1:]] if replaced else [*flags.base, *arguments]


@pytest.mark.parametrize(("command", "flag"), [(command, flag) for command in COMMANDS for flag in flags_of(command)])
def test_a_flag_reaches_the_library(command: str, flag: str, record: Record, records_without: dict[str, str]) -> None:
    flags = FLAGS.get(command) or flags_of_a_stranger(command)
    if command not in records_without:
        code, records_without[command] = record(command, flags.functions, *flags.base)
        assert code == 0, records_without[command]
    without = records_without[command]
    if flag in flags.instead:
        arguments, text = flags.instead[flag]
        code, said = record(command, flags.functions, *arguments)
    else:
        arguments, text = {**COMMON, **flags.cases}.get(flag, (words_of(command, flag), ""))
        code, said = record(command, flags.functions, *with_base(flags, flag, arguments))
    if text:
        assert code == 0, said
        assert text in said
        assert text not in without
    elif code == 2:  # a value of the type is none that the command takes, and it says so
        assert flag in said or given(command, flag)[0] in said
    else:
        assert reaches(command, flag, said, without), said
