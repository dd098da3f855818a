"""LSTM, autoencoder and variational autoencoder against what they stand for."""

import math

import pytest
import torch
from torch import Tensor

from cbs.compute import seeding
from cbs.errors import CbsError, ConfigError, DataError
from extensions.papers.image_parts import sources
from extensions.papers.workloads.autoencoder import autoencoder, vae
from extensions.papers.workloads.lstm import LSTMLanguageModel, lstm


def test_an_lstm_written_out() -> None:
    torch.manual_seed(0)
    model = LSTMLanguageModel(6, 1, 11).double()
    ids = torch.randint(11, (2, 5))
    weights = dict(model.lstm.named_parameters())
    state, cell, expected = torch.zeros(2, 6).double(), torch.zeros(2, 6).double(), []
    for place in range(5):
        gates = model.tokens(ids[:, place]) @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
        gates = gates + state @ weights["weight_hh_l0"].T + weights["bias_hh_l0"]
        enters, forgets, new, leaves = gates.chunk(4, 1)
        cell = forgets.sigmoid() * cell + enters.sigmoid() * new.tanh()
        state = leaves.sigmoid() * cell.tanh()
        expected.append(model.head(state))
    torch.testing.assert_close(model(ids), torch.stack(expected, 1))


def test_an_lstm_learns_text() -> None:
    workload = lstm(validation_sequences=64)
    torch.manual_seed(0)
    model = workload.build_model()
    assert workload.validate(model) == pytest.approx(math.log(128), abs=0.3)
    stream = workload.training_stream(seeding.generator(0, "data"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        workload.example_losses(model, stream.next(16)).mean().backward()
        optimizer.step()
    assert workload.validate(model) < 3.3


def photo_patches(size: int = 8) -> tuple[Tensor, Tensor]:
    source = sources.photo_source("autoencoder", size=size)
    return source.stream(torch.Generator().manual_seed(0)).next(3000)[0], source.held_out[0]


def test_patches_are_those_of_the_photo() -> None:
    training, held_out = photo_patches()
    assert training.shape == (3000, 1, 8, 8)
    assert held_out.shape == (1024, 1, 8, 8)
    path = sources.matplotlib_data(sources.PHOTO)
    photo = sources.as_bytes(sources.decode(path.read_bytes(), str(path)).convert("L"))[0]
    views = torch.from_numpy(photo).unfold(0, 8, 1).unfold(1, 8, 1)
    cut = photo.shape[1] * 3 // 4
    left, right = views[:, : cut - 7].reshape(-1, 64), views[:, cut:].reshape(-1, 64)
    for patches, side, other in ((training, left, right), (held_out, right, left)):
        patch = (patches[0].flatten() * 255).round().to(torch.uint8)
        assert (side == patch).all(1).any()
        assert not (other == patch).all(1).any()


def test_losses_of_an_autoencoder_by_hand() -> None:
    workload = autoencoder()
    torch.manual_seed(0)
    model, batch = workload.build_model(), workload.training_stream(seeding.generator(0, "data")).next(5)
    pixels = ((batch[0] - workload.source.mean) / workload.source.std).flatten(1)
    torch.testing.assert_close(workload.example_losses(model, batch), (model(pixels) - pixels).square().mean(1))
    with torch.no_grad():
        model[-1].weight.zero_()
    patches = workload.training_stream(seeding.generator(1, "data")).next(20_000)
    # The mean predicts nothing: the variance of a pixel, up to which pixels are seen how often at the edge.
    assert workload.example_losses(model, patches).mean().item() == pytest.approx(1.0, rel=0.05)


def test_losses_of_a_variational_autoencoder_by_hand() -> None:
    workload = vae(sigma=0.7)
    torch.manual_seed(0)
    model = workload.build_model()
    images, noise = workload.training_stream(seeding.generator(0, "data")).next(5)
    pixels = ((images - workload.source.mean) / workload.source.std).flatten(1)
    mean, log_variance = model.encoder(pixels).chunk(2, 1)
    latent = torch.distributions.Normal(mean, (log_variance / 2).exp())
    divergence = torch.distributions.kl_divergence(latent, torch.distributions.Normal(0.0, 1.0)).sum(1)
    decoded = torch.distributions.Normal(model.decoder(mean + latent.stddev * noise), 0.7)
    bound = divergence - decoded.log_prob(pixels).sum(1) - 64 * math.log(0.7 * math.sqrt(2 * math.pi))
    torch.testing.assert_close(workload.example_losses(model, (images, noise)), bound)


@pytest.mark.parametrize(
    ("kind", "make", "options", "expected"),
    [
        (ConfigError, lstm, {"width": 0}, "width of workload 'lstm'"),
        (ConfigError, lstm, {"tokenizer": "a"}, "tokenizer of workload 'lstm' needs data=PATH"),
        (ConfigError, autoencoder, {"code": 0}, "code of workload 'autoencoder'"),
        (ConfigError, autoencoder, {"image_size": 500}, "image_size of workload 'autoencoder' must be 2 to "),
        (ConfigError, autoencoder, {"validation": "x"}, "needs data=PATH; 'photo' does not use it"),
        (ConfigError, vae, {"sigma": 0.0}, "sigma of workload 'vae'"),
        (DataError, vae, {"data": "absent"}, "absent: no such file or folder"),
    ],
)
def test_bad_options(kind: type[CbsError], make: object, options: dict[str, object], expected: str) -> None:
    with pytest.raises(kind) as caught:
        make(**options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
