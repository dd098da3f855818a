"""``nn.LSTM`` in many groups: one backward pass through time for all examples, then products of activations and gate
gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.by_group import ByGroup
from cbs.noise_scale.layers.contribution import Contribution, Dense, Found, accumulator
from cbs.noise_scale.layers.group_by_group import FEW_GROUPS
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.linear import LinearWeight
from cbs.noise_scale.layers.recorder import Recorder
from cbs.noise_scale.layers.shared import Shared

GATES = 4
"""Input, forget, cell and output, in the order of torch's weights."""


class Direction(Layer):
    """One layer of an LSTM in one direction, with the examples first and time second.

    Its input is ``[examples, time * inputs + 2 * hidden]``, the sequence and the initial states h and c side by side;
    its output ``[examples, time + 1, hidden]``, the sequence and the last c.
    """

    whole = True

    def __init__(self, module: nn.Module, name: str, watched: dict[str, int], recorder: Recorder, suffix: str) -> None:
        super().__init__(module, name, watched, recorder)
        self._suffix = suffix

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x, h, c = self._unpack(input)
        weights = [self.value(name) for name in self._names()]
        # Time first inside, so that a step is contiguous.
        gates = linear(x.transpose(0, 1).contiguous(), weights[0], sum(weights[2:]) if weights[2:] else None)  # type: ignore[arg-type]
        recurrent, now, c = weights[1].to(gates.dtype).t(), h.to(gates.dtype), c.to(gates.dtype)  # type: ignore[union-attr]
        steps, examples, hidden = len(gates), len(h), h.shape[1]
        states = gates.new_empty(steps + 1, examples, hidden)
        cells = gates.new_empty(steps + 1, examples, hidden)
        cells[0] = c
        tanh_c = torch.empty_like(cells[1:])
        for t in range(steps):
            z = gates[t].addmm_(now, recurrent)
            i, f, g, o = z.chunk(GATES, 1)
            z[:, : 2 * hidden].sigmoid_()
            c = torch.mul(i, g.tanh_(), out=cells[t + 1]).addcmul_(f, c)
            now = torch.mul(o.sigmoid_(), torch.tanh(c, out=tanh_c[t]), out=states[t])
        states[steps] = c
        previous = torch.cat([h[None].to(gates.dtype), states[: steps - 1]])
        saved = (x.to(gates.dtype), *(part.transpose(0, 1) for part in (previous, gates, cells, tanh_c)))
        return states.transpose(0, 1), saved

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> Found:
        names = self._names()
        weights = [self.value(name).to(gradient.dtype) for name in names[:2]]  # type: ignore[union-attr]
        x, previous, gates, cells, tanh_c = (part.transpose(0, 1) for part in saved)
        through, d_c = _through_time(gates, cells, tanh_c, weights[1], gradient.transpose(0, 1).contiguous())

        def rows(part: Tensor) -> Tensor:
            return part.unflatten(1, (groups, -1)).transpose(0, 1).flatten(1, 2)

        gates = rows(through)
        found: dict[str, Contribution] = {}
        for name, inputs in zip(names[:2], (x, previous), strict=True):
            if name in self.watched:
                found[name] = LinearWeight(rows(inputs), gates)
        biases = [name for name in names[2:] if name in self.watched]
        if biases:
            found |= dict.fromkeys(biases, Dense(gates.sum(1, dtype=accumulator(gates.dtype))))
        d_x = (through @ weights[0]).transpose(0, 1).flatten(1)
        return found, torch.cat([d_x, through[0] @ weights[1], d_c], 1)

    def _names(self) -> list[str]:
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if self.module.bias else 2]
        return [kind + self._suffix for kind in kinds]

    def _unpack(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.module.hidden_size
        x, h, c = packed.tensor_split((packed.shape[1] - 2 * hidden, packed.shape[1] - hidden), 1)
        return x.unflatten(1, (-1, getattr(self.module, self._names()[0]).shape[1])), h, c


def _through_time(
    gates: Tensor, cells: Tensor, tanh_c: Tensor, recurrent: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates before their nonlinearities, ``[time, examples, 4 * hidden]``, and of the first c."""
    steps = len(gates)
    i, f, g, o = gates.chunk(GATES, 2)
    to_c = torch.addcmul(o, tanh_c * tanh_c, o, value=-1)
    # What the gradients of c and, for the last gate, of h are multiplied with.
    slopes = torch.addcmul(gates, gates, gates, value=-1)
    d_i, d_f, d_g, d_o = slopes.chunk(GATES, 2)
    d_i *= g
    d_f *= cells[:-1]
    torch.mul(torch.addcmul(torch.ones_like(g), g, g, value=-1), i, out=d_g)
    d_o *= tanh_c
    d_h, d_c = gradient[steps - 1], gradient[steps]
    for t in range(steps - 1, -1, -1):
        d_c = torch.addcmul(d_c, d_h, to_c[t])
        here = slopes[t].unflatten(1, (GATES, -1))
        here[:, :3] *= d_c[:, None]
        here[:, 3] *= d_h
        d_c.mul_(f[t])
        if t:
            d_h = torch.addmm(gradient[t - 1], slopes[t], recurrent)
    return slopes, d_c


@LAYERS.register("lstm")
class LSTM(ByGroup):
    """Watches an ``nn.LSTM``, those with projections excepted, as one layer per depth and direction; group by group
    where groups are few and draw no random numbers, for which torch's own kernel is the faster."""

    types = (nn.LSTM,)

    def __init__(self, module: nn.Module, name: str, watched: dict[str, int], recorder: Recorder) -> None:
        super().__init__(module, name, watched, recorder)
        self._depths: list[list[Direction]] = []
        for depth in range(self.module.num_layers):
            suffixes = (f"_l{depth}", f"_l{depth}_reverse")[: 1 + self.module.bidirectional]
            own = [{key: index for key, index in watched.items() if key.endswith(suffix)} for suffix in suffixes]
            pairs = zip(own, suffixes, strict=True)
            self._depths.append([Direction(module, name, some, recorder, suffix) for some, suffix in pairs])

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        return () if module.proj_size else tuple(name for name, _ in module.named_parameters())

    def unwatched(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)

    def watch(self, input: Any, hx: tuple[Tensor, Tensor] | None = None) -> Any:
        module = self.module
        current = self.recorder.enter(self.name)
        if current is None or self.sharing.places() is None:
            return self.original(input, hx)
        few = current.groups <= FEW_GROUPS
        if few and not (module.training and module.dropout):
            return super().watch(input, hx)
        (x,) = self.examples_first((input,))
        known = isinstance(x, Tensor) and x.ndim == 3 and not isinstance(x, Shared)
        if not known or x.shape[0] == 1 < current.examples:
            return self.given_up(input, hx)
        if hx is None:
            zeros = x.new_zeros(sum(map(len, self._depths)), len(x), module.hidden_size)
            hx = zeros, zeros
        last: list[Tensor] = []
        for depth, directions in enumerate(self._depths, 1):
            outputs = []
            for way, direction in enumerate(directions):
                sequence = x.flip(1) if way else x
                states = direction.watch(torch.cat([sequence.flatten(1), *(part[len(last)] for part in hx)], 1))
                last.append(states[:, -2:])
                outputs.append(states[:, :-1].flip(1) if way else states[:, :-1])
            x = torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0]
            if module.dropout and depth < module.num_layers:
                x = dropout(x, module.dropout, module.training)
        h, c = torch.stack(last).unbind(2)
        return x if module.batch_first else x.transpose(0, 1), (h, c)
