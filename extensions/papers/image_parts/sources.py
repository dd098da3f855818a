"""Sources of images for a workload: glyphs, the user's own data, or patches of a photo.

Glyphs are digits and letters from matplotlib's fonts, shifted, rotated and blurred. Their outlines are read with
fontTools, a dependency of matplotlib, and filled here, so that bitmaps do not depend on the version of a renderer.
"""

import functools
import hashlib
import importlib.util
import math
import string
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from cbs.errors import ConfigError, DataError, needed
from cbs.registry.values import whole
from cbs.workloads.base import TrainingStream
from cbs.workloads.streams import DrawnExamples
from extensions.papers.image_parts.data import ImageFacts, ImageStream, as_bytes, decode, middle
from extensions.papers.image_parts.formats import load_images

LabelledImages = tuple[Tensor, Tensor]
"""Images ``[examples, channels, size, size]``, as numbers between 0 and 1 (bytes in fixed sets), and their classes."""

# By hand: drawn sets of this size tell an accuracy of 95 % to .7 %. Of given images as many as MNIST and CIFAR hold out
GLYPHS_HELD_OUT = 1024
PATCHES_HELD_OUT = 1024
MOST_HELD_OUT = 10_000
GLYPH_SEED = 2**31 - 1  # Seed of the validation glyphs

PHOTO = "sample_data/grace_hopper.jpg"


@dataclass(frozen=True, kw_only=True)
class ImageSource(ImageFacts):
    """Images to train and to validate on.

    Attributes:
        stream: function from a generator to a stream of training examples, :data:`LabelledImages`.
        held_out: validation examples.
        training: a fixed sample of the training examples, or ``None``.
    """

    stream: Callable[[torch.Generator], TrainingStream]
    held_out: LabelledImages
    training: LabelledImages | None = None

    def standardised(self, images: Tensor) -> Tensor:
        """Return images whose channels have mean 0 and standard deviation 1 over the training data."""
        images = images.to(self.mean.dtype) / 255 if images.dtype == torch.uint8 else images
        mean, std = (part[:, None, None].to(images) for part in (self.mean, self.std))
        return (images - mean) / std


def glyph_source(
    workload: str, *, size: int, classes: int, validation_examples: int | None = None, training_examples: int = 0
) -> ImageSource:
    """Return an endless source of glyphs, see :class:`~extensions.papers.image_parts.sources.GlyphStream`.

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
    """Return a source of the user's own images, see :func:`~extensions.papers.image_parts.formats.load_images`; the
    arguments are the options of ``workload``, see :func:`extensions.papers.workloads.images.images`."""
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
        **{each.name: getattr(found, each.name) for each in fields(ImageFacts)},
    )


def photo_source(workload: str, *, size: int) -> ImageSource:
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
        held_out=patches(sides[1], torch.Generator().manual_seed(0)).next(PATCHES_HELD_OUT),
        classes=1,
        size=size,
        mean=values.mean().float()[None],
        std=values.std(correction=0).float()[None],
        data_hash=hashlib.sha256(photo.numpy().tobytes()).hexdigest()[:16],
    )


FACES = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
)
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""Classes in order: the first ten are the digits, 62 are all."""

EM = 0.8  # Size of a font relative to the image
MIDDLE = 0.26  # Height above the baseline, relative to the font size, that is placed in the middle of the image

# Sample points per pixel and direction when an outline is filled: 65 shades of grey
FINE = 8

PIECES = 8  # Number of line segments that approximate a curve

# Most that a glyph is turned, and shifted as a share of the image; by hand: a font leaves a tenth on either side
TURN = math.radians(20.0)
SHIFT = 0.1


@functools.cache
def glyph_bitmaps(size: int, classes: int) -> Tensor:
    """Return every class in every face, shape ``[classes, faces, size, size]``, 0 for paper and 1 for ink.

    Raises:
        DataError: if the fonts of matplotlib do not exist.
        MissingDependencyError: if fontTools is not installed.
    """
    with needed("fonttools", "the fonts of matplotlib"):
        from fontTools.ttLib import TTFont, TTLibError
    folder = matplotlib_data("fonts/ttf")
    bitmaps = np.empty((classes, len(FACES), size, size), dtype=np.float32)
    for index, face in enumerate(FACES):
        try:
            font = TTFont(folder / face, lazy=True)
            glyphs, names, em = font.getGlyphSet(), font.getBestCmap(), font["head"].unitsPerEm
            outlines = [_outline(glyphs, names[ord(character)]) for character in CHARACTERS[:classes]]
        except (OSError, KeyError, TTLibError) as error:
            raise DataError(f"{folder / face}: cannot be read ({error}); install matplotlib again") from None
        for label, segments in enumerate(outlines):
            bitmaps[label, index] = fill(_placed(segments / em, size), size)
    return torch.from_numpy(bitmaps)


def matplotlib_data(path: str) -> Path:
    """Return the path of a file or folder that is part of matplotlib, without importing it.

    Raises:
        DataError: if it does not exist.
    """
    spec = importlib.util.find_spec("matplotlib")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = Path(places[0] if places else "matplotlib") / "mpl-data" / path
    if not found.exists():
        raise DataError(f"{found}: does not exist; install matplotlib from PyPI (pip install matplotlib), or pass data")
    return found


