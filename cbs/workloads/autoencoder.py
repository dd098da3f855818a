"""Reconstruction of small images through a narrow layer: a workload whose gradient noise is small."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.registry.domains import all_whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.base import TrainingStream
from cbs.workloads.image_parts.sources import ImageSource, LabelledImages, data_source, glyph_source, photo_source
from cbs.workloads.likelihoods import FixedSet

EMBEDDED = ("photo", "glyphs")
PHOTO_TARGET, OTHER_TARGET = 0.02, 0.1
"""The photo is smooth, so that few numbers say most of a patch."""


def unlabelled_source(workload: str, data: str, validation: str | None, image_size: int | None) -> ImageSource:
    """Images whose labels nobody needs: ``"photo"``, ``"glyphs"``, or the path of a person's own."""
    all_whole(workload, {"image_size": image_size})
    if data in EMBEDDED and validation is not None:
        raise ConfigError(f"option validation of workload {workload!r} needs data=PATH, {data} does not use it")
    if data == "photo":
        return photo_source(workload, size=image_size or 8)
    if data == "glyphs":
        return glyph_source(workload, size=image_size or 12, classes=10)
    return data_source(workload, data, validation=validation, size=image_size, crop=0, flip=False)


def layers(*widths: int) -> nn.Sequential:
    """Linear layers from width to width with tanh between them, of variance 1/fan-in at the start."""
    made: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, std=inputs**-0.5)
        nn.init.zeros_(layer.bias)
        made += [layer, nn.Tanh()]
    return nn.Sequential(*made[:-1])


class AutoencoderWorkload:
    """Mean squared error of the pixels, standardised over the training data: 1 is what their mean would give.

    The model goes from the pixels through a hidden layer to a few numbers, the code, and back the same way.

    Args:
        source: of the images.
        width: of the hidden layers.
        code: numbers in the narrow layer.
        default_target: the target used when none is given.
    """

    metric = "validation_loss"
    metric_unit = "variance/pixel"
    direction: Direction = "below"
    example_unit = "image"
    tokens_per_example: int | None = None
    data_hash: str | None

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
        """Encoder and decoder, drawn from torch's global random state."""
        return layers(self.pixels, self.width, self.code, self.width, self.pixels)

    def training_stream(self, generator: torch.Generator) -> TrainingStream:
        """Random images."""
        return self.source.stream(generator)

    def example_losses(self, model: nn.Module, batch: LabelledImages) -> Tensor:
        """Mean squared error of the pixels of every image, shape ``[images]``."""
        return self.output_losses(self.outputs(model, batch), batch)

    def outputs(self, model: nn.Module, batch: LabelledImages) -> Tensor:
        """Reconstructed pixels, shape ``[images, pixels]``."""
        return model(self.source.standardised(batch[0]).flatten(1))

    def output_losses(self, outputs: Tensor, batch: LabelledImages) -> Tensor:
        """Mean squared error of the pixels of every image, shape ``[images]``."""
        return (outputs - self.source.standardised(batch[0]).flatten(1)).square().mean(1)

    def curvature_sample(self, outputs: Tensor, batch: LabelledImages, generator: torch.Generator) -> Tensor:
        """Normal numbers whose variance is the curvature, 2 over the number of pixels."""
        return torch.randn(outputs.shape, generator=generator).to(outputs) * (2.0 / self.pixels) ** 0.5

    def validate(self, model: nn.Module) -> float:
        """Mean loss over the validation images."""
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
        width: of the hidden layers.
        code: numbers in the narrow layer.
        data: ``"photo"`` for grey patches of the photo that comes with matplotlib, ``"glyphs"`` for digits, or a path
            as of the workload ``images``.
        image_size: pixels across and down; ``None`` for 8 (photo), 12 (glyphs) or what the data have.
        validation: path of the validation part, where it is not in ``data``.

    Raises:
        ConfigError: if an option is out of its domain or contradicts another.
        DataError: if the data cannot be read, or this matplotlib comes without the photo.
    """
    all_whole("autoencoder", {"width": width, "code": code})
    source = unlabelled_source("autoencoder", data, validation, image_size)
    return AutoencoderWorkload(source, width, code, PHOTO_TARGET if data == "photo" else OTHER_TARGET)
