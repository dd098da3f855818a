"""Zhang et al. (2024): how the critical batch size grows with model and data; width against depth, context, beta2."""

from dataclasses import replace
from typing import Any

from analysis.quantities import Quantity
from cbs.registry.choices import Choice
from cbs.trial.config import EvaluationPlan
from extensions.papers.experiments import (
    PAPERS,
    Expectation,
    Measured,
    Near,
    OurNumber,
    PaperRecipe,
    RecipeRun,
    asks,
    only,
)
from extensions.papers.experiments.parts import experiment, fitted, lower_loss
from sweeps.spec.spec import Sweep

PAPER = "Zhang et al. 2024, arXiv 2410.21676"
# Width, layers, parameters without embeddings, and the loss after 20 tokens for each parameter
MODELS = {"85m": (768, 12, 85e6, 3.42), "151m": (1024, 12, 151e6, 3.24), "302m": (1024, 24, 302e6, 3.07)}

# Of the tiny scale, not from the paper: widths around the default model's 32, and losses on its text
WIDTHS, TARGETS = (16, 32, 64), (2.9, 2.8, 2.65)


def at(width: int, layers: int, target: float) -> Sweep:
    """Return the sweep of a model of the paper on C4, in sequences of 512 tokens."""
    options: dict[str, Any] = {"size": "gpt2-small", "width": width, "layers": layers, "context": 512}
    options |= {"heads": 16 if width == 1024 else 12, "data": "data/c4/train.bin", "dtype": "uint16"}
    options |= {"validation": "data/c4/validation.bin", "vocab_size": 50304}
    return experiment(
        Choice(name="text", options=options), ("adamw(betas=[0.95, 0.99])",), tuple(2**k for k in range(6, 15)),
        target=target, max_steps=4_000, max_examples=12_000_000, clip_norm=1.0, precision="bfloat16",
        averaging=Choice(name="ema", options={"half_life": 100_000}), expected=(1_500.0, 5e6), micro_batch_size=64,
    )  # fmt: skip


def exponent(law: Any) -> Measured:
    """Return the exponent of a law; it counts only if none of its points is doubted."""
    number = None if law.fit is None else Quantity(law.fit.exponent, law.fit.exponent_interval)
    return Measured("exponent", number, {f"doubted of {law.axis}": law.doubted})


@PAPERS.register("cbs-scaling")
def cbs_scaling(scale: str) -> PaperRecipe:
    """Measure critical batch sizes (20 % overhead) at three widths and three amounts of data, with averaged weights."""
    tiny = scale == "tiny"
    if tiny:
        runs = [
            RecipeRun(name=f"w{width}", sweep=experiment(
                Choice(name="text", options={"width": width}), ("adamw",), (2, 4, 16, 64), target=TARGETS[-1],
                seeds=(0, 1), max_steps=4_000, max_examples=60_000, expected=(150.0, 4_000.0),
                averaging=Choice(name="ema", options={"half_life": 300}),
                # the easier losses are passed early, when evaluations for the hardest one are still far apart
                evaluation=EvaluationPlan(far_growth=1.1),
            ))
            for width in WIDTHS
        ]  # fmt: skip
    else:
        runs = [RecipeRun(name=name, sweep=at(width, layers, target), parameters=parameters, without_embeddings=True)
                for name, (width, layers, parameters, target) in MODELS.items()]  # fmt: skip
    names = [run.name for run in runs]
    reference = 4 if tiny else 256
    definition = f"overhead(overhead=0.2, reference_batch={reference}, hyperbola=true)"  # as in the paper's notebook
    about: dict[str, Any] = {"definition": definition} | ({"targets": TARGETS} if tiny else {})
    questions = {"data": asks("scale", *names, against=("data",), data_at_batch=reference, **about)}
    expectations = [
        Expectation(
            claim="the critical batch size (20 % overhead) goes as the amount of data to the power .47",
            published="22.91 D^0.47, D in millions of tokens, B in sequences of 512",
            source="fit of the paper's notebook, computed again",
            relation=Near((0.47,), 0.15),
            ours=(OurNumber(question="data", of=lambda found: exponent(only(found.laws, axis="data"))),),
        )
    ]
    if tiny:
        # first, as both write the same files: those of the last one stay
        questions = {"size": asks("scale", *names, vary=("width",), **about), **questions}
        expectations.append(
            Expectation(
                claim="at equal loss the size of the model hardly matters: power of the width",
                published="at equal data 621 N^0.087; Kaplan et al. at equal loss 0",
                source="read in a summary; N goes as the square of the width",
                relation=Near((0.0,), 0.2),
                ours=(
                    OurNumber(
                        question="size",
                        of=lambda found: exponent(only(found.comparisons, axis="width", kind="pooled")),
                    ),
                ),
            )
        )
    return PaperRecipe(
        title="how the critical batch size grows with data and with the model",
        paper=PAPER,
        protocol="Adam at a constant learning rate with averaged weights, to the losses of several amounts of data, at "
        "every model; the critical batch size by 20 % overhead",
        deviations=(
            (
                "widths 16, 32, 64 and targets of 2.9, 2.8, 2.65 nats/byte stand for models and amounts of data",
                "batch sizes from 2, often evaluated; from 4, as first planned, answers at easy targets lay below",
            )
            if tiny
            else ("one beta2 and one half-life of the average; the paper tunes both by batch size",)
        ),
        runs=tuple(runs),
        analyses=questions,
        expectations=tuple(expectations),
        figure="scaling-data",
        minutes=9.0 if tiny else None,
    )


