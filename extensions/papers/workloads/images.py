"""Classification of images: glyphs, which need no download, or the user's own CIFAR, MNIST, ImageNet or other data."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.errors import ConfigError, UnknownNameError
from cbs.registry.values import all_whole, whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.base import FixedSet, PredictiveWorkload, TrainingStream, cross_entropy_sample
from extensions.papers.image_parts.models import build_classifier
from extensions.papers.image_parts.sources import ImageSource, LabelledImages, data_source, glyph_source

METRICS = ("loss", "accuracy")
# Default targets, chosen by hand: an accuracy; or a loss, as a share of the ln(classes) of guessing
ACCURACY_TARGET = 0.95
LOSS_TARGET_SHARE = 0.1


class ImageWorkload(PredictiveWorkload):
    """Cross-entropy of a classifier. The metric is the mean loss in nats, or the accuracy, on a fixed set of images.

    Args:
        model: returns a new model, drawn from torch's global random state.
        source: source of the images.
        metric: ``"loss"`` or ``"accuracy"``.
    """

    example_unit = "image"
    tokens_per_example: int | None = None

    def __init__(self, model: Callable[[], nn.Module], source: ImageSource, metric: str) -> None:
        self.metric = f"validation_{metric}"
        self.metric_unit = "nats/image" if metric == "loss" else ""
        self.direction: Direction = "below" if metric == "loss" else "above"
        guessing = round(LOSS_TARGET_SHARE * math.log(source.classes), 2)
        self.default_target = guessing if metric == "loss" else ACCURACY_TARGET
        self._sets = {"validation": FixedSet(source.held_out)}
        if source.training is not None:
            self._sets["training"] = FixedSet(source.training)
        self.directions: dict[str, Direction] = {f"{name}_loss": "below" for name in self._sets}
        self.directions |= {f"{name}_accuracy": "above" for name in self._sets}
        self.data_hash = source.data_hash
        self.validation_examples = sum(len(part) for part in self._sets.values())
        self.source = source
        self._model = model

    def build_model(self) -> nn.Module:
        """Return the classifier, drawn from torch's global random state."""
        return self._model()

    def training_stream(self, generator: torch.Generator) -> TrainingStream:
        """Return a stream of random images with replacement, or of endless glyphs."""
        return self.source.stream(generator)

    def outputs(self, model: nn.Module, batch: LabelledImages) -> Tensor:
        """Return logits, shape ``[images, classes]``."""
        return model(self.source.standardised(batch[0]))

    def output_losses(self, outputs: Tensor, batch: LabelledImages) -> Tensor:
        """Return the cross-entropy of every image in nats, shape ``[images]``."""
        return cross_entropy(outputs, batch[1], reduction="none")

    def curvature_sample(self, outputs: Tensor, batch: LabelledImages, generator: torch.Generator) -> Tensor:
        """Return gradients of the cross-entropy at classes drawn from the model."""
        return cross_entropy_sample(outputs, generator)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Return mean loss and accuracy, also on the sample of training images, where there is one."""
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
        model: see :data:`extensions.papers.image_parts.models.KNOWN`.
        norm: ``"batch"``, ``"group"`` or ``"none"``; a model with batch normalisation mixes examples, so that its noise
            scale can be measured only by accumulation.
        width: channels of the model's first stage; ``None`` for the model's own.
        metric: ``"loss"`` or ``"accuracy"``.
        classes: number of classes of glyphs: 10 (digits) to 62 (digits and letters); ``None`` for 10.
        image_size: pixels across and down; ``None`` for 16 (glyphs) or what the data have.
        data: folder, archive or Parquet file, see
            :func:`~extensions.papers.image_parts.formats.load_images` for this and
            for the options ``validation`` and ``channels``; ``None`` for glyphs.
        validation: folder, archive or Parquet file of the validation part, where it is not in ``data``.
        channels: 1 or 3; ``None`` for those of the images.
        crop: width of the zero padding around an image before a random crop; ``None`` for an eighth of the size, for
            colour images of up to 64 pixels: 4 for CIFAR. Larger images are stored with a margin to crop.
        flip: whether half of the images are mirrored; ``None`` to mirror colour images only.
        validation_examples: number of images to validate on; ``None`` for 1,024 glyphs, or for all images up to 10,000.
        training_examples: number of training images to evaluate on as well, evenly spaced in the data; adds the metrics
            ``training_loss`` and ``training_accuracy``.

    Raises:
        UnknownNameError: if there is no such model, norm or metric.
        ConfigError: if an option is invalid or contradicts another.
        DataError: if the data cannot be read.
    """
    numbers = {"width": width, "classes": classes, "image_size": image_size, "validation_examples": validation_examples}
    all_whole("images", numbers)
    whole("training_examples of workload 'images'", training_examples, least=0)
    if metric not in METRICS:
        raise UnknownNameError(f"unknown metric {metric!r} of workload 'images': known are {', '.join(METRICS)}")
    samples: dict[str, Any] = {"validation_examples": validation_examples, "training_examples": training_examples}
    options: dict[str, Any] = {"validation": validation, "channels": channels, "crop": crop, "flip": flip}
    if data is not None:
        if classes is not None:
            raise ConfigError(
                "option classes of workload 'images' is for glyphs; leave it out, data have their own classes"
            )
        source = data_source("images", data, size=image_size, **options, **samples)
    else:
        for name, option in options.items():
            if option is not None:
                raise ConfigError(f"option {name} of workload 'images' needs data=PATH; glyphs do not use it")
        source = glyph_source("images", size=image_size or 16, classes=classes or 10, **samples)

    def build() -> nn.Module:
        return build_classifier(
            model, classes=source.classes, channels=len(source.mean), size=source.size, norm=norm, width=width
        )

    with torch.device("meta"):
        build()  # raises now if an option is wrong
    return ImageWorkload(build, source, metric)
