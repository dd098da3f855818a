"""Compare the noise of one batch with a loop over its examples, or over groups of them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from cbs.compute.state import evaluating
from cbs.errors import ConfigError, reason
from cbs.noise_scale.boundary import without_gradients
from cbs.noise_scale.geometries import as_real
from cbs.noise_scale.geometries.norms import L2
from cbs.noise_scale.grouping import Grouping, Groups, equal_parts, pick
from cbs.noise_scale.moments import Sizes
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.probe import FALLBACK, Probe

# Largest relative difference that rounding explains; mixing and coupling cause differences at least ten times that
AGREE = 0.01

LossOfBatch = Callable[[nn.Module, Any], Tensor]
"""Function ``loss(model, batch)`` that returns the mean loss of a batch."""


@dataclass(frozen=True, kw_only=True)
class LayerCheck:
    """Result of the check for one layer; both numbers are relative to the loop over examples.

    Attributes:
        layer: name of the layer in the model.
        coupling: share of the batch's gradient that the gradients of single examples do not explain.
        noise: measured noise divided by that of the loop; ``None`` where nothing was measured.
    """

    layer: str
    coupling: float
    noise: float | None

    @property
    def agrees(self) -> bool:
        """Whether the differences are no larger than rounding explains."""
        return self.coupling <= AGREE and (self.noise is None or abs(self.noise - 1) <= AGREE)


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Result of :func:`check`; ``str(report)`` explains it in words.

    Attributes:
        examples: number of examples in the batch, or of groups where examples belong together.
        members: number of examples in a group.
        source: name of the source that measured.
        refusal: why a source other than the requested one was used, or none; empty if the requested one was.
        weights: weights of the examples in the loss of the batch, relative to equal weights.
        alone: whether an example, or group, alone has a loss; else its gradient is the difference that it makes.
        dropped: norm of the part of the gradient that the weighted gradients of single examples do not explain when one
            example is dropped from the batch, relative to that gradient; the largest over all examples.
        layers: one entry for every module that holds parameters.
    """

    examples: int
    members: int
    source: str
    refusal: str
    weights: tuple[float, ...]
    alone: bool
    dropped: float
    layers: tuple[LayerCheck, ...]

    @property
    def coupled(self) -> bool:
        """Whether the loss of an example depends on other examples."""
        return self.dropped > AGREE or any(layer.coupling > AGREE for layer in self.layers)

    @property
    def ok(self) -> bool:
        """Whether the measured noise scale is that of single examples, according to the loop."""
        return not (self.refusal or self.coupled or self.weighted) and all(layer.agrees for layer in self.layers)

    @property
    def weighted(self) -> bool:
        """Whether examples have unequal weights in the loss of the batch."""
        return max(self.weights) - min(self.weights) > AGREE

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self) | {"ok": self.ok, "coupled": self.coupled, "text": str(self)}

    def __str__(self) -> str:
        lines = []
        if self.refusal:
            lines.append(f"nothing to compare with a loop over examples: {self.refusal}")
        one = "example" if self.members == 1 else f"group of {self.members} examples"
        several = one.replace("group", "groups") if self.members > 1 else "examples"
        if self.coupled:
            worst = max(self.layers, key=lambda layer: layer.coupling)
            leak = f"{worst.coupling:.0%} of the batch's gradient in layer {worst.layer!r}"
            how = "the gradients of single examples" if self.alone else "the differences that single examples make"
            if worst.coupling <= AGREE or not self.alone:
                leak = f"{self.dropped:.0%} of the gradient of the batch without one of them"
            together = "; where some of them belong together, pass groups=" if self.members == 1 else ""
            lines.append(
                f"the loss couples examples: {how} leave out {leak}, so no {one} has a "
                f"gradient of its own; use the source {FALLBACK!r} with micro-batches like those you train with"
                f"{together}"
            )
        else:
            wrong = [layer for layer in self.layers if not layer.agrees]
            if wrong:
                named = ", ".join(f"{layer.layer!r} ({layer.noise:.3g} times)" for layer in wrong[:5])
                lines.append(
                    f"the noise that source {self.source!r} measures is not that of a loop over examples in "
                    f"{len(wrong)} of {len(self.layers)} layers: {named}; use the source {FALLBACK!r}"
                )
            elif not (self.refusal or self.weighted):
                lines.append(
                    f"source {self.source!r} agrees with a loop over {self.examples} {several} in every layer "
                    f"({len(self.layers)})"
                )
            if self.weighted:
                lines.append(
                    f"examples weigh {min(self.weights):.2g} to {max(self.weights):.2g} times the mean, so that the "
                    "loss is divided by something of the whole batch, such as the sum of its weights (ignored tokens) "
                    f"or its own value: source {self.source!r} is wrong near the batch size; pass weights of examples "
                    f"by weights=, or use {FALLBACK!r} and divide each micro-batch by its own"
                )
        return "\n".join(lines)


