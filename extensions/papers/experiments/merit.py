"""MERIT (2025): final losses at large batch sizes, what each part of the optimizer does, logits and curvature."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.quantities import Quantity
from cbs.registry.choices import Choice
from cbs.trial.config import EvaluationPlan
from extensions.papers.experiments import (
    PAPERS,
    Beyond,
    Expectation,
    Measured,
    Near,
    OurNumber,
    PaperRecipe,
    RecipeRun,
    asks,
    nth,
    only,
)
from extensions.papers.experiments.parts import (
    COSINE,
    FEW,
    OPENWEBTEXT,
    SEEDS,
    TEXT,
    TWELVE,
    experiment,
    lower_loss,
    one_run,
)
from sweeps.spec.given_rates import PrescribedRate

if TYPE_CHECKING:
    from analysis.estimate.result import Answer
    from analysis.present.findings import Analysis

PAPER = "MERIT, ICML 2025, arXiv 2508.20577"
SOURCE = "table of validation losses, read in a summary"
UNPUBLISHED = "learning rates, betas, weight decay and warmup are not published: the rate is searched at every batch " \
    "size, betas are (0.9, 0.99), there is no weight decay and the warmup takes ten steps"  # fmt: skip
TINY = "30 thousand parameters on 0.4 MB of text and 16,000 sequences of 32 bytes, not GPT-2 on OpenWebText"
OPTIMIZERS = ("adamw", "lamb", "merit")

# Parameters, batch size in sequences of 1024 tokens, and validation losses of AdamW, LAMB and MERIT
MODELS = {
    "small": (125e6, 1024, (3.470, 3.355, 3.280)),
    "medium": (355e6, 4096, (3.172, 3.068, 2.982)),
    "large": (770e6, 8192, (3.039, 2.971, 2.897)),
}

ABLATIONS = {
    "merit(clip=none)": "3.32", "merit(lower_bound=false)": "3.35 to 3.38", "merit(elementwise=false)": "3.304",
    "merit(norm=l2)": "3.312", "lamb": "3.355",
}  # fmt: skip


def gpt2(size: str) -> Choice:
    """Return the workload of GPT-2 on OpenWebText as in nanoGPT."""
    return Choice(name="text", options={"size": f"gpt2-{size}", "init": "nanogpt", **OPENWEBTEXT})


def at_paper_scale(size: str, optimizers: tuple[str, ...]) -> RecipeRun:
    """Return the run of a model at its published batch size, with 20 tokens for each parameter."""
    parameters, batch_size, _ = MODELS[size]
    sweep = experiment(
        gpt2(size), optimizers, (batch_size,), budgets=(round(20 * parameters / 1024),), schedule=COSINE,
        precision="bfloat16", micro_batch_size=16,
    )  # fmt: skip
    return RecipeRun(name=size, sweep=sweep, parameters=parameters)


@PAPERS.register("merit-gpt2")
def merit_gpt2(scale: str) -> PaperRecipe:
    """Compare AdamW, LAMB and MERIT at equal examples."""
    tiny = scale == "tiny"
    if tiny:
        sweep = experiment(TEXT, OPTIMIZERS, (256,), budgets=(16_000,), schedule=COSINE, **SEEDS)
        runs, size = [RecipeRun(name="text", sweep=sweep)], 256
    else:
        runs, size = [at_paper_scale(name, OPTIMIZERS) for name in MODELS], MODELS["large"][1]
    names = [run.name for run in runs]
    losses = "; ".join(f"{name}, B {b}: {' / '.join(map(str, each))}" for name, (_, b, each) in MODELS.items())
    orders = [("merit", "lamb"), ("merit", "adamw"), ("lamb", "adamw")]
    expectations = [
        lower_loss(better, worse, size, f"AdamW / LAMB / MERIT at GPT-2 {losses}", SOURCE,
                   question=f"budget_{names[-1]}")
        for better, worse in orders
    ]  # fmt: skip
    if not tiny:
        expectations += [
            Expectation(
                claim=f"final validation losses of GPT-2 {name} at batch size {b}", published=losses, source=SOURCE,
                relation=Near(each, 0.03), ours=tuple(final_loss(name, o) for o in OPTIMIZERS),
            )
            for name, (_, b, each) in MODELS.items()
        ]  # fmt: skip
    return PaperRecipe(
        title="MERIT: final loss of AdamW, LAMB and MERIT at large batches",
        paper=PAPER,
        protocol="every trial sees the same examples under a cosine schedule; the final validation loss is compared",
        deviations=(
            UNPUBLISHED,
            *(
                [TINY, FEW]
                if tiny
                else [
                    "20 tokens for each parameter, as the paper gives no number; no GPT-2 medium on 48 billion tokens"
                ]
            ),
        ),
        runs=tuple(runs),
        analyses={f"budget_{name}": asks("budget", name) for name in names},
        expectations=tuple(expectations),
        figure="budget_losses",
        minutes=4.0 if tiny else None,
    )


def final_loss(name: str, optimizer: str) -> OurNumber:
    """Return an optimizer's final loss at the only batch size of a run."""

    def measured(result: Any) -> Measured:
        return Measured("metric", nth(only(nth(result.budgets, 0).optimizers, optimizer=optimizer).sizes, 0).metric)

    return OurNumber(question=f"budget_{name}", of=measured)


