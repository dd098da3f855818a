"""Examples against steps at a constant learning rate (2026): the batch size of least data grows as the loss falls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cbs.registry.choices import Choice
from extensions.papers.experiments import PAPERS, Expectation, Monotone, PaperRecipe, RecipeRun
from extensions.papers.experiments.base import Measured, OurNumber, asks
from extensions.papers.experiments.parts import C4, TEXT, experiment, fits

if TYPE_CHECKING:
    from analysis.present.findings import Analysis

RATE = {"tiny": 0.016, "paper": 1e-3}
"""Learning rate, the same at every batch size; not from the paper. At the tiny scale the best one at batch size 256,
.032, brought to 64 by the square root."""


@PAPERS.register("wsd-es")
def wsd(scale: str) -> PaperRecipe:
    """Measure the examples to several losses against the batch size, with one learning rate for all."""
    tiny = scale == "tiny"
    targets = (3.0, 2.8, 2.6) if tiny else (4.0, 3.6, 3.3)
    if tiny:
        sweep = experiment(TEXT, ("adamw",), tuple(2**k for k in range(2, 8)), target=targets[-1], seeds=(0, 1, 2),
                           lrs=(RATE[scale],), max_steps=2_000, max_examples=30_000, prune_factor=None,
                           expected=(150.0, 5_000.0))  # fmt: skip
    else:
        options = {"size": "gpt2-small", "context": 1024, **C4, "vocab_size": 32128}
        sweep = experiment(Choice(name="text", options=options), ("adamw",), tuple(2**k for k in range(5, 13)),
                           target=targets[-1], lrs=(RATE[scale],), max_steps=20_000, max_examples=20_000_000,
                           prune_factor=None, expected=(5_000.0, 3e6), precision="bfloat16")  # fmt: skip

    def least_data(target: float) -> OurNumber:
        def measured(found: Analysis) -> list[Measured]:
            return [Measured("token_optimal", fit.definitions["token_optimal"]) for fit in fits(found, "adamw", target)]

        return OurNumber(question="fixed", of=measured)

    return PaperRecipe(
        title="one learning rate: the batch size of least data grows as the loss falls",
        paper="WSD schedules and the batch size 2026, arXiv 2601.05034",
        protocol="AdamW after a warmup at one constant learning rate for all batch sizes, to several losses; the batch "
        "size that takes the fewest examples to each",
        deviations=(
            "no decay at the end: the losses are those of the stable phase",
            "the learning rate is not the paper's",
            *(
                [
                    "bytes of a small text",
                    "with a rate of .004, as first planned, the smallest batch size took the least data to every loss",
                ]
                if tiny
                else ["GPT-2 small"]
            ),
        ),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"fixed": asks("analyze", "text", targets=targets, every_figure=True)},
        expectations=(
            Expectation(
                claim="the batch size of least data rises as the loss falls",
                published="B_opt = E_min/S_opt rises as the loss falls", source="summary of arXiv 2601.05034",
                relation=Monotone(), ours=tuple(least_data(target) for target in targets),
            ),
        ),
        figure="pareto",
        minutes=4.0 if tiny else None,
    )  # fmt: skip
