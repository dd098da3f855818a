"""The conformance suite: the contract of a ``torch.optim.Optimizer`` as checks that run on any optimizer.

``print(examine(MyOptimizer))`` reports what is wrong, and ``test_mine = conformance_test(MyOptimizer)`` in a test file
makes a test of each check.
"""

from extensions.conformance.check import ContractCheck
from extensions.conformance.subjects import Failure, NotApplicable, Subject, subject
from extensions.conformance.suite import Report, checks, conformance_test, examine

__all__ = [
    "ContractCheck",
    "Failure",
    "NotApplicable",
    "Report",
    "Subject",
    "checks",
    "conformance_test",
    "examine",
    "subject",
]
