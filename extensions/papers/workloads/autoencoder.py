"""Reconstruction of small images through a narrow layer: a workload whose gradient noise is small."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.registry.values import all_whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.base import FixedSet, PredictiveWorkload, TrainingStream
from extensions.papers.image_parts.sources import ImageSource, LabelledImages, data_source, glyph_source, photo_source

EMBEDDED = ("photo", "glyphs")
PHOTO_TARGET, OTHER_TARGET = 0.02, 0.1
"""Default targets; that of the photo is lower because few numbers describe a smooth patch."""


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
