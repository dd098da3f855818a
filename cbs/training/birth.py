"""Start a trial from the checkpoint of another run: weights, optimizer, averages, data and random numbers."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cbs.compute import seeding
from cbs.errors import CbsError, ConfigError, out_of_memory, reason
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.training.assembly import Assembly
from cbs.training.averaging import build_averaging
from cbs.training.parents import CheckpointContent, digest, read_checkpoint, weights_for
from cbs.training.parts import SavedWeights
from cbs.training.ranks import ALONE
from cbs.trial.config import TrialConfig
from cbs.trial.parent import Parent
from cbs.workloads import Workload
from cbs.workloads.streams import skip

# Entries of an optimizer's parameter groups that always come from the trial's own configuration, not from the
# checkpoint.
_SET_BY_BATCH_SIZE = ("lr", "initial_lr", "betas", "weight_decay")


def opened(workload: Workload | None, parent: Parent, path: Path) -> CheckpointContent | None:
    """Return the content of a parent's checkpoint; ``None`` where the workload's own ``load`` reads it.

    Raises:
        ConfigError: if the checkpoint is missing or is not the one that the parent names.
        DataError: if the file is not a checkpoint.
    """
    if not path.exists():
        raise ConfigError(f"no checkpoint at {path}: the path does not exist")
    if (now := digest(path)) != parent.digest:
        raise ConfigError(f"checkpoint {path} has changed: its digest is {now}, the trial's parent had {parent.digest}")
    if parent.trunk is None and callable(getattr(workload, "load", None)):
        return None
    content = read_checkpoint(path)
    if content.ours and parent.trunk is not None and content.examples != parent.examples:
        raise ConfigError(
            f"checkpoint {path} was written after {content.examples} examples, not after {parent.examples}"
        )
    return content


def start(loop: Assembly, path: Path) -> None:
    """Put a newly built trial into the state of its parent; called within the trial's random stream.

    If the parent is a trial of this package with the same seed and workload, data order, random numbers and noise-scale
    probe continue as in the parent.

    Args:
        loop: the trial; its configuration has a parent.
        path: path of the parent's checkpoint.

    Raises:
        ConfigError: if the checkpoint belongs to another model, or its optimizer state does not fit.
        DataError: if the file is not a checkpoint.
    """
    config, parent = loop.config, loop.config.parent
    assert parent is not None
    content = opened(loop.workload, parent, path)
    load_weights(config, loop.workload, loop.model, loop.optimizer, path, content, loop.saved_weights)
    theirs = None if content is None else content.config
    if loop.average is not None:
        fresh = build_averaging(config.averaging, loop.model, loop.optimizer)  # type: ignore[arg-type]
        state = fresh.state_dict()
        if content is not None and theirs is not None and theirs.averaging == config.averaging:
            state = content.ours["parts"]["Averaging"]
        loop.average.load_state_dict(state)
    if content is None or theirs is None or (theirs.seed, theirs.workload) != (config.seed, config.workload):
        return
    skip(loop.stream, content.ours["batch_sizes"].tolist())
    if loop.noise_scale is not None and theirs.probe == config.probe and loop.ranks.world == 1:
        loop.noise_scale.go_on(content.ours["parts"]["NoiseScalePart"])
    if loop.ranks.first:
        seeding.set_states(content.ours["random"])


def check_parent(workload: Workload, config: TrialConfig, path: Path | None = None) -> None:
    """Load the parent's checkpoint into a newly built model and optimizer, to check that it fits.

    Args:
        workload: workload of the trial.
        config: configuration of the trial.
        path: path of the checkpoint, if it is not the parent's source.

    Raises:
        ConfigError: as :func:`start`.
        DataError: as :func:`start`.
    """
    parent = config.parent
    assert parent is not None
    path = path or Path(parent.source)
    with seeding.seeded(config.seed, "init"):
        model = workload.build_model()
    optimizer = build_optimizer(config.optimizer, model, config.lr, config.batch_size)
    content = opened(workload, parent, path)
    load_weights(config, workload, model, optimizer, path, content, SavedWeights(model, optimizer, ALONE))


def load_weights(
    config: TrialConfig,
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    path: Path,
    content: CheckpointContent | None,
    into: SavedWeights,
) -> None:
    """Load model and optimizer from a checkpoint; the optimizer's options stay those of the configuration.

    Args:
        config: configuration of the trial.
        workload: workload whose ``load(model, optimizer, path)`` is called where ``content`` is ``None``.
        model: newly built model.
        optimizer: newly built optimizer.
        path: path of the checkpoint.
        content: content of the checkpoint, see :func:`opened`.
        into: the part of the trial that holds both.

    Raises:
        ConfigError: see :func:`start`.
    """
    parent = config.parent
    assert parent is not None
    keeps = parent.optimizer == "keep"
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    at_start: Sequence[Mapping[str, Any]] | None = None
    if content is None:
        _load_by_workload(workload, model, optimizer if keeps else None, path)
    else:
        weights = weights_for(model, content)
        state = _kept_state(config, optimizer, content) if keeps else None
        keeps, at_start = state is not None, content.ours.get("groups")
        try:
            into.load(weights, state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if out_of_memory(error):
                raise
            how = "; use --set parent.optimizer=reset to start without the optimizer's state" if keeps else ""
            raise ConfigError(
                f"checkpoint {path} does not fit {config.optimizer.name!r}: {reason(error)}{how}"
            ) from None
    if not keeps:
        return
    options = OPTIMIZERS[config.optimizer.name].defaults
    for index, (group, own) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        for key, value in own.items():
            # Values that training changed are state; all others are options, which the configuration sets.
            changed = key not in options if at_start is None else group.get(key) != at_start[index].get(key)
            if key in _SET_BY_BATCH_SIZE or key not in group or not changed:
                group[key] = value


def _kept_state(
    config: TrialConfig, optimizer: torch.optim.Optimizer, content: CheckpointContent
) -> dict[str, Any] | None:
    """Return the optimizer state to continue with; ``None`` if it is another optimizer's and a warmup replaces it."""
    parent, name = config.parent, config.optimizer.name
    assert parent is not None
    saved, theirs = content.optimizer, content.config
    if saved is None:
        raise ConfigError(f"checkpoint {content.path} holds no optimizer state: use --set parent.optimizer=reset")
    if not (isinstance(saved.get("param_groups"), list) and isinstance(saved.get("state"), dict)):
        raise ConfigError(f"the optimizer in {content.path} is not a state_dict: use --set parent.optimizer=reset")
    own = {key for group in optimizer.param_groups for key in group}
    other = {key for group in saved["param_groups"] for key in group}
    lacking = sorted(own - other - {"param_names", "initial_lr"})
    if (theirs is None and not lacking) or (theirs is not None and theirs.optimizer.name == name):
        return saved
    if parent.warmup_examples:
        return None
    whose = f"{theirs.optimizer.name!r}" if theirs is not None else f"an optimizer without {', '.join(lacking)}"
    raise ConfigError(
        f"checkpoint {content.path} holds the state of {whose}, not of {name!r}, which would start without state: "
        "set the length of its warmup with --set parent.warmup_examples=N, or use --set parent.optimizer=reset"
    )


def _load_by_workload(
    workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer | None, path: Path
) -> None:
    load: Callable[..., object] = workload.load  # type: ignore[attr-defined]
    try:
        load(model, optimizer, path)
    except CbsError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        where = inspect.getsourcefile(load) or type(workload).__name__
        raise ConfigError(
            f"load(model, optimizer, path) in {where} fails on {path}: {type(error).__name__}: {reason(error)}"
        ) from error
