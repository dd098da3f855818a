"""What an optimizer entry is: how it is built, and what a sweep needs to know about it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from cbs.config import Choice
from cbs.errors import CbsError, ConfigError
from cbs.optimizers.scaling import resolve
from cbs.optimizers.widths import scale_for_width
from cbs.registry import Registry

OPTIMIZERS: Registry[OptimizerSpec] = Registry("optimizer", "cbs.optimizers")

Builder = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """One optimizer of the registry.

    Attributes:
        name: name in the registry.
        build: ``build(model, lr, **options)`` returns the optimizer over the model's trainable parameters.
        defaults: the options and their default values.
        lr_grid: learning rates a sweep starts from, increasing, with a constant ratio; a search extends the grid by the
            same ratio where the optimum lies on its edge.
        family: ``"sgd"``, ``"adam"``, ``"trust ratio"``, ``"spectral"``, ...
        geometry: in which its noise scale is read, a name in :data:`cbs.noise_scale.GEOMETRIES`; see
            :func:`cbs.noise_scale.matching.matched`.
        classes: geometries of the classes of its own that it builds.
        known_as: parts of class names, in lower case, by which it is known where others implement it.
        width_rule: how its learning rate moves with the width of a layer, see :mod:`cbs.optimizers.widths`.
        paper: author, year and arXiv number or venue.
        summary: one line.
    """

    name: str
    build: Builder
    defaults: dict[str, Any]
    lr_grid: tuple[float, ...]
    family: str
    geometry: str
    width_rule: str
    paper: str
    summary: str
    classes: Mapping[type, str] = field(default_factory=dict)
    known_as: tuple[str, ...] = ()


def optimizer(
    name: str,
    *,
    lr_grid: tuple[float, ...],
    family: str,
    geometry: str | Mapping[type, str],
    paper: str,
    width_rule: str = "adam",
    known_as: tuple[str, ...] | None = None,
) -> Callable[[Builder], Builder]:
    """Register a function ``(model, lr, *, option=default, ...) -> torch.optim.Optimizer`` as an optimizer.

    Its keyword-only parameters become the options, the first line of its docstring the summary. ``geometry`` is that of
    the classes it builds, the entry's own first, or one name where all of them are a library's. ``known_as`` is the
    name without underscores when absent.
    """
    classes = {} if isinstance(geometry, str) else geometry

    def decorate(build: Builder) -> Builder:
        options = {
            parameter.name: parameter.default
            for parameter in inspect.signature(build).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        summary = (inspect.getdoc(build) or "").splitlines()[0]
        OPTIMIZERS.register(name)(
            OptimizerSpec(
                name=name,
                build=build,
                defaults=options,
                lr_grid=lr_grid,
                family=family,
                geometry=geometry if isinstance(geometry, str) else next(iter(geometry.values())),
                width_rule=width_rule,
                paper=paper,
                summary=summary,
                classes=classes,
                known_as=(name.replace("_", ""),) if known_as is None else known_as,
            )
        )
        return build

    return decorate


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of ``model`` that are trained."""
    return [param for param in model.parameters() if param.requires_grad]


def build_optimizer(choice: Choice, model: nn.Module, lr: float, batch_size: int = 1) -> torch.optim.Optimizer:
    """The optimizer a configuration names, over the trainable parameters of ``model``.

    Args:
        choice: name and options; besides the optimizer's own options those of :mod:`cbs.optimizers.scaling`.
        model: the model.
        lr: learning rate; at other than the base width of a model in muP times the factors of ``width_rule``.
        batch_size: examples per update; only options given in examples depend on it.

    Raises:
        ConfigError: if the name or an option is unknown, or an option's value is refused.
    """
    spec = OPTIMIZERS[choice.name]
    options = resolve(choice, spec.defaults, spec.family, lr=lr, batch_size=batch_size)
    unknown = sorted(set(options) - set(spec.defaults))
    if unknown:
        known = ", ".join(f"{key}={value}" for key, value in spec.defaults.items())
        raise ConfigError(f"optimizer {choice.name!r} has no option {unknown[0]!r}; its options are: {known}")
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    try:
        built = spec.build(model, lr, **options)
    except CbsError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {choice.name!r} refuses its options: {error}") from None
    scale_for_width(built, model, spec.width_rule)
    return built
