"""Examples against steps at a constant learning rate (2026): the batch size of least data grows as the loss falls."""

from __future__ import annotations

from typing import Any

from cbs.registry.choices import Choice
from extensions.papers.experiments import PAPERS, AnswerPath, Expectation, Monotone, PaperRecipe, RecipeRun
from extensions.papers.experiments.parts import C4, TEXT, experiment

RATE = {"tiny": 0.004, "paper": 1e-3}
"""Learning rate, the same at every batch size; not from the paper."""


@PAPERS.register("wsd-es")
def wsd(scale: str) -> PaperRecipe:
    """Measure the examples to several losses against the batch size, with one learning rate for all."""
    tiny = scale == "tiny"
    targets = (3.0, 2.8, 2.6) if tiny else (4.0, 3.6, 3.3)
    if tiny:
        sweep = experiment(TEXT, ("adamw",), tuple(2**k for k in range(2, 10)), target=targets[-1], seeds=(0, 1, 2),
                           lrs=(RATE[scale],), max_steps=2_000, max_examples=60_000, prune_factor=None,
                           expected=(150.0, 5_000.0))  # fmt: skip
    else:
        options = {"size": "gpt2-small", "context": 1024, **C4, "vocab_size": 32128}
        sweep = experiment(Choice(name="text", options=options), ("adamw",), tuple(2**k for k in range(5, 13)),
                           target=targets[-1], lrs=(RATE[scale],), max_steps=20_000, max_examples=20_000_000,
                           prune_factor=None, expected=(5_000.0, 3e6), precision="bfloat16")  # fmt: skip
    flags = " ".join(f"--target {value:g}" for value in targets)

    def least_data(target: float) -> AnswerPath:
        goal = {"metric": "validation_loss", "value": target, "direction": "below"}
        fit: dict[str, Any] = {"optimizer": "adamw", "target": goal}
        path = ("fits", fit, "definitions", {"definition": "token_optimal"}, "critical_batch_size")
        return AnswerPath(analysis="fixed", path=path)

    return PaperRecipe(
        title="one learning rate: the batch size of least data grows as the loss falls",
        paper="WSD schedules and the batch size 2026, arXiv 2601.05034",
        protocol="AdamW after a warmup at one constant learning rate for all batch sizes, to several losses; the batch "
        "size that takes the fewest examples to each",
        deviations=(
            "no decay at the end: the losses are those of the stable phase",
            "the learning rate is not the paper's",
            *(["bytes of a small text"] if tiny else ["GPT-2 small"]),
        ),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"fixed": f"analyze {{text}} {flags} --figures default"},
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
