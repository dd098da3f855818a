"""Reconstruction of small images through a narrow layer, whose gradient noise is small; and a variational autoencoder,
in which random numbers are part of an example.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.registry.values import all_whole, number
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.base import FixedSet, PredictiveWorkload, TrainingStream
from cbs.workloads.streams import DrawnExamples
from extensions.papers.image_parts.sources import ImageSource, LabelledImages, data_source, glyph_source, photo_source

EMBEDDED = ("photo", "glyphs")
# Default targets; that of the photo is lower because few numbers describe a smooth patch
PHOTO_TARGET, OTHER_TARGET = 0.02, 0.1


def unlabelled_source(workload: str, data: str, validation: str | None, image_size: int | None) -> ImageSource:
    """Return images whose labels are not used: ``"photo"``, ``"glyphs"``, or the path of the user's own."""
    all_whole(workload, {"image_size": image_size})
    if data in EMBEDDED and validation is not None:
        raise ConfigError(f"option validation of workload {workload!r} needs data=PATH; {data!r} does not use it")
    if data == "photo":
        return photo_source(workload, size=image_size or 8)
    if data == "glyphs":
        return glyph_source(workload, size=image_size or 12, classes=10)
    return data_source(workload, data, validation=validation, size=image_size, crop=0, flip=False)


