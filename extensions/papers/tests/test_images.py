"""Images, glyphs and small models against what they stand for."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cbs.compute import seeding
from cbs.errors import CbsError, ConfigError, DataError, UnknownNameError
from cbs.training.run import run_trial
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target
from extensions.papers.image_parts import sources
from extensions.papers.image_parts.models import BasicBlock, Bottleneck, ResNet, build_classifier
from extensions.papers.image_parts.sources import GlyphStream
from extensions.papers.workloads.autoencoder import autoencoder, vae
from extensions.papers.workloads.images import images
from extensions.papers.workloads.lstm import LSTMLanguageModel, lstm
from tests.kinds import kinds

IMAGENET = {"classes": 1000, "channels": 3, "size": 224, "norm": "batch"}
CIFAR = {"classes": 10, "channels": 3, "size": 32, "norm": "batch"}
GREY = {"classes": 10, "channels": 1, "size": 28, "norm": "none"}


# As published with the models of torchvision (ImageNet), by Zagoruyko & Komodakis 2016 (36.5 million), LeCun et al.
# 1998 (as ReLU networks have it) and, for the CNN, by hand: 5*5*32+32 + 5*5*32*64+64 + 3136*1024+1024 + 1024*10+10.
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    kinds(
        [
            ("resnet18", IMAGENET, 11_689_512),
            ("resnet50", IMAGENET, 25_557_032),
            ("vgg11", IMAGENET | {"norm": "none"}, 132_863_336),
            ("resnet20", CIFAR, 272_474),
            ("vgg16", CIFAR, 14_728_266),
            ("wrn-28-10", CIFAR, 36_479_194),
            ("lenet", GREY, 61_706),
            ("lenet", GREY | {"size": 32}, 61_706),
            ("cnn", GREY | {"width": 32}, 3_274_634),
        ],
        [
            ("resnet34", IMAGENET, 21_797_672),
            ("resnet101", IMAGENET, 44_549_160),
            ("vgg11", IMAGENET, 132_868_840),
            ("vgg16", IMAGENET, 138_365_992),
            ("resnet18", CIFAR, 11_173_962),
            ("resnet50", IMAGENET | {"norm": "group"}, 25_557_032),
        ],
    ),
)
def test_parameter_counts_without_allocating_them(name: str, options: dict[str, object], expected: int) -> None:
    with torch.device("meta"):
        model = build_classifier(name, **options)
        logits = model(torch.empty(2, options["channels"], options["size"], options["size"]))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert logits.shape == (2, options["classes"])


@pytest.mark.parametrize(("depth", "size"), kinds([(18, 64)], [(50, 96)]))
def test_resnet_is_that_of_transformers(depth: int, size: int) -> None:
    """Weights copied in the order of the layers; theirs name a block's shortcut first, ours last."""
    transformers = pytest.importorskip("transformers")
    kinds = {18: ("basic", [64, 128, 256, 512], [2, 2, 2, 2]), 50: ("bottleneck", [256, 512, 1024, 2048], [3, 4, 6, 3])}
    kind, widths, depths = kinds[depth]
    config = transformers.ResNetConfig(layer_type=kind, hidden_sizes=widths, depths=depths, num_labels=7)
    twin = transformers.ResNetForImageClassification(config).double().train()
    model = ResNet(depths, BasicBlock if depth == 18 else Bottleneck, (64, 64, 128, 256, 512), 7, 3, "batch", False)
    theirs = [twin.resnet.embedder.embedder]
    ours = [list(model.stem)]
    blocks = [layer for stage in twin.resnet.encoder.stages for layer in stage.layers]
    for block, layer in zip(model.blocks, blocks, strict=True):
        theirs += [*layer.layer, layer.shortcut]
        ours += [list(block.branch), list(block.shortcut)]
    layers = [module for group in theirs for module in group.modules()]
    for own, other in zip(leaves(ours), leaves([layers]), strict=True):
        other.load_state_dict(own.state_dict())
    twin.classifier[1].load_state_dict(model.head.state_dict())
    images_ = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        torch.testing.assert_close(model.double()(images_), twin(images_).logits)


def leaves(groups: list[list[nn.Module]]) -> list[nn.Module]:
    return [module for group in groups for module in group if isinstance(module, nn.Conv2d | nn.BatchNorm2d)]


