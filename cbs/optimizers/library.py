"""Entries for all optimizers of torch.optim and pytorch_optimizer, by their class names in lower case.

A name is looked up in the registry first, then in ``torch.optim``, then in ``pytorch_optimizer``. The qualified names
``torch.adam`` and ``pytorch_optimizer.lamb`` always mean the library's class, so that it can be compared with a
registered entry of the same name. Options and their defaults are those of the class, and the learning rates of a sweep
lie around its default.

``package.module:name`` is an optimizer of your own, in the working folder or installed: a class ``(params, lr,
option=default, ...)``, or a function ``(model, lr, *, option=default, ...)`` that returns an optimizer. Further
information for a sweep is read from its attributes ``lr_grid``, ``family``, ``geometry``, ``width_rule``, ``paper``,
``second_moment`` and ``decoupled_decay``, where they exist; see :class:`~cbs.optimizers.base.OptimizerSpec`. For an
entry that is registered with :func:`~cbs.optimizers.base.optimizer` the registration is used.
"""

import importlib
import inspect
from dataclasses import replace
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError, reason
from cbs.optimizers.base import (
    OPTIMIZERS,
    Builder,
    OptimizerSpec,
    check_torch,
    of_torch,
    own_options,
    plain_options,
    signature_options,
    summary,
    trainable,
)
from cbs.optimizers.matching import declare, geometry_of
from cbs.optimizers.routing import route
from cbs.registry import ImportFallback
from cbs.registry.values import is_number

TORCH, PYTORCH_OPTIMIZER = "torch", "pytorch_optimizer"
INSTALL = "pip install pytorch-optimizer"
_CLOSURE = "its step needs a closure that evaluates the loss again"
_CURVATURE = "it differentiates the gradient, but the training loop keeps no graph of the gradient"
_MATRICES = "it accepts only matrices and leaves the other parameters to another optimizer"
_REDUCED = "__reduce_ex__"
_STATE = "its state holds objects that a checkpoint cannot store"
_OWN_LR = "it sets the learning rate itself"
UNUSABLE = {
    "torch.lbfgs": _CLOSURE,
    "torch.muon": f"{_MATRICES}; use muon, which adds AdamW for them",
    "torch.sparseadam": "it accepts only sparse gradients",
    "pytorch_optimizer.a2grad": _OWN_LR,
    "pytorch_optimizer.adafactor": f"{_OWN_LR} by default; use adafactor, torch's, which accepts a learning rate",
    "pytorch_optimizer.adahessian": _CURVATURE,
    "pytorch_optimizer.adalomo": "it updates inside the backward pass through hooks of the model",
    "pytorch_optimizer.adammini": "it needs to know the model's heads and names of its layers",
    "pytorch_optimizer.adashift": _STATE,
    "pytorch_optimizer.alig": _CLOSURE,
    "pytorch_optimizer.asgd": _OWN_LR,
    "pytorch_optimizer.bsam": _CLOSURE,
    "pytorch_optimizer.conda": _STATE,
    "pytorch_optimizer.demo": "it compresses the communication of replicas and needs another package, einops",
    "pytorch_optimizer.distributedmuon": "it needs a process group of several replicas; use muon",
    "pytorch_optimizer.lbfgs": _CLOSURE,
    "pytorch_optimizer.lomo": "it updates inside the backward pass through hooks of the model",
    "pytorch_optimizer.lorarite": "it trains pairs of low-rank factors, not the model's own parameters",
    "pytorch_optimizer.ranger21": "it needs the length of the run and brings its own schedule",
    "pytorch_optimizer.scalableshampoo": _STATE,
    "pytorch_optimizer.sophiah": _CURVATURE,
    "pytorch_optimizer.spectralsphere": _MATRICES,
    "pytorch_optimizer.swats": _OWN_LR,
}
"""Qualified names of classes that cannot be swept, with the reason."""

ROUTED = frozenset({"adago", "adamuon", "muon", "muonclip", "normuon"})
"""Classes of pytorch_optimizer that receive hidden matrices and other parameters as two groups, marked by
``use_muon``."""

