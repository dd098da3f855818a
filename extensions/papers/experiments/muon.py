"""Muon: examples and time against AdamW, telescoping over widths (Essential AI 2025), and its critical batch size (Sato
et al. 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.quantities import Quantity
from cbs.registry.choices import Choice
from cbs.trial.target import Target
from extensions.papers.experiments import (
    PAPERS,
    Beyond,
    Expectation,
    Likely,
    Measured,
    Near,
    OurNumber,
    PaperRecipe,
    RecipeRun,
    asks,
    nth,
    only,
)
from extensions.papers.experiments.parts import TEXT, classifier, experiment, larger_critical, one_run
from sweeps.recipes import RECIPES
from sweeps.spec.lengths import ScheduleRule

if TYPE_CHECKING:
    from analysis.questions.compare.optimizers import Comparisons, TokenRatio


MOMENTA = (0.8, 0.95, 0.99)  # For which the bound of Cesista and Wen has numbers, see the expectation


def _over_muon(result: Comparisons) -> TokenRatio:
    return only(nth(result.comparisons, 0).token_ratios, optimizer="muon")


@PAPERS.register("essential-ratio")
def essential_ratio(scale: str) -> PaperRecipe:
    """Measure the ratio of AdamW's tokens to Muon's at one loss."""
    tiny = scale == "tiny"
    if tiny:
        sweep = experiment(TEXT, ("adamw", "muon"), (4, 16, 64, 256, 512), target=2.6, seeds=(0, 1), max_steps=2_500,
                           max_examples=90_000, expected=(120.0, 4_500.0))  # fmt: skip
    else:
        options = {"size": "gpt2-medium", "width": 1280, "layers": 24, "heads": 20, "context": 8192,
                   "data": "data/dclm/train.bin", "dtype": "uint32", "vocab_size": 128256}  # fmt: skip
        sweep = experiment(
            Choice(name="text", options=options), ("adamw(betas=[0.95, 0.95])", "muon(betas=[0.95, 0.95])"),
            tuple(2**k for k in range(4, 12)), target=3.25, max_steps=20_000, max_examples=3_000_000,
            expected=(3_000.0, 1e6), precision="bfloat16",
        )  # fmt: skip

    def ratios(result: Comparisons) -> list[Measured]:
        return [Measured("token_ratio", each) for each in _over_muon(result).at]

    def rises(result: Comparisons) -> Measured:
        ratio = _over_muon(result)
        return Measured("probability_not_decreasing", ratio.probability_not_decreasing,
                        {"verdict of muon": ratio.verdict})  # fmt: skip

    return PaperRecipe(
        title="Muon: how many tokens AdamW needs over it, against the batch size",
        paper="Essential AI 2025, arXiv 2505.02222",
        protocol="AdamW and Muon to one loss at every batch size, learning rate searched at each",
        deviations=(
            "validation loss in place of the smoothed training loss; only text, no code",
            *(["bytes of a small text, no weight decay"] if tiny else ["a GPT of 500M; weight decay is not searched"]),
        ),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"compare": asks("compare", "text", reference="adamw"), "analyze": asks("analyze", "text")},
        expectations=(
            Expectation(
                claim="AdamW needs more tokens than Muon at every batch size",
                published="R_L(B) > 1; Muon needs 10 to 15 % fewer tokens",
                source="equation 2 and figures, read in the text",
                relation=Beyond(1.0),
                ours=(OurNumber(question="compare", of=ratios),),
            ),
            Expectation(
                claim="the ratio does not decrease with the batch size",
                published="R_L(B) does not decrease", source="read in the text", relation=Likely(0.9),
                ours=(OurNumber(question="compare", of=rises),),
            ),
            larger_critical("muon", "adamw", "Muon keeps its data efficiency at larger batches", "abstract"),
        ),
        figure="token_ratio",
        minutes=7.0 if tiny else None,
    )  # fmt: skip


@PAPERS.register("muon-cbs")
def muon_cbs(scale: str) -> PaperRecipe:
    """Compare the critical batch size of Muon at several momenta, and with that of AdamW."""
    tiny = scale == "tiny"
    optimizers = ("adamw", *(f"muon(momentum={value})" for value in MOMENTA))
    if tiny:
        sweep = experiment(
            TEXT, optimizers, (2, 8, 32, 128, 512), target=2.6, seeds=(0, 1), max_steps=3_000, max_examples=60_000,
            expected=(120.0, 4_500.0), schedule=ScheduleRule(warmup_examples=256),
        )  # fmt: skip
    else:
        workload = Choice(name="images", options={"model": "resnet18", "norm": "batch", "metric": "accuracy",
                                                  "data": "data/cifar10"})  # fmt: skip
        sweep = experiment(workload, optimizers, tuple(2**k for k in range(1, 13)), max_steps=20_000,
                           target=Target(metric="validation_accuracy", value=0.9, direction="above"),
                           max_examples=2_500_000, expected=(1_000.0, 5e5))  # fmt: skip
    resnet = {"parameters": 11.17e6, "model": classifier("resnet18", 10, 3, 32)}
    return PaperRecipe(
        title="Muon: its critical batch size falls with the momentum",
        paper="Sato, Naganuma, Iiduka 2025, arXiv 2507.01598",
        protocol="AdamW and Muon at three momenta to one target at every batch size, learning rate searched at each",
        deviations=(
            "the learning rate is searched at every batch size; the paper scales it by the square root from 512",
            "five Newton-Schulz steps; the paper's code takes three",
            "the smallest momentum is compared with the largest, in pairs of seeds; intervals of their own, as first "
            "planned, held both answers",
            *(
                [
                    "a small text in place of CIFAR-10",
                    "warmup in examples, as ten steps decided the answers",
                    "batch sizes that the sweep finds",
                ]
                if tiny
                else ["CIFAR-10 alone, without CIFAR-100 and Llama; weight decay is not searched"]
            ),
        ),
        runs=(one_run("runs", sweep, tiny, goal=0.3, **resnet),),
        analyses={"analyze": asks("analyze", "runs"), "compare": asks("compare", "runs", reference="adamw")},
        expectations=(
            # in pairs, as seeds are the same: intervals of their own overlap long before a difference is unknown
            replace(
                larger_critical(
                    f"muon(momentum={MOMENTA[0]})",
                    f"muon(momentum={MOMENTA[-1]})",
                    "b_crit over the noise: 1.96, .368, .058 at momentum .8, .95, .99 (Nesterov)",
                    "lower bound of Cesista and Wen, which generalises the paper's",
                ),
                claim=f"the larger the momentum of Muon, the smaller its critical batch size, from {MOMENTA[0]} to "
                f"{MOMENTA[-1]}",
            ),
            larger_critical("muon(momentum=0.95)", "adamw", "Muon's is the larger one", "abstract and figures"),
        ),
        figure="steps",
        minutes=8.0 if tiny else None,
    )


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
        def least(result: Any) -> Measured:
            advice = only(nth(result.recommendations, 0).advice, optimizer=optimizer)
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
        sweep = RECIPES.make("essential_telescope").replace(micro_batch_size=128, seeds=(0, 1, 2))
    else:
        options = {"size": "gpt2-small", "width": 256, "context": 8192, "parametrization": "mup", "base_width": 256,
                   "data": "data/dclm/train.bin", "dtype": "uint32", "vocab_size": 128256}  # fmt: skip
        sweep = experiment(Choice(name="text", options=options), ("muon(betas=[0.95, 0.95])",), (1024,),
                           target=Target(metric="validation_loss", value=3.0), max_steps=20_000, max_examples=0,
                           precision="bfloat16")  # fmt: skip
    run = RecipeRun(name="widths", sweep=sweep, policy=Choice(name="telescope", options={"widths": list(widths)}))

    def best(width: int) -> OurNumber:
        def measured(result: Any) -> Measured:
            optimum = only(nth(result.entries, 0).law.optima, batch_size=sweep.axes.batch_sizes[0])
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
