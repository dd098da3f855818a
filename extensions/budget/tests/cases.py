"""What general tests know of this extension."""

from extensions.budget.equal_budgets import NATS
from tests.cases import PRESENT, Flags, answer

FLAGS = {
    "budget": Flags(
        {"extensions.budget.equal_budgets.budget": answer, **PRESENT},
        base=["results"],
        cases={"--at": (["--at", "7,8e2"], "at=(7.0, 800.0)")},
    )
}
STATEMENTS = [("budget.md", "by default {} for metrics in nats", lambda: (NATS,))]