def test_glyphs_are_turned_shifted_and_blurred_within_their_bounds() -> None:
    dot = torch.zeros(2, 3, 21, 21)
    dot[:, :, 10, 10] = 1
    drawn, labels = GlyphStream(dot, torch.Generator().manual_seed(0)).next(4000)
    assert drawn.shape == (4000, 1, 21, 21)
    assert labels.bincount().float() == pytest.approx(torch.tensor([2000.0, 2000.0]), abs=160)
    weight = drawn[:, 0].flatten(1)
    # A turned grid has not one point in every pixel.
    torch.testing.assert_close(weight.sum(1), torch.ones(4000), rtol=0, atol=0.15)
    place = torch.arange(21.0)
    down = (weight.view(-1, 21, 21).sum(2) * place).sum(1) / weight.sum(1) - 10
    right = (weight.view(-1, 21, 21).sum(1) * place).sum(1) / weight.sum(1) - 10
    for offset in (down, right):
        assert offset.abs().max() < 2.2  # a tenth of 21, and what grid_sample makes of a dot
        assert offset.std() == pytest.approx(4.2 / 12**0.5, rel=0.1)
    bar = torch.zeros(1, 1, 41, 41)
    bar[..., 20, 10:31] = 1
    drawn, _ = GlyphStream(bar, torch.Generator().manual_seed(0)).next(500)
    at = torch.arange(41.0)
    weight = drawn[:, 0] / drawn[:, 0].sum((1, 2), keepdim=True)
    x, y = at[None, None, :] - (weight * at).sum((1, 2))[:, None, None], at[None, :, None]
    y = y - (weight * at[:, None]).sum((1, 2))[:, None, None]
    slope = 0.5 * torch.atan2(2 * (weight * x * y).sum((1, 2)), (weight * (x**2 - y**2)).sum((1, 2)))
    degrees = slope * 180 / math.pi
    assert degrees.abs().max() == pytest.approx(20, abs=1)
    assert degrees.std() == pytest.approx(40 / 12**0.5, rel=0.1)


def test_metrics_by_hand() -> None:
    workload = images(validation_examples=40, training_examples=30)
    torch.manual_seed(0)
    model = workload.build_model().eval()
    found = workload.validate(model)
    for name, (pixels, labels) in {
        "validation": workload.source.held_out,
        "training": workload.source.training,
    }.items():
        logits = model((pixels - workload.source.mean) / workload.source.std).detach().double()
        losses = -logits.log_softmax(1)[torch.arange(len(labels)), labels]
        assert found[f"{name}_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
        assert found[f"{name}_accuracy"] == (logits.argmax(1) == labels).double().mean().item()


@pytest.mark.parametrize(("metric", "value"), kinds([("accuracy", 0.6)], [("loss", 1.2)]))
def test_a_trial_reaches_an_easy_target(metric: str, value: float) -> None:
    name = f"validation_{metric}"
    config = TrialConfig(
        workload=Choice(name="images", options={"metric": metric, "validation_examples": 256}),
        optimizer=Choice(name="adamw"),
        lr=4e-3,
        batch_size=16,
        seed=0,
        target=Target(metric=name, value=value, direction="below" if metric == "loss" else "above"),
        max_steps=120,
        device="cpu",
    )
    result = run_trial(config)
    assert result.status is TrialStatus.REACHED


def test_an_lstm_written_out() -> None:
    torch.manual_seed(0)
    model = LSTMLanguageModel(6, 1, 11).double()
    ids = torch.randint(11, (2, 5))
    weights = dict(model.lstm.named_parameters())
    state, cell, expected = torch.zeros(2, 6).double(), torch.zeros(2, 6).double(), []
    for index in range(5):
        gates = model.tokens(ids[:, index]) @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
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
        (
            UnknownNameError,
            images,
            {"model": "resnet19"},
            "unknown model 'resnet19' of workload 'images': known are lenet,",
        ),
        (UnknownNameError, images, {"model": "vgg12", "image_size": 32}, "vgg11, 13, 16, 19"),
        (UnknownNameError, images, {"norm": "layer"}, "known are batch, group, none"),
        (UnknownNameError, images, {"metric": "top5"}, "known are loss, accuracy"),
        (ConfigError, images, {"classes": 63}, "classes of workload 'images' must be 2 to 62, got 63"),
        (ConfigError, images, {"image_size": 7}, "image_size of workload 'images' must be at least 8"),
        (ConfigError, images, {"image_size": 31, "model": "vgg11"}, "vgg11 needs images of at least 32 pixels"),
        (ConfigError, images, {"model": "lenet", "width": 4}, "width of workload 'images' is not for lenet"),
        (ConfigError, images, {"flip": True}, "flip of workload 'images' needs data=PATH"),
        (ConfigError, images, {"validation": "x"}, "validation of workload 'images' needs data=PATH"),
        (ConfigError, images, {"width": 0}, "width of workload 'images'"),
        (ConfigError, images, {"training_examples": -1}, "training_examples of workload 'images'"),
        (ConfigError, lstm, {"width": 0}, "width of workload 'lstm'"),
        (ConfigError, lstm, {"tokenizer": "a"}, "tokenizer of workload 'lstm' needs data=PATH"),
        (ConfigError, autoencoder, {"code": 0}, "code of workload 'autoencoder'"),
        (ConfigError, autoencoder, {"image_size": 500}, "image_size of workload 'autoencoder' must be 2 to "),
        (ConfigError, autoencoder, {"validation": "x"}, "needs data=PATH; 'photo' does not use it"),
        (ConfigError, vae, {"sigma": 0.0}, "sigma of workload 'vae'"),
        (DataError, vae, {"data": "absent"}, "absent: no such file or folder"),
    ],
)
def test_bad_options(
    kind: type[CbsError], make: Callable[..., object], options: dict[str, object], expected: str
) -> None:
    with pytest.raises(kind) as caught:
        make(**options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
