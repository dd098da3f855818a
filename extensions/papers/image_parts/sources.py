"""Sources of images for a workload: glyphs, the user's own data, or patches of a photo."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.registry.values import whole
from cbs.workloads.base import TrainingStream
from cbs.workloads.streams import DrawnExamples
from extensions.papers.image_parts.data import ImageStream, as_bytes, decode, middle
from extensions.papers.image_parts.formats import load_images
from extensions.papers.image_parts.glyphs import CHARACTERS, GlyphStream, glyph_bitmaps, matplotlib_data

LabelledImages = tuple[Tensor, Tensor]
"""Images ``[examples, channels, size, size]``, as numbers between 0 and 1 (bytes in fixed sets), and their classes."""

GLYPHS_HELD_OUT = 1024
PATCHES_HELD_OUT = 1024
MOST_HELD_OUT = 10_000
GLYPH_SEED = 2**31 - 1
"""Seed of the validation glyphs."""

PHOTO = "sample_data/grace_hopper.jpg"


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Images to train and to validate on.

    Attributes:
        stream: function from a generator to a stream of training examples, :data:`LabelledImages`.
        held_out: validation examples.
        training: a fixed sample of the training examples, or ``None``.
        classes: number of classes; every label is below it.
        size: pixels across and down.
        mean: mean of each channel, between 0 and 1.
        std: standard deviation of each channel.
        data_hash: 16 hexadecimal digits that identify the data.
    """

    stream: Callable[[torch.Generator], TrainingStream]
    held_out: LabelledImages
    training: LabelledImages | None = None
    classes: int
    size: int
    mean: Tensor
    std: Tensor
    data_hash: str

    def standardised(self, images: Tensor) -> Tensor:
        """Return images whose channels have mean 0 and standard deviation 1 over the training data."""
        images = images.to(self.mean.dtype) / 255 if images.dtype == torch.uint8 else images
        mean, std = (part[:, None, None].to(images) for part in (self.mean, self.std))
        return (images - mean) / std


def glyph_source(
    workload: str, *, size: int, classes: int, validation_examples: int | None = None, training_examples: int = 0
) -> ImageSource:
    """Return an endless source of glyphs, see :class:`~extensions.papers.image_parts.glyphs.GlyphStream`.

    Raises:
        ConfigError: if the images are too small or there are not that many classes.
    """
    if not 2 <= classes <= len(CHARACTERS):
        raise ConfigError(f"classes of workload {workload!r} must be 2 to {len(CHARACTERS)}, got {classes}")
    if size < 8:
        raise ConfigError(f"image_size of workload {workload!r} must be at least 8 for glyphs, got {size}")
    bitmaps = glyph_bitmaps(size, classes)
    fixed = GlyphStream(bitmaps, torch.Generator().manual_seed(GLYPH_SEED))
    return ImageSource(
        stream=lambda generator: GlyphStream(bitmaps, generator),
        held_out=fixed.next(validation_examples or GLYPHS_HELD_OUT),
        training=fixed.next(training_examples) if training_examples else None,
        classes=classes,
        size=size,
        mean=bitmaps.mean()[None],
        std=bitmaps.std(correction=0)[None],
        data_hash=hashlib.sha256(bitmaps.numpy().astype("<f4").tobytes()).hexdigest()[:16],
    )


def data_source(
    workload: str,
    path: str,
    *,
    validation: str | None = None,
    size: int | None = None,
    channels: int | None = None,
    crop: int | None = None,
    flip: bool | None = None,
    validation_examples: int | None = None,
    training_examples: int = 0,
) -> ImageSource:
    """Return a source of the user's own images, see :func:`~extensions.papers.image_parts.formats.load_images`.

    Args:
        workload: name of the workload, for error messages.
        path: folder, archive or Parquet file.
        validation: folder, archive or Parquet file of the validation part, if it is not in ``path``.
        size: pixels across and down; ``None`` for those of the data.
        channels: 1 or 3; ``None`` for those of the data.
        crop: width of the zero padding around an image before a random crop; ``None`` for an eighth of the size, for
            colour images of up to 64 pixels.
        flip: whether half of the images are mirrored; ``None`` to mirror colour images only.
        validation_examples: number of images to validate on, evenly spaced; ``None`` for all up to 10,000.
        training_examples: number of images in the fixed sample of the training data.
    """
    found = load_images(path, validation, size, channels)
    colour = len(found.mean) == 3
    stored = found.training.gather(torch.zeros(1, dtype=torch.int64)).shape[-1]
    margin = found.size // 8 if colour and stored == found.size else 0
    if crop is not None:
        margin = whole(f"crop of workload {workload!r}", crop, least=0)
    mirrored = colour if flip is None else flip
    return ImageSource(
        stream=lambda generator: ImageStream(found.training, found.size, margin, mirrored, generator),
        held_out=middle(found.validation, found.size, validation_examples or MOST_HELD_OUT),
        training=middle(found.training, found.size, training_examples) if training_examples else None,
        classes=found.classes,
        size=found.size,
        mean=found.mean,
        std=found.std,
        data_hash=found.data_hash,
    )


def photo_source(workload: str, *, size: int, validation_examples: int | None = None) -> ImageSource:
    """Return a source of random square patches of the photo that is part of matplotlib, in grey, all of class 0.

    The left three quarters are for training, the rest for validation.

    Raises:
        ConfigError: if the patches are larger than a quarter of the photo.
        DataError: if this matplotlib does not include the photo.
    """
    path = matplotlib_data(PHOTO)
    photo = torch.from_numpy(as_bytes(decode(path.read_bytes(), str(path)).convert("L")))[0]
    cut = photo.shape[1] * 3 // 4
    sides = (photo[:, :cut], photo[:, cut:])
    most = min(side.shape[1] for side in sides)
    if not 2 <= size <= most:
        raise ConfigError(f"image_size of workload {workload!r} must be 2 to {most} for patches, got {size}")

    def draw(examples: int, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.rand(examples, 2, generator=generator, dtype=torch.float64),)

    def patches(side: Tensor, generator: torch.Generator) -> DrawnExamples:
        views = side.unfold(0, size, 1).unfold(1, size, 1)

        def make(uniform: Tensor) -> LabelledImages:
            rows, columns = (uniform * torch.tensor(views.shape[:2])).long().T
            return views[rows, columns][:, None].float() / 255, torch.zeros(len(rows), dtype=torch.int64)

        return DrawnExamples(draw, make, generator)

    values = sides[0].double() / 255
    return ImageSource(
        stream=lambda generator: patches(sides[0], generator),
        held_out=patches(sides[1], torch.Generator().manual_seed(0)).next(validation_examples or PATCHES_HELD_OUT),
        classes=1,
        size=size,
        mean=values.mean().float()[None],
        std=values.std(correction=0).float()[None],
        data_hash=hashlib.sha256(photo.numpy().tobytes()).hexdigest()[:16],
    )
