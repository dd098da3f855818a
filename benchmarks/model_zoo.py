"""Tiny models of many kinds, each with the loss of a batch and what one example has in it."""

from benchmarks.zoo_corners import CORNERS, USED_AGAIN
from benchmarks.zoo_entry import Entry
from benchmarks.zoo_formulas import FORMULAS
from benchmarks.zoo_groups import GROUPS
from benchmarks.zoo_layers import LATE, LAYERS
from benchmarks.zoo_loops import LOOPS
from benchmarks.zoo_own import OWN


def zoo() -> dict[str, Entry]:
    """All models by name."""
    # Here, because transformers takes seconds to import, and most models do without it.
    from benchmarks.zoo_transformers import RECENT, TRANSFORMERS

    return {**TRANSFORMERS, **RECENT, **torch_zoo()}


def torch_zoo() -> dict[str, Entry]:
    """Those that need torch alone."""
    return {**LAYERS, **LOOPS, **CORNERS, **OWN, **GROUPS, **FORMULAS, **USED_AGAIN, **LATE}


def find(name: str) -> Entry:
    """A model by name; transformers is imported for its own models alone."""
    own = torch_zoo()
    return own[name] if name in own else zoo()[name]