@PAPERS.register("merit-ablation")
def merit_ablation(scale: str) -> PaperRecipe:
    """Compare MERIT with variants without clip, lower bound, or row and column ratios, and with Euclidean norms."""
    tiny, optimizers = scale == "tiny", ("merit", *ABLATIONS)
    sweep = experiment(TEXT, optimizers, (256,), budgets=(16_000,), schedule=COSINE, **TWELVE)
    run = RecipeRun(name="small", sweep=sweep) if tiny else at_paper_scale("small", optimizers)
    size = sweep.axes.batch_sizes[0] if tiny else MODELS["small"][1]
    return PaperRecipe(
        title="MERIT: what its clip, its lower bound and its ratios are worth",
        paper=PAPER,
        protocol="as merit-gpt2, GPT-2 small alone, at its one batch size",
        deviations=(UNPUBLISHED, *([TINY, FEW] if tiny else [])),
        runs=(run,),
        analyses={"budget": asks("budget", "small")},
        expectations=tuple(
            lower_loss(
                "merit", other, size, f"3.280 against {loss} (GPT-2 small, B 1024)", "ablations, read in summaries"
            )
            for other, loss in ABLATIONS.items()
        ),
        figure="budget_losses",
        minutes=5.0 if tiny else None,
    )


# Parameters with a vocabulary of 32,000, batch size, and validation losses of AdamW, LAMB and MERIT
LLAMAS = {"130m": (134e6, 1024, (3.277, 3.265, 3.199)), "350m": (368e6, 4096, (None, 3.001, 2.957))}


@PAPERS.register("merit-llama")
def merit_llama(scale: str) -> PaperRecipe:
    """Compare AdamW, LAMB and MERIT on Llama models, at 2.6 billion tokens."""
    tiny = scale == "tiny"
    if tiny:
        workload = Choice(name="text", options={"size": "llama-30k", "corpus": "stdlib"})
        sweep = experiment(workload, OPTIMIZERS, (256,), budgets=(12_000,), schedule=COSINE, **TWELVE)
        runs, orders = [RecipeRun(name="text", sweep=sweep)], [("text", 256, "lamb"), ("text", 256, "adamw")]
    else:
        runs = []
        orders = [("130m", 1024, "lamb"), ("130m", 1024, "adamw"), ("350m", 4096, "lamb")]
        for name, (parameters, size, _) in LLAMAS.items():
            data = {"data": "data/c4/train.bin", "validation": "data/c4/validation.bin", "dtype": "uint16"}
            options = {"size": f"llama-{name}", "context": 1024, "vocab_size": 32000, **data}
            sweep = experiment(
                Choice(name="text", options=options), OPTIMIZERS, (size,), budgets=(2_539_062,), schedule=COSINE,
                precision="bfloat16", micro_batch_size=32,
            )  # fmt: skip
            runs.append(RecipeRun(name=name, sweep=sweep, parameters=parameters))
    losses = "AdamW / LAMB / MERIT: 130M at B 1024 3.277 / 3.265 / 3.199; 350M at B 4096 - / 3.001 / 2.957"
    return PaperRecipe(
        title="MERIT on Llama models: final loss of AdamW, LAMB and MERIT",
        paper=PAPER,
        protocol="as merit-gpt2, Llama models on C4",
        deviations=(UNPUBLISHED, *(["30 thousand parameters on the source of Python's library", FEW] if tiny else [])),
        runs=tuple(runs),
        analyses={f"budget_{run.name}": asks("budget", run.name) for run in runs},
        expectations=tuple(
            lower_loss("merit", worse, size, losses, SOURCE, question=f"budget_{name}") for name, size, worse in orders
        ),
        figure="budget_losses",
        minutes=5.0 if tiny else None,
    )


RATES = {"adamw": 0.032, "merit": 0.064}  # Learning rates with the best final loss at batch size 256 of the tiny scale

# Metric: its name, and its published values for AdamW and MERIT on GPT-2 small at convergence
CURVATURE = {
    "hessian_top": ("the largest eigenvalue of the Hessian", 37.231, 12.326),
    "hessian_trace": ("the trace of the Hessian", 12994.91, 3444.92),
}

