"""How the best batch size depends on the data: small batches with a second moment held in examples (Marek et al. 2025),
three budgets (Bergsma et al. 2025), and examples to a loss at one learning rate (2026)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cbs.registry.choices import Choice
from extensions.papers.experiments import (
    PAPERS,
    Expectation,
    Measured,
    Monotone,
    OurNumber,
    PaperRecipe,
    RecipeRun,
    asks,
)
from extensions.papers.experiments.merit import gpt2
from extensions.papers.experiments.parts import (
    C4,
    FEW,
    TEXT,
    TWELVE,
    among_sizes,
    experiment,
    fits,
    lower_loss,
    one_run,
)

if TYPE_CHECKING:
    from analysis.present.findings import Analysis


HALF_LIFE = {"tiny": 4_000, "paper": 20_000}  # Half-life of the second moment in examples


@PAPERS.register("small-batch")
def small_batch(scale: str) -> PaperRecipe:
    """Compare AdamW with a fixed beta2 and with a half-life in examples, at equal examples."""
    tiny, half_life = scale == "tiny", HALF_LIFE[scale]
    optimizers = ("adamw(betas=[0.9, 0.95])", f"adamw(beta2_half_life={half_life})")
    if tiny:
        sweep = experiment(TEXT, optimizers, (1,), budgets=(4_000,), **TWELVE)
    else:
        sweep = experiment(gpt2("small"), optimizers, (1, 8, 64, 512), budgets=(2_441_406,), precision="bfloat16")
    return PaperRecipe(
        title="small batches: the second moment of Adam by a half-life in examples",
        paper="Marek et al. 2025, 'Small batch size training for language models'",
        protocol="AdamW with beta2 = .95 and with beta2(B) = beta2^(B/B_ref), which is a fixed half-life in examples, "
        "at equal examples, learning rate searched at every batch size",
        deviations=("the half-life is not the paper's", *(["bytes of a small text", FEW] if tiny else ["GPT-2 small"])),
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
    best = tuple(among_sizes("adamw", "best", lambda of: of.equivalence.best, budget=index) for index in range(3))
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


# Learning rate, the same at every batch size; not from the paper. At the tiny scale the best one at batch size 256,
# .032, brought to 64 by the square root.
RATE = {"tiny": 0.016, "paper": 1e-3}


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
        def measured(result: Analysis) -> list[Measured]:
            return [
                Measured("token_optimal", fit.definitions["token_optimal"]) for fit in fits(result, "adamw", target)
            ]

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