SOURCE = "read in a summary"
BETAS = ("adamw(betas=[0.95, 0.95])", "adamw(betas=[0.95, 0.999])")


@PAPERS.register("cbs-scaling-ablation")
def ablation(scale: str) -> PaperRecipe:
    """Compare models four times as large by width or by depth, a longer context, and a longer second moment."""
    tiny = scale == "tiny"
    if tiny:
        shapes: dict[str, dict[str, Any]] = {"wide": {"width": 64}, "deep": {"width": 32, "layers": 8, "heads": 2},
                                             "long": {"width": 32, "context": 64}}  # fmt: skip
        sizes: tuple[int, ...] = (4, 16, 64, 128)
        about: dict[str, Any] = {"target": 2.8, "seeds": (0, 1), "max_steps": 1_000, "max_examples": 40_000}
        about |= {"expected": (120.0, 3_000.0), "averaging": Choice(name="ema", options={"half_life": 300})}
    else:
        data = {"data": "data/c4/train.bin", "validation": "data/c4/validation.bin", "dtype": "uint16"}
        base = {"size": "gpt2-small", "width": 1024, "heads": 16, "context": 512, "vocab_size": 50304} | data
        shapes = {"wide": base | {"width": 2048, "layers": 12}, "deep": base | {"layers": 48},
                  "long": base | {"layers": 12, "context": 4096}}  # fmt: skip
        sizes = tuple(2**k for k in range(6, 15))
        about = {"target": 3.2, "max_steps": 8_000, "max_examples": 24_000_000, "clip_norm": 1.0}
        about |= {"precision": "bfloat16", "expected": (2_000.0, 8e6), "micro_batch_size": 32,
                  "averaging": Choice(name="ema", options={"half_life": 100_000})}  # fmt: skip
    runs = [
        RecipeRun(name=name, sweep=experiment(Choice(name="text", options=options), ("adamw(betas=[0.95, 0.99])",),
                                              sizes, **about))
        for name, options in shapes.items()
    ]  # fmt: skip
    first, budget = sizes[0], (4_000 if tiny else 6_000_000)
    kept = {name: value for name, value in about.items() if name in ("seeds", "precision", "micro_batch_size")}
    betas = experiment(Choice(name="text", options={} if tiny else shapes["wide"]), BETAS, (first,), budgets=(budget,),
                       **kept)  # fmt: skip
    runs.append(RecipeRun(name="betas", sweep=betas))
    deep = fitted("critical", question="analyze_deep")
    return PaperRecipe(
        title="the critical batch size: width against depth, and the second moment",
        paper=PAPER,
        protocol="Adam at a constant learning rate with averaged weights to one loss, at models that are four times "
        "larger by width or by depth and at a longer context; the loss after equal examples with a short and a long "
        "second moment",
        deviations=(
            "the learning rate is searched at every batch size; one half-life of the average",
            *(["bytes of a small text; four times the parameters of 30 thousand"] if tiny else []),
        ),
        runs=tuple(runs),
        analyses={f"analyze_{name}": asks("analyze", name) for name in shapes} | {"budget": asks("budget", "betas")},
        expectations=(
            Expectation(
                claim="deeper or wider, the critical batch size is the same: ratio of the two",
                published="151M to 604M by width or by depth: curves overlap",
                source=SOURCE,
                relation=Near((1.0,), 0.35),
                ours=(replace(deep, over=fitted("critical", question="analyze_wide")),),
            ),
            lower_loss(BETAS[1], BETAS[0], first, "larger beta2 helps long runs at small batch sizes", SOURCE),
        ),
        figure="steps",
        minutes=9.0 if tiny else None,
    )
