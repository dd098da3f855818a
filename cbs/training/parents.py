"""Checkpoints that a trial can start from, and those that it keeps for others at given numbers of examples.

A trial starts from a checkpoint of this package, a state dict, safetensors, or a Trainer's folder.

Only tensors and plain values are read (``weights_only``), so no file can execute code.
"""

import dataclasses
import hashlib
import json
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError, DataError, needed, out_of_memory, reason
from cbs.files import whole
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import TrialConfig
from cbs.trial.parent import Parent

KIND = "cbs checkpoint"  # Key under which checkpoints of this package hold their version


# Usual keys of model and optimizer where both are saved in one file
_MODEL, _OPTIMIZER = ("model", "state_dict", "model_state_dict"), ("optimizer", "optimizer_state_dict")


_OF_TRAINER = ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json")

_WRAPPERS = ("module.", "_orig_mod.")  # Prefixes that wrappers add to the name of every tensor


@dataclass(frozen=True, kw_only=True)
class CheckpointContent:
    """Content of a checkpoint.

    Attributes:
        path: path of the checkpoint.
        model: tensors by name.
        optimizer: the optimizer's ``state_dict``; ``None`` where there is none.
        examples: number of examples seen by the run that wrote it; ``None`` where the file does not say.
        steps: number of updates of that run; ``None`` where the file does not say.
        ours: the result of :meth:`cbs.training.assembly.Assembly.birth_state` in a checkpoint of this package; empty
            for other files.
    """

    path: Path
    model: Mapping[str, Tensor]
    optimizer: dict[str, Any] | None = None
    examples: int | None = None
    steps: int | None = None
    ours: Mapping[str, Any]

    @property
    def config(self) -> TrialConfig | None:
        """Configuration of the trial that wrote a checkpoint of this package; ``None`` for other files."""
        return TrialConfig.from_dict(json.loads(self.ours["config"])) if self.ours else None


def read_checkpoint(path: Path) -> CheckpointContent:
    """Read a checkpoint file, or a folder in the format of the transformers Trainer.

    Raises:
        DataError: if it is not a checkpoint.
        MissingDependencyError: if reading it needs a package that is not installed.
    """
    if path.is_dir():
        return _of_trainer(path)
    content = _tensors_of(path) if path.suffix == ".safetensors" else _saved(path)
    if content.get(KIND) == 1:
        weights = content["parts"]["SavedWeights"]
        sizes = content["batch_sizes"]
        return CheckpointContent(
            path=path,
            model=weights["model"],
            optimizer=weights["optimizer"],
            examples=int(sizes.sum()),
            steps=len(sizes),
            ours=content,
        )
    model = next((content[key] for key in _MODEL if isinstance(content.get(key), Mapping)), content)
    optimizer = next((content[key] for key in _OPTIMIZER if isinstance(content.get(key), dict)), None)
    return CheckpointContent(path=path, model=_named(model, path), optimizer=optimizer, ours={})


def digest(path: Path) -> str:
    """Return 16 hexadecimal digits that identify the content of a checkpoint.

    For a checkpoint of this package, whose bytes may differ each time it is written, these are a hash of its tensors
    and values; otherwise a hash of the bytes of its files.

    Raises:
        DataError: if it cannot be read.
    """
    hasher = hashlib.sha256()
    content = _saved(path) if path.suffix == ".pt" else {}
    if content.get(KIND) == 1:
        _absorb(hasher, content)
        return hasher.hexdigest()[:16]
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    try:
        for file in files:
            with open(file, "rb") as stream:
                content_hash = hashlib.file_digest(stream, "sha256").hexdigest()
            hasher.update(f"{file.relative_to(path)} {content_hash}\n".encode())
    except OSError as error:
        raise DataError(f"checkpoint {path} cannot be read: {reason(error)}") from None
    if not files:
        raise DataError(f"{path} is not a checkpoint: the folder is empty")
    return hasher.hexdigest()[:16]


def parent_at(path: Path) -> Parent:
    """Return the parent for the checkpoint at a path; the optimizer's state is kept.

    Raises:
        ConfigError: if nothing exists there.
        DataError: if it cannot be read.
    """
    if not path.exists():
        raise ConfigError(f"no checkpoint at {path}: the path does not exist")
    content: dict[str, Any] = {}
    if path.is_file() and (path.suffix == ".pt" or zipfile.is_zipfile(path)):
        try:
            content = _saved(path)
        except DataError:
            if path.suffix == ".pt":
                raise  # other files may be in a format that a workload's own load reads
    examples = int(content["batch_sizes"].sum()) if content.get(KIND) == 1 else 0
    named = Parent(source=str(path), examples=examples, digest=digest(path))
    return named if named.trunk is None else dataclasses.replace(named, source=f"./{path}")


