"""The main question: from a folder of results to a critical batch size per optimizer and target."""

import os
from collections.abc import Sequence

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import answers
from analysis.estimate.suggest import suggest
from analysis.present.findings import Analysis
from analysis.read.results import load
from cbs.trial.target import Target


def analyze(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    targets: Sequence[float | Target] | None = None,
    metric: str | None = None,
    suggestions: bool = False,
) -> Analysis:
    """Estimate the critical batch size with an interval, per sweep, optimizer and target.

    Args:
        path: one sweep, or a folder of sweeps.
        config: configuration of the analysis.
        targets: values of each sweep's own metric, or whole targets; ``None`` for each sweep's own target. Targets
            easier than a sweep's own are read from the same curves.
        metric: another metric that the trials recorded, to which the targets then refer; ``targets`` is required for a
            sweep that was not trained to a target on it.
        suggestions: whether to find trials that would help where the answer is ok, too, which takes seconds; see
            :func:`analysis.estimate.suggest.suggest`.

    Raises:
        ConfigError: if an argument is out of its domain or a target cannot be used.
        ResultsError: if there are no usable results at ``path``.

    Example, with the results of ``cbs sweep -o results/quick``::

        analysis = analyze("results/quick", targets=[2.7])
        print(analysis)  # the table, as on a terminal
        analysis.answers[0].critical_batch_size, analysis.answers[0].verdict
    """
    results = load(path, metric=metric)
    found_answers = answers(results, config, targets=targets)
    # the trials of a sweep go on until its own metric says so
    lacking = (
        [each for each in found_answers if suggestions or each.verdict is not Verdict.OK] if metric is None else ()
    )
    return Analysis(
        config=config,
        answers=tuple(found_answers),
        suggestions=tuple(filter(None, map(suggest, lacking))),
        notes=(*results.notes,),
    )