def check(
    model: nn.Module,
    loss: LossOfBatch,
    batch: Any,
    *,
    source: str = "auto",
    parts: int = 2,
    groups: Groups = 1,
    count: CountExamples = first_dimension,
) -> CheckReport:
    r"""Measure one batch and compare it, layer by layer, with a loop over its examples, or over groups of them.

    The loop runs the model on every example alone to get its own loss :math:`\ell_i`. Where it has none, as where the
    loss needs a variance, its gradient is what the mean over the batch lacks once the example is dropped. If the loss
    does not couple examples, that of a batch is :math:`\sum_i w_i \ell_i`. The weights are fitted to the gradient of
    the batch; what they do not explain is coupling. So is what they do not explain, up to a common factor, once one
    example is dropped.
    The measured moments are then compared with those of the groups of :math:`w_i \nabla\ell_i`.

    The model runs in evaluation mode, so that dropout draws nothing; the model and its gradients are left as they were.
    The gradients of all examples are kept in memory: 4 to 8 examples are enough.

    Args:
        model: the module that the training loop calls.
        loss: ``loss(model, batch)``, the mean loss that is differentiated in training.
        batch: tensors with examples in the first dimension, in any nesting.
        source: as for :class:`~cbs.noise_scale.NoiseScaleMeter`; one that measures inside the backward pass.
        parts, groups, count: as for NoiseScaleMeter.

    Raises:
        ConfigError: if the batch has fewer than two examples, if its gradient is not finite, if the loss fails on a
            part of it, or if the source is refused for a reason that does not lie in the model.
    """
    examples = count((batch,), {})
    rows = next(filter(None, map(_length, tree_leaves(batch))), 0)
    if examples < 2 or rows % examples or not rows:
        raise ConfigError(
            f"a check needs a batch of at least two examples, in the first dimension of its tensors; got {examples}"
        )
    units = Grouping(groups).of(examples, (batch,), {})
    members = units.shape[1]
    if len(units) < 2:
        raise ConfigError(f"a check needs at least two groups of examples; got one group of {members} examples")

    def some(places: Sequence[int]) -> Any:
        wanted = units[list(places)].flatten().sort().values
        return tree_map(lambda leaf: pick(leaf, wanted, examples) if _length(leaf) == rows else leaf, batch)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    everyone = range(len(units))

    def gradients(places: Sequence[int], what: str) -> list[Tensor]:
        with without_gradients(parameters):
            try:
                loss(model, some(places)).backward()
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                raise ConfigError(f"the loss does not run on {what}: {reason(error)}") from error
            found = _gradients(parameters)
        if not all(part.isfinite().all() for part in found):
            raise ConfigError(
                f"the gradient of {what} is not finite (NaN or infinity); check its examples and the loss"
            )
        return found

    if source == FALLBACK:
        raise ConfigError(
            f"source {FALLBACK!r} compares whole micro-batches, so one batch has nothing to check; use another source"
        )
    with (
        Probe(model, source=source, parts=parts, groups=groups, count=count, tell=lambda _: None) as probe,
        evaluating(model),
        without_gradients(parameters),
        torch.backends.cudnn.flags(enabled=False),  # cuDNN's RNNs have no backward in eval mode
    ):
        refusal, measured = probe.why, None
        with probe.paused():
            gradient = gradients(everyone, "the batch")
        loss(model, batch).backward()
        if not refusal:
            try:
                measured = probe.step().get("l2")
                refusal = probe.why or probe.caveat.removesuffix(probe.uneven).removesuffix("; ")
            except ConfigError as error:
                refusal = str(error)
        probe.detach()
        others = [[each for each in everyone if each != place] for place in everyone]
        without = [gradients(places, "the batch without one example") for places in others]
        try:
            alone, defined = [gradients([place], "one example alone") for place in everyone], True
        except ConfigError:
            defined, number = False, len(units)
            alone = [[number * g - (number - 1) * h for g, h in zip(gradient, rest, strict=True)] for rest in without]
            fewer = [[each for each in rest if each != rest[0]] for rest in others] if number > 3 else []
            without_two = [gradients(places, "the batch without two examples") for places in fewer]
    own = [torch.stack(rows) for rows in zip(*alone, strict=True)]
    weights = _weights(own, gradient) if defined else torch.full((len(units),), 1 / len(units), dtype=torch.float64)
    shares = [weights[:, None] * parts for parts in own]
    left_over = [total - parts.sum(0) for total, parts in zip(gradient, shares, strict=True)]
    sizes, over = ([float(part.square().sum()) for part in parts] for parts in (gradient, left_over))
    over_rest = [
        _left_over(rest, [parts.sum(0) - parts[place] for parts in shares]) for place, rest in enumerate(without)
    ]
    dropped = max(apart for apart, _ in over_rest)
    if defined:
        weights = _with_silent(weights, own, torch.tensor([scale for _, scale in over_rest]).double())
    else:  # whether two examples make the difference that each of them makes
        for places, rest in zip(fewer, without_two, strict=True):
            wanted = [parts[places].mean(0) for parts in own]
            apart, size = (torch.cat([a - c * b for a, b in zip(rest, wanted, strict=True)]).norm() for c in (1, 0))
            dropped = max(dropped, float(apart / size.clamp_min(torch.finfo(size.dtype).tiny)))
    slow = _loop_noise(shares, gradient, parts if probe.source == "split" else len(units))
    layers: dict[str, list[int]] = {}
    for index, name in enumerate(probe.names):
        layers.setdefault(name.rpartition(".")[0] or name, []).append(index)

    def relative(values: Sequence[float], to: Sequence[float], places: Sequence[int]) -> float | None:
        whole = sum(to[place] for place in places)
        return sum(values[place] for place in places) / whole if whole else None

    return CheckReport(
        examples=len(units),
        members=members,
        source=probe.source,
        refusal=refusal,
        weights=tuple((weights * len(units)).tolist()),
        alone=defined,
        dropped=dropped,
        layers=tuple(
            LayerCheck(
                layer=name,
                coupling=(relative(over, sizes, places) or 0.0) ** 0.5,
                noise=None if measured is None else relative(measured.noise.tolist(), slow, places),
            )
            for name, places in layers.items()
        ),
    )


