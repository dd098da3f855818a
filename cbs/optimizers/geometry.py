"""The geometry in which the noise scale of an optimizer class is measured, according to the registry."""

from __future__ import annotations

import torch

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


def geometry_of(kind: type) -> str | None:
    """Return the geometry of an optimizer class; ``None`` if it is unknown.

    The geometry is the declared one (:func:`declared`), or that of a registry entry whose ``known_as`` is part of the
    name of the class or of a base class. If several entries match, spectral methods come first and the Adam family
    last, because in combined methods Adam only trains the remaining parameters.
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


def declared(kind: type) -> str | None:
    """Return the geometry of a class that a registry entry builds, or that has an attribute ``geometry``; else
    ``None``.
    """
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
