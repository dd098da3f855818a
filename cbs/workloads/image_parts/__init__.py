"""What the ``images`` workload is made of: glyphs, readers for a person's own data, and classifiers."""

from __future__ import annotations
