"""Which matrices the nuclear geometry counts, and how."""

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


def bound(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer | None = None) -> Geometry:
    geometry = GEOMETRIES["nuclear"]()
    geometry.bind(parameters, optimizer)
    return geometry


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(shape)) for shape in ((3, 5), (4,), (6, 2), (4, 3, 2, 2))]


def covered(geometry: Geometry) -> list[bool]:
    return [geometry.covers(index) for index in range(4)]


def test_counts_what_muon_takes() -> None:
    model = GPT(SIZES["30k"], 128)
    every = list(model.parameters())
    geometry = bound(every, build_optimizer(Choice(name="muon"), model, 0.01))
    hidden = {id(parameter) for parameter in route(model).matrices}
    assert [geometry.covers(index) for index in range(len(every))] == [id(entry) in hidden for entry in every]
    assert hidden


def test_kernels_count_where_the_optimizer_takes_them() -> None:
    every = parameters()

    class OwnMuon(torch.optim.SGD):
        pass

    # a vector in the hands of a spectral optimizer has no singular values to speak of
    parts = [OwnMuon([every[0], every[1], every[3]], lr=0.1), torch.optim.AdamW([every[2]])]
    geometry = bound(every, CompositeOptimizer(parts))
    assert covered(geometry) == [True, False, False, True]
    kernels = torch.randn(2, 4, 3, 2, 2).double()
    flat = kernels.view(2, 4, 12)
    torch.testing.assert_close(geometry.statistic(3, kernels), flat[0] @ flat[0].T + flat[1] @ flat[1].T)


def test_nothing_to_measure_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="none of the 1 parameter tensors is one; use 'l2' or 'l1'"):
        bound([nn.Parameter(torch.zeros(3))])


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
        assert found is not None
        moments.append(torch.stack([torch.cat((one.signal, one.noise)) for one in found.values()]))
    # Rounding of transforms and sums in double precision.
    torch.testing.assert_close(*moments, rtol=1e-9, atol=1e-15)


def test_a_check_sees_imaginary_parts() -> None:
    x = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(1)).double()
    assert NoiseScaleMeter.check(Spectral(real=False), lambda model, batch: model(batch).mean(), x).ok


def test_complex_matrices_have_no_nuclear_noise_scale() -> None:
    with pytest.raises(ConfigError, match="measures matrices, and none"):
        Probe(Spectral(real=False), geometries=("nuclear",))
