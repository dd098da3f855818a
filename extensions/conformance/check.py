"""The type of a check, and how a check is run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from extensions.conformance.subjects import Failure, NotApplicable, Subject


@dataclass(frozen=True)
class ContractCheck:
    """One promise of an optimizer.

    Attributes:
        name: name of the function, ``check_...``.
        function: called with a subject; raises :class:`Failure`, or :class:`NotApplicable`.
        beyond_torch: whether the promise is one that torch's own optimizers do not make.
        slow: whether the check takes more than a second.
    """

    name: str
    function: Callable[[Subject], None]
    beyond_torch: bool = False
    slow: bool = False

    @property
    def contract(self) -> str:
        """The promise in words."""
        return " ".join((inspect.getdoc(self.function) or "").split())

    def __call__(self, subject: Subject) -> None:
        """Run the check.

        Raises:
            Failure: if the promise is broken; any other error of the optimizer counts as a failure, too.
            NotApplicable: if the promise does not apply to the optimizer.
        """
        default = torch.get_default_dtype()
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.function(subject)
            except (Failure, NotApplicable):
                raise
            except Exception as error:
                raise Failure(f"it raises {type(error).__name__}: {error}") from error
            finally:
                torch.set_default_dtype(default)


CHECKS: list[ContractCheck] = []
"""All checks, in the order of their files."""


def check(*, beyond_torch: bool = False, slow: bool = False) -> Callable[..., Callable[[Subject], None]]:
    """Decorate a function ``check_...(subject)`` and add it to :data:`CHECKS`."""

    def decorate(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
        CHECKS.append(ContractCheck(function.__name__, function, beyond_torch, slow))
        return function

    return decorate
