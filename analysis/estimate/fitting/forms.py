"""Forms of the curve, and how many curves are taken to be of each before they are looked at.

Few batch sizes do not tell how sharply perfect scaling turns into a plateau, nor whether steps go on falling beyond the
largest of them, and the critical batch size hangs on both. Every form has as many parameters as the power law.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CurveForm:
    """A curve that data might come from.

    Attributes:
        words: what it says of the steps, to follow "if".
        belief: share of curves that are taken to be of this form; those of all forms add up to 1.
        knee: see :class:`analysis.estimate.curves.StepsCurve`.
        levelled: whether steps no longer fall beyond the largest batch size that was measured. Such a form stands for
            all whose fewest steps are not where the power law sees them, as of steps that fall a little for ever.
    """

    words: str
    belief: float
    knee: float = 1.0
    levelled: bool = False


FORMS = (
    CurveForm("they follow the power law", 0.47),
    CurveForm("those at the largest batch size are the fewest", 0.19, levelled=True),
    CurveForm("its knee is blunt", 0.16, knee=0.7),
    CurveForm("its knee is very blunt", 0.12, knee=0.5),
    CurveForm("its knee is sharp", 0.04, knee=1.5),
    CurveForm("its knee is that of a square root", 0.02, knee=2.0),
)
POWER = FORMS[0]
