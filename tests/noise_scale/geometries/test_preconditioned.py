"""Which matrices the nuclear geometry counts, and that the preconditioner is the one the optimizer divides by."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale import GEOMETRIES, NoiseScaleMeter
from cbs.noise_scale.geometries import Geometry
from cbs.noise_scale.probe import Probe
from cbs.optimizers import CompositeOptimizer, build_optimizer
from cbs.optimizers.routing import route
from cbs.trial.config import Choice
from cbs.workloads.text_parts.gpt import GPT, SIZES


def bound(
    parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer | None = None, name: str = "preconditioned"
) -> Geometry:
    geometry = GEOMETRIES[name]()
    geometry.bind(parameters, optimizer)
    return geometry


def preconditioner(geometry: Geometry, shape: torch.Size) -> Tensor:
    """P entry by entry: T of the unit vectors."""
    units = torch.eye(shape.numel(), dtype=torch.float64).view(-1, 1, *shape)
    return torch.stack([geometry.statistic(0, unit) for unit in units]).view(shape)


def stepped(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, steps: int) -> Tensor:
    """The last gradient."""
    torch.manual_seed(0)
    for _ in range(steps):
        parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    assert parameter.grad is not None
    return parameter.grad


def assert_near(found: Tensor, expected: Tensor) -> None:
    """The bias correction is one number in single precision."""
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0.0)


OPTIMIZERS: dict[str, Any] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=1.0, betas=(0.0, 0.9), eps=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1.0, betas=(0.0, 0.9), eps=0.1, weight_decay=0.0),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=1.0, betas=(0.0, 0.9), eps=0.1, weight_decay=0.0, fused=True),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=1.0, betas=(0.0, 0.9), eps=0.1, amsgrad=True),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1.0, betas=(0.0, 0.9), eps=0.0),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1.0, alpha=0.9, eps=0.1),
    "centered RMSprop": lambda p: torch.optim.RMSprop(p, lr=1.0, alpha=0.9, eps=0.1, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1.0, eps=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_momentum_a_step_is_the_preconditioned_gradient(name: str) -> None:
    parameter = nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))
    optimizer = OPTIMIZERS[name]([parameter])
    stepped(optimizer, parameter, 3)
    before = parameter.detach().clone()
    gradient = stepped(optimizer, parameter, 1)
    metric = preconditioner(bound([parameter], optimizer), parameter.shape)
    assert_near(before - parameter.detach(), metric * gradient)


def test_bias_correction_is_a_common_factor_of_tensors_with_as_many_steps() -> None:
    parameters = [nn.Parameter(torch.zeros(5, dtype=torch.float64)) for _ in range(2)]
    optimizer = torch.optim.Adam(parameters, betas=(0.9, 0.9), eps=0.0)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    geometry = bound(parameters, optimizer)
    ratios = []
    for index, parameter in enumerate(parameters):
        raw = (1 / optimizer.state[parameter]["exp_avg_sq"].sqrt()).sum()
        ratios.append((geometry.statistic(index, torch.ones(1, 5).double()) / raw).item())
    assert ratios == pytest.approx([(1 - 0.9) ** 0.5] * 2)


def test_before_the_first_step_there_is_no_metric() -> None:
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    geometry = bound(parameters, torch.optim.Adam(parameters))
    assert geometry.statistic(0, torch.ones(2, 3)).isnan()
    # a tensor that no gradient ever reaches never has one, and does not spoil the sum
    assert geometry.statistic(1, torch.zeros(2, 3)).item() == 0.0


def test_follows_the_optimizer() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([parameter])
    geometry = bound([parameter], optimizer)
    stepped(optimizer, parameter, 1)
    first = geometry.statistic(0, torch.ones(1, 3))
    stepped(optimizer, parameter, 1)
    optimizer.load_state_dict(optimizer.state_dict())
    assert first.isfinite()
    optimizer.state[parameter]["exp_avg_sq"].mul_(4.0)
    assert geometry.statistic(0, torch.ones(1, 3)).item() != first.item()


def test_a_muon_that_runs_adam_too_says_which_tensors_are_adams() -> None:
    class MuonWithAuxAdam(torch.optim.SGD):
        pass

    matrix, vector = nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.zeros(3))
    groups = [{"params": [matrix], "use_muon": True}, {"params": [vector], "use_muon": False}]
    geometry = bound([matrix, vector], MuonWithAuxAdam(groups, lr=0.1))
    assert not geometry.covers(0)
    assert geometry.covers(1)


def test_optimizers_without_a_second_moment_are_refused() -> None:
    parameter = nn.Parameter(torch.zeros(3, 3))
    for optimizer in (torch.optim.SGD([parameter], lr=0.1), torch.optim.Muon([parameter])):
        with pytest.raises(ConfigError, match=f"needs a second moment.*{type(optimizer).__name__} keeps none"):
            bound([parameter], optimizer)
    with pytest.raises(ConfigError, match="pass the optimizer"):
        bound([parameter])


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(shape)) for shape in ((3, 5), (4,), (6, 2), (4, 3, 2, 2))]


def covered(geometry: Geometry) -> list[bool]:
    return [geometry.covers(index) for index in range(4)]


def test_counts_what_muon_takes() -> None:
    model = GPT(SIZES["30k"], 128)
    every = list(model.parameters())
    geometry = bound(every, build_optimizer(Choice(name="muon"), model, 0.01), "nuclear")
    hidden = {id(parameter) for parameter in route(model).matrices}
    assert [geometry.covers(index) for index in range(len(every))] == [id(entry) in hidden for entry in every]
    assert hidden


def test_kernels_count_where_the_optimizer_takes_them() -> None:
    every = parameters()

    class OwnMuon(torch.optim.SGD):
        pass

    # a vector in the hands of a spectral optimizer has no singular values to speak of
    parts = [OwnMuon([every[0], every[1], every[3]], lr=0.1), torch.optim.AdamW([every[2]])]
    geometry = bound(every, CompositeOptimizer(parts), "nuclear")
    assert covered(geometry) == [True, False, False, True]
    kernels = torch.randn(2, 4, 3, 2, 2).double()
    flat = kernels.view(2, 4, 12)
    torch.testing.assert_close(geometry.statistic(3, kernels), flat[0] @ flat[0].T + flat[1] @ flat[1].T)


def test_nothing_to_measure_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="none of the 1 parameter tensors is one; use 'l2' or 'l1'"):
        bound([nn.Parameter(torch.zeros(3))], name="nuclear")


class Spectral(nn.Module):
    """Multiplies Fourier coefficients, by complex weights or by their real and imaginary parts."""

    def __init__(self, *, real: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        weight = torch.randn(5, 8, dtype=torch.cdouble)
        self.weight = nn.Parameter(torch.view_as_real(weight).clone() if real else weight)
        self.real = real

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.view_as_complex(self.weight) if self.real else self.weight
        return torch.fft.ifft(torch.fft.fft(x, dim=1) * weight, dim=1).real.sin().mean((1, 2))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("source", ["split", "per_example", "accumulation"])
def test_complex_weights_are_two_real_ones(source: str) -> None:
    moments = []
    for real in (False, True):
        model = Spectral(real=real)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        with Probe(model, optimizer, source=source, geometries=("l2", "l1", "preconditioned")) as probe:
            for _ in range(2):
                for part in torch.randn(6, 5, 8).double().chunk(2 if source == "accumulation" else 1):
                    (model(part).mean() * len(part) / 6).backward()
                found = probe.step()
                optimizer.step()
                optimizer.zero_grad()
        moments.append(torch.stack([torch.cat((one.signal, one.noise)) for one in found.values()]))
    # Rounding of transforms and sums in double precision.
    torch.testing.assert_close(*moments, rtol=1e-9, atol=1e-15)


def test_a_check_sees_imaginary_parts() -> None:
    x = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(1)).double()
    assert NoiseScaleMeter.check(Spectral(real=False), lambda model, batch: model(batch).mean(), x).ok


def test_complex_matrices_have_no_nuclear_noise_scale() -> None:
    with pytest.raises(ConfigError, match="measures matrices, and none"):
        Probe(Spectral(real=False), geometries=("nuclear",))
