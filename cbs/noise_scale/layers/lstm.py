"""``nn.LSTM`` in many groups: one backward pass through time for all examples, then products of activations and gate
gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.by_group import ByGroup
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator
from cbs.noise_scale.layers.forward_pass import Pass, refuse_second_derivatives
from cbs.noise_scale.layers.group_by_group import FEW_GROUPS
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.linear import LinearWeight
from cbs.noise_scale.layers.recorder import Recorder

GATES = 4
"""Input, forget, cell and output, in the order of torch's weights."""


class Direction(Layer):
    """One layer of an LSTM in one direction, whose tapped output are the gates before their nonlinearities."""

    def __init__(self, module: nn.Module, name: str, watched: dict[str, int], recorder: Recorder, suffix: str) -> None:
        own = {key: index for key, index in watched.items() if key.endswith(suffix)}
        super().__init__(module, name, own, recorder)
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if self.module.bias else 2]
        self._names = [kind + suffix for kind in kinds]

    def through_time(self, current: Pass, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states, and the last cell state.

        Args:
            current: the forward pass.
            x: shape ``[steps, examples, in]``.
            h: first hidden state, shape ``[examples, hidden]``.
            c: first cell state, likewise.
        """
        weights: list[Any] = [self.value(name) for name in self._names]
        gates = linear(x.contiguous(), weights[0], sum(weights[2:]) if weights[2:] else None)  # type: ignore[arg-type]
        recurrent, h, c = (part.to(gates.dtype) for part in (weights[1], h, c))
        states, *activations = _states(gates.detach().clone(), recurrent, h.detach(), c.detach())
        previous = torch.cat([h.detach()[None], states[:-1]])
        saved = x.to(gates.dtype).transpose(0, 1), previous.transpose(0, 1)
        tapped = self.tapped(gates.transpose(0, 1), saved, current).transpose(0, 1)
        return Recurrence.apply(tapped, h, c, recurrent, states, *activations)  # type: ignore[no-untyped-call,no-any-return]

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        gates, *inputs = (part.reshape(groups, -1, part.shape[2]) for part in (gradient, *saved))
        weights = (LinearWeight(rows, gates) for rows in inputs)
        bias = Dense(gates.sum(1, dtype=accumulator(gates.dtype)))
        return dict(zip(self._names, (*weights, bias, bias), strict=False))


def _states(gates: Tensor, recurrent: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states; gates after their nonlinearities, in place; cell states from the first on; their tanh."""
    cells = torch.cat([c[None], gates.new_empty(len(gates), *c.shape)])
    tanh_c, states = (torch.empty_like(cells[1:]) for _ in range(2))
    for t, z in enumerate(gates):
        z.addmm_(h, recurrent.t())
        i, f, g, o = z.chunk(GATES, 1)
        z[:, : 2 * h.shape[1]].sigmoid_()
        c = torch.mul(i, g.tanh_(), out=cells[t + 1]).addcmul_(f, c)
        h = torch.mul(o.sigmoid_(), torch.tanh(c, out=tanh_c[t]), out=states[t])
    return states, gates, cells, tanh_c


class Recurrence(torch.autograd.Function):
    """Hidden states from gates that know nothing of those before them, differentiated through time."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, _gates: Tensor, _h: Tensor, _c: Tensor, recurrent: Tensor, states: Tensor, *activations: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(recurrent, *activations)
        return states, activations[1][-1].clone()

    @staticmethod
    def backward(ctx: Any, d_states: Tensor, d_c: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        refuse_second_derivatives("an LSTM")
        recurrent, gates, cells, tanh_c = ctx.saved_tensors
        i, f, g, o = gates.chunk(GATES, 2)
        to_c = torch.addcmul(o, tanh_c * tanh_c, o, value=-1)
        # What the gradients of c and, for the last gate, of h are multiplied with.
        slopes = torch.addcmul(gates, gates, gates, value=-1)
        d_i, d_f, d_g, d_o = slopes.chunk(GATES, 2)
        d_i *= g
        d_f *= cells[:-1]
        torch.mul(torch.addcmul(torch.ones_like(g), g, g, value=-1), i, out=d_g)
        d_o *= tanh_c
        d_h = d_states[-1]
        for t in range(len(gates) - 1, -1, -1):
            d_c = torch.addcmul(d_c, d_h, to_c[t])
            here = slopes[t].unflatten(1, (GATES, -1))
            here[:, :3] *= d_c[:, None]
            here[:, 3] *= d_h
            d_c.mul_(f[t])
            d_h = torch.addmm(d_states[t - 1], slopes[t], recurrent) if t else slopes[t] @ recurrent
        return slopes, d_h, d_c, None, None, None, None, None


@LAYERS.register("lstm")
class LSTM(ByGroup):
    """Watches an ``nn.LSTM``, those with projections excepted, as one layer per depth and direction; group by group
    where groups are few, for which torch's own kernel is the faster."""

    types = (nn.LSTM,)

    def __init__(self, module: nn.Module, name: str, watched: dict[str, int], recorder: Recorder) -> None:
        super().__init__(module, name, watched, recorder)
        ways = ("", "_reverse")[: 1 + self.module.bidirectional]
        self._depths = [
            [Direction(module, name, watched, recorder, f"_l{depth}{way}") for way in ways]
            for depth in range(self.module.num_layers)
        ]

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        return () if module.proj_size else super().names_of(module)

    def watch(self, input: Any, hx: tuple[Tensor, Tensor] | None = None) -> Any:
        module = self.module
        current = self.recorder.enter(self.name)
        if current is None or self.sharing.places() is None or self.drawing():
            return self.original(input, hx)
        if current.groups <= FEW_GROUPS or not self.has_examples(input):
            return super().watch(input, hx)
        x = input.transpose(0, 1) if module.batch_first else input
        if hx is None:
            zeros = x.new_zeros(sum(map(len, self._depths)), x.shape[1], module.hidden_size)
            hx = zeros, zeros
        last: list[tuple[Tensor, Tensor]] = []
        for directions in self._depths:
            outputs = []
            for way, direction in enumerate(directions):
                current.count(direction.watched.values())
                sequence, (h, c) = x.flip(0) if way else x, (part[len(last)] for part in hx)
                states, c = direction.through_time(current, sequence, h, c)
                last.append((states[-1], c))
                outputs.append(states.flip(0) if way else states)
            x = torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0]
        h, c = map(torch.stack, zip(*last, strict=True))
        return x.transpose(0, 1) if module.batch_first else x, (h, c)
