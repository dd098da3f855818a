"""An optimizer of your own, named as ``package.module:name``, in the working folder or installed.

The name refers to a class ``(params, lr, option=default, ...)``, or to a function ``(model, lr, *, option=default,
...)`` that returns an optimizer. Further information for a sweep is read from its attributes ``lr_grid``, ``family``,
``geometry``, ``width_rule``, ``paper``, ``second_moment`` and ``decoupled_decay``, where they exist; see
:class:`~cbs.optimizers.base.OptimizerSpec`. For an entry that is registered with
:func:`~cbs.optimizers.base.optimizer` the registration is used.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.optimizers.base import (
    OPTIMIZERS,
    OptimizerSpec,
    check_torch,
    of_torch,
    plain_options,
    signature_options,
    summary,
    trainable,
)
from cbs.optimizers.geometry import declare, geometry_of
from cbs.registry import ImportFallback
from cbs.registry.domains import is_number

POWERS = range(-3, 4)
"""Powers of 2 by which a sweep multiplies the default learning rate of a class."""

EUCLIDEAN = "l2"
"""The geometry of optimizers that declare none: that of the simple noise scale."""

_IMPORTED = ImportFallback("optimizer")


def own_optimizer(name: str) -> OptimizerSpec:
    """Return the entry for ``package.module:name``.

    Raises:
        ConfigError: if there is no such module or name, or it is not an optimizer.
    """
    entry = _IMPORTED.get(name)
    specs = map(OPTIMIZERS.__getitem__, OPTIMIZERS)
    registered = next((spec for spec in specs if entry is spec.build or spec.classes.get(entry)), None)
    if registered is not None:
        return replace(registered, name=name)
    check_torch(name, entry)
    is_class = isinstance(entry, type)
    parameters = inspect.signature(entry).parameters
    if "lr" not in parameters:
        takes = "(params, lr, ...)" if is_class else "(model, lr, ...)"
        raise ConfigError(f"optimizer {name!r} takes no lr; its signature must be {takes}")

    def stated(attribute: str, otherwise: Any) -> Any:
        return getattr(entry, attribute, otherwise)

    geometry = stated("geometry", None) or (geometry_of(entry) if is_class else None) or EUCLIDEAN

    def build(model: nn.Module, lr: float, **options: Any) -> torch.optim.Optimizer:
        return declare(of_torch(name, entry(trainable(model) if is_class else model, lr=lr, **options)), geometry)

    return OptimizerSpec(
        name=name,
        build=build,
        defaults=plain_options(signature_options(entry)),
        lr_grid=tuple(stated("lr_grid", lr_grid_around(parameters["lr"].default))),
        family=stated("family", "own"),
        geometry=geometry,
        width_rule=stated("width_rule", "adam"),
        second_moment=stated("second_moment", stated("family", "own") != "sign"),
        decoupled_decay=stated("decoupled_decay", False),
        paper=stated("paper", name),
        summary=summary(entry),
    )


def lr_grid_around(middle: Any) -> tuple[float, ...]:
    """Return learning rates around a default; empty where there is no positive number."""
    return tuple(middle * 2.0**power for power in POWERS) if is_number(middle) and middle > 0 else ()