def weights_for(model: nn.Module, content: CheckpointContent) -> dict[str, Any]:
    """Return the tensors of a checkpoint under all names that a model has.

    Tensors that the model has under two names may be in the checkpoint once.

    Raises:
        ConfigError: if the checkpoint belongs to another model; names the tensors that differ.
    """
    theirs = dict(content.model)
    own = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in own.items() if name in theirs}
    theirs |= {name: theirs[first[id(tensor)]] for name, tensor in own.items() if id(tensor) in first}
    unlike = [
        f"{name} is {list(theirs[name].shape)} in the checkpoint, {list(tensor.shape)} in the model"
        for name, tensor in own.items()
        if name in theirs and getattr(theirs[name], "shape", None) != getattr(tensor, "shape", None)
    ]
    unlike += [f"{name} is missing in the checkpoint" for name in own if name not in theirs]
    unlike += [f"{name} is missing in the model" for name in theirs if name not in own]
    if unlike:
        more = f", and {len(unlike) - 3} more" if len(unlike) > 3 else ""
        count = f"{len(unlike)} tensors differ" if len(unlike) > 1 else "a tensor differs"
        raise ConfigError(f"checkpoint {content.path} belongs to another model: {count}: {'; '.join(unlike[:3])}{more}")
    return theirs


def _of_trainer(folder: Path) -> CheckpointContent:
    name = next((name for name in _OF_TRAINER if (folder / name).is_file()), None)
    if name is None:
        raise DataError(f"{folder} is not a checkpoint: the folder holds none of {', '.join(_OF_TRAINER)}")
    files = [folder / name]
    steps = None
    try:
        if name.endswith(".json"):
            parts = json.loads(whole(files[0]).read_text())["weight_map"].values()
            files = [folder / Path(part).name for part in sorted(set(parts))]
        if (folder / "trainer_state.json").is_file():
            steps = int(json.loads(whole(folder / "trainer_state.json").read_text())["global_step"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{folder} is not a checkpoint of a Trainer: {reason(error)}") from None
    model: dict[str, Tensor] = {}
    for file in files:
        model |= _named(_tensors_of(file) if file.suffix == ".safetensors" else _saved(file), file)
    optimizer = _saved(folder / "optimizer.pt") if (folder / "optimizer.pt").is_file() else None
    return CheckpointContent(path=folder, model=model, optimizer=optimizer, steps=steps, ours={})


def _saved(path: Path) -> dict[str, Any]:
    """Return what ``torch.save`` wrote."""
    try:
        whole(path, 1.0)
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from None
    try:
        with warnings.catch_warnings(action="ignore"):  # what torch says of a foreign pickle is no line of ours
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if out_of_memory(error):
            raise
        named = re.search(r"GLOBAL (\S+)", str(error))
        why = f": it holds a {named[1]}, which could run code" if named else ""
        raise DataError(
            f"{path} is not a checkpoint that torch.load(weights_only=True) can read, with tensors and plain values "
            f"only{why}"
        ) from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a checkpoint: it holds a {type(content).__name__}, not tensors by name")
    return content


def _tensors_of(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file by name."""
    with needed("safetensors", "safetensors files"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is not a safetensors file: {reason(error)}") from None


def _named(model: Any, path: Path) -> dict[str, Tensor]:
    """Return tensors by name, without the prefix that a wrapper added to all of them."""
    tensors = dict(model)
    if not tensors or not all(isinstance(value, Tensor) for value in tensors.values()):
        keys = ", ".join(map(str, list(tensors)[:5])) or "nothing"
        raise DataError(
            f"{path} is not a checkpoint: expected tensors by name, or a key 'model' with these, got {keys}"
        )
    for prefix in _WRAPPERS:
        if all(str(name).startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _absorb(hasher: Any, value: Any) -> None:
    """Add tensors and plain values to a hash, independently of their memory layout."""
    if isinstance(value, Tensor):
        hasher.update(f"{value.dtype}{list(value.shape)}".encode())
        hasher.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            _absorb(hasher, key)
            _absorb(hasher, entry)
    elif isinstance(value, list | tuple):
        hasher.update(f"{len(value)} entries".encode())
        for entry in value:
            _absorb(hasher, entry)
    else:
        hasher.update(f"{type(value).__name__} {value!r}".encode())


class KeptCheckpoints:
    """One file for each number of examples, which is its name; each is written once.

    Args:
        folder: folder of the files; created with the first one.
        at: numbers of examples; a checkpoint is written after the first update that reaches each.
    """

    def __init__(self, folder: Path, at: Sequence[int]) -> None:
        self._folder = folder
        self._missing = [examples for examples in sorted(at) if not kept_path(folder, examples).exists()]

    def passed(self, examples: int) -> bool:
        """Whether a trial that continues after this many examples would miss a file that has not been written."""
        return any(at <= examples for at in self._missing)

    def due(self, examples: int) -> bool:
        """Whether a trial that has seen this many examples has a file to write."""
        return bool(self._missing) and self._missing[0] <= examples

    def write(self, state: Callable[[], dict[str, Any]], examples: int, *, first: bool = True) -> None:
        """Write the files that are due.

        Args:
            state: returns the content of a file; called on every rank.
            examples: number of examples seen so far.
            first: whether this is the first rank, the only one that writes.

        Raises:
            ResultsError: if a file cannot be written.
        """
        while self.due(examples):
            content, at = state(), self._missing.pop(0)
            if first:
                self._folder.mkdir(parents=True, exist_ok=True)
                Checkpoint(kept_path(self._folder, at)).save(content)


def kept_path(folder: Path, examples: int) -> Path:
    """Return the path of the checkpoint at this many examples."""
    return folder / f"{examples}.pt"
