"""The batch size in the middle of the steps-examples trade-off.

McCandlish et al. (2018), equation 2.12: :math:`B_{crit} = E_{min}/S_{min}`. At this batch size a run takes twice the
fewest steps and twice the fewest examples.
"""

from __future__ import annotations

import numpy as np

from analysis.curves import Array
from analysis.definitions import DEFINITIONS, Sample


@DEFINITIONS.register("pareto")
def pareto(sample: Sample) -> Array:
    """``min_examples / min_steps``, in examples."""
    with np.errstate(divide="ignore"):
        return np.asarray(sample.min_examples / sample.min_steps)
