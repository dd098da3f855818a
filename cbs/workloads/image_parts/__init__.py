"""What the ``images`` workload is made of: glyphs, readers for a person's own data, and classifiers."""

from __future__ import annotations

from cbs.workloads.image_parts.data import ImageData, Images, ImageStream, middle
from cbs.workloads.image_parts.formats import load_images
from cbs.workloads.image_parts.glyphs import CHARACTERS, GlyphStream, glyph_bitmaps
from cbs.workloads.image_parts.models import build_classifier

__all__ = [
    "CHARACTERS",
    "GlyphStream",
    "ImageData",
    "ImageStream",
    "Images",
    "build_classifier",
    "glyph_bitmaps",
    "load_images",
    "middle",
]
