"""The conformance suite: what a ``torch.optim.Optimizer`` promises, as checks that run on anyone's.

``print(examine(MyOptimizer))`` says what is wrong, and ``test_mine = conformance_test(MyOptimizer)`` in a test file
makes a test of each check.
"""

from cbs.testing.check import ContractCheck
from cbs.testing.subjects import Failure, NotApplicable, Subject, subject
from cbs.testing.suite import Report, checks, conformance_test, examine

__all__ = [
    "ContractCheck",
    "Failure",
    "NotApplicable",
    "Report",
    "Subject",
    "checks",
    "conformance_test",
    "examine",
    "require",
    "subject",
]
