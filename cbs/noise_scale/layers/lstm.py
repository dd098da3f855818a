"""``nn.LSTM``: one backward pass through time for all examples, then products of activations and gate gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from cbs.errors import ConfigError
from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.linear import LinearWeight
from cbs.noise_scale.layers.recorder import Recorder

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
        weights = [self.value(name) for name in self._names()]
        x, h, c = self._unpack(input)
        output, _, last = torch.lstm(x, (h[None], c[None]), weights, self.module.bias, 1, 0.0, True, False, True)
        previous = torch.cat([h[:, None].to(output.dtype), output[:, :-1]], 1)
        return torch.cat([output, last[0, :, None]], 1), (x.to(output.dtype), previous, c)

    def contributions(
        self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor
    ) -> tuple[dict[str, Contribution], Tensor]:
        x, previous, first = saved
        dtype = accumulator(gradient.dtype)
        weights = [self.value(name).to(gradient.dtype) for name in self._names()]  # type: ignore[union-attr]
        hidden = gradient.shape[2]
        z = linear(x, weights[0], sum(weights[2:]) if weights[2:] else None)
        z += previous @ weights[1].t()
        z = z.to(dtype)
        through, d_first_c = self._through_time(z, weights[1], first.to(dtype), gradient)
        found: dict[str, Contribution] = {}
        bias = through.reshape(groups, -1, GATES * hidden).sum(1, dtype=dtype)
        for name, kind in zip(self._names(), ("ih", "hh", "bias", "bias"), strict=False):
            if name not in self.watched:
                continue
            if kind == "bias":
                found[name] = Dense(bias)
            else:
                rows = x if kind == "ih" else previous
                found[name] = LinearWeight(
                    rows.reshape(groups, -1, rows.shape[2]), through.reshape(groups, -1, GATES * hidden)
                )
        d_first_h = through[:, 0] @ weights[1]
        d_x = (through @ weights[0]).flatten(1)
        return found, torch.cat([d_x, d_first_h, d_first_c.to(d_x.dtype)], 1)

    def _through_time(self, z: Tensor, recurrent: Tensor, first: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the gates before their nonlinearities, ``[examples, time, 4 * hidden]``, and of the first c."""
        steps, hidden = z.shape[1], gradient.shape[2]
        i, f, g, o = z.chunk(GATES, 2)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = torch.empty_like(i)
        written = i * g
        now = first
        for t in range(steps):
            now = torch.addcmul(written[:, t], f[:, t], now, out=c[:, t])
        before = torch.cat([first[:, None], c[:, :-1]], 1)
        tanh_c = c.tanh()
        to_c = o * (1 - tanh_c.square())
        by_c = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g.square())], 2)
        by_h = tanh_c * o * (1 - o)
        through = torch.empty_like(z).to(gradient.dtype)
        d_h, d_c = gradient[:, steps - 1], gradient[:, steps].to(z.dtype)
        for t in range(steps - 1, -1, -1):
            d_c = torch.addcmul(d_c, d_h, to_c[:, t])
            here = through[:, t].unflatten(1, (GATES, hidden))
            here[:, :3] = by_c[:, t] * d_c[:, None]
            here[:, 3] = by_h[:, t] * d_h
            d_c = d_c * f[:, t]
            if t:
                d_h = torch.addmm(gradient[:, t - 1], through[:, t], recurrent)
        return through, d_c

    def _names(self) -> list[str]:
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if self.module.bias else 2]
        return [f"{kind}_{self._suffix}" for kind in kinds]

    def _unpack(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.module.hidden_size
        x, h, c = packed.tensor_split((packed.shape[1] - 2 * hidden, packed.shape[1] - hidden), 1)
        return x.unflatten(1, (-1, self.module._parameters[self._names()[0]].shape[1])), h, c


@LAYERS.register("lstm")
class LSTM(Layer):
    """Watches an ``nn.LSTM``, those with projections excepted, as one layer per depth and direction."""

    types = (nn.LSTM,)

    def __init__(self, module: nn.Module, name: str, watched: dict[str, int], recorder: Recorder) -> None:
        super().__init__(module, name, watched, recorder)
        self._directions = []
        for depth in range(self.module.num_layers):
            for suffix in (f"l{depth}", f"l{depth}_reverse")[: 2 if self.module.bidirectional else 1]:
                own = {key: index for key, index in watched.items() if key.partition("_l")[2] == suffix[1:]}
                self._directions.append(Direction(module, name, own, recorder, suffix))

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        return () if module.proj_size else tuple(module._parameters)

    def watch(self, input: Any, hx: tuple[Tensor, Tensor] | None = None) -> Any:
        module = self.module
        own = module._parameters
        if any(own.get(key) is not mine for key, mine in zip(self.watched, self.parameters, strict=True)):
            return self.original(input, hx)
        if not isinstance(input, Tensor) or input.ndim != 3:
            raise ConfigError(
                f"layer {self.name!r} is given a packed sequence or one without a batch dimension; "
                "use the source 'accumulation'"
            )
        x = input if module.batch_first else input.transpose(0, 1)
        if hx is None:
            zeros = x.new_zeros(len(self._directions), len(x), module.hidden_size)
            hx = zeros, zeros
        last: list[Tensor] = []
        ways = 2 if module.bidirectional else 1
        for depth in range(module.num_layers):
            outputs = []
            for way in range(ways):
                place = ways * depth + way
                sequence = x.flip(1) if way else x
                packed = torch.cat([sequence.flatten(1), hx[0][place], hx[1][place]], 1)
                states = self._directions[place].watch(packed)
                last.append(states[:, -2:])
                outputs.append(states[:, :-1].flip(1) if way else states[:, :-1])
            x = torch.cat(outputs, 2) if ways > 1 else outputs[0]
            if module.dropout and depth < module.num_layers - 1:
                x = dropout(x, module.dropout, module.training)
        h, c = torch.stack(last).unbind(2)
        return x if module.batch_first else x.transpose(0, 1), (h, c)
