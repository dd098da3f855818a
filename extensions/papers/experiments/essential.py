"""Essential AI (2025): devices against time to one loss, and telescoping over widths."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.quantities import Quantity
from cbs.registry.choices import Choice
from cbs.trial.target import Target
from extensions.papers.experiments import PAPERS, Beyond, Expectation, Near, PaperRecipe, RecipeRun
from extensions.papers.experiments.base import Measured, OurNumber, asks, nth, only
from extensions.papers.experiments.muon import essential_ratio
from extensions.papers.experiments.parts import experiment
from sweeps.recipes.essential_telescope import essential_telescope

if TYPE_CHECKING:
    from analysis.questions.lr.answer import LearningRates
    from analysis.questions.recommend.plans import Recommendations

PAPER = "Essential AI 2025, arXiv 2505.02222"


@PAPERS.register("essential-frontier")
def frontier(scale: str) -> PaperRecipe:
    """Compare the times of AdamW and Muon to one loss, by number of devices."""
    tiny = scale == "tiny"
    devices = (1, 2, 4, 8) if tiny else (8, 16, 32, 64, 128)
    sweep = essential_ratio(scale).runs[0].sweep
    rate, most = (2000, 64) if tiny else (10, 16)
    times = f"assumed(examples_per_second_per_device={rate}, max_batch_per_device={most})"

    def seconds(count: int, optimizer: str) -> OurNumber:
        def least(found: Recommendations) -> Measured:
            advice = only(nth(found.recommendations, 0).advice, optimizer=optimizer)
            plan = advice.plans.get("time")
            return Measured(
                "seconds", None if plan is None else plan.seconds, {f"verdict of {optimizer}": advice.answer.verdict}
            )

        return OurNumber(question=f"time_{count}", of=least)

    return PaperRecipe(
        title="devices against time at one loss: Muon's frontier and AdamW's",
        paper=PAPER,
        protocol="AdamW and Muon to one loss at every batch size, learning rate searched at each; the least time on "
        "every number of devices",
        deviations=(
            "step times are assumed, equal for both optimizers; those of the paper were measured on its devices",
            *(["bytes of a small text, no weight decay"] if tiny else ["a GPT of 500M; weight decay is not searched"]),
        ),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"plane": asks("compare", "text", reference="adamw", throughput=times)}
        | {f"time_{n}": asks("recommend", "text", devices=n, throughput=times) for n in devices},
        expectations=(
            Expectation(
                claim="Muon's time to the loss is below AdamW's on every number of devices",
                published="Muon's frontier lies below AdamW's everywhere", source="read in the text",
                relation=Beyond(1.0, above=False),
                ours=tuple(replace(seconds(n, "muon"), over=seconds(n, "adamw")) for n in devices),
            ),
        ),
        figure="compute_time",
        minutes=5.0 if tiny else None,
    )  # fmt: skip


@PAPERS.register("essential-telescope")
def telescoping(scale: str) -> PaperRecipe:
    """Follow the best learning rate in muP from a narrow model to a wide one, on smaller and smaller grids."""
    tiny = scale == "tiny"
    widths = (16, 32, 64, 128) if tiny else (256, 512, 1024, 2560)
    if tiny:
        sweep = essential_telescope().replace(micro_batch_size=128, seeds=(0, 1, 2))
    else:
        options = {"size": "gpt2-small", "width": 256, "context": 8192, "parametrization": "mup", "base_width": 256,
                   "data": "data/dclm/train.bin", "dtype": "uint32", "vocab_size": 128256}  # fmt: skip
        sweep = experiment(Choice(name="text", options=options), ("muon(betas=[0.95, 0.95])",), (1024,),
                           target=Target(metric="validation_loss", value=3.0), max_steps=20_000, max_examples=0,
                           precision="bfloat16")  # fmt: skip
    run = RecipeRun(name="widths", sweep=sweep, policy=Choice(name="telescope", options={"widths": list(widths)}))

    def best(width: int) -> OurNumber:
        def measured(found: LearningRates) -> Measured:
            optimum = only(nth(found.entries, 0).law.optima, batch_size=sweep.axes.batch_sizes[0])
            return Measured("lr", Quantity(optimum.lr, optimum.interval), {"at_grid_edge": optimum.at_grid_edge})

        return OurNumber(question=f"lr_{width}", of=measured)

    ratio = replace(best(widths[2]), over=best(widths[0]))
    return PaperRecipe(
        title="telescoping: in muP the best learning rate hardly moves with the width",
        paper=PAPER,
        protocol="the learning rate in muP on 8 values at the narrowest width, 5 and 3 at the next two, carried over "
        "beyond, each around the optimum before",
        deviations=(
            "only the learning rate is tuned, not the weight decay with it",
            *(
                [
                    "bytes of a small text, widths 16 to 128",
                    "three seeds; with one, as first planned, the ratio had no interval",
                ]
                if tiny
                else ["the number of attention heads in the paper's models is not known"]
            ),
        ),
        runs=(run,),
        analyses={f"lr_{width}": asks("lr", f"widths/width-{width}") for width in widths[:3]},
        expectations=(
            Expectation(
                claim=f"the best learning rate at width {widths[2]} is that at {widths[0]}, up to half of it",
                published="the optimum drifts as alpha/n: it converges", source="algorithm 1, read in the text",
                relation=Near((1.0,), 0.5), ours=(ratio,),
            ),
        ),
        figure="best_learning_rate",
        minutes=4.0 if tiny else None,
    )  # fmt: skip
