"""In which geometry the noise scale of an optimizer's class is read: what the registry says of it."""

from __future__ import annotations

import torch

from cbs.optimizers.base import OPTIMIZERS

LIBRARY_CLASSES = {
    "l1": "adabound adagc adapnm adasmooth adatam ademamix adopt aida ano avagrad came diffgrad emofact emolynx "
    "emonavi exadam fira focus ftrl galore grams kate laprop madgrad magma mars prodigy ranger sara simplifiedademamix "
    "sm3 spam stablespam tiger vsgd yogi",
    "nuclear": "dash",
}
"""Classes of pytorch_optimizer, in lower case, that no entry speaks for: those with step entries of about 1, and one
that steps in Shampoo's basis."""

_FIRST, _LAST = "spectral", "adam"


def geometry_of(kind: type) -> str | None:
    """The geometry of an optimizer's class: as :func:`declared`, or as its name or that of a class it derives from has
    it. The entry whose ``known_as`` is part of a name speaks for it; of several a spectral method, and Adam and its kin
    last, because Adam takes what a method leaves over. ``None`` if there is none.
    """
    for base in kind.__mro__:
        name = base.__name__.lower()
        listed = next((geometry for geometry, names in LIBRARY_CLASSES.items() if name in names.split()), None)
        if stated_geometry := _stated_geometry(base) or listed or _by_part_of(name):
            return stated_geometry
    return None


def declare(optimizer: torch.optim.Optimizer, geometry: str) -> torch.optim.Optimizer:
    """Have an optimizer whose class says nothing of its geometry say it itself."""
    vars(optimizer).setdefault("geometry", geometry)
    return optimizer


def declared(kind: type) -> str | None:
    """The geometry that a class has as what an entry of the registry builds, or by an attribute ``geometry``."""
    return next(filter(None, map(_stated_geometry, kind.__mro__)), None)


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
