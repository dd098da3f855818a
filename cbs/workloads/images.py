"""Classification of images: glyphs, which need no download, or a person's own CIFAR, MNIST, ImageNet or others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.errors import ConfigError, UnknownNameError
from cbs.registry.domains import whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.base import TrainingStream
from cbs.workloads.image_parts import (
    CHARACTERS,
    GlyphStream,
    ImageData,
    ImageStream,
    build_classifier,
    glyph_bitmaps,
    load_images,
    middle,
)
from cbs.workloads.likelihoods import FixedSet, cross_entropy_sample

LabelledImages = tuple[Tensor, Tensor]
"""Images ``[examples, channels, size, size]``, numbers between 0 and 1 or bytes, and classes ``[examples]``."""

METRICS = ("loss", "accuracy")
ACCURACY_TARGET = 0.95
LOSS_TARGET_SHARE = 0.1
GLYPHS_HELD_OUT = 1024
MOST_HELD_OUT = 10_000
GLYPH_SEED = 2**31 - 1
"""Seed of the validation glyphs, which no trial has for its own."""


class ImageWorkload:
    """Cross-entropy of a classifier. The metric is the mean loss in nats, or the accuracy, on the same images always.

    Args:
        model: draws a model from torch's global random state.
        stream: from a generator to training examples.
        held_out: validation images and their classes.
        training: a sample of training images to evaluate on as well, or ``None``.
        mean: of each channel, between 0 and 1, which the model's input is free of.
        std: standard deviation of each channel, by which it is divided.
        metric: ``"loss"`` or ``"accuracy"``.
        data_hash: 16 hexadecimal digits.
    """

    example_unit = "image"
    tokens_per_example: int | None = None
    data_hash: str | None

    def __init__(
        self,
        *,
        model: Callable[[], nn.Module],
        stream: Callable[[torch.Generator], TrainingStream],
        held_out: LabelledImages,
        training: LabelledImages | None,
        mean: Tensor,
        std: Tensor,
        metric: str,
        data_hash: str,
    ) -> None:
        self.metric = f"validation_{metric}"
        self.metric_unit = "nats/image" if metric == "loss" else ""
        self.direction: Direction = "below" if metric == "loss" else "above"
        guessing = math.log(int(held_out[1].max()) + 1)
        self.default_target = round(LOSS_TARGET_SHARE * guessing, 2) if metric == "loss" else ACCURACY_TARGET
        self._sets = {"validation": FixedSet(held_out)}
        if training is not None:
            self._sets["training"] = FixedSet(training)
        self.directions: dict[str, Direction] = {f"{name}_loss": "below" for name in self._sets}
        self.directions |= {f"{name}_accuracy": "above" for name in self._sets}
        self.data_hash = data_hash
        self.validation_examples = sum(len(part) for part in self._sets.values())
        self._model = model
        self._stream = stream
        self._mean, self._std = mean[:, None, None], std[:, None, None]

    def build_model(self) -> nn.Module:
        """The classifier, drawn from torch's global random state."""
        return self._model()

    def training_stream(self, generator: torch.Generator) -> TrainingStream:
        """Random images with replacement, or endless glyphs."""
        return self._stream(generator)

    def example_losses(self, model: nn.Module, batch: LabelledImages) -> Tensor:
        """Cross-entropy of every image in nats, shape ``[images]``."""
        return self.output_losses(self.outputs(model, batch), batch)

    def outputs(self, model: nn.Module, batch: LabelledImages) -> Tensor:
        """Logits, shape ``[images, classes]``."""
        images = batch[0]
        if images.dtype == torch.uint8:
            images = images.to(self._mean.dtype) / 255
        return model((images - self._mean.to(images)) / self._std.to(images))

    def output_losses(self, outputs: Tensor, batch: LabelledImages) -> Tensor:
        """Cross-entropy of every image in nats, shape ``[images]``."""
        return cross_entropy(outputs, batch[1], reduction="none")

    def curvature_sample(self, outputs: Tensor, batch: LabelledImages, generator: torch.Generator) -> Tensor:
        """Gradients of the cross-entropy at classes drawn from the model."""
        return cross_entropy_sample(outputs, generator)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Mean loss and accuracy, of the sample of the training images, too, where there is one."""
        device = next(model.parameters()).device

        def values(batch: tuple[Tensor, ...]) -> Tensor:
            images, labels = batch
            outputs = self.outputs(model, (images, labels))
            right = outputs.argmax(1) == labels
            return torch.stack([self.output_losses(outputs, (images, labels)), right.to(outputs)], dim=1)

        found = {}
        for name, part in self._sets.items():
            found[f"{name}_loss"], found[f"{name}_accuracy"] = part.means(values, device)
        return found


@WORKLOADS.register("images")
def images(
    *,
    model: str = "cnn",
    norm: str = "group",
    width: int | None = None,
    metric: str = "loss",
    classes: int | None = None,
    image_size: int | None = None,
    data: str | None = None,
    validation: str | None = None,
    channels: int | None = None,
    crop: int | None = None,
    flip: bool | None = None,
    validation_examples: int | None = None,
    training_examples: int = 0,
) -> ImageWorkload:
    """A classifier of images; see :class:`ImageWorkload`.

    Args:
        model: see :data:`cbs.workloads.image_parts.models.KNOWN`.
        norm: ``"batch"``, ``"group"`` or ``"none"``; a model with batch normalisation mixes examples, so that its noise
            scale can be measured by accumulation only.
        width: channels of the model's first stage; ``None`` for the model's own.
        metric: ``"loss"`` or ``"accuracy"``.
        classes: of glyphs: 10 (digits) to 62 (digits and letters); ``None`` for 10.
        image_size: pixels across and down; ``None`` for 16 (glyphs) or what the data have.
        data: folder, archive or Parquet file, see :func:`cbs.workloads.image_parts.formats.load_images` for this and
            for the options ``validation`` and ``channels``; ``None`` for glyphs.
        validation: folder, archive or Parquet file of the validation part, where it is not in ``data``.
        channels: 1 or 3; ``None`` for what the images have.
        crop: zeros around an image before a random cut; ``None`` for an eighth of colour images of up to 64 pixels, as
            4 for CIFAR. Larger images are stored with a margin to cut.
        flip: whether half of the images are mirrored; ``None`` for those in colour.
        validation_examples: images to validate on; ``None`` for 1,024 glyphs, or for what there is up to 10,000.
        training_examples: training images to evaluate on as well, evenly spaced in the data; gives the metrics
            ``training_loss`` and ``training_accuracy``.

    Raises:
        UnknownNameError: if there is no such model, norm or metric.
        ConfigError: if an option is out of its domain or contradicts another.
        DataError: if the data cannot be read.
    """
    numbers = {"width": width, "classes": classes, "image_size": image_size, "validation_examples": validation_examples}
    for name, value in numbers.items():
        if value is not None:
            whole(f"{name} of workload 'images'", value)
    whole("training_examples of workload 'images'", training_examples, least=0)
    if metric not in METRICS:
        raise UnknownNameError(f"unknown metric {metric!r} of workload 'images': known are {', '.join(METRICS)}")
    if data is not None:
        if classes is not None:
            raise ConfigError("option classes of workload 'images' is for glyphs; data have their own classes")
        found = load_images(data, validation, image_size, channels)
        return _from_data(found, model, norm, width, metric, crop, flip, validation_examples, training_examples)
    options = {"validation": validation, "channels": channels, "crop": crop, "flip": flip}
    for name, option in options.items():
        if option is not None:
            raise ConfigError(f"option {name} of workload 'images' needs data=PATH, glyphs do not use it")
    size, count = image_size or 16, classes or 10
    if count > len(CHARACTERS) or count < 2:
        raise ConfigError(f"classes of workload 'images' must be 2 to {len(CHARACTERS)}, got {count}")
    if size < 8:
        raise ConfigError(f"image_size of workload 'images' must be at least 8 for glyphs, got {size}")
    bitmaps = glyph_bitmaps(size, count)

    def build() -> nn.Module:
        return build_classifier(model, classes=count, channels=1, size=size, norm=norm, width=width)

    def stream(generator: torch.Generator) -> GlyphStream:
        return GlyphStream(bitmaps, generator)

    fixed = stream(torch.Generator().manual_seed(GLYPH_SEED))
    held_out = fixed.next(validation_examples or GLYPHS_HELD_OUT)
    check_on_meta(build)
    return ImageWorkload(
        model=build,
        stream=stream,
        held_out=held_out,
        training=fixed.next(training_examples) if training_examples else None,
        mean=bitmaps.mean()[None],
        std=bitmaps.std(correction=0)[None],
        metric=metric,
        data_hash=hashlib.sha256(bitmaps.numpy().astype("<f4").tobytes()).hexdigest()[:16],
    )


def _from_data(
    found: ImageData,
    model: str,
    norm: str,
    width: int | None,
    metric: str,
    crop: int | None,
    flip: bool | None,
    validation_examples: int | None,
    training_examples: int,
) -> ImageWorkload:
    colours = len(found.mean)
    held_out = middle(found.validation, found.size, validation_examples or MOST_HELD_OUT)
    stored = found.training.gather(torch.zeros(1, dtype=torch.int64)).shape[-1]
    margin = whole("crop of workload 'images'", crop, least=0) if crop is not None else 0
    if crop is None and colours == 3 and stored == found.size:
        margin = found.size // 8

    def build() -> nn.Module:
        return build_classifier(model, classes=found.classes, channels=colours, size=found.size, norm=norm, width=width)

    check_on_meta(build)
    return ImageWorkload(
        model=build,
        stream=lambda generator: ImageStream(
            found.training, found.size, margin, colours == 3 if flip is None else flip, generator
        ),
        held_out=held_out,
        training=middle(found.training, found.size, training_examples) if training_examples else None,
        mean=found.mean,
        std=found.std,
        metric=metric,
        data_hash=found.data_hash,
    )


def check_on_meta(build: Callable[[], nn.Module]) -> None:
    """Build a model without its weights, so that a mistake in its options is an error of the workload."""
    with torch.device("meta"):
        build()
