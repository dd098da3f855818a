"""Where a trial starts that does not start from fresh weights: a checkpoint of another run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cbs.errors import ConfigError
from cbs.registry.domains import number, whole

_FINGERPRINT = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The checkpoint that a trial starts from, and how the trial differs from the run that wrote it.

    Steps and examples of the trial count from its start, which its first evaluation, at step 0, comes before; its
    learning-rate schedule goes on after ``examples``.

    Attributes:
        source: path of a file or folder, as it was given; or the fingerprint of a trial in the same folder of results,
            the trunk of a branch.
        examples: seen by the parent at the checkpoint; 0 where nobody knows, and then the schedule starts anew.
        digest: 16 hexadecimal digits that identify the content of the checkpoint.
        batch_factor: batch size as a multiple of the parent's, where that is known.
        lr_factor: learning rate as a multiple of the parent's, where that is known.
        optimizer: ``"keep"`` to go on with the state of its optimizer, ``"reset"`` to begin without any. Another
            optimizer has none to keep, and begins without after a warmup.
        warmup_examples: length of a linear warmup from the start of the trial, on top of its schedule.
    """

    source: str
    examples: int
    digest: str
    batch_factor: float = 1.0
    lr_factor: float = 1.0
    optimizer: Literal["keep", "reset"] = "keep"
    warmup_examples: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise ConfigError(f"the source of a parent is a path or a fingerprint, got {self.source!r}")
        if not isinstance(self.digest, str) or not _FINGERPRINT.fullmatch(self.digest):
            raise ConfigError(f"the digest of a parent is 16 hexadecimal digits, got {self.digest!r}")
        whole("examples of the parent", self.examples, least=0)
        whole("warmup_examples of the parent", self.warmup_examples, least=0)
        for name in ("batch_factor", "lr_factor"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
        if self.optimizer not in ("keep", "reset"):
            raise ConfigError(f"the optimizer of a parent is keep or reset, got {self.optimizer!r}")

    @property
    def trunk(self) -> str | None:
        """Fingerprint of the trial it is a checkpoint of; ``None`` where :attr:`source` is a path."""
        return self.source if _FINGERPRINT.fullmatch(self.source) else None
