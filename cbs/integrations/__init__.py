"""Callbacks that measure the noise scale in other libraries' training loops; one file per library, none imported
here.
"""

from __future__ import annotations
