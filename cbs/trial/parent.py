"""The checkpoint of another run that a trial starts from."""

import re
from dataclasses import dataclass
from typing import Literal

from cbs.errors import ConfigError
from cbs.registry.values import number, whole

_FINGERPRINT = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The checkpoint that a trial starts from, and how the trial differs from the run that wrote it.

    Steps and examples of the trial are counted from its start, where its first evaluation takes place, at step 0. Its
    learning-rate schedule continues after ``examples``.

    Attributes:
        source: path of a file or folder, as the user gave it; or, for a branch, the fingerprint of its trunk, a trial
            in the same folder of results.
        examples: number of examples that the parent had seen at the checkpoint; 0 where this is unknown, and then the
            schedule starts anew.
        digest: 16 hexadecimal digits that identify the content of the checkpoint.
        batch_factor: batch size as a multiple of the parent's, where that is known.
        lr_factor: learning rate as a multiple of the parent's, where that is known.
        optimizer: ``"keep"`` to continue with the state of the parent's optimizer, ``"reset"`` to start without it. A
            trial with another optimizer has no state to keep, and starts without it after a warmup.
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
            raise ConfigError(f"the source of a parent must be a path or a fingerprint, got {self.source!r}")
        if not isinstance(self.digest, str) or not _FINGERPRINT.fullmatch(self.digest):
            raise ConfigError(f"the digest of a parent must be 16 hexadecimal digits, got {self.digest!r}")
        whole("examples of the parent", self.examples, least=0)
        whole("warmup_examples of the parent", self.warmup_examples, least=0)
        for name in ("batch_factor", "lr_factor"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
        if self.optimizer not in ("keep", "reset"):
            raise ConfigError(f"the optimizer of a parent must be keep or reset, got {self.optimizer!r}")

    @property
    def trunk(self) -> str | None:
        """Fingerprint of the trial that wrote the checkpoint; ``None`` where :attr:`source` is a path."""
        return self.source if _FINGERPRINT.fullmatch(self.source) else None
