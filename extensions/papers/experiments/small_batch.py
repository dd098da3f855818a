"""Marek et al. (2025): small batch sizes with Adam's second moment held in examples."""

from __future__ import annotations

from cbs.registry.choices import Choice
from extensions.papers.experiments import PAPERS, PaperRecipe, RecipeRun
from extensions.papers.experiments.base import asks
from extensions.papers.experiments.merit import gpt2
from extensions.papers.experiments.parts import TEXT, among_sizes, experiment, lower_loss, one_run

HALF_LIFE = {"tiny": 4_000, "paper": 20_000}
"""Half-life of the second moment in examples."""


@PAPERS.register("small-batch")
def small_batch(scale: str) -> PaperRecipe:
    """Compare AdamW with a fixed beta2 and with a half-life in examples, at equal examples."""
    tiny, half_life = scale == "tiny", HALF_LIFE[scale]
    optimizers = ("adamw(betas=[0.9, 0.95])", f"adamw(beta2_half_life={half_life})")
    if tiny:
        sweep = experiment(TEXT, optimizers, (1, 8, 64), budgets=(4_000,), seeds=(0, 1, 2))
    else:
        sweep = experiment(gpt2("small"), optimizers, (1, 8, 64, 512), budgets=(2_441_406,), precision="bfloat16")
    return PaperRecipe(
        title="small batches: the second moment of Adam by a half-life in examples",
        paper="Marek et al. 2025, 'Small batch size training for language models'",
        protocol="AdamW with beta2 = .95 and with beta2(B) = beta2^(B/B_ref), which is a fixed half-life in examples, "
        "at equal examples, learning rate searched at every batch size",
        deviations=("the half-life is not the paper's", *(["bytes of a small text"] if tiny else ["GPT-2 small"])),
        runs=(one_run("text", sweep, tiny, parameters=125e6),),
        analyses={"budget": asks("budget", "text")},
        expectations=(
            lower_loss(optimizers[1], optimizers[0], 1, "a fixed beta2 fails at small batches, a half-life does not",
                       "abstract, read in a summary"),
        ),
        figure="budget_losses",
        minutes=6.0 if tiny else None,
    )  # fmt: skip


@PAPERS.register("power-lines")
def power_lines(scale: str) -> PaperRecipe:
    """Find the best batch size at three amounts of data."""
    from extensions.papers.experiments import Expectation, Monotone

    tiny = scale == "tiny"
    if tiny:
        sweep = experiment(TEXT, ("adamw",), (4, 8, 16, 32, 64), budgets=(2_000, 8_000, 32_000), seeds=(0, 1))
    else:
        options = {"size": "gpt2-small", "context": 2048, "data": "data/slimpajama/train.bin", "dtype": "uint16",
                   "vocab_size": 50257, "parametrization": "mup", "base_width": 256}  # fmt: skip
        sweep = experiment(
            Choice(name="text", options=options), ("adamw",), tuple(2**k for k in range(4, 12)),
            budgets=(540_000, 2_160_000, 8_640_000), precision="bfloat16",
        )  # fmt: skip
    best = tuple(among_sizes("adamw", "best", lambda of: of.equivalence.best, budget=place) for place in range(3))
    return PaperRecipe(
        title="power lines: the best batch size grows with the data",
        paper="Bergsma et al. 2025, 'Power Lines'",
        protocol="AdamW at a constant learning rate, searched at every batch size and budget; the batch size of least "
        "loss at three budgets a factor of four apart",
        deviations=("weight decay is not searched", *(["bytes of a small text, no muP"] if tiny else [])),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"budget": asks("budget", "text", at=sweep.budgets)},
        expectations=(
            Expectation(
                claim="the best batch size grows with the data", published="B_opt goes as D to about .4",
                source="abstract, read in a summary", relation=Monotone(), ours=best,
            ),
        ),
        figure="budget_losses",
        minutes=7.0 if tiny else None,
    )  # fmt: skip
