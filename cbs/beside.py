"""Forward passes that are run beside those of training, to look at the model; what counts passes leaves them out."""

from __future__ import annotations

from contextvars import ContextVar

BESIDE: ContextVar[bool] = ContextVar("BESIDE", default=False)
"""Whether the pass under way is such a one."""