def layers(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths with tanh between them, initialized with variance 1/fan-in."""
    made: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, std=inputs**-0.5)
        nn.init.zeros_(layer.bias)
        made += [layer, nn.Tanh()]
    return nn.Sequential(*made[:-1])


class AutoencoderWorkload(PredictiveWorkload):
    """An autoencoder, trained on the mean squared error of standardised pixels: predicting their mean gives 1.

    The model maps the pixels through a hidden layer to a few numbers, the code, and back in the same way.

    Args:
        source: source of the images.
        width: width of the hidden layers.
        code: number of entries of the code.
        default_target: the target used when none is given.
    """

    metric = "validation_loss"
    metric_unit = "variance/pixel"
    direction: Direction = "below"
    example_unit = "image"
    tokens_per_example: int | None = None

    def __init__(self, source: ImageSource, width: int, code: int, default_target: float = 0.1) -> None:
        self.source = source
        self.default_target = default_target
        self.width = width
        self.code = code
        self.pixels = source.held_out[0][0].numel()
        self.data_hash = source.data_hash
        self._validation = FixedSet(source.held_out)
        self.validation_examples = len(self._validation)

    def build_model(self) -> nn.Module:
        """Return encoder and decoder, drawn from torch's global random state."""
        return layers(self.pixels, self.width, self.code, self.width, self.pixels)

    def training_stream(self, generator: torch.Generator) -> TrainingStream:
        """Return a stream of random images."""
        return self.source.stream(generator)

    def outputs(self, model: nn.Module, batch: LabelledImages) -> Tensor:
        """Return the reconstructed pixels, shape ``[images, pixels]``."""
        return model(self.source.standardised(batch[0]).flatten(1))

    def output_losses(self, outputs: Tensor, batch: LabelledImages) -> Tensor:
        """Return the mean squared error over the pixels of every image, shape ``[images]``."""
        return (outputs - self.source.standardised(batch[0]).flatten(1)).square().mean(1)

    def curvature_sample(self, outputs: Tensor, batch: LabelledImages, generator: torch.Generator) -> Tensor:
        """Return normal numbers whose variance is the curvature, 2 over the number of pixels."""
        return torch.randn(outputs.shape, generator=generator).to(outputs) * (2.0 / self.pixels) ** 0.5

    def validate(self, model: nn.Module) -> float:
        """Return the mean loss over the validation images."""
        device = next(model.parameters()).device
        (loss,) = self._validation.means(lambda part: self.example_losses(model, (part[0], part[1]))[:, None], device)
        return loss


@WORKLOADS.register("autoencoder")
def autoencoder(
    *,
    width: int = 64,
    code: int = 8,
    data: str = "photo",
    image_size: int | None = None,
    validation: str | None = None,
) -> AutoencoderWorkload:
    """An autoencoder of images; see :class:`AutoencoderWorkload`.

    Args:
        width: width of the hidden layers.
        code: number of entries of the code.
        data: ``"photo"`` for grey patches of the photo that is included in matplotlib, ``"glyphs"`` for digits, or a
            path as for the workload ``images``.
        image_size: pixels across and down; ``None`` for 8 (photo), 12 (glyphs) or what the data have.
        validation: path of the validation part, where it is not in ``data``.

    Raises:
        ConfigError: if an option is invalid or contradicts another.
        DataError: if the data cannot be read, or this matplotlib does not include the photo.
    """
    all_whole("autoencoder", {"width": width, "code": code})
    source = unlabelled_source("autoencoder", data, validation, image_size)
    return AutoencoderWorkload(source, width, code, PHOTO_TARGET if data == "photo" else OTHER_TARGET)


NoisyImages = tuple[Tensor, Tensor]
"""Images ``[examples, channels, size, size]`` and standard normal numbers ``[examples, code]``."""


class VAE(nn.Module):
    """Encoder and decoder of Kingma & Welling 2014 (arXiv 1312.6114), with one hidden layer each.

    Args:
        pixels: number of pixels of an image.
        width: width of the hidden layers.
        code: number of latent variables.
    """

    def __init__(self, pixels: int, width: int, code: int) -> None:
        super().__init__()
        self.encoder = layers(pixels, width, 2 * code)
        self.decoder = layers(code, width, pixels)

    def forward(self, pixels: Tensor, noise: Tensor) -> Tensor:
        """Return reconstruction, latent mean and log variance, side by side, ``[examples, pixels + 2 code]``.

        Args:
            pixels: pixels of the images, ``[examples, pixels]``.
            noise: standard normal numbers, ``[examples, code]``.
        """
        latent = self.encoder(pixels)
        mean, log_variance = latent.chunk(2, dim=1)
        return torch.cat([self.decoder(mean + (0.5 * log_variance).exp() * noise), latent], 1)


class NoisyStream:
    """Stream of images with the random numbers of their latent codes; images and numbers come from separate sequences.

    Args:
        images: a stream of images and labels.
        code: number of latent variables.
        generator: a CPU generator, from which the seed of the second sequence is drawn.
    """

    def __init__(self, images: TrainingStream, code: int, generator: torch.Generator) -> None:
        self._images = images
        seed = int(torch.randint(2**62, (), generator=generator))
        self._noise = DrawnExamples(
            lambda examples, own: (torch.randn(examples, code, generator=own),),
            lambda noise: noise,
            torch.Generator().manual_seed(seed),
        )

    def next(self, examples: int) -> NoisyImages:
        """Return the next ``examples`` images and their noise."""
        return self._images.next(examples)[0], self._noise.next(examples)

    def skip(self, examples: int) -> None:
        """Continue after the next ``examples`` images."""
        streams: tuple[Any, ...] = (self._images, self._noise)
        for stream in streams:
            stream.skip(examples)


class VAEWorkload(AutoencoderWorkload):
    r"""The negative evidence lower bound in nats per image, without its constant:

    .. math:: \frac{1}{2 s^2} |x - \hat x|^2 + \frac12 \sum_j (\mu_j^2 + v_j - \ln v_j - 1)

    with x the standardised pixels, which the decoder predicts up to normal noise of standard deviation s, and mu and v
    the mean and variance of the latent code given x. The noise of the code is drawn with the image, so that the loss of
    an example does not depend on how examples are divided into batches.

    Args:
        source: source of the images.
        width: width of the hidden layers.
        code: number of latent variables.
        sigma: s.
    """

    metric_unit = "nats/image"

    def __init__(self, source: ImageSource, width: int, code: int, sigma: float) -> None:
        guessing = source.held_out[0][0].numel() / (2 * sigma**2)
        super().__init__(source, width, code, default_target=float(f"{0.1 * guessing:.2g}"))
        self.sigma = sigma
        noise = torch.randn(len(source.held_out[0]), code, generator=torch.Generator().manual_seed(0))
        self._validation = FixedSet((source.held_out[0], noise))

    def build_model(self) -> VAE:
        """Return a model drawn from torch's global random state."""
        return VAE(self.pixels, self.width, self.code)

    def training_stream(self, generator: torch.Generator) -> NoisyStream:
        """Return a stream of random images and noise."""
        return NoisyStream(self.source.stream(generator), self.code, generator)

    def outputs(self, model: nn.Module, batch: NoisyImages) -> Tensor:
        """Return reconstruction, latent mean and log variance, shape ``[images, pixels + 2 code]``."""
        return model(self.source.standardised(batch[0]).flatten(1), batch[1])

    def output_losses(self, outputs: Tensor, batch: NoisyImages) -> Tensor:
        """Return the loss of every image in nats, shape ``[images]``."""
        pixels, mean, log_variance = outputs.split([self.pixels, self.code, self.code], dim=1)
        off = (pixels - self.source.standardised(batch[0]).flatten(1)).square().sum(1)
        divergence = mean.square() + log_variance.exp() - log_variance - 1
        return off / (2 * self.sigma**2) + 0.5 * divergence.sum(1)

    def curvature_sample(self, outputs: Tensor, batch: NoisyImages, generator: torch.Generator) -> Tensor:
        """Return normal numbers whose variances are the curvatures: 1/s^2 (pixels), 1 (means), v/2 (log variances)."""
        pixels, mean, log_variance = outputs.split([self.pixels, self.code, self.code], dim=1)
        curvature = [torch.full_like(pixels, self.sigma**-2), torch.ones_like(mean), 0.5 * log_variance.exp()]
        return torch.randn(outputs.shape, generator=generator).to(outputs) * torch.cat(curvature, 1).sqrt()


@WORKLOADS.register("vae")
def vae(
    *,
    width: int = 64,
    code: int = 8,
    sigma: float = 0.5,
    data: str = "photo",
    image_size: int | None = None,
    validation: str | None = None,
) -> VAEWorkload:
    """A variational autoencoder of images; see :class:`VAEWorkload`.

    Args:
        width: width of the hidden layers.
        code: number of latent variables.
        sigma: standard deviation of the decoder's noise, in standard deviations of the pixels.
        data: ``"photo"``, ``"glyphs"`` or a path, see the workload ``autoencoder``.
        image_size: pixels across and down; ``None`` for 8 (photo), 12 (glyphs) or what the data have.
        validation: path of the validation part, where it is not in ``data``.

    Raises:
        ConfigError: if an option is invalid or contradicts another.
        DataError: if the data cannot be read, or this matplotlib does not include the photo.
    """
    all_whole("vae", {"width": width, "code": code})
    number("sigma of workload 'vae'", sigma)
    return VAEWorkload(unlabelled_source("vae", data, validation, image_size), width, code, sigma)
