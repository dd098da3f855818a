"""Forms of the curve, and their prior probabilities.

A few batch sizes do not show how sharply perfect scaling turns into a plateau, nor whether steps go on falling beyond
the largest one, and the critical batch size depends on both. Every form has as many parameters as the power law.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CurveForm:
    """A family of curves from which the data may come.

    Attributes:
        words: what the form says about the steps, to follow the word "if".
        belief: prior probability of this form; those of all forms sum to 1.
        knee: see :class:`analysis.estimate.curves.StepsCurve`.
        levelled: whether steps no longer fall beyond the largest measured batch size. This form represents all curves
            whose fewest steps differ from those of the power law, including steps that keep falling slowly.
    """

    words: str
    belief: float
    knee: float = 1.0
    levelled: bool = False


FORMS = (
    CurveForm("they follow the power law", 0.60),
    CurveForm("those at the largest batch size are the fewest", 0.27, levelled=True),
    CurveForm("its knee is blunt", 0.05, knee=0.7),
    CurveForm("its knee is very blunt", 0.01, knee=0.5),
    CurveForm("its knee is sharp", 0.05, knee=1.5),
    CurveForm("its knee is that of a square root", 0.02, knee=2.0),
)
POWER = FORMS[0]
