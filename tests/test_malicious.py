"""A results folder of somebody who means harm: no command runs anything of it, writes beside it, or falls over."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import cli
from cbs.trial.store import MANIFEST, Store
from cbs.trial.trial_files import METADATA_KEY
from tests.cases import of_extensions
from tests.factories import sweep
from tests.sweeps.alone import children_here

CALLS = {
    "analyze": ["FOLDER --resamples 100", "FOLDER --resamples 100 --suggest --figures none --json"],
    "import": ["FOLDER -o made --metric loss --direction below --target 2 --metric-unit nats --example-unit tree"],
    "optimizers": [],
    "status": ["FOLDER", "FOLDER --json", "FOLDER --clean failed"],
    "sweep": ["--workload noisy_quadratic --optim sgd --batch-sizes 4 -o FOLDER"],
}
"""What is done to a folder by the commands that need more than it, or read none; the others are given it alone."""
for those in of_extensions("CALLS"):
    CALLS |= those
DRAWING = {"analyze", *(name for names in of_extensions("DRAWING") for name in names)}
"""Commands whose figures take most of the time; the malicious are not all drawn."""


def calls() -> list[list[str]]:
    """Every command on a folder, with few resamples and without figures, where it has such."""
    found = []
    for name, command in cli.commands().items():
        flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        few = ["--resamples 100"] if getattr(command.callback, "intervals", False) else []
        few += ["--figures none"] if "--figures" in flags else []
        found += [f"{name} {call}".split() for call in CALLS.get(name, [" ".join(["FOLDER", *few])])]
    return found


MODULE = (
    "from pathlib import Path\nPath(r'{outside}', 'ran').touch()\ndef run(*a, **k): Path(r'{outside}', 'ran').touch()\n"
)
NASTY = "../../../outside/<script>alert(1)</script>\x1b[2J[red]$(touch ran)`touch ran`;{{ 7*7 }}\n%s\u202e"


def edit(store: Store, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what every record says."""
    for trial_id in store.trial_ids():
        path = store.trials / trial_id / "record.parquet"
        table = pq.read_table(path)
        summary = json.loads(table.schema.metadata[METADATA_KEY])
        change(summary)
        pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(summary)}), path)


def manifest(store: Store, **changes: Any) -> None:
    path = store.root / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def half_characters(store: Store, outside: Path) -> None:
    edit(store, lambda said: said["config"]["optimizer"].update(name="half \udce9"))


def code_of_the_folder(store: Store, outside: Path) -> None:
    for folder in (store.root, store.trials, Path.cwd()):
        for name in ("evil", "torch", "sweeps", "sitecustomize"):
            (folder / f"{name}.py").write_text(MODULE.format(outside=outside))
    edit(store, lambda said: said["config"].update(workload={"name": "evil:run", "options": {}}))


def code_of_python(store: Store, outside: Path) -> None:
    edit(
        store,
        lambda said: said["config"].update(
            workload={"name": "os:system", "options": {"command": f"touch {outside}/ran"}}
        ),
    )


def code_as_an_optimizer(store: Store, outside: Path) -> None:
    (Path.cwd() / "evil.py").write_text(MODULE.format(outside=outside))

    def change(said: dict[str, Any]) -> None:
        said["config"]["workload"] = {"name": "noisy_quadratic", "options": {}}
        said["config"]["optimizer"] = {"name": "evil:run", "options": {}}

    edit(store, change)


def names(store: Store, outside: Path) -> None:
    def change(said: dict[str, Any]) -> None:
        said["trial_id"] = NASTY
        said["message"] = NASTY
        said["config"]["optimizer"]["name"] = NASTY
        said["config"]["target"]["metric"] = NASTY
        said["workload"] |= {"example_unit": NASTY, "metric_unit": NASTY, "data_hash": NASTY}

    edit(store, change)
    manifest(store, name=NASTY, runs=[{"command": NASTY, "started": NASTY, "versions": {NASTY: NASTY}}])


