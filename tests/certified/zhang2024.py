"""Steps to a target loss at nine batch sizes, and the fits of the authors.

Zhang et al., "How Does Critical Batch Size Scale in Pre-training?", arXiv:2410.21676 (ICLR 2025). Steps and fitted
parameters are those of the authors' notebook (``plots/chinchilla.ipynb``): ``log S = log(a + b/B)`` by least squares, B
in sequences of 512 tokens. ``overhead`` is their critical batch size, 20 % above linear scaling from B = 256, which
under this fit equals ``1.2 * 256 + 0.2 * b/a``.
"""

from typing import NamedTuple


class Row(NamedTuple):
    model: str
    steps: tuple[int, ...]
    a: float
    b: float
    ratio: float
    overhead: float


BATCH_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

ROWS = (
    Row("85M", (46000, 23000, 13282, 7000, 3840, 2528, 1917, 1600, 1600), 1293.8, 2.834e6, 2191, 745.3),
    Row("151M", (96000, 49000, 24000, 12000, 7128, 4350, 2940, 2400, 2300), 1752.4, 5.677e6, 3240, 955.2),
    Row("302M", (196000, 90000, 46000, 23400, 13300, 7224, 4980, 3400, 2879), 2095.3, 1.138e7, 5433, 1393.7),
)
