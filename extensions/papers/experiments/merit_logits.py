"""MERIT (2025): the largest attention logits, and the curvature at the end of training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cbs.trial.config import EvaluationPlan
from extensions.papers.experiments import PAPERS, AnswerPath, Beyond, Expectation, PaperRecipe, RecipeRun
from extensions.papers.experiments.merit import PAPER, TINY, UNPUBLISHED, gpt2
from extensions.papers.experiments.parts import COSINE, TEXT, experiment, lower_loss, one_run
from sweeps.spec.lr_rule import PrescribedRate

RATES = {"adamw": 0.032, "lamb": 0.064, "merit": 0.064}
"""Learning rates with the best final loss at batch size 256 of the tiny scale."""

CURVATURE = {
    "hessian_top": ("the largest eigenvalue of the Hessian", 37.231, 12.326),
    "hessian_trace": ("the trace of the Hessian", 12994.91, 3444.92),
}
"""Metric: its name, and its published values for AdamW and MERIT on GPT-2 small at convergence."""

LOGITS = {"tiny": ((1, "1750", "54"), (2, "560", "150")), "paper": ((1, "1750", "54"), (12, "560", "150"))}
"""Layers by scale, with the peaks of AdamW and MERIT in layers 1 and 12 of GPT-2 medium, read off figures."""


def _run(optimizer: str, size: int, budget: int, tiny: bool) -> RecipeRun:
    about: dict[str, Any] = {
        "schedule": COSINE,
        "diagnostics": ("max_attention_logit",),
        "metrics": tuple(CURVATURE),
        "evaluation": EvaluationPlan(growth=2.0, far_growth=2.0),
    }
    if tiny:
        about |= {"lr_rule": PrescribedRate(power=None, lrs={size: RATES[optimizer]}), "seeds": (0, 1, 2)}
    else:
        about |= {"precision": "bfloat16", "micro_batch_size": 16, "diagnostics_every": 10}
    sweep = experiment(TEXT if tiny else gpt2("small"), (optimizer,), (size,), budgets=(budget,), **about)
    return one_run(optimizer, sweep, tiny, parameters=125e6)


@PAPERS.register("merit-logits")
def merit_logits(scale: str) -> PaperRecipe:
    """Compare AdamW, LAMB and MERIT by the largest attention logit of two layers, and by the top eigenvalue and the
    trace of the Hessian."""
    tiny = scale == "tiny"
    size, budget, target = (256, 16_000, 3.2) if tiny else (1024, 2_441_406, 3.8)
    places = " ".join(f"{{{name}}}" for name in RATES)

    def ratio(layer: int) -> AnswerPath:
        path = ("fits", 0, "max_attention_logits", {"batch_size": size, "layer": layer}, "peak")
        one, other = (AnswerPath(analysis=f"logits_{name}", path=path) for name in ("merit", "adamw"))
        return replace(one, over=other)

    return PaperRecipe(
        title="MERIT: smaller attention logits and flatter minima than AdamW's",
        paper=PAPER,
        protocol="AdamW, LAMB and MERIT at one large batch size and equal examples under a cosine schedule; the "
        "largest attention logit up to a loss, the Hessian of the loss over fixed training examples at the end",
        deviations=(
            UNPUBLISHED,
            "logits are the largest until a loss is reached, medians over seeds; the paper has one run",
            *(
                [
                    TINY,
                    "learning rates are the best ones of a search of the final loss; with those of a longer run, as "
                    "first planned, MERIT ended far above AdamW",
                ]
                if tiny
                else [
                    "GPT-2 small for the logits, too",
                    "curvatures are those at the learning rate, of all that were tried, that gives the smallest",
                ]
            ),
        ),
        runs=tuple(_run(name, size, budget, tiny) for name in RATES),
        analyses={f"logits_{name}": f"analyze {{{name}}} --target {target:g}" for name in RATES}
        | {metric: f"budget {places} --metric {metric}" for metric in CURVATURE}
        | {"losses": f"budget {places}"},  # last, as its tables, one with all curvatures, overwrite others
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
                               "table of the Hessian, read in a summary", analysis=metric),
                    claim=f"{words} is smaller where MERIT ends than where AdamW does",
                )
                for metric, (words, adamw, merit) in CURVATURE.items()
            ),
        ),
        figure="max_attention_logit",
        minutes=4.0 if tiny else None,
    )  # fmt: skip
