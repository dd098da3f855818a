"""Callbacks for other libraries' training loops: they measure the noise scale, or report evaluations to a sweep.

One file per library, none imported here.
"""

from __future__ import annotations