FAMILIES = {
    "sgd": "accsgd adai aggmo asgd dadaptsgd gravity msvag pid pnm qhm schedulefreesgd sgd sgdp sgdsai sgdw srmm tam",
    "sign": "ano dadaptlion emolynx lion rprop signsgd tiger",
    "trust ratio": "adalite fromage lamb lars nero",
    "spectral": "adago adamuon muon muonclip normuon scion scionlight shampoo",
}
"""Families and their classes. sgd: updates proportional to the gradient or an average of it; sign: the sign of an
average; trust ratio: relative to the size of the weights; spectral: with singular values of a fixed size. All others
belong to the Adam family."""

WIDTH_RULES = {"sgd": "sgd", "trust ratio": "spectral", "spectral": "none"}
"""How the learning rate of a family changes with width, where not as for Adam; see :mod:`cbs.optimizers.widths`."""

DECOUPLING, DECOUPLED = ("weight_decouple", "decoupled_weight_decay"), frozenset({"adafactor", "adamw", "soap"})
"""Options that say whether weight decay is decoupled, and classes with decoupled decay that have no such option."""

NO_SECOND_MOMENT = frozenset({"adamax", "adan", "adasmooth", "aggmo", "dadaptadan", "focus", "pnm"})
"""Classes, beside sign methods, whose second beta is not the decay of squared gradients but that of a largest entry, of
differences of gradients, of another momentum, or of weights."""

_DEFAULT_LR = 1e-3  # Used where a class has no default learning rate; that of torch.optim.Adam

# Powers of 2 by which a sweep multiplies the default learning rate of a class
POWERS = range(-3, 4)

EUCLIDEAN = "l2"  # The geometry of optimizers that declare none: that of the simple noise scale

_IMPORTED = ImportFallback("optimizer")


class LibraryOptimizers:
    """The fallback of the optimizer registry: makes entries from library classes on demand."""

    def names(self) -> list[str]:
        """Return the names of all classes that can be used in a sweep, plain and qualified."""
        qualified = [name for name in (*_classes(TORCH), *_classes(PYTORCH_OPTIMIZER)) if name not in UNUSABLE]
        return sorted({*qualified, *(name.partition(".")[2] for name in qualified)})

    def get(self, name: str) -> OptimizerSpec | None:
        """Return the entry for ``name``, plain or qualified; ``None`` if there is no such class.

        Raises:
            ConfigError: if the class cannot be used in a sweep, or belongs to a library that is not installed.
        """
        if ":" in name:
            return own_optimizer(name)
        library, dot, _ = name.partition(".")
        if dot:
            if library == PYTORCH_OPTIMIZER and _pytorch_optimizer() is None:
                raise ConfigError(f"optimizer {name!r} needs a package that is not installed: {INSTALL}")
            candidates = [name] if library in (TORCH, PYTORCH_OPTIMIZER) else []
        else:
            candidates = [f"{TORCH}.{name}", f"{PYTORCH_OPTIMIZER}.{name}"]
        refusal = ""
        for candidate in candidates:
            # In this order, so that pytorch_optimizer, which imports slowly, is imported only for its own names.
            kind = _classes(candidate.partition(".")[0]).get(candidate)
            if kind is not None and candidate not in UNUSABLE:
                return _spec(name, candidate, kind)
            refusal = refusal or (UNUSABLE[candidate] if kind is not None else "")
        if refusal:
            raise ConfigError(f"optimizer {name!r} cannot be used here: {refusal}")
        return None

    def describe(self) -> str:
        """Return a description of the libraries, how to install a missing one, and how to name your own optimizer."""
        own = "your own package.module:name"
        if _pytorch_optimizer() is None:
            return f"every optimizer of torch.optim, and with '{INSTALL}' those of pytorch_optimizer, and {own}"
        return f"every optimizer of torch.optim and pytorch_optimizer, and {own}"


def construct(kind: type[torch.optim.Optimizer], params: Any, lr: float, **options: Any) -> torch.optim.Optimizer:
    """Build an optimizer of another package's class, with a declared geometry and copies that keep all attributes.

    Args:
        kind: the class.
        params: parameters or groups of them.
        lr: learning rate.
        options: further arguments of the class.

    Raises:
        ValueError: if the class raises any error for these values.
    """
    try:
        if isinstance(lr, Tensor) and not kind.__module__.startswith("torch."):
            raise ValueError("lr must be a number, got a tensor")
        built = kind(params, lr=lr, **options)  # type: ignore[call-arg]
    except Exception as error:  # assertions, keys, errors of a library's own: each class refuses values in its way
        raise ValueError(reason(error)) from error
    return declare(_kept_whole(built), _geometry(kind))


