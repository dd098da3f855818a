"""Seesaw (2025): a growing batch size in place of a falling learning rate."""

from __future__ import annotations

from cbs.registry.choices import Choice, parse_choice
from extensions.papers.experiments import PAPERS, Beyond, Expectation, Near, PaperRecipe, RecipeRun
from extensions.papers.experiments.base import asks
from extensions.papers.experiments.parts import C4, TEXT, experiment, schedule_less, steps_saved
from sweeps.spec.schedule_rule import ScheduleRule

SOURCE = "Meterez et al. 2025, table of final losses, read in a summary with the pseudocode"
QUARTER = ScheduleRule(name="quarter_cosine")


@PAPERS.register("seesaw")
def seesaw(scale: str) -> PaperRecipe:
    """Compare Seesaw with cuts of two sizes to a cosine decay, from batch sizes below and above the critical one."""
    tiny = scale == "tiny"
    below, above = (8, 128) if tiny else (256, 1024)
    schedules = tuple(map(parse_choice, ("constant", "seesaw(alpha=1.1)", "seesaw(alpha=2)")))
    about = {"schedule": QUARTER, "batch_schedules": schedules}
    if tiny:
        sweep = experiment(TEXT, ("adamw",), (below, above), budgets=(16_000,), seeds=(0, 1, 2), **about)
    else:
        options = {"size": "gpt2-small", "context": 1024, **C4, "vocab_size": 32128}
        sweep = experiment(Choice(name="text", options=options), ("adamw",), (below, above), budgets=(2_930_000,),
                           precision="bfloat16", **about)  # fmt: skip
    margin = 0.03 if tiny else 0.01
    return PaperRecipe(
        title="Seesaw: the loss of a falling learning rate in fewer steps",
        paper="Meterez et al. 2025, arXiv 2510.14717",
        protocol="a learning rate that falls as a quarter of a cosine wave, against Seesaw, which multiplies the batch "
        "size where the rate would be cut; equal examples, learning rate searched for each",
        deviations=(
            ("bytes of a small text; losses scatter by .01 to .02, so equal means within .03 nats",)
            if tiny
            else ("GPT-2 small in place of the 150M model of the paper",)
        ),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"losses": asks("schedule judge", "text")},
        expectations=(
            Expectation(
                claim=f"from batch size {below}, below the critical one, the final loss is the same",
                published="150M, cosine and Seesaw: 3.0353 and 3.0346 at B 256; 3.0282 and 3.0208 at B 128",
                source=SOURCE, relation=Near((0.0,), margin),
                ours=(schedule_less("seesaw(alpha=1.1)", below, below),),
            ),
            Expectation(
                claim=f"from batch size {above}, above the critical one, the final loss is higher",
                published="150M: 3.1214 and 3.1318 at B 1024", source=SOURCE, relation=Beyond(0.0),
                ours=(schedule_less("seesaw(alpha=1.1)", above, above),),
            ),
            steps_saved("seesaw(alpha=2)", below, below, 0.22, "22 % by the closed form", "derived from the schedule"),
            steps_saved("seesaw(alpha=1.1)", below, below, 0.35, "36 % as alpha goes to 1", "Meterez et al., abstract"),
        ),
        figure="schedule_losses",
        minutes=5.0 if tiny else None,
    )  # fmt: skip
