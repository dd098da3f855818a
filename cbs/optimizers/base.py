"""The registry entry of an optimizer: how it is built, and what a sweep needs to know about it."""

import enum
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

import torch
from torch import nn

from cbs.errors import CbsError, ConfigError
from cbs.optimizers.contract import building_plainly, check_size, needs_dense_gradients
from cbs.optimizers.scaling import resolve, scaled_options
from cbs.optimizers.widths import scale_for_width
from cbs.registry import Registry
from cbs.registry.values import is_number
from cbs.trial.config import Choice

NOT_OPTIONS = frozenset(
    {"self", "model", "params", "lr", "foreach", "fused", "capturable", "differentiable", "maximize"}
)
"""Arguments that are not options of the method: parameters and learning rate, torch's implementation switches, and the
sign of the objective."""

AUTO = "auto"
"""Value of an option that lets the optimizer choose; the optimizer writes its choice into its parameter groups."""

Builder = Callable[..., torch.optim.Optimizer]
Entry = TypeVar("Entry", bound=Callable[..., torch.optim.Optimizer])


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """One optimizer of the registry.

    >>> entry = OPTIMIZERS["sgd"]
    >>> entry.defaults["momentum"], entry.geometry
    (0.9, 'l2')
    >>> type(entry.build(nn.Linear(2, 1), 0.1, momentum=0.5)).__name__
    'SGD'

    Attributes:
        name: name in the registry.
        build: ``build(model, lr, **options)`` returns the optimizer over the model's trainable parameters.
        defaults: the options and their default values.
        lr_grid: learning rates from which a sweep starts, increasing, with a constant ratio; a search extends the grid
            by the same ratio where the optimum lies on its edge. Empty if the user has to name learning rates.
        family: ``"sgd"``, ``"adam"``, ``"trust ratio"``, ``"spectral"``, ...
        geometry: geometry in which its noise scale is measured, a name in :data:`cbs.noise_scale.GEOMETRIES`; see
            :func:`cbs.optimizers.matching.matched`.
        classes: geometries of the optimizer classes of this package that it builds.
        known_as: parts of class names, in lower case, by which implementations in other packages are recognized.
        width_rule: how its learning rate changes with the width of a layer, see :mod:`cbs.optimizers.widths`.
        second_moment: whether the second of its ``betas``, if it has them, is the decay per step of squared gradients.
        decoupled_decay: whether a step subtracts ``lr * weight_decay`` times the weight separately from the update, or
            the option that says so.
        paper: author, year and arXiv number or venue.
        summary: one line of description.
        published: options whose default here differs from that of the paper or its authors' code, with that value.
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
    second_moment: bool = True
    decoupled_decay: bool | str = True
    classes: Mapping[type, str] = field(default_factory=dict)
    known_as: tuple[str, ...] = ()
    published: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options_in_examples(self) -> tuple[str, ...]:
        """Names of the options that can be given in examples, see :mod:`cbs.optimizers.scaling`."""
        return scaled_options(self.defaults, self.second_moment, self.decoupled_decay)


OPTIMIZERS: Registry[OptimizerSpec] = Registry("optimizer", "cbs.optimizers", instance_of=OptimizerSpec)


def optimizer(
    name: str,
    *,
    lr_grid: tuple[float, ...],
    family: str,
    geometry: str | Mapping[type, str],
    paper: str,
    width_rule: str = "adam",
    second_moment: bool = True,
    decoupled_decay: bool = True,
    known_as: tuple[str, ...] | None = None,
    options_of: type | None = None,
    defaults: Mapping[str, Any] | None = None,
    published: Mapping[str, Any] | None = None,
) -> Callable[[Entry], Entry]:
    """Register a class of optimizers, or a function ``(model, lr, *, option=default, ...) -> torch.optim.Optimizer``.

    The options are those of its signature, and the first line of the docstring is the summary. A function with
    ``**options`` has the options of the class ``options_of``, too, and is always called with all of them.

    Args:
        name: name in the registry.
        lr_grid: see :class:`OptimizerSpec`, as are ``family``, ``paper``, ``width_rule`` and ``decoupled_decay``.
        family: kind of method.
        geometry: geometry of what it builds; or the geometries of the classes of this package that it builds, the
            entry's own first.
        paper: author, year and arXiv number or venue.
        width_rule: how its learning rate changes with width.
        second_moment: whether the second of its ``betas`` is the decay of squared gradients.
        decoupled_decay: whether its weight decay is decoupled.
        known_as: see :class:`OptimizerSpec`; by default the name without underscores.
        options_of: the class to which a function passes its options on.
        defaults: default values in a sweep that replace those of the signature.
        published: see :class:`OptimizerSpec`.

    Example, a file in ``cbs/optimizers``::

        @optimizer("heavy", lr_grid=(0.1, 0.2), family="first order", geometry="l2", paper="Polyak 1964")
        def heavy(model: nn.Module, lr: float, *, momentum: float = 0.9) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr, momentum)
    """

    def decorate(entry: Entry) -> Entry:
        check_torch(name, entry)
        own = signature_options(entry)
        options = {**(signature_options(options_of) if options_of else {}), **own, **(defaults or {})}
        if isinstance(entry, type):
            assert isinstance(geometry, str)
            classes: Mapping[type, str] = {entry: geometry}
            build: Builder = over_trainable(entry)
        else:
            classes = {} if isinstance(geometry, str) else geometry
            build = entry

        @functools.wraps(build)
        def complete(model: nn.Module, lr: float, **given: Any) -> torch.optim.Optimizer:
            for option in given.keys() - options.keys():
                raise TypeError(f"{name} has no option {option!r}{_hint(option, options)}")
            with building_plainly():
                built = of_torch(name, build(model, lr, **(options | given)))
            built.register_step_pre_hook(lambda optimizer, args, kwargs: _refuse_sparse(name, optimizer))
            return built

        OPTIMIZERS.register(name)(
            OptimizerSpec(
                name=name,
                build=complete,
                defaults=options,
                lr_grid=lr_grid,
                family=family,
                geometry=geometry if isinstance(geometry, str) else next(iter(geometry.values())),
                width_rule=width_rule,
                paper=paper,
                summary=summary(entry),
                second_moment=second_moment,
                decoupled_decay=decoupled_decay,
                classes=classes,
                known_as=(name.replace("_", ""),) if known_as is None else known_as,
                published=published or {},
            )
        )
        return entry if isinstance(entry, type) else complete  # type: ignore[return-value]

    return decorate


def check_torch(name: str, entry: object) -> None:
    """Raise ``ConfigError`` for a class that is not a torch optimizer, and for objects that cannot be called."""
    if isinstance(entry, type) and not issubclass(entry, torch.optim.Optimizer):
        raise ConfigError(f"optimizer {name!r} is not a torch optimizer: derive it from torch.optim.Optimizer")
    if not callable(entry):
        raise ConfigError(f"optimizer {name!r} must be a class or a function, not a {type(entry).__name__}")


def of_torch(name: str, built: Any) -> torch.optim.Optimizer:
    """Return what an entry built if it is a torch optimizer; else raise ``ConfigError``."""
    if not isinstance(built, torch.optim.Optimizer):
        raise ConfigError(f"optimizer {name!r} returns {type(built).__name__}, not an optimizer of torch")
    return built


def summary(entry: Callable[..., Any]) -> str:
    """Return the first line of an entry's docstring; its name if it has none."""
    return (inspect.getdoc(entry) or f"{entry.__name__}.").splitlines()[0]


