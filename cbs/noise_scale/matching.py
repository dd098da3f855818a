"""The geometry whose steepest descent an optimizer is closest to."""

from __future__ import annotations

import torch

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import GEOMETRIES

_FRAGMENTS = (
    ("nuclear", ("muon", "scion", "shampoo", "soap", "splus", "kron")),
    ("l1", ("sign", "lion", "rprop", "sophia")),
    ("l2", ("sgd", "lars")),
    ("l1", ("adam", "adan", "adabelief", "adafactor", "adagrad", "adadelta", "rmsprop", "lamb", "merit")),
)
"""Geometries and parts of class names in lower case; the first that fits wins, so ``SignSGD`` is not an SGD."""


def matched(optimizer: torch.optim.Optimizer) -> str:
    r"""Name of the geometry that suits an optimizer, in :data:`~cbs.noise_scale.GEOMETRIES`.

    A step that does the most for the loss among all of norm at most 1 meets noise in the dual norm (Naganuma et al.,
    arXiv 2602.03001). Hence

    - ``l2`` where the Euclidean norm of a step is bounded: plain, momentum and normalised SGD, and LARS, which bounds
      it for each tensor;
    - ``l1`` where the largest entry of a step is bounded: signSGD, Signum, Lion and Rprop exactly; Adam, AdamW, NAdam,
      RAdam, Adamax, RMSprop, Adagrad and their kin, whose direction :math:`m/\sqrt v` has entries of about 1 and is the
      sign where the averages are short; LAMB and MERIT, which scale that direction, MERIT with a bound on every entry;
    - ``nuclear`` where the largest singular value of a step is bounded: Muon, Scion and, without its averages, Shampoo
      and SOAP. Where there is no matrix it is ``l2``: the only singular value of a vector is its Euclidean norm.

    An optimizer class is known by its own attribute ``geometry``, else by its name or that of a class it derives from,
    so ``FusedAdam`` and ``AdamW8bit`` are Adam. Of several parts the first that is not Adam decides, unless the whole
    has that attribute: Adam is what is left for the tensors the method itself does not take.

    Raises:
        ConfigError: if the optimizer is not known.
    """
    parts = leaves(optimizer)
    decisive = next((part for part in parts if not _is_adam(part)), parts[0])
    name = declared(optimizer) or geometry_of(decisive)
    if name == "nuclear" and not any(param.ndim >= 2 for group in decisive.param_groups for param in group["params"]):
        return "l2"
    if name is None:
        raise ConfigError(
            f"no geometry is known to suit the optimizer {type(decisive).__name__}: name one, as in geometry='l2' "
            f"(there are {', '.join(GEOMETRIES.names())}), or give its class an attribute geometry = 'l2'"
        )
    return name


def geometry_of(optimizer: torch.optim.Optimizer) -> str | None:
    """The geometry of a single optimizer, ``None`` if it is not known; see :func:`matched`."""
    for kind in type(optimizer).__mro__:
        if isinstance(vars(kind).get("geometry"), str):
            return vars(kind)["geometry"]
        for geometry, fragments in _FRAGMENTS:
            if any(fragment in kind.__name__.lower() for fragment in fragments):
                return geometry
    return None


def declared(optimizer: torch.optim.Optimizer) -> str | None:
    """The attribute ``geometry`` of an optimizer's class."""
    geometry = getattr(type(optimizer), "geometry", None)
    return geometry if isinstance(geometry, str) else None


def leaves(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers behind one: the parts of a composite, what a wrapper wraps, or itself."""
    inner = getattr(optimizer, "optimizers", None) or getattr(optimizer, "optimizer", None)
    if inner is None:
        return [optimizer]
    return [leaf for part in (inner if isinstance(inner, list | tuple) else [inner]) for leaf in leaves(part)]


def _is_adam(optimizer: torch.optim.Optimizer) -> bool:
    return any("adam" in kind.__name__.lower() for kind in type(optimizer).__mro__) and geometry_of(optimizer) == "l1"