def paths(store: Store, outside: Path) -> None:
    manifest(store, name="../../../outside/x")
    edit(store, lambda said: said.update(trial_id="../../../outside/x"))
    (store.root / "sweep.lock").write_text(
        json.dumps({"pid": "../..", "host": NASTY, "progress": [1], "started": 1e400})
    )


def links(store: Store, outside: Path) -> None:
    (outside / ".tmp-theirs").touch()
    for name in (".tmp-gone", "sweep.lock"):
        (store.root / name).symlink_to(outside / "kept")
    for name in ("analysis", "checkpoints"):
        (store.root / name).symlink_to(outside)
    (store.trials / ".tmp-away").symlink_to(outside)
    (store.trials / "away").symlink_to(outside)
    (store.trials / "round").symlink_to(store.trials)


def linked_trials(store: Store, outside: Path) -> None:
    store.trials.rename(outside / "trials")
    (outside / "trials" / ".tmp-theirs").touch()
    (store.root / "trials").symlink_to(outside / "trials")


def huge_numbers(store: Store, outside: Path) -> None:
    def change(said: dict[str, Any]) -> None:
        said["config"] |= {"batch_size": 10**30 + said["config"]["batch_size"], "seed": 10**30, "max_steps": 10**40}
        said["workload"] |= {"parameters": 10**400, "tokens_per_example": 10**25}

    edit(store, change)


def no_numbers(store: Store, outside: Path) -> None:
    def change(said: dict[str, Any]) -> None:
        said["config"] |= {"lr": float("nan"), "batch_size": "many", "seed": None}
        said["steps_to_target"] = "soon"

    edit(store, change)


def other_kinds(store: Store, outside: Path) -> None:
    edit(store, lambda said: said.update(config=[1, 2], workload="no", message={"a": 1}))
    manifest(store, runs="none", axes=7, protocol=[1], name={"a": 1})


def deep(store: Store, outside: Path) -> None:
    (store.root / MANIFEST).write_text("[" * 100_000)
    for trial_id in store.trial_ids():
        (store.trials / trial_id / "timing.json").write_text('{"a":' * 100_000)


FOLDERS = [
    code_of_the_folder, code_of_python, code_as_an_optimizer, names, half_characters, paths, links, linked_trials,
    huge_numbers, no_numbers, other_kinds, deep,
]  # fmt: skip


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, Path]:
    """A small sweep in a folder, and a folder beside it that nobody may touch."""
    (tmp_path / "here").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("as it was")
    monkeypatch.chdir(tmp_path / "here")
    store = sweep(tmp_path / "here" / "results", batch_sizes=(4, 16, 64), lrs=(1e-3, 2e-3, 4e-3))
    manifest(store, axes={"optimizers": ["adamw"], "batch_sizes": [4, 16, 64], "lrs": None, "seeds": [0]}, runs=[])
    return store, tmp_path / "outside"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(spoil, marks=() if spoil in (code_of_python, names, links) else pytest.mark.slow)
        for spoil in FOLDERS
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_no_command_does_harm(spoil: Callable[[Store, Path], None], world, run, monkeypatch) -> None:
    store, outside = world
    if spoil not in (code_of_the_folder, code_as_an_optimizer):  # what a child of its own would import
        children_here(monkeypatch)
    second = shutil.copytree(store.root, store.root.parent / "second", symlinks=True)
    spoil(store, outside)
    before = content(outside)
    for call in calls():
        drawn = call[0] in DRAWING and "--figures" not in call
        if drawn and spoil not in (names, links):
            continue
        folders = {"FOLDER": str(store.root), "SECOND": str(second)}
        words = [folders.get(word, word) for word in call]
        code, out, err = run(*words)
        assert code in (0, 1, 2), (words, out, err)
        assert "Traceback" not in out + err, words
        if code == 2:
            assert len(err.strip().splitlines()) <= 6, (words, err)
        if code == 0 and "--json" in words:
            json.loads(out)
        assert content(outside) == before, words
        assert not (store.root / "ran").exists()
    for page in store.root.rglob("*.html"):
        assert "<script" not in page.read_text()
