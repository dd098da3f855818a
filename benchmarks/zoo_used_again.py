"""Formulas that use a parameter more than once, or in another shape than its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from benchmarks.model_zoo import CLASSES, WIDTH, Entry, classify, features
from benchmarks.zoo_formulas import ROWS, cells, euler, fold, head, linear, of, small, splines, text, top_one, views

USED_AGAIN = {
    "one block six times": text(lambda m, x: euler(lambda h: m.block(h), x, 6), block=small(WIDTH, WIDTH)),
    "an ordinary differential equation": of(
        lambda m, x: m.head(euler(lambda h: (h @ m.w).tanh(), x)), w=(12, 12), head=head(12)
    ),
    "a fixed point": of(
        lambda m, x: m.head(euler(lambda h: (h @ m.w / 2 + x).tanh() - h, torch.zeros_like(x), 5)),
        w=(12, 12),
        head=head(12),
    ),
    "two views behind one another": of(views, body=small(12, WIDTH), head=head()),
    "weights and their transposes": of(lambda m, x: m.head((x @ m.w).tanh() @ m.w.T), w=(12, WIDTH), head=head(12)),
    "positions before examples inside": of(fold, 6, 12, first=linear(12, WIDTH), head=head()),
    "patches as examples inside": of(
        lambda m, x: m.head(m.first(x.flatten(0, 1)).tanh().view(len(x), -1)), 4, 12, first=linear(12, 4), head=head(16)
    ),
    "cells with a learnt start": of(cells, 6, 12, start=(WIDTH,), cell=lambda: nn.GRUCell(12, WIDTH), head=head()),
    "the best expert": of(top_one, gate=linear(12, 4), experts=(4, 12, 5)),
    "functions on edges": of(splines, grid=torch.linspace(-2, 2, ROWS), edges=(12, 5, ROWS)),
    "features of learnt frequencies": of(lambda m, x: m.head((x @ m.f).cos()), f=(12, ROWS), head=head(ROWS)),
    "a masked convolution": of(
        lambda m, x: m.head(functional.conv2d(x, m.w * m.mask).flatten(1)),
        3,
        6,
        6,
        w=(4, 3, 3, 3),
        mask=torch.ones(3, 3).tril(),
        head=head(64),
    ),
    "orthogonal weights": Entry(
        build=lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(12, 12)), nn.Tanh(), nn.Linear(12, CLASSES)),
        batch=features(12),
        loss=classify,
    ),
    "angles to the classes": of(
        lambda m, x: 5 * functional.normalize(m.first(x)) @ functional.normalize(m.classes).T,
        first=small(12, WIDTH),
        classes=(ROWS, WIDTH),
    ),
    "a learnt temperature": of(lambda m, x: m.body(x) * m.t.exp(), body=small(12, CLASSES), t=()),
    "gates that start at zero": of(
        lambda m, x: m.head(x + m.gate * m.body(x)), body=small(12, 12), gate=torch.zeros(12), head=head(12)
    ),
    "depthwise and dilated": Entry(
        build=lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, groups=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 4, 2, dilation=3),
            nn.PixelShuffle(2),
            nn.Flatten(),
            nn.Linear(36, CLASSES),
        ),
        batch=features(3, 6, 6),
        loss=classify,
    ),
    "local response and RMS norms": of(
        lambda m, x: m.head(m.rms(m.local(x[:, :, None])[:, :, 0])),
        local=lambda: nn.LocalResponseNorm(3),
        rms=lambda: nn.RMSNorm(12),
        head=head(12),
    ),
}