def _kept_whole(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Let copies and pickles of an optimizer keep all its attributes; torch keeps only defaults, groups and state."""
    vars(optimizer)[_REDUCED] = partial(_attributes, optimizer)
    return optimizer


def _attributes(optimizer: torch.optim.Optimizer, _protocol: object) -> tuple[Any, ...]:
    # Leave out torch's hooks, and a step method that a scheduler assigned.
    attributes = vars(optimizer).items()
    left = ("step", _REDUCED)
    kept = {name: value for name, value in attributes if name not in left and not name.startswith("_optimizer_")}
    return _anew, (type(optimizer),), kept


def _anew(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    return _kept_whole(kind.__new__(kind))


def from_pytorch_optimizer(name: str) -> type[torch.optim.Optimizer]:
    """Return a class of pytorch_optimizer by its class name.

    Raises:
        ConfigError: if the package is not installed; names the command that installs it.
    """
    library = _pytorch_optimizer()
    if library is None:
        raise ConfigError(f"optimizer class {name} is in a package that is not installed: {INSTALL}")
    return getattr(library, name)


def _pytorch_optimizer() -> ModuleType | None:
    try:
        return importlib.import_module(PYTORCH_OPTIMIZER)
    except ModuleNotFoundError as error:
        if error.name != PYTORCH_OPTIMIZER:
            raise
        return None


@cache
def _torch_classes() -> dict[str, type[torch.optim.Optimizer]]:
    base = torch.optim.Optimizer
    members = [item for item in vars(torch.optim).values() if inspect.isclass(item) and issubclass(item, base)]
    return {f"{TORCH}.{kind.__name__.lower()}": kind for kind in members if kind is not base}


def _classes(library: str) -> dict[str, type[torch.optim.Optimizer]]:
    if library == TORCH:
        return _torch_classes()
    module = _pytorch_optimizer()
    return {} if module is None else _pytorch_optimizer_classes(module)


@cache
def _pytorch_optimizer_classes(module: ModuleType) -> dict[str, type[torch.optim.Optimizer]]:
    return {f"{PYTORCH_OPTIMIZER}.{name}": module.load_optimizer(name) for name in module.get_supported_optimizers()}


def _spec(name: str, qualified: str, kind: type[torch.optim.Optimizer]) -> OptimizerSpec:
    key = kind.__name__.lower()
    family = next((family for family, keys in FAMILIES.items() if key in keys.split()), "adam")
    summary = (inspect.getdoc(kind) or kind.__name__).splitlines()[0].rstrip(".:")
    lr = inspect.signature(kind).parameters.get("lr")
    options = plain_options(own_options(kind))
    return OptimizerSpec(
        name=name,
        build=_builder(kind, options, routed=key in ROUTED and qualified.startswith(PYTORCH_OPTIMIZER)),
        defaults=options,
        lr_grid=lr_grid_around(lr.default if lr else None) or lr_grid_around(_DEFAULT_LR),
        family=family,
        geometry=_geometry(kind),
        width_rule=WIDTH_RULES.get(family, "adam"),
        second_moment=family != "sign" and key not in NO_SECOND_MOMENT,
        decoupled_decay=next(filter(options.__contains__, DECOUPLING), key in DECOUPLED),
        paper=f"{'torch.optim' if qualified.startswith(f'{TORCH}.') else PYTORCH_OPTIMIZER}.{kind.__name__}",
        summary=f"{summary}.",
    )


def _geometry(kind: type[torch.optim.Optimizer]) -> str:
    return geometry_of(kind) or EUCLIDEAN


def _builder(kind: type[torch.optim.Optimizer], defaults: dict[str, Any], *, routed: bool) -> Builder:
    def build(model: nn.Module, lr: float, **options: Any) -> torch.optim.Optimizer:
        params: list[Any] = trainable(model)
        if routed and params:
            # Only two-dimensional ones: these classes would flatten a stack of experts into one matrix.
            hidden = {id(param) for param in route(model).matrices if param.ndim == 2}
            groups = (
                ([param for param in params if (id(param) in hidden) is of_muon], of_muon) for of_muon in (True, False)
            )
            params = [{"params": part, "use_muon": of_muon} for part, of_muon in groups if part]
        return construct(kind, params, lr, **(defaults | options))

    return build


OPTIMIZERS.fallback = LibraryOptimizers()


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
