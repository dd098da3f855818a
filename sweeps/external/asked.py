"""The flags of ``cbs sweep --command`` as a :class:`~sweeps.external.trainer.Trainer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cbs.errors import ConfigError
from sweeps.external.trainer import REPORT, Trainer

_ASKED = ("metric", "direction", "target", "metric_unit", "example_unit")


def program_of(
    *, optimizers: Sequence[str] | None, batch_sizes: str | None, refused: Mapping[str, Any], **given: Any
) -> Trainer | None:
    """The program that is to train; ``None`` where no command is given.

    Args:
        optimizers: as asked for.
        batch_sizes: likewise.
        refused: flags of sweeps that train themselves, with what was given.
        given: attributes of :class:`~sweeps.external.trainer.Trainer`, ``columns`` as pairs, and ``target``.

    Raises:
        ConfigError: naming all flags that are missing, or one that does not belong there.
    """
    from analysis.commands import pairs
    from analysis.read.importers.settings import ask_for, missing

    target = given.pop("target")
    if not given["command"]:
        known = [name for name, value in given.items() if value and (name, value) != ("reads", REPORT)]
        if known:
            flag = "column" if known[0] == "columns" else known[0].replace("_", "-")
            raise ConfigError(f"--{flag} belongs to --command, the program that trains")
        return None
    for flag, value in refused.items():
        if value:
            raise ConfigError(f"{flag} does not go with --command: the program has its own model and data")
    absent = missing(target=target, **{name: given[name] for name in _ASKED if name != "target"})
    absent += [] if optimizers else ["--optim NAME (what it trains with)"]
    absent += [] if batch_sizes else ["--batch-sizes LIST"]
    if absent:
        raise ask_for(absent)
    columns = pairs("--column", given.pop("columns"))
    told = {name: value for name, value in given.items() if value is not None}
    trainer = Trainer(columns=columns, **told)
    if trainer.reads != REPORT:
        # What is wrong with the names of columns is known before anything runs.
        from analysis.read.importers import Settings

        names = ("metric", "direction", "metric_unit", "example_unit", "tokens_per_example")
        Settings(target=target, columns=columns, **{name: getattr(trainer, name) for name in names})
    return trainer
