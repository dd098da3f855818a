"""``cbs analyze``."""

from pathlib import Path

from analysis.command_options import AnswerWriter, Asked, ResultsPath, answer_with, asked_of, config_of, options
from analysis.config import AnalysisConfig


@options(asked=asked_of, config=config_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    *,
    asked: Asked,
    config: AnalysisConfig,
    answer: AnswerWriter,
) -> None:
    """Critical batch size with interval, what doubling buys, noise scale, figures.

    The critical batch size B_crit is the one around which steps x examples, B S(B)^2, is least on average: from half to
    twice B_crit, the steps halve and the examples double. The results are also written as tables, in CSV and LaTeX.

    Example: cbs analyze results/ --target 2.4 --target 2.8

    Example: cbs analyze results/quick --wide --figures neurips
    """
    from analysis.questions.analyze.critical_batch_sizes import analyze

    analysis = analyze(results, config, targets=asked.targets, metric=asked.metric, suggestions=answer.wide)
    answer(analysis, results / "analysis")
