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

    Example, in place of a sweep with imported runs of a known critical batch size, 32:

        >>> import itertools, tempfile
        >>> import pandas as pd
        >>> from analysis.read.importers import Settings, import_runs
        >>> def steps(size, lr, seed):
        ...     return 100 * (1 + 32 / size) * (1 + 0.02 * seed) * {1e-3: 1.3, 2e-3: 1.0, 4e-3: 1.2}[lr]
        >>> runs = itertools.product((8, 16, 32, 64, 128), (1e-3, 2e-3, 4e-3), (0, 1, 2))
        >>> curves = [(str(run), step, steps(*run) / step, *run) for run in runs for step in range(20, 900, 20)]
        >>> table = pd.DataFrame(curves, columns=["run", "step", "loss", "batch_size", "lr", "seed"])
        >>> facts = Settings(
        ...     metric="loss", direction="below", target=1.0, metric_unit="nats", example_unit="image",
        ...     constants={"optimizer": "adamw"},
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table.to_csv(f"{folder}/runs.csv", index=False)
        ...     _ = import_runs([f"{folder}/runs.csv"], f"{folder}/results", facts)
        ...     found = analyze(f"{folder}/results", targets=[1.2])
        >>> (answer,) = found.answers  # print(found) shows them as a terminal does
        >>> print(answer.verdict, round(answer.critical_batch_size))
        ok 32
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