def _outline(glyphs: Any, name: str) -> np.ndarray:
    """Return the outline of a glyph as straight segments, shape ``[segments, 2 ends, 2 coordinates]``."""
    from fontTools.pens.basePen import BasePen

    curves: list[tuple[Any, Any, Any, Any]] = []

    class Curves(BasePen):
        """Collects an outline as cubic curves; a line is one whose control points are its ends."""

        def _moveTo(self, pt: Any) -> None:
            self.start = pt

        def _lineTo(self, pt: Any) -> None:
            before = self._getCurrentPoint()
            curves.append((before, before, pt, pt))

        def _curveToOne(self, pt1: Any, pt2: Any, pt3: Any) -> None:
            curves.append((self._getCurrentPoint(), pt1, pt2, pt3))

        def _closePath(self) -> None:
            self._lineTo(self.start)

    glyphs[name].draw(Curves(glyphs))
    t = np.linspace(0.0, 1.0, PIECES + 1)
    weights = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3], axis=1)
    corners = np.array(curves, dtype=np.float64)
    points = (weights[None, :, :, None] * corners[:, None]).sum(2)
    return np.stack([points[:, :-1], points[:, 1:]], axis=2).reshape(-1, 2, 2)


def _placed(segments: np.ndarray, size: int) -> np.ndarray:
    """Convert outlines from font units, upwards from the baseline, to pixels downwards, centered in the image."""
    across, up = segments[..., 0], segments[..., 1]
    middle = (across.min() + across.max()) / 2
    return np.stack([0.5 + EM * (across - middle), 0.5 - EM * (up - MIDDLE)], axis=-1) * size


def fill(segments: np.ndarray, size: int) -> np.ndarray:
    """Return the share of every pixel inside an outline, by the nonzero rule, from ``FINE x FINE`` points per pixel.

    Args:
        segments: closed outlines in pixels, shape ``[segments, 2 ends, 2 coordinates]``.
        size: pixels across and down.

    Returns:
        Shape ``[size, size]``, rows from the top.
    """
    points = size * FINE
    rows = (np.arange(points)[:, None] + 0.5) / FINE
    (x0, y0), (x1, y1) = segments[:, 0].T, segments[:, 1].T
    row, segment = np.nonzero((y0 <= rows) != (y1 <= rows))
    share = (rows[row, 0] - y0[segment]) / (y1 - y0)[segment]
    crossing = x0[segment] + share * (x1 - x0)[segment]
    column = np.clip(np.ceil(crossing * FINE - 0.5), 0, points).astype(np.int64)
    changes = np.zeros((points, points + 1))
    np.add.at(changes, (row, column), np.where(y1 > y0, 1.0, -1.0)[segment])
    inside = changes.cumsum(1)[:, :points] != 0
    return inside.reshape(size, FINE, size, FINE).mean((1, 3))


class GlyphStream(DrawnExamples):
    """Stream of random glyphs, with equal probability for every class and every face.

    A glyph is rotated by up to 20 degrees, shifted by up to a tenth of the image, and blurred by a random degree, up to
    a mean over 3 x 3 pixels.

    Args:
        bitmaps: see :func:`glyph_bitmaps`.
        generator: a CPU generator.
    """

    def __init__(self, bitmaps: Tensor, generator: torch.Generator) -> None:
        super().__init__(self._draw_jitter, self._render, generator)
        self._bitmaps = bitmaps

    def _draw_jitter(self, examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        uniform = torch.rand(examples, 6, generator=generator, dtype=torch.float64)
        classes, faces = self._bitmaps.shape[:2]
        which = (uniform[:, :2] * torch.tensor([classes, faces])).long()
        # Computed for a whole block, because sines and cosines of a part may differ in the last bit.
        angle = TURN * (2 * uniform[:, 2] - 1)
        shift = 2 * SHIFT * (2 * uniform[:, 3:5] - 1)  # the image is two wide
        return which, torch.cat([angle.cos()[:, None], angle.sin()[:, None], shift, uniform[:, 5:]], 1).float()

    def _render(self, which: Tensor, jitter: Tensor) -> tuple[Tensor, Tensor]:
        """Return images, shape ``[examples, 1, size, size]`` between 0 and 1, and their classes."""
        size = self._bitmaps.shape[-1]
        glyphs = self._bitmaps[which[:, 0], which[:, 1]]
        cosine, sine, right, down, blur = (part[:, None, None] for part in jitter.T)
        centers = (torch.arange(size) + 0.5) * (2 / size) - 1
        across, along = centers[None, None, :] - right, centers[None, :, None] - down
        grid = torch.stack([cosine * across + sine * along, cosine * along - sine * across], -1)
        images = grid_sample(glyphs[:, None], grid, align_corners=False)
        padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
        rows = padded[:, :, :-2] + padded[:, :, 1:-1] + padded[:, :, 2:]
        blurred = (rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]) / 9
        return images + blur[:, None] * (blurred - images), which[:, 0]
