"""The geometry whose steepest descent an optimizer is closest to."""

from __future__ import annotations

import torch

from cbs.errors import ConfigError
from cbs.optimizers.geometry import declared, geometry_of


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

    The registry of optimizers says it of every class that it builds, and of others' by their name or that of a class
    they derive from, so ``FusedAdam`` and ``AdamW8bit`` are Adam; a class of yours says it by its own attribute
    ``geometry``. Of several parts the first that is not Adam decides, unless the whole is known by its class: Adam is
    what is left for the tensors the method itself does not take.

    Raises:
        ConfigError: if the optimizer is not known.
    """
    parts = leaves(optimizer)
    decisive = next((part for part in parts if not _is_adam(part)), parts[0])
    name = declared(type(optimizer)) or _known(decisive)
    if name == "nuclear" and not any(param.ndim >= 2 for group in decisive.param_groups for param in group["params"]):
        return "l2"
    if name is None:
        raise ConfigError(
            f"no geometry is known to suit the optimizer {type(decisive).__name__}: name one, as in geometry='l2' "
            "(there are l1, l2, nuclear, preconditioned), or give its class an attribute geometry = 'l2'"
        )
    return name


def leaves(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers behind one: the parts of a composite, what a wrapper wraps, or itself."""
    inner = getattr(optimizer, "optimizers", None) or getattr(optimizer, "optimizer", None)
    if inner is None:
        return [optimizer]
    return [leaf for part in (inner if isinstance(inner, list | tuple) else [inner]) for leaf in leaves(part)]


def _is_adam(optimizer: torch.optim.Optimizer) -> bool:
    kind = type(optimizer)
    return any("adam" in base.__name__.lower() for base in kind.__mro__) and _known(optimizer) == "l1"


def _known(optimizer: torch.optim.Optimizer) -> str | None:
    return vars(optimizer).get("geometry") or geometry_of(type(optimizer))
