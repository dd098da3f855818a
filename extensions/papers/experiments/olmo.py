"""Merrill et al. (2025): batch-size warmup of OLMo, and its local critical batch size by branches."""

from typing import Any

from cbs.registry.choices import Choice
from extensions.papers.experiments import (
    PAPERS,
    Beyond,
    Expectation,
    Measured,
    Monotone,
    OurNumber,
    PaperRecipe,
    RecipeRun,
    asks,
    nth,
)
from extensions.papers.experiments.parts import AUTO, PROBE, TEXT, experiment, schedule_less, steps_saved

SOURCE = "Merrill et al. 2025, table 1; averages over the last 10B tokens read in a summary"
# Fraction of the tokens after which the batch size doubles; the second stage, to 503 / 608, is twice as long
FIRST = 168 / 608

OLMO = Choice(name="text", options={
    "size": "gpt2-large", "width": 2048, "layers": 16, "heads": 16, "context": 4096, "data": "data/olmo/train.bin",
    "dtype": "uint32", "vocab_size": 100278,
})  # fmt: skip


@PAPERS.register("warmup-olmo")
def warmup_olmo(scale: str) -> PaperRecipe:
    """Double the batch size at the two published fractions of the examples, scaling the learning rate by sqrt(2)."""
    tiny = scale == "tiny"
    first, budget = (16, 16_000) if tiny else (1024, 148_437_500)
    sizes = (first, 2 * first, 4 * first)
    stages = {"first_examples": round(FIRST * budget), "delta": 2, "gamma": 1.4142, "cap": 16 * first}
    warmup = Choice(name="growth", options=stages)
    sweep = experiment(
        TEXT if tiny else OLMO, ("adamw",), (first, 4 * first), budgets=(budget,),
        seeds=(0, 1, 2) if tiny else (0,), batch_schedules=(Choice(name="constant"), warmup),
        precision="float32" if tiny else "bfloat16",
    )  # fmt: skip
    return PaperRecipe(
        title="batch-size warmup: small batches first cost no loss and save steps",
        paper="Merrill et al. 2025, arXiv 2505.23971",
        protocol="the batch size doubles after 28 and after 83 % of the examples, the learning rate by the square "
        "root, compared with the first and the last batch size throughout",
        deviations=(
            *(["bytes of a small text"] if tiny else ["a GPT of 1B parameters in place of OLMo-1B; one seed"]),
            "the shares of the examples are the published ones, not those of a critical batch size measured on the way",
        ),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"losses": asks("schedule judge", "text")},
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


PLACES = {"tiny": ("8%", "30%", "90%"), "paper": ("2%", "8%", "16%", "33%", "66%", "95%")}
TEXT_SOURCE = "arXiv 2505.23971, section 3, read in the text"


@PAPERS.register("branch-olmo")
def branch_olmo(scale: str) -> PaperRecipe:
    """Measure the local critical batch size by branches with a quarter to eight times the batch of the run."""
    tiny, places = scale == "tiny", PLACES[scale]
    about: dict[str, Any] = {"at": ",".join(places), "lr_rule": "sqrt", "error": 0}
    if tiny:
        sweep = experiment(TEXT, ("adamw",), (16,), budgets=(24_000,), seeds=(0, 1, 2), probe=PROBE)
        about |= {"factors": "1/2,1,2,4,8", "window": "2560"}
    else:
        sweep = experiment(OLMO, ("adamw",), (1024,), budgets=(148_437_500,),
                           lrs=(4e-4 * 2**0.5,), seeds=(0, 1), probe=AUTO, precision="bfloat16")  # fmt: skip
        about |= {"factors": "1/4,1/2,1,2,3,4,5,6,7,8", "window": "491520"}

    def along(name: str) -> tuple[OurNumber, ...]:
        def at(index: int) -> OurNumber:
            def measured(result: Any) -> Measured:
                checkpoint = nth(nth(nth(result.scopes, 0).curves, 0).checkpoints, index)
                return Measured(name, getattr(checkpoint, name), {"verdict": checkpoint.verdict})

            return OurNumber(question="local", of=measured)

        return tuple(map(at, range(len(places))))

    return PaperRecipe(
        title="the local critical batch size along a run, by branches",
        paper="Merrill et al. 2025, arXiv 2505.23971",
        protocol="one run with AdamW; from each of its checkpoints branches with k times the batch and the root of k "
        "times the learning rate over equal examples; the largest k that does not fall behind",
        deviations=(
            "paired differences over seeds with an interval and a tolerance of half their scatter or .01; the paper "
            "has one seed, smoothed training losses and .01, which are shown beside",
            "bytes of a small text" if tiny else "a GPT of 1B parameters in place of OLMo-1B; two seeds",
        ),
        runs=(RecipeRun(name="text", sweep=sweep, policy=Choice(name="branch", options=about)),),
        analyses={"local": asks("local", "text")},
        expectations=(
            Expectation(
                claim="the local critical batch size rises along the run",
                published="near 0 at the start, rises fast, then about 4096 documents", source=TEXT_SOURCE,
                relation=Monotone(), ours=along("critical_batch_size"),
            ),
            Expectation(
                claim="the noise scale lies below it",
                published="the noise scale is lower by orders of magnitude", source=TEXT_SOURCE,
                relation=Beyond(1.0, above=False), ours=along("noise_scale_ratio"),
            ),
        ),
        figure="local_curve",
        minutes=6.0 if tiny else None,
    )  # fmt: skip