def signature_options(entry: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a class or function with their defaults; for a class with ``**`` arguments also its bases'
    options.
    """
    options = own_options(entry)
    for owner in entry.__mro__ if isinstance(entry, type) else ():
        if "__init__" in vars(owner):
            options |= {name: value for name, value in own_options(owner).items() if name not in options}
            if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(owner).parameters.values()):
                break
    return options


def own_options(entry: Callable[..., Any]) -> dict[str, Any]:
    """Return the options in a signature with their defaults."""
    parameters = inspect.signature(entry).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in NOT_OPTIONS}


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a configuration can hold, which are those with JSON values as defaults."""
    plain = {}
    for name, value in options.items():
        value = value.value if isinstance(value, enum.Enum) else value
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue
        plain[name] = value
    return plain


def over_trainable(kind: type[torch.optim.Optimizer]) -> Builder:
    """Return ``(model, lr, **options)`` for a class that is built over parameters."""

    def build(model: nn.Module, lr: float, **options: Any) -> torch.optim.Optimizer:
        return kind(trainable(model), lr=lr, **options)  # type: ignore[call-arg]

    return build


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of ``model`` that are trained."""
    return [param for param in model.parameters() if param.requires_grad]


def build_optimizer(choice: Choice, model: nn.Module, lr: float, batch_size: int = 1) -> torch.optim.Optimizer:
    """Build the optimizer that a configuration names, over the trainable parameters of ``model``.

    >>> optimizer = build_optimizer(Choice(name="lamb", options={"weight_decay": 0.1}), nn.Linear(4, 2), lr=0.01)
    >>> type(optimizer).__name__, optimizer.param_groups[0]["weight_decay"]
    ('LAMB', 0.1)

    Args:
        choice: name and options: the optimizer's own options and those of :mod:`cbs.optimizers.scaling`.
        model: the model.
        lr: learning rate; for a model in muP at another than the base width it is multiplied by the factors of
            ``width_rule``.
        batch_size: examples per update; only options given in examples depend on it.

    Raises:
        ConfigError: if the name or an option is unknown, or an option's value is invalid.
    """
    spec = OPTIMIZERS[choice.name]
    options = resolve(choice, spec.defaults, spec.second_moment, spec.decoupled_decay, lr=lr, batch_size=batch_size)
    for unknown in sorted(options.keys() - spec.defaults.keys()):
        known = ", ".join(f"{key}={value}" for key, value in spec.defaults.items()) or "none"
        hint = _hint(unknown, spec.defaults)
        raise ConfigError(f"optimizer {choice.name!r} has no option {unknown!r}{hint}; its options are: {known}")
    # JSON has no tuples, and torch's optimizers unpack betas
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    try:
        for option, value in options.items():
            _check_kind(option, value, spec.defaults[option])
        for option, value in {"lr": lr, "weight_decay": options.get("weight_decay", 0.0)}.items():
            check_size(option, value)
        built = spec.build(model, lr, **options)
    except CbsError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {choice.name!r} refuses its options: {error}") from None
    scale_for_width(built, model, spec.width_rule)
    return built


def decided(choice: Choice, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return the options that a choice sets to ``auto``, with the values that the optimizer chose and wrote into its
    groups.
    """
    options = {**OPTIMIZERS[choice.name].defaults, **choice.options}
    decisions = {
        name: sorted({str(group[name]) for group in optimizer.param_groups if group.get(name, AUTO) != AUTO})
        for name, value in options.items()
        if value == AUTO
    }
    return {name: ", ".join(values) for name, values in decisions.items() if values}


def _refuse_sparse(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Raise for sparse gradients before a step changes anything.

    Some methods, or parts of them, would accept sparse gradients and others not, so no entry does. Not checked in
    compiled steps, because it would disturb tracing.
    """
    if torch.compiler.is_compiling():
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None and param.grad.is_sparse:
                raise needs_dense_gradients(name)


def _check_kind(option: str, value: Any, default: Any) -> None:
    """Raise for a value whose type differs from that of the default.

    Otherwise any word would count as true, and decays of the wrong number would fail only in a step.
    """
    if isinstance(default, bool):  # first, as True is a number, too
        if not isinstance(value, bool):
            raise ValueError(f"{option} must be true or false, got {value!r}")
    elif is_number(default):
        if value is not None and not is_number(value):
            raise ValueError(f"{option} must be a number, got {value!r}")
    elif isinstance(default, list | tuple) and default and all(map(is_number, default)):
        pair = len(default) == 2
        if not isinstance(value, tuple) or not all(map(is_number, value)) or (pair and len(value) != 2):
            raise ValueError(f"{option} must be {'two' if pair else 'a list of'} numbers, got {value!r}")


def _hint(option: str, options: Mapping[str, Any]) -> str:
    near = get_close_matches(option, options, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
