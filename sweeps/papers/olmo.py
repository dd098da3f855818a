"""Merrill et al. (2025): batch-size warmup of OLMo."""

from __future__ import annotations

from cbs.registry.choices import Choice
from sweeps.papers import PAPERS, Beyond, Expectation, PaperRecipe, RecipeRun
from sweeps.papers.parts import TEXT, experiment, schedule_less, steps_saved

SOURCE = "Merrill et al. 2025, table 1; averages over the last 10B tokens read in a summary"
FIRST = 168 / 608
"""Share of the tokens after which the batch size doubles; the second stage, to 503 / 608, is twice as long."""


@PAPERS.register("warmup-olmo")
def warmup_olmo(scale: str) -> PaperRecipe:
    """Two doublings at the published shares of the examples, the learning rate by the square root."""
    tiny = scale == "tiny"
    first, budget = (16, 16_000) if tiny else (1024, 148_437_500)
    sizes = (first, 2 * first, 4 * first)
    stages = {"first_examples": round(FIRST * budget), "delta": 2, "gamma": 1.4142, "cap": 16 * first}
    warmup = Choice(name="growth", options=stages)
    options = {"size": "gpt2-large", "width": 2048, "layers": 16, "heads": 16, "context": 4096,
               "data": "data/olmo/train.bin", "dtype": "uint32", "vocab_size": 100278}  # fmt: skip
    sweep = experiment(
        TEXT if tiny else Choice(name="text", options=options), ("adamw",), (first, 4 * first), budgets=(budget,),
        seeds=(0, 1, 2) if tiny else (0,), batch_schedules=(Choice(name="constant"), warmup),
        precision="float32" if tiny else "bfloat16",
    )  # fmt: skip
    return PaperRecipe(
        title="batch-size warmup: small batches first cost no loss and save steps",
        paper="Merrill et al. 2025, arXiv 2505.23971",
        protocol="the batch size doubles after 28 and after 83 % of the examples, the learning rate by the square "
        "root, beside the first and the last batch size throughout",
        deviations=(
            *(["bytes of a small text"] if tiny else ["a GPT of 1B parameters in place of OLMo-1B; one seed"]),
            "the shares of the examples are the published ones, not those of a critical batch size measured on the way",
        ),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"losses": "schedule losses {text}"},
        expectations=(
            Expectation(
                claim=f"the warmup ends no higher than batch size {sizes[0]} throughout: less than .02 above",
                published="pre-training loss 2.5891 against 2.6057 at 1024", source=SOURCE,
                relation=Beyond(0.02, above=False), ours=(schedule_less("growth", first, sizes[0]),),
            ),
            Expectation(
                claim=f"the warmup ends below batch size {sizes[2]} throughout",
                published="2.5891 against 2.5962 at 4096", source=SOURCE,
                relation=Beyond(0.0, above=False), ours=(schedule_less("growth", first, sizes[2]),),
            ),
            steps_saved("growth", first, sizes[0], 0.405, "43 % with the annealing, 40.5 % before it", SOURCE),
        ),
        figure="schedule_losses",
        minutes=4.0 if tiny else None,
    )  # fmt: skip
