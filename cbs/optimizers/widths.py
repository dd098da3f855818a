r"""Learning rates that transfer across widths: muP, the maximal update parametrization.

A model declares the :class:`Width` of each parameter; :func:`scale_for_width` multiplies the learning rate of each by
the factor that the optimizer's rule gives. With r = width / base width:

============================  ========  ==============  =======  =====  ==========  ======
kind of parameter             init std  multiplier      "adam"   "sgd"  "spectral"  "none"
============================  ========  ==============  =======  =====  ==========  ======
input: embeddings, gains and  const     1               1        r      1           1
biases
hidden: both sides grow       fan_in    1               1/r      1      1/sqrt(r)   1
                              ^(-1/2)
output: the head              const     1/r             1        r      1           1
narrow: only the input side   fan_in    1               1/r      1/r    1/r         1
grows, as in routers          ^(-1/2)
attention logits              --        sqrt(h0) / h    --       --     --          --
============================  ========  ==============  =======  =====  ==========  ======

h is the head size and h0 that of the base model. At r = 1 and h = h0 every entry is that of the standard
parametrization. Sources: Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, Table 8, the formulation that allows
the head to share the weights of the token embedding (input and output have one initialisation and one factor), and
the released package ``mup`` (microsoft/mup: ``optim.py``, and ``MuSharedReadout`` in ``layer.py``).

Derivation, for activations with entries of size 1 whose changes in a step are to be of size 1 too:

- Logits are a sum over the width of head times activation. Both move together, so the sum grows like r; the multiplier
  1/r takes it back. Through it, the gradient of the loss in an activation's entry is of order 1/r.
- "adam", update entries of a fixed size: an entry of an embedding, a gain or the head may move by 1, factor 1. A hidden
  matrix adds up fan_in aligned entries, so its entries may move by 1/fan_in, factor 1/r.
- "sgd", update proportional to the gradient: the gradient of an embedding or gain is of order 1/r, as is that of the
  head behind its multiplier, and both may move by 1, factor r. That of a hidden matrix is an outer product of a
  gradient of order 1/r and an activation of order 1: just the 1/fan_in it may move by, factor 1 (fan_out/fan_in in
  general; all hidden sides grow alike here). Momentum is linear in the gradient and changes nothing.
- "spectral", hidden updates whose entries have a root mean square of the size of the weights', 1/sqrt(fan_in), or that
  have all singular values alike and a fixed root mean square, as Muon's ``0.2 sqrt(max(m, n)) O``. The singular values
  of a matrix may move by sqrt(fan_out/fan_in) (Yang, Simon & Bernstein 2023, arXiv 2310.17813); those of Muon's update
  grow like sqrt(r), and so do those of an update relative to the weights as far as its entries are aligned: factor
  1/sqrt(r). The other parameters are as in "adam".
- Narrow matrices pass on a sum over the width to something that does not grow, behind which gradients are of order 1:
  Adam's entries may move by 1/fan_in, as may those of SGD, whose gradients are of order 1 here (Table 3 of Yang et al.
  for heads without a multiplier), and Muon's few singular values, which grow like sqrt(r), by 1/sqrt(fan_in).
- "none": the learning rate is left alone, for updates that already have that spectral size, as Scion's.

Essential AI (arXiv 2505.02222) writes W = a w with w of variance b and learning rate c: (sqrt(n), 1/n, 1/sqrt(n)) for
input, (1/sqrt(n), 1/n, 1/sqrt(n)) for output, (1, 1/n, 1/n) for hidden weights, n being the width. Adam's update does
not see the scale of a gradient, so (a, b, c) and (a t, b/t^2, c/t) train alike up to its eps, for any t. With
t = 1/sqrt(n) input and output become (1, 1, 1) and (1/n, 1, 1): the "adam" column, whether the head is tied or not.

Weight decay keeps its value. Where an optimizer multiplies it by the learning rate, as AdamW does, the decay of a
hidden matrix per step shrinks with its factor. What a spectral method leaves to AdamW follows "adam".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn

from cbs.errors import ConfigError

Kind = Literal["input", "hidden", "output", "narrow"]

# Power of the width ratio by which a rule multiplies the learning rate, for each kind of parameter
POWERS: dict[str, dict[Kind, float]] = {
    "adam": {"input": 0.0, "hidden": -1.0, "output": 0.0, "narrow": -1.0},
    "sgd": {"input": 1.0, "hidden": 0.0, "output": 1.0, "narrow": -1.0},
    "spectral": {"input": 0.0, "hidden": -0.5, "output": 0.0, "narrow": -1.0},
    "none": {"input": 0.0, "hidden": 0.0, "output": 0.0, "narrow": 0.0},
}


@dataclass(frozen=True, kw_only=True)
class Width:
    """How a parameter grows with the width of its model.

    Attributes:
        kind: ``"input"`` if one of its sides grows (embeddings, gains, biases), ``"hidden"`` if two do, ``"output"``
            for a head that the model multiplies by 1/ratio, ``"narrow"`` for another matrix of which only the input
            side grows. A head tied to an embedding may be called either of input and output.
        ratio: width over base width, positive.

    Raises:
        ConfigError: if there is no such kind or the ratio is not positive.
    """

    kind: Kind
    ratio: float

    def __post_init__(self) -> None:
        if self.kind not in POWERS["none"]:
            raise ConfigError(f"kind of a width must be input, hidden, output or narrow, got {self.kind!r}")
        if not 0.0 < self.ratio < float("inf"):
            raise ConfigError(f"ratio of a width must be finite and above 0, got {self.ratio}")

    def factor(self, rule: str) -> float:
        """Return the factor by which ``rule`` multiplies the learning rate."""
        return self.ratio ** POWERS[rule][self.kind]


@runtime_checkable
class HasWidths(Protocol):
    """A model that knows its base width; any ``nn.Module`` can define the method."""

    def widths(self) -> Mapping[str, Width]:
        """Return the width of each parameter by its name. Parameters that do not grow are left out."""
        ...


def scale_for_width(optimizer: torch.optim.Optimizer, model: nn.Module, rule: str) -> None:
    """Multiply the learning rate of each parameter by the factor of its width, in place; widths are ``model.widths()``,
    if it has the method.

    A parameter group whose parameters have different factors is split; the parts keep the group's options and the order
    of its parameters. Groups stay as they are where there are no widths or every factor is 1. Call this after
    construction, before the first step and before a scheduler reads the learning rates.

    Args:
        optimizer: over parameters of ``model``; composites and wrappers included.
        model: the model.
        rule: a key of :data:`POWERS`.

    Raises:
        ConfigError: if there is no such rule, or the widths name a parameter that the model does not have.
    """
    if rule not in POWERS:
        raise ConfigError(f"unknown width rule {rule!r}: known rules are {', '.join(POWERS)}")
    widths = model.widths() if isinstance(model, HasWidths) else {}
    params = dict(model.named_parameters())
    for name in widths:
        if name not in params:
            raise ConfigError(f"widths() of {type(model).__name__} names {name!r}, which is not one of its parameters")
    factors = {id(params[name]): width.factor(rule) for name, width in widths.items()}
    if rule == "spectral":
        beside = [part for part in _holders(optimizer) if part is not optimizer and isinstance(part, torch.optim.AdamW)]
        held = {id(param) for part in beside for group in part.param_groups for param in group["params"]}
        factors |= {key: width.factor("adam") for name, width in widths.items() if (key := id(params[name])) in held}
    if all(factor == 1.0 for factor in factors.values()):
        return
    parts: dict[int, list[dict[str, Any]]] = {}
    done: list[list[dict[str, Any]]] = []
    for holder in _holders(optimizer):
        # Composites and wrappers hold the dictionaries of their parts, or the very list: each is split once.
        groups = holder.param_groups
        if any(groups is other for other in done):
            continue
        for group in groups:
            if id(group) not in parts:
                parts[id(group)] = _split(group, factors)
        groups[:] = [part for group in groups for part in parts[id(group)]]
        done.append(groups)


def _holders(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """Yield an optimizer and all its parts."""
    yield optimizer
    inner = getattr(optimizer, "optimizers", None) or getattr(optimizer, "optimizer", None)
    for part in inner if isinstance(inner, list | tuple) else [] if inner is None else [inner]:
        yield from _holders(part)


def _split(group: dict[str, Any], factors: Mapping[int, float]) -> list[dict[str, Any]]:
    """Return the group, reduced to the parameters with the first factor, and a copy for each further factor."""
    members: dict[float, list[int]] = {}
    for index, param in enumerate(group["params"]):
        members.setdefault(factors.get(id(param), 1.0), []).append(index)
    lists = {key: group[key] for key in ("params", "param_names") if key in group}
    parts = [group, *({**group} for _ in range(len(members) - 1))]
    for part, (factor, indices) in zip(parts, members.items(), strict=True):
        part.update({key: [every[index] for index in indices] for key, every in lists.items()})
        if factor != 1.0:
            part["lr"] = part["lr"] * factor
    return parts
