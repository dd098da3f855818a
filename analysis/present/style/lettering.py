"""Words in figures: their width, lines that fit, and colours of text that can be read on white."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

FONT = "DejaVu Sans"

CONTRAST = 4.5
"""Least ratio of luminances of text on its ground (WCAG 2.2, success criterion 1.4.3)."""

_BREAKS = re.compile(r"[^\s,_(=/-]*[\s,_(=/-]?")


def literal(text: str) -> str:
    """``text`` that matplotlib draws as it stands: no mathematics in it, and not left out of a key for an underscore
    in front."""
    escaped = text.replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


@functools.lru_cache(maxsize=4096)
def width(text: str, size: float) -> float:
    """Width of one line in inches, at a font size in points; of mathematics, that of its letters."""
    plain = re.sub(r"\$|\\mathrm|[{}]", "", text)
    properties = FontProperties(family=FONT, size=size)
    return float(text_to_path.get_text_width_height_descent(plain, properties, ismath=False)[0]) / 72


def wrapped(text: str, inches: float, size: float, *, lines: int = 1) -> str:
    """``text`` on at most so many lines of a width, broken after a space, a comma or the like.

    What does not fit is cut from the middle, since names that are alike differ at their ends.
    """
    found = _broken(text, inches, size)
    keep = len(text)
    while len(found) > lines and keep > 1:
        keep -= 1
        found = _broken(f"{text[: -(-keep // 2)]}…{text[len(text) - keep // 2 :]}", inches, size)
    return "\n".join(found)


def _broken(text: str, inches: float, size: float) -> list[str]:
    lines = [""]
    for part in _BREAKS.findall(text):
        rest = part
        if width((lines[-1] + rest).rstrip(), size) > inches and lines[-1]:
            lines.append("")
        while width(rest.rstrip(), size) > inches and len(rest) > 1:
            fits = max(1, next(n for n in range(len(rest), 0, -1) if n == 1 or width(rest[:n], size) <= inches))
            lines[-1] = rest[:fits]
            rest = rest[fits:]
            lines.append("")
        lines[-1] += rest
    return [line.rstrip() for line in lines if line.strip()] or [text]


def luminance(colour: Any) -> float:
    """Relative luminance of a colour (WCAG 2.2): 0 is black, 1 is white."""
    channels = np.asarray(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def ink(colour: Any) -> str:
    """The colour, as much darker as text on white needs to have a contrast of :data:`CONTRAST`."""
    channels = np.asarray(to_rgb(colour))
    for share in np.linspace(1.0, 0.0, 51):
        if 1.05 / (luminance(share * channels) + 0.05) >= CONTRAST:
            return to_hex(share * channels)
    raise AssertionError("black on white has a contrast of 21")
