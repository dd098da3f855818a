"""Models that are one formula of bare parameters, tables and modules, as rows of a table.

Their tables have 20 rows, a multiple of the examples in every step, so that nothing but autograd can tell them from
rows of examples.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from benchmarks.zoo_entry import CLASSES, WIDTH, WORDS, Entry, classify, features, head, linear, made, small, words

ROWS, LENGTH = 20, 20  # Unlike any batch size, so that no axis of a table passes for the examples


def table(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Frozen numbers of a shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def of(formula: Callable[[Any, Tensor], Any], *shape: int, **parts: Any) -> Entry:
    """A formula of features (of 12 unless a shape is given)."""
    batch = features(*(shape or (12,)))
    return Entry(build=made(formula, **parts), batch=batch, loss=classify, compiled=False, skips=("trainer",))


def text(formula: Callable[[Any, Tensor], Any], length: int = LENGTH, **parts: Any) -> Entry:
    """A formula of embedded words and a head."""
    inside = made(formula, **parts)
    return Entry(
        build=lambda: nn.Sequential(nn.Embedding(WORDS, WIDTH), inside(), nn.Linear(WIDTH, WORDS)),
        batch=words(length),
        loss=classify,
        compiled=False,
        skips=("trainer",),
    )


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return (query @ keys.mT / WIDTH**0.5).softmax(-1) @ values


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    one, other = x.chunk(2, -1)
    return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], -1)


def places(rows: int = LENGTH) -> Tensor:
    return torch.arange(rows) / rows


def sinkhorn(scores: Tensor) -> Tensor:
    for _ in range(3):
        scores = scores - scores.logsumexp(-1, keepdim=True)
        scores = scores - scores.logsumexp(-2, keepdim=True)
    return scores.exp()


def euler(step: Callable[[Tensor], Tensor], x: Tensor, number: int = 4) -> Tensor:
    for _ in range(number):
        x = x + step(x) / number
    return x


def long_convolution(x: Tensor, kernel: Tensor) -> Tensor:
    """Along the words of ``[examples, words, features]``, by Fourier transforms."""
    size = 2 * x.shape[1]
    product = torch.fft.rfft(x, size, dim=1) * torch.fft.rfft(kernel, size, dim=0)
    return torch.fft.irfft(product, size, dim=1)[:, : x.shape[1]]


def straight_through(m: Any, x: Tensor) -> Tensor:
    z = m.encode(x)
    nearest = m.codes[torch.cdist(z, m.codes).argmin(-1)]
    return m.head(nearest + z - z.detach())


def forward_scores(m: Any, x: Tensor) -> Tensor:
    """The forward recursion of a conditional random field, the last scores."""
    scores = m.emit(x)
    alpha = scores[:, 0]
    for place in range(1, scores.shape[1]):
        alpha = (alpha[:, :, None] + m.moves).logsumexp(1) + scores[:, place]
    return alpha


def fold(m: Any, x: Tensor) -> Tensor:
    """Positions first inside, examples and positions in one dimension."""
    inner = m.first(x.transpose(0, 1).reshape(-1, x.shape[-1])).tanh()
    return m.head(inner.view(x.shape[1], x.shape[0], -1).mean(0))


def views(m: Any, x: Tensor) -> Tensor:
    """Two views of every example behind one another, averaged after."""
    one, other = m.body(torch.cat([x, x.flip(-1)])).chunk(2)
    return m.head((one + other).tanh())


def cells(m: Any, x: Tensor) -> Tensor:
    state = m.start.expand(len(x), -1)
    for place in range(x.shape[1]):
        state = m.cell(x[:, place], state)
    return m.head(state)


def merged_norm(m: Any, x: Tensor) -> Tensor:
    """A frozen weight plus factors of low rank, normalised and scaled (Liu et al. 2024, DoRA)."""
    weight = m.frozen + m.b @ m.a
    return m.head(functional.linear(x, m.gain[:, None] * weight / weight.norm(dim=1, keepdim=True)).tanh())


C = torch.cfloat

SHARED = {
    "a scalar times a frozen matrix": of(
        lambda m, x: (x @ (m.t * m.w).T).tanh() @ m.out, t=(), w=table(ROWS, 12), out=(ROWS, 5)
    ),
    "rotary, learnt frequencies": text(
        lambda m, x: attend(rotate(m.q(x), m.at[:, None] * m.f), rotate(m.k(x), m.at[:, None] * m.f), x),
        at=places(),
        f=(WIDTH // 2,),
        q=linear(WIDTH, WIDTH),
        k=linear(WIDTH, WIDTH),
    ),
    "ALiBi, a slope per head": text(
        lambda m, x: (
            torch.einsum("bqe,hef,bkf->bhqk", x, m.qk, x).sub(m.slope[:, None, None] * m.far).softmax(-1).mean(1) @ x
        ),
        far=(places()[:, None] - places()).abs(),
        slope=(4,),
        qk=(4, WIDTH, WIDTH),
    ),
    "RBF grid, learnt centres": of(
        lambda m, x: m.head(torch.exp(-(torch.cdist(x, m.grid) ** 2) / 12)), grid=(ROWS, 12), head=head(ROWS)
    ),
    "codebook attention": of(
        lambda m, x: m.head(attend(m.q(x), m.keys, m.values)),
        q=linear(12, WIDTH),
        keys=(ROWS, WIDTH),
        values=(ROWS, WIDTH),
        head=head(),
    ),
    "nearest code, straight through": of(straight_through, encode=linear(12, WIDTH), codes=(ROWS, WIDTH), head=head()),
    "prototypes of all classes": of(
        lambda m, x: m.encode(x) @ m.classes(m.ids).T,
        encode=small(12, WIDTH),
        classes=lambda: nn.Embedding(ROWS, WIDTH),
        ids=torch.arange(ROWS),
    ),
    "graph with learnt edges": of(
        lambda m, x: m.head((m.edges.softmax(-1) @ m.first(x)).tanh().mean(1)),
        ROWS,
        12,
        edges=(ROWS, ROWS),
        first=linear(12, WIDTH),
        head=head(),
    ),
    "positions interpolated": of(
        lambda m, x: m.head((x + functional.interpolate(m.at, (6, 6), mode="bilinear")).tanh().flatten(1)),
        3,
        6,
        6,
        at=(1, 3, 4, 4),
        head=head(108),
    ),
    "Kronecker weights": of(lambda m, x: (x @ torch.kron(m.a, m.b).T).tanh(), a=(5, 3), b=(4, 4)),
    "low rank, normalised": of(
        merged_norm, frozen=table(WIDTH, 12), a=(2, 12), b=(WIDTH, 2), gain=(WIDTH,), head=head()
    ),
    "assignment in every example": text(lambda m, x: sinkhorn(x @ m.w @ x.mT) @ x, w=(WIDTH, WIDTH)),
    "conditional random field": Entry(
        build=made(forward_scores, emit=linear(12, 5), moves=(5, 5)), batch=features(6, 12), loss=classify
    ),
}

DTYPES = {
    "complex linear layers": of(
        lambda m, x: m.head(m.second(m.first(torch.complex(x[:, :6], x[:, 6:])).tanh()).abs()),
        first=linear(6, 8, dtype=C),
        second=linear(8, 8, dtype=C),
        head=head(8),
    ),
    "complex bare weight": of(
        lambda m, x: m.head(torch.view_as_real(torch.complex(x[:, :6], x[:, 6:]) @ m.w).flatten(1).tanh()),
        w=[(6, 8), C],
        head=head(16),
    ),
    "filter in the Fourier domain": text(
        lambda m, x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * m.w, dim=1), w=[(11, WIDTH), C]
    ),
    "long convolution": text(lambda m, x: long_convolution(x, m.kernel).tanh(), kernel=(LENGTH, WIDTH)),
    "double precision": of(
        lambda m, x: m.head(m.first(x.double()).tanh()),
        first=linear(12, WIDTH, dtype=torch.float64),
        head=linear(WIDTH, CLASSES, dtype=torch.float64),
    ),
    "channels last": Entry(
        build=lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3, groups=4), nn.Flatten(), nn.Linear(32, CLASSES)
        ).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        batch=features(3, 6, 6),
        loss=classify,
    ),
}

USED_AGAIN = {
    "one block six times": text(lambda m, x: euler(lambda h: m.block(h), x, 6), block=small(WIDTH, WIDTH)),
    "two views behind one another": of(views, body=small(12, WIDTH), head=head()),
    "positions before examples inside": of(fold, 6, 12, first=linear(12, WIDTH), head=head()),
    "cells with a learnt start": of(cells, 6, 12, start=(WIDTH,), cell=lambda: nn.GRUCell(12, WIDTH), head=head()),
    "orthogonal weights": Entry(
        build=lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(12, 12)), nn.Tanh(), nn.Linear(12, CLASSES)),
        batch=features(12),
        loss=classify,
    ),
}

FORMULAS = {
    **SHARED,
    **USED_AGAIN,
    **{name: replace(entry, skips=("trainer", "autocast", "bfloat16")) for name, entry in DTYPES.items()},
}