def _length(leaf: Any) -> int:
    return leaf.shape[0] if isinstance(leaf, Tensor) and leaf.ndim else 0


def _loop_noise(shares: Sequence[Tensor], gradient: Sequence[Tensor], groups: int) -> list[float]:
    """Return the noise of every parameter tensor, computed from the examples' shares of the batch's gradient."""
    examples = len(shares[0])
    groups = equal_parts(examples, groups)
    small = [parts.unflatten(0, (groups, -1)).sum(1).square().sum() * groups for parts in shares]
    whole = torch.stack([part.square().sum() for part in gradient])
    compared = Sizes(small=examples / groups, big=examples, groups=groups)
    return L2().read(torch.stack(small), whole, compared)[1].tolist()  # type: ignore[arg-type]


def _left_over(gradient: Sequence[Tensor], expected: Sequence[Tensor]) -> tuple[float, float]:
    """Return the norm of what the best multiple of ``expected`` leaves of a gradient, relative to the gradient, and
    this multiple."""
    whole, wanted = torch.cat(list(gradient)), torch.cat(list(expected))
    scale = (whole @ wanted) / (wanted @ wanted).clamp_min(torch.finfo(wanted.dtype).tiny)
    apart = (whole - scale * wanted).norm() / whole.norm().clamp_min(torch.finfo(whole.dtype).tiny)
    return float(apart), float(scale)


def _with_silent(weights: Tensor, own: Sequence[Tensor], scales: Tensor) -> Tensor:
    """Return the weights, those of examples without a gradient from the factors by which that of the others grows once
    each is dropped: one that a selection left out changes nothing, one in a mean does."""
    silent = torch.stack([parts.square().sum(1) for parts in own]).sum(0) == 0
    shares = 1 - 1 / scales
    loud = ~silent & (shares > AGREE / len(scales)) & shares.isfinite()
    if not loud.any() or not shares[silent].isfinite().all():  # a sum, or nothing to compare with
        return weights
    return torch.where(silent, (weights[loud] / shares[loud]).mean() * shares, weights)


def _weights(own: Sequence[Tensor], gradient: Sequence[Tensor]) -> Tensor:
    """Return the least-squares weights of the examples' gradients in the gradient of the batch; the mean for none."""
    gram = torch.stack([parts @ parts.T for parts in own]).sum(0)
    products = torch.stack([parts @ total for parts, total in zip(own, gradient, strict=True)]).sum(0)
    weights, some = torch.linalg.lstsq(gram, products, driver="gelsd").solution, gram.diag() > 0
    return torch.where(some, weights, weights[some].mean() if some.any() else 1 / len(gram))


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradient of every parameter tensor as a real float64 vector on the CPU; zeros where there is none."""
    return [
        as_real(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad).detach().double().cpu().flatten()
        for tensor in parameters
    ]
