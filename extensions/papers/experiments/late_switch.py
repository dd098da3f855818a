"""Wang et al. (2026): a batch size that grows late ends at the loss of the large one."""

from __future__ import annotations

from cbs.registry.choices import Choice, parse_choice
from extensions.papers.experiments import (
    PAPERS,
    Beyond,
    Expectation,
    Monotone,
    PaperRecipe,
    PublishedRelation,
    RecipeRun,
)
from extensions.papers.experiments.base import asks
from extensions.papers.experiments.parts import C4, TEXT, experiment, schedule_less

SHARES = (0.25, 0.5, 0.75, 0.9)
SOURCE = "1.1B mixture of experts on 1T tokens, 1024 to 2560; read in two summaries"


@PAPERS.register("late-switch")
def late_switch(scale: str) -> PaperRecipe:
    """Switch once from a small to a large batch size, after a quarter to nine tenths of the examples."""
    tiny = scale == "tiny"
    small, large = (16, 128) if tiny else (1024, 2560)
    names = [f"late_switch(at={share:g}, to={large})" for share in SHARES]
    about = {"batch_schedules": tuple(map(parse_choice, ("constant", *names)))}
    if tiny:
        sweep = experiment(TEXT, ("adamw",), (small, large), budgets=(16_000,), seeds=(0, 1, 2), **about)
    else:
        options = {"size": "gpt2-large", "context": 1024, **C4, "vocab_size": 32128}
        sweep = experiment(Choice(name="text", options=options), ("adamw",), (small, large), budgets=(24_000_000,),
                           precision="bfloat16", **about)  # fmt: skip
    shown = [f"late_switch(at={share:g})" for share in SHARES]

    def against_large(claim: str, published: str, places: tuple[int, ...], relation: PublishedRelation) -> Expectation:
        readings = tuple(schedule_less(shown[place], small, large) for place in places)
        return Expectation(claim=claim, published=published, source=SOURCE, relation=relation, ours=readings)

    return PaperRecipe(
        title="late switching: how late the batch may grow",
        paper="Wang et al. 2026, arXiv 2602.14208",
        protocol=f"a constant learning rate; the batch size goes from {small} to {large} after 25, 50, 75 or 90 % of "
        "the examples, compared with both constant batch sizes",
        deviations=(("bytes of a small text",) if tiny else ("a dense model of 770M in place of the 1.1B mixture",)),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"losses": asks("schedule judge", "text")},
        expectations=(
            against_large("a switch at 75 % ends below the large batch size throughout", "75 % beats the constant 2560",
                          (2,), Beyond(0.0, above=False)),
            against_large("the later the switch, the lower the loss", "75 % beats 25 %", (0, 1, 2),
                          Monotone(rising=False)),
        ),
        figure="schedule_losses",
        minutes=6.0 if tiny else None,
    )  # fmt: skip
