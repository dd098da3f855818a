"""What ranks do for the test of sharded trust ratios: ``python sharded_worker.py FOLDER``; two processes, gloo.

Every rank steps every optimizer over DTensors and writes the whole tensors to ``FOLDER/RANK.pt``.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from cbs.optimizers.lamb import LAMB
from cbs.optimizers.lars import LARS
from cbs.optimizers.merit import MERIT
from tests.ranks import fork

# One row leaves a rank with nothing; five and three rows split unevenly; some shapes are equal, and the pieces of some
# others are equal on one rank alone.
SHAPES = [(5, 3), (3, 5), (5, 3), (1, 4), (6,), (1,), (4, 3, 2), (3, 2, 2, 3), (6, 3), (5,), (3, 6)]
PLACEMENTS: dict[str, Any] = {"shard 0": Shard(0), "shard 1": Shard(1), "replicate": Replicate()}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "merit": (MERIT, {"lr": 0.03, "weight_decay": 0.1}),
    "merit, paper": (MERIT, {"lr": 0.03, "variant": "paper"}),
    "merit, l2": (MERIT, {"lr": 0.03, "norm": "l2", "variant": "paper"}),
    "merit, plain": (MERIT, {"lr": 0.03, "foreach": False}),
    "lamb": (LAMB, {"lr": 0.03, "weight_decay": 0.1}),
    "lars": (LARS, {"lr": 5.0, "weight_decay": 0.1}),
}
PAIRS = [
    *((case, "shard 0") for case in CASES),
    *((case, "shard 1") for case in ("merit", "merit, l2", "lamb", "lars")),
    *((case, "replicate") for case in ("merit", "lars")),
]
"""What is tried: every case, and where the two optimizers of a kind do the same, one of them."""


def starts() -> list[Tensor]:
    """Weights, with a row of zeros."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, dtype=torch.float64, generator=draw) * 0.3 for shape in SHAPES]
    weights[0][2] = 0.0
    return weights


def gradients(step: int) -> list[Tensor]:
    """Gradients of one step."""
    draw = torch.Generator().manual_seed(1 + step)
    return [torch.randn(shape, dtype=torch.float64, generator=draw) for shape in SHAPES]


def trained(case: str, place: Any = None, mesh: Any = None) -> list[Tensor]:
    """Whole weights after three steps; without ``place`` in this process alone."""
    kind, options = CASES[case]
    there = [_split(weight, place) for weight in starts()]
    params = [
        nn.Parameter(weight if place is None else distribute_tensor(weight, mesh, [where]))
        for weight, where in zip(starts(), there, strict=True)
    ]
    optimizer = kind(params, **options)
    for step in range(3):
        for param, gradient, where in zip(params, gradients(step), there, strict=True):
            param.grad = gradient if place is None else distribute_tensor(gradient, mesh, [where])
        optimizer.step()
        if step == 1:
            # Loading what was saved must leave the state sharded.
            optimizer.load_state_dict(optimizer.state_dict())
    if place is not None:
        for param in params:
            kept = [value for name, value in optimizer.state[param].items() if name != "step"]
            assert kept
            # Also where this rank holds nothing of the parameter.
            assert optimizer.state[param].get("step", 3) == 3
            assert all(isinstance(value, DTensor) and value.shape == param.shape for value in kept)
    return [param.detach().full_tensor() if isinstance(param, DTensor) else param.detach() for param in params]


def _split(weight: Tensor, place: Any) -> Any:
    # A vector has no dimension 1.
    return Shard(0) if place == Shard(1) and weight.ndim < 2 else place


def main(folder: Path) -> None:
    def find() -> dict[tuple[str, str], list[Tensor]]:
        mesh = init_device_mesh("cpu", (2,))
        return {(case, place): trained(case, PLACEMENTS[place], mesh) for case, place in PAIRS}

    fork(2, folder, find)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
