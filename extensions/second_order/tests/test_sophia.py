"""Sophia-G: its estimate of the curvature against the dense diagonal, its update against a twin."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from cbs.optimizers.problem import ModelFunction, Problem
from extensions.second_order.optimizers.sophia import curvature_diagonal, sophia
from extensions.second_order.tests.reference import dense

DOUBLE = torch.float64


def cross_entropy(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(outputs, batch[1], reduction="none")


def at_targets(outputs: Tensor, batch: tuple[Tensor, ...], generator: torch.Generator) -> Tensor:
    """The gradient of the cross-entropy at targets that are part of the batch."""
    return outputs.softmax(-1) - nn.functional.one_hot(batch[2], outputs.shape[1])


def given(outputs: Tensor, batch: tuple[Tensor, ...], generator: torch.Generator) -> Tensor:
    return batch[2]


def problem(model: nn.Module, sample: object, **options: object) -> Problem:
    return Problem(
        model=model,
        outputs=lambda model, batch: model(batch[0]),
        output_losses=cross_entropy,
        curvature_sample=sample,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 3)).double()


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_the_estimate_has_the_dense_diagonal_as_its_mean(micro_batch_size: int | None) -> None:
    model = network()
    batch = torch.randn(4, 3, dtype=DOUBLE), torch.randint(0, 3, (4,))
    function = ModelFunction(problem(model, at_targets, micro_batch_size=micro_batch_size))
    names = [name for name, _ in model.named_parameters()]
    sizes = [param.numel() for param in model.parameters()]

    def outputs(theta: Tensor, examples: object) -> Tensor:
        values = [part.view(p.shape) for part, p in zip(theta.split(sizes), model.parameters(), strict=True)]
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (batch[0],))

    theta = torch.cat([param.detach().flatten() for param in model.parameters()])
    parts = dense(outputs, lambda y, examples: cross_entropy(y, batch), theta, range(4))
    truth = np.diag(parts["J"].T @ parts["H"] @ parts["J"])
    probabilities = model(batch[0]).softmax(-1).detach()
    mean = np.zeros_like(truth)
    # Every draw of the four targets, with its probability.
    for targets in itertools.product(range(3), repeat=4):
        chance = float(probabilities[range(4), targets].prod())
        found = curvature_diagonal(function, (*batch, torch.tensor(targets)), torch.Generator())
        mean += chance * torch.cat([value.flatten() for value in found]).numpy()
    np.testing.assert_allclose(mean, truth, rtol=1e-10, atol=1e-14)


class SophiaTwin:
    """One tensor under Sophia-G, entry by entry in float64."""

    def __init__(self, w: np.ndarray, lr: float, betas: tuple[float, float], gamma: float, eps: float, decay: float):
        self.w, self.lr, self.betas, self.gamma, self.eps, self.decay = w.copy(), lr, betas, gamma, eps, decay
        self.m, self.h = np.zeros_like(w), np.zeros_like(w)

    def step(self, g: np.ndarray, estimate: np.ndarray | None) -> None:
        for index in np.ndindex(self.w.shape):
            self.m[index] = self.betas[0] * self.m[index] + (1 - self.betas[0]) * g[index]
            if estimate is not None:
                self.h[index] = self.betas[1] * self.h[index] + (1 - self.betas[1]) * estimate[index]
            ratio = self.m[index] / max(self.gamma * self.h[index], self.eps)
            self.w[index] = (1 - self.lr * self.decay) * self.w[index] - self.lr * min(max(ratio, -1.0), 1.0)


def test_agrees_with_its_twin() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 4, bias=False).double()
    batch = torch.randn(8, 3, dtype=DOUBLE), torch.randint(0, 4, (8,)), torch.randn(8, 4, dtype=DOUBLE)
    twin = SophiaTwin(model.weight.detach().numpy(), 0.05, (0.8, 0.7), 0.3, 1e-6, 0.1)
    optimizer = sophia(model, 0.05, betas=(0.8, 0.7), gamma=0.3, eps=1e-6, weight_decay=0.1, interval=3)
    optimizer.attach(problem(model, given))
    clipped = []
    for step in range(20):
        optimizer.zero_grad()
        cross_entropy(model(batch[0]), batch).mean().backward()
        pulled = (batch[2].T @ batch[0]).numpy() / 8
        twin.step(model.weight.grad.numpy(), 8 * pulled**2 if step % 3 == 0 else None)
        optimizer.observe(batch)
        optimizer.step()
        clipped.append((np.abs(twin.m) > np.maximum(0.3 * twin.h, 1e-6)).mean())
    np.testing.assert_allclose(model.weight.detach().numpy(), twin.w, rtol=1e-6, atol=1e-9)
    assert min(clipped) < 1.0
    assert max(clipped) > 0.0


@pytest.mark.parametrize(("option", "value"), [("gamma", 0.0), ("interval", 0), ("interval", True), ("eps", -1.0)])
def test_bad_options_are_named(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        sophia(network(), 0.1, **{option: value})  # type: ignore[arg-type]


def test_hooks_for_any_optimizer_run_once_and_a_copy_keeps_its_options() -> None:
    model = network()
    optimizer = sophia(model, 0.01, gamma=0.5, interval=3)
    optimizer.attach(problem(model, at_targets))
    seen: list[object] = []
    handle = register_optimizer_step_post_hook(lambda found, *_: seen.append(found))
    try:
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.observe((torch.randn(4, 3, dtype=DOUBLE), torch.zeros(4).long(), torch.zeros(4).long()))
        optimizer.step()
    finally:
        handle.remove()
    assert [id(found) for found in seen] == [id(optimizer)]
    twin = pickle.loads(pickle.dumps(optimizer))
    assert (twin.gamma, twin.interval) == (0.5, 3)
    assert twin.optimizers[0].state is twin.state
