"""Entries that wrap a library class do what their docstrings say, in float64 over 20 steps."""

import numpy as np
import pytest
import torch
from torch import nn

from cbs.optimizers import build_optimizer
from cbs.trial.config import Choice

STEPS, LR = 20, 0.05


class Weights(nn.Module):
    def __init__(self, *weights: np.ndarray) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.from_numpy(weight.copy())) for weight in weights)


def gradients(shape: tuple[int, ...]) -> np.ndarray:
    """Noisy gradients, one for each step."""
    random = np.random.default_rng(5)
    return random.normal(size=shape) + 0.5 * random.normal(size=(STEPS, *shape))


def run(name: str, start: np.ndarray, grads: np.ndarray, **options: object) -> tuple[torch.optim.Optimizer, np.ndarray]:
    """The optimizer after all steps and the weights after each of them."""
    model = Weights(start)
    optimizer = build_optimizer(Choice(name=name, options=options), model, LR)
    (weight,) = model.weights
    path = []
    for grad in grads:
        weight.grad = torch.from_numpy(grad.copy())
        optimizer.step()
        path.append(weight.detach().numpy().copy())
    return optimizer, np.stack(path)


@pytest.mark.parametrize("shape", [(5,), (4, 3)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_signs(shape: tuple[int, ...], decay: float) -> None:
    grads, start = gradients(shape), np.ones(shape)
    sign, signum, lion = start.copy(), start.copy(), start.copy()
    average, momentum = np.zeros(shape), np.zeros(shape)
    paths: dict[str, list[np.ndarray]] = {"signsgd": [], "signum": [], "lion": []}
    for grad in grads:
        sign = (1 - LR * decay) * sign - LR * np.sign(grad)
        average = 0.8 * average + 0.2 * grad
        signum = (1 - LR * decay) * signum - LR * np.sign(average)
        lion = (1 - LR * decay) * lion - LR * np.sign(0.9 * momentum + 0.1 * grad)
        momentum = 0.99 * momentum + 0.01 * grad
        for name, weight in (("signsgd", sign), ("signum", signum), ("lion", lion)):
            paths[name].append(weight)
    for name, options in (("signsgd", {}), ("signum", {"momentum": 0.8}), ("lion", {})):
        _, path = run(name, start, grads, weight_decay=decay, **options)
        np.testing.assert_allclose(path, np.stack(paths[name]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_shampoo(shape: tuple[int, ...]) -> None:
    grads, weight = gradients(shape), np.ones(shape)
    sides = [1e-6 * np.eye(side) for side in shape]
    _, path = run("shampoo", weight, grads, matrix_eps=1e-6)
    for grad, found in zip(grads, path, strict=True):
        matrix = grad.reshape(shape[0], -1)
        sides[0] += matrix @ matrix.T
        update = power(sides[0], -0.5 / len(shape)) @ matrix
        if len(shape) == 2:
            sides[1] += matrix.T @ matrix
            update = update @ power(sides[1], -0.5 / len(shape))
        weight = weight - LR * update.reshape(shape)
        # Where few gradients have been seen the preconditioner's condition number is 1e6 and costs as many digits.
        np.testing.assert_allclose(found, weight, rtol=0, atol=1e-6)


def test_shampoo_keeps_moments_of_few_gradients_invertible() -> None:
    model = nn.Linear(2, 2, bias=False)
    model.weight.grad = torch.full((2, 2), 4.0)
    optimizer = build_optimizer(Choice(name="shampoo"), model, LR)
    optimizer.step()
    # 32 in every entry is singular; of a float32 diagonal of 32 + 1e-6 no more would be left.
    moments = optimizer.state[model.weight]["pre_cond_0"]
    assert moments[0, 1] == 32.0 < moments[0, 0]
    assert model.weight.isfinite().all()


def power(matrix: np.ndarray, exponent: float) -> np.ndarray:
    """A power of a symmetric positive definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(values**exponent) @ vectors.T


def test_soap_without_rotation_is_adam_one_step_late() -> None:
    grads = gradients((4, 3))
    options = {"betas": [0.9, 0.99], "eps": 0.0}
    _, adam = run("adam", np.ones((4, 3)), grads[1:], **options)
    _, soap = run("soap", np.ones((4, 3)), grads, max_precondition_dim=2, **options)
    np.testing.assert_array_equal(soap[0], np.ones((4, 3)))
    np.testing.assert_allclose(soap[1:], adam, rtol=0, atol=1e-12)


def test_soap_turns_with_the_coordinates_and_adam_does_not() -> None:
    random = np.random.default_rng(7)
    left, right = (np.linalg.qr(random.normal(size=(side, side)))[0] for side in (4, 3))
    grads = gradients((4, 3))
    turned = np.einsum("ij,tjk,lk->til", left, grads, right)
    difference = {}
    for name in ("soap", "adam"):
        _, path = run(name, np.zeros((4, 3)), grads, betas=[0.9, 0.99])
        _, other = run(name, np.zeros((4, 3)), turned, betas=[0.9, 0.99])
        difference[name] = np.abs(np.einsum("ij,tjk,lk->til", left, path, right) - other).max()
    # SOAP's bases come from a QR decomposition in float32.
    assert difference["soap"] < 1e-4
    assert difference["adam"] > 1e-2


def test_soap_takes_a_tied_embedding_on_both_sides() -> None:
    optimizer, _ = run("soap", np.ones((128, 32)), gradients((128, 32))[:2])
    (state,) = optimizer.state.values()
    assert [len(basis) for basis in state["Q"]] == [128, 32]
    optimizer, _ = run("soap", np.ones((128, 32)), gradients((128, 32))[:2], max_precondition_dim=64)
    (state,) = optimizer.state.values()
    assert [len(basis) for basis in state["Q"]] == [0, 32]


def test_schedule_free() -> None:
    grads = gradients((4, 3))
    beta1, beta2 = 0.8, 0.95
    optimizer, path = run("schedule_free", np.ones((4, 3)), grads, betas=[beta1, beta2], eps=0.0)
    average = base = np.ones((4, 3))
    square = np.zeros((4, 3))
    for step, (grad, found) in enumerate(zip(grads, path, strict=True), start=1):
        square = beta2 * square + (1 - beta2) * grad**2
        base = base - LR * grad / np.sqrt(square / (1 - beta2**step))
        average = average + (base - average) / step
        np.testing.assert_allclose(found, (1 - beta1) * base + beta1 * average, rtol=0, atol=1e-10)
    (weight,) = optimizer.param_groups[0]["params"]
    optimizer.eval()
    np.testing.assert_allclose(weight.detach().numpy(), average, rtol=0, atol=1e-10)
    optimizer.train()
    np.testing.assert_allclose(weight.detach().numpy(), path[-1], rtol=0, atol=1e-10)


def test_adafactor_caps_the_learning_rate_and_scales_it_with_the_weights() -> None:
    grads, start = gradients((4, 3)), np.full((4, 3), 2.0)
    row, column, weight = np.zeros(4), np.zeros(3), start
    _, path = run("adafactor", start, grads, min_scale=1e-3)
    for step, (grad, found) in enumerate(zip(grads, path, strict=True), start=1):
        beta2 = 1 - step**-0.8
        row = beta2 * row + (1 - beta2) * (grad**2).mean(axis=1)
        column = beta2 * column + (1 - beta2) * (grad**2).mean(axis=0)
        update = grad / np.sqrt(np.outer(row, column) / row.mean())
        update = update / max(1.0, np.sqrt((update**2).mean()))
        weight = weight - min(LR, step**-0.5) * max(1e-3, np.sqrt((weight**2).mean())) * update
        np.testing.assert_allclose(found, weight, rtol=0, atol=1e-6)
