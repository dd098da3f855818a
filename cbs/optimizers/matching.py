"""The geometry in whose norm an optimizer is closest to steepest descent, in which its noise scale is measured."""

import torch

from cbs.errors import ConfigError
from cbs.optimizers.base import OPTIMIZERS

LIBRARY_CLASSES = {
    "l1": "adabound adagc adapnm adasmooth adatam ademamix adopt aida ano avagrad came diffgrad emofact emolynx "
    "emonavi exadam fira focus ftrl galore grams kate laprop madgrad magma mars prodigy ranger sara simplifiedademamix "
    "sm3 spam stablespam tiger vsgd yogi",
    "nuclear": "dash",
}
"""Classes of pytorch_optimizer, in lower case, that match no entry: those whose steps have entries of about 1, and one
that steps in Shampoo's basis."""

_FIRST, _LAST = "spectral", "adam"


def matched(optimizer: torch.optim.Optimizer) -> str:
    r"""Return the name of the geometry that matches an optimizer, in :data:`~cbs.noise_scale.GEOMETRIES`.

    For the step that decreases the loss most among all steps of norm at most 1, gradient noise has to be measured in
    the dual norm (Naganuma et al., arXiv 2602.03001). Hence

    - ``l2`` where the Euclidean norm of a step is bounded: plain, momentum and normalised SGD, and LARS, which bounds
      it for each tensor;
    - ``l1`` where the largest entry of a step is bounded: signSGD, Signum, Lion and Rprop exactly; Adam, AdamW, NAdam,
      RAdam, Adamax, RMSprop, Adagrad and similar methods, whose direction :math:`m/\sqrt v` has entries of about 1 and
      is the sign where the averages are short; LAMB and MERIT, which scale that direction, MERIT with a bound on every
      entry;
    - ``nuclear`` where the largest singular value of a step is bounded: Muon, Scion and, without its averages, Shampoo
      and SOAP. Without matrices it is ``l2``: the only singular value of a vector is its Euclidean norm.

    The optimizer registry holds the geometry of every class that it builds. Other packages' classes are recognized by
    their name or that of a base class, so ``FusedAdam`` and ``AdamW8bit`` count as Adam; a class of yours can have an
    attribute ``geometry``. If an optimizer has several parts and its own class is unknown, the first part that is not
    Adam decides, because Adam then trains only the tensors that the method itself does not support.

    >>> matched(torch.optim.AdamW(torch.nn.Linear(2, 1).parameters()))
    'l1'

    Raises:
        ConfigError: if the geometry of the optimizer is unknown.
    """
    parts = leaves(optimizer)
    decisive = next((part for part in parts if not _is_adam(part)), parts[0])
    name = next(filter(None, map(_stated_geometry, type(optimizer).__mro__)), None) or _known(decisive)
    if name == "nuclear" and not any(param.ndim >= 2 for group in decisive.param_groups for param in group["params"]):
        return "l2"
    if name is None:
        raise ConfigError(
            f"no geometry is known for the optimizer {type(decisive).__name__}: name one, as in geometry='l2' "
            "(there are l1, l2, nuclear, preconditioned), or give its class an attribute geometry = 'l2'"
        )
    return name


def leaves(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizers behind one: the parts of a composite, the one inside a wrapper, or itself."""
    inner = getattr(optimizer, "optimizers", None) or getattr(optimizer, "optimizer", None)
    if inner is None:
        return [optimizer]
    return [leaf for part in (inner if isinstance(inner, list | tuple) else [inner]) for leaf in leaves(part)]


def _is_adam(optimizer: torch.optim.Optimizer) -> bool:
    kind = type(optimizer)
    return any("adam" in base.__name__.lower() for base in kind.__mro__) and _known(optimizer) == "l1"


def _known(optimizer: torch.optim.Optimizer) -> str | None:
    return vars(optimizer).get("geometry") or geometry_of(type(optimizer))


def geometry_of(kind: type) -> str | None:
    """Return the geometry of an optimizer class; ``None`` if it is unknown.

    The geometry is that of the registry entry that builds the class, or of its attribute ``geometry``, or that of an
    entry whose ``known_as`` is part of the name of the class or of a base class. If several entries match, spectral
    methods come first and the Adam family last, because in combined methods Adam only trains the remaining parameters.
    """
    for base in kind.__mro__:
        name = base.__name__.lower()
        listed = next((geometry for geometry, names in LIBRARY_CLASSES.items() if name in names.split()), None)
        if stated_geometry := _stated_geometry(base) or listed or _by_part_of(name):
            return stated_geometry
    return None


def declare(optimizer: torch.optim.Optimizer, geometry: str) -> torch.optim.Optimizer:
    """Set the geometry as an attribute of an optimizer whose class does not define it."""
    vars(optimizer).setdefault("geometry", geometry)
    return optimizer


def _stated_geometry(kind: type) -> str | None:
    own = vars(kind).get("geometry")
    built = (OPTIMIZERS[name].classes.get(kind) for name in OPTIMIZERS)
    return own if isinstance(own, str) else next(filter(None, built), None)


def _by_part_of(name: str) -> str | None:
    entries = [
        (entry.family == _FIRST, entry.family != _LAST, len(part), entry.geometry)
        for entry in map(OPTIMIZERS.__getitem__, OPTIMIZERS)
        for part in entry.known_as
        if part in name
    ]
    return max(entries)[-1] if entries else None