# Layers by scale, with the peaks of AdamW and MERIT in layers 1 and 12 of GPT-2 medium, read off figures
LOGITS = {"tiny": ((1, "1750", "54"), (2, "560", "150")), "paper": ((1, "1750", "54"), (12, "560", "150"))}


def _run(optimizer: str, size: int, budget: int, tiny: bool, *, curvature: bool = True) -> RecipeRun:
    about: dict[str, Any] = {"schedule": COSINE, "diagnostics": ("max_attention_logit",)}
    if curvature:  # measured at every evaluation, each longer than all steps of a tiny run
        growth = 8.0 if tiny else 2.0
        about |= {"metrics": tuple(CURVATURE), "evaluation": EvaluationPlan(growth=growth, far_growth=growth)}
    if tiny:
        about |= {"lr_rule": PrescribedRate(power=None, lrs={size: RATES[optimizer]}), "seeds": tuple(range(8))}
    else:
        about |= {"precision": "bfloat16", "micro_batch_size": 16, "diagnostics_every": 10}
    sweep = experiment(TEXT if tiny else gpt2("small"), (optimizer,), (size,), budgets=(budget,), **about)
    return one_run(optimizer if curvature else f"logits_{optimizer}", sweep, tiny, parameters=125e6)


def largest_logit(answer: Answer, batch_size: int, layer: int) -> Quantity | None:
    """Return the largest attention logit of a layer at a batch size; ``None`` if it was not recorded."""
    for row in answer.to_json().get("max_attention_logits", ()):
        if (row["batch_size"], row["layer"]) == (batch_size, layer):
            return Quantity(row["peak"], tuple(row["peak_interval"]))
    return None


@PAPERS.register("merit-logits")
def merit_logits(scale: str) -> PaperRecipe:
    """Compare AdamW and MERIT by the largest attention logit of two layers, and by the top eigenvalue and the trace of
    the Hessian."""
    tiny = scale == "tiny"
    size, budget, target = (256, 16_000, 3.2) if tiny else (1024, 2_441_406, 3.8)
    runs = [_run(name, size, budget, tiny) for name in RATES]
    if tiny:
        runs += [_run(name, size, budget, tiny, curvature=False) for name in RATES]
    logits = dict(zip(RATES, (run.name for run in runs[-len(RATES) :]), strict=True))

    def ratio(layer: int) -> OurNumber:
        def peak(result: Analysis) -> Measured:
            return Measured("peak", largest_logit(nth(result.answers, 0), size, layer))

        return OurNumber(question="logits_merit", of=peak, over=OurNumber(question="logits_adamw", of=peak))

    return PaperRecipe(
        title="MERIT: smaller attention logits and flatter minima than AdamW's",
        paper=PAPER,
        protocol="AdamW and MERIT at one large batch size and equal examples under a cosine schedule; the largest "
        "attention logit up to a loss, the Hessian of the loss over fixed training examples at the end",
        deviations=(
            UNPUBLISHED,
            "logits are the largest until a loss is reached, medians over seeds; the paper has one run",
            *(
                [
                    TINY,
                    "learning rates are the best ones of a search of the final loss; with those of a longer run, as "
                    "first planned, MERIT ended far above AdamW",
                    "runs of their own, evaluated often, for the logits; eight seeds, as with three all but one "
                    "interval held both answers",
                ]
                if tiny
                else [
                    "GPT-2 small for the logits, too",
                    "curvatures are those at the learning rate, of all that were tried, that gives the smallest",
                ]
            ),
        ),
        runs=tuple(runs),
        analyses={f"logits_{name}": asks("analyze", run, targets=(target,), every_figure=True)
                  for name, run in logits.items()}
        | {metric: asks("budget", *RATES, metric=metric) for metric in CURVATURE}
        | {"losses": asks("budget", *RATES)},  # last, as its tables, one with all curvatures, overwrite others
        expectations=(
            *(
                Expectation(
                    claim=f"MERIT's largest attention logit in layer {layer} is below AdamW's",
                    published=f"peaks of about {merit} and {adamw}", source="figures of the repository, GPT-2 medium",
                    relation=Beyond(1.0, above=False), ours=(ratio(layer),),
                )
                for layer, adamw, merit in LOGITS[scale]
            ),
            *(
                replace(
                    lower_loss("merit", "adamw", size, f"{metric}: {merit:g} against {adamw:g} (GPT-2 small)",
                               "table of the Hessian, read in a summary", question=metric),
                    claim=f"{words} is smaller where MERIT ends than where AdamW does",
                )
                for metric, (words, adamw, merit) in CURVATURE.items()
            ),
        ),
        figure="max_attention_logit",
        minutes=4.0 if tiny else None,
    )  # fmt: skip
