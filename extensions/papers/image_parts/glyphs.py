"""Images without a download: digits and letters from matplotlib's fonts, shifted, rotated and blurred.

The outlines are read with fontTools, a dependency of matplotlib, and filled here, so that the bitmaps do not depend on
the version of a font renderer.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from cbs.errors import DataError, needed
from cbs.workloads.streams import DrawnExamples

FACES = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
)
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""Classes in order: the first ten are the digits, 62 are all."""

EM = 0.8
"""Size of a font relative to the image."""

MIDDLE = 0.26
"""Height above the baseline, relative to the font size, that is placed in the middle of the image."""

FINE = 8
"""Sample points per pixel and direction when an outline is filled."""

PIECES = 8
"""Number of line segments that approximate a curve."""

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
    for place, face in enumerate(FACES):
        try:
            font = TTFont(folder / face, lazy=True)
            glyphs, names, em = font.getGlyphSet(), font.getBestCmap(), font["head"].unitsPerEm
            outlines = [_outline(glyphs, names[ord(character)]) for character in CHARACTERS[:classes]]
        except (OSError, KeyError, TTLibError) as error:
            raise DataError(f"{folder / face}: cannot be read ({error}); install matplotlib again") from None
        for label, segments in enumerate(outlines):
            bitmaps[label, place] = fill(_placed(segments / em, size), size)
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
        place = (torch.arange(size) + 0.5) * (2 / size) - 1
        across, along = place[None, None, :] - right, place[None, :, None] - down
        grid = torch.stack([cosine * across + sine * along, cosine * along - sine * across], -1)
        images = grid_sample(glyphs[:, None], grid, align_corners=False)
        padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
        rows = padded[:, :, :-2] + padded[:, :, 1:-1] + padded[:, :, 2:]
        blurred = (rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]) / 9
        return images + blur[:, None] * (blurred - images), which[:, 0]
