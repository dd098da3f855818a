import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.probe import Probe


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
