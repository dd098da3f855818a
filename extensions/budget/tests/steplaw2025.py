"""Published grids of final losses over batch size and learning rate, as numbers, with what their authors concluded.

Li et al. (2025), "Predictable Scale: Part I" (Step Law, arXiv 2503.04715): dense models with N = 214,663,680, sequences
of 2048 tokens, a cosine down to 1e-5, one seed. The smoothed training loss at the end in nats per token, from
``data/dense_lr_bs_loss.csv`` of github.com/step-law/steplaw at commit 32a8f4cc, rounded to four decimals.
"""

import csv
from pathlib import Path

TOKENS_PER_EXAMPLE = 2048

LRS = tuple(2.0 ** (power / 2) for power in range(-24, -10))  # Columns of every grid; the table has them rounded


def _grids() -> dict[int, dict[int, tuple[float, ...]]]:
    with open(Path(__file__).with_suffix(".csv"), newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    grids: dict[int, dict[int, tuple[float, ...]]] = {}
    for tokens, size, *losses in rows:
        grids.setdefault(int(tokens), {})[int(size)] = tuple(float(loss or "nan") for loss in losses)
    return grids


GRIDS = _grids()
"""Tokens trained on -> sequences in a batch -> losses at every learning rate; NaN where none was run or it diverged."""


def law(tokens: float) -> float:
    """The batch size, in sequences, that the authors' law calls best: 0.58 D^0.571 tokens."""
    return 0.58 * tokens**0.571 / TOKENS_PER_EXAMPLE
