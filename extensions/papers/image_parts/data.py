"""Labelled images as a workload uses them: in memory, or decoded when they are drawn."""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from cbs.errors import DataError, needed, reason
from cbs.workloads.streams import DrawnExamples

SAMPLED = 1024  # Number of evenly spaced images from which mean and standard deviation of each channel are computed


class Images(Protocol):
    """Images of one size, each with a label."""

    @property
    def labels(self) -> Tensor:
        """Class of every image."""

    def gather(self, indices: Tensor) -> Tensor:
        """Return the images at ``indices`` as bytes, shape ``[indices, channels, side, side]``."""


@dataclass(frozen=True)
class StoredImages:
    """Images in memory, ``pixels`` of shape ``[images, channels, side, side]`` and type ``uint8``."""

    pixels: Tensor
    labels: Tensor

    def gather(self, indices: Tensor) -> Tensor:
        """Return the images at ``indices``."""
        return self.pixels[indices]


@dataclass(frozen=True)
class EncodedImages:
    """Images that are decoded whenever they are gathered.

    Attributes:
        labels: class of every image.
        read: function from the index of an image to its file's content.
        name: function from the index of an image to its name in error messages.
        channels: 1 or 3; other images are converted.
        side: pixels across and down; the shorter side is resized to it and the longer one cropped.
    """

    labels: Tensor
    read: Callable[[int], bytes]
    name: Callable[[int], str]
    channels: int
    side: int

    def gather(self, indices: Tensor) -> Tensor:
        """Return the images at ``indices``.

        Raises:
            DataError: if one cannot be read.
        """
        decoded = [self._decode(index) for index in indices.tolist()]
        return torch.from_numpy(np.stack(decoded)) if decoded else torch.empty(0, self.channels, self.side, self.side)

    def _decode(self, index: int) -> np.ndarray:
        image = decode(self.read(index), self.name(index)).convert("RGB" if self.channels == 3 else "L")
        scale = self.side / min(image.size)
        across, down = (max(self.side, round(length * scale)) for length in image.size)
        if (across, down) != image.size:
            image = image.resize((across, down), 2)  # bilinear
        left, top = (across - self.side) // 2, (down - self.side) // 2
        return as_bytes(image.crop((left, top, left + self.side, top + self.side)))


def decode(content: bytes, where: str) -> Any:
    """Decode an image with Pillow.

    Raises:
        DataError: if it is not an image, or is damaged.
        MissingDependencyError: if Pillow is not installed.
    """
    with needed("pillow", f"images such as {where}"):
        from PIL import Image
    try:
        image = Image.open(io.BytesIO(content))
        image.load()
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        why = "of no known format" if isinstance(error, Image.UnidentifiedImageError) else reason(error)
        raise DataError(f"{where}: not a readable image ({why}); delete it or fetch it again") from None
    if image.mode.startswith(("I", "F")):
        raise DataError(f"{where}: more than 8 bits per channel ({image.mode}); convert the images to 8 bits")
    return image


def as_bytes(image: Any) -> np.ndarray:
    """Return the pixels of a grey or RGB image, shape ``[channels, rows, columns]``."""
    pixels = np.array(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What is known of a data set.

    Attributes:
        classes: number of classes; every label is below it.
        size: pixels across and down that a model sees; stored images may be larger, by a margin to crop.
        mean: mean of each channel, between 0 and 1.
        std: standard deviation of each channel.
        data_hash: 16 hexadecimal digits that identify the data.
    """

    classes: int
    size: int
    mean: Tensor
    std: Tensor
    data_hash: str


@dataclass(frozen=True, kw_only=True)
class ImageData(ImageFacts):
    """A data set, with the images to train and to validate on."""

    training: Images
    validation: Images


def describe(training: Images, validation: Images, names: Sequence[str], size: int, where: str) -> ImageData:
    """Combine both parts with their statistics and a hash of all labels and of sampled images.

    Args:
        training: images to train on.
        validation: images to validate on.
        names: names of the classes; empty where unknown.
        size: pixels across and down that a model sees.
        where: name of the data for error messages.

    Raises:
        DataError: if a class of the validation part is not in the training part, or both parts are the same images.
    """
    if torch.equal(training.labels, validation.labels) and torch.equal(
        *(part.gather(_spaced(len(part.labels), 64)) for part in (training, validation))
    ):
        raise DataError(f"{where}: the images for validation are those for training; name other data for one of them")
    digest = hashlib.sha256("\n".join(names).encode())
    for part, name in ((training, "training"), (validation, "validation")):
        digest.update(part.labels.numpy().astype("<i8").tobytes())
        sample = part.gather(_spaced(len(part.labels), SAMPLED if name == "training" else 64))
        digest.update(sample.numpy().tobytes())
        if name == "training":
            values = sample.double().transpose(0, 1).flatten(1) / 255
    classes = max(len(names), int(training.labels.max()) + 1)
    if int(validation.labels.max()) >= classes or int(min(training.labels.min(), validation.labels.min())) < 0:
        raise DataError(f"{where}: labels for validation go to {int(validation.labels.max())}, those for training only "
                        f"to {classes - 1}; check that both parts belong to one data set")  # fmt: skip
    std = values.std(1, correction=0)
    return ImageData(
        training=training,
        validation=validation,
        classes=classes,
        size=size,
        mean=values.mean(1).float(),
        std=torch.where(std > 0, std, 1.0).float(),
        data_hash=digest.hexdigest()[:16],
    )


def _spaced(count: int, wanted: int) -> Tensor:
    return torch.from_numpy(np.linspace(0, count - 1, min(count, wanted)).astype(np.int64))


class ImageStream(DrawnExamples):
    """Stream of random images with replacement, randomly cropped within a margin and mirrored half of the time.

    Args:
        images: images to draw from.
        size: pixels across and down of an example.
        margin: width of the zero padding around an image before it is cropped.
        mirrored: whether half of the images are mirrored.
        generator: a CPU generator.
    """

    def __init__(self, images: Images, size: int, margin: int, mirrored: bool, generator: torch.Generator) -> None:
        super().__init__(self._draw_places, self._crops, generator, block=1024)
        self._images = images
        self._size = size
        self._margin = margin
        self._mirrored = mirrored

    def _draw_places(self, examples: int, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.rand(examples, 4, generator=generator, dtype=torch.float64),)

    def _crops(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Return images between 0 and 1, shape ``[examples, channels, size, size]``, and their labels."""
        rows = (uniform[:, 0] * len(self._images.labels)).long()
        images = pad(self._images.gather(rows), (self._margin,) * 4)
        spare = images.shape[-1] - self._size
        top, left = (uniform[:, 1:3] * (spare + 1)).long().T
        columns = torch.arange(self._size).expand(len(rows), -1)
        across = torch.where((uniform[:, 3:] < 0.5) & self._mirrored, columns.flip(1), columns) + left[:, None]
        down = columns + top[:, None]
        each = torch.arange(len(rows))[:, None, None, None]
        channels = torch.arange(images.shape[1])[None, :, None, None]
        cut = images[each, channels, down[:, None, :, None], across[:, None, None, :]]
        return cut.float() / 255, self._images.labels[rows]


def middle(images: Images, size: int, most: int) -> tuple[Tensor, Tensor]:
    """Return center crops of at most ``most`` evenly spaced images, and their labels."""
    rows = _spaced(len(images.labels), most)
    pixels = images.gather(rows)
    start = (pixels.shape[-1] - size) // 2
    return pixels[:, :, start : start + size, start : start + size].contiguous(), images.labels[rows]
