"""Abreu et al. (2025): Gauss-Newton steps at batch sizes beyond those of other optimizers."""

from __future__ import annotations

from cbs.registry.choices import Choice
from sweeps.papers import PAPERS, AnswerPath, Beyond, Expectation, Near, PaperRecipe
from sweeps.papers.parts import TEXT, experiment, one_run

VARIANTS = ("gauss_newton(variant=full)", "gauss_newton(variant=prox_linear)", "gauss_newton(variant=layerwise)")
STEPS = {"soap": 292, "muon": 864}
"""Published steps to a loss of 3.25, each above its critical batch size; 54 by full Gauss-Newton."""


@PAPERS.register("gn")
def gauss_newton(scale: str) -> PaperRecipe:
    """Steps of Gauss-Newton variants, SOAP, Muon and AdamW at equal large batches."""
    tiny = scale == "tiny"
    optimizers = (*VARIANTS, "soap", "muon", "adamw")
    if tiny:
        sizes = (128, 512)
        sweep = experiment(TEXT, optimizers, sizes, target=2.8, seeds=(0, 1), max_steps=400, max_examples=0,
                           expected=(25.0, 30_000.0))  # fmt: skip
    else:
        sizes = (1_024, 3_904, 12_000, 40_000)
        data = {"data": "data/c4/train.bin", "validation": "data/c4/validation.bin", "dtype": "uint16"}
        options = {"size": "gpt2-small", "width": 512, "layers": 4, "heads": 8, "context": 1024, "vocab_size": 32128}
        inner = [f"{name[:-1]}, inner_batch_size=32, inner_clip=1, search_share=0.5)" for name in VARIANTS]
        sweep = experiment(Choice(name="text", options=options | data), (*inner, *optimizers[3:]), sizes, target=3.25,
                           max_steps=2_000, max_examples=2_000_000, expected=(50.0, 4e5), micro_batch_size=32,
                           precision="bfloat16")  # fmt: skip
    names = [str(choice) for choice in sweep.optimizers]
    full = sweep.labels[names[0]]

    def fewer(other: str, times: str, **relation: float) -> Expectation:
        pair = {"reference": full, "optimizer": other}
        path = ("comparisons", 0, "token_ratios", pair, "token_ratio", {"batch_size": sizes[-1]}, "value")
        near = "near" in relation
        return Expectation(
            claim=f"full Gauss-Newton takes {'as many' if near else 'fewer'} steps {'as' if near else 'than'} {other} "
            f"at batch size {sizes[-1]}",
            published=times, source="table of steps, read in a summary; ratios agree with the abstract",
            relation=Near((1.0,), relation["near"]) if near else Beyond(1.0, above=False),
            ours=(AnswerPath(analysis="compare", path=path),),
        )  # fmt: skip

    return PaperRecipe(
        title="Gauss-Newton: steps at batch sizes beyond the critical ones of others",
        paper="Abreu et al. 2025, arXiv 2510.09378",
        protocol="Gauss-Newton (full, prox-linear, layerwise; Muon inside), SOAP, Muon and AdamW to one loss at equal "
        "large batches, learning rate searched for each",
        deviations=(
            "every run starts from fresh weights, the paper's from one checkpoint after a warmup with AdamW",
            "examples of the line search are half of the batch, the paper's come on top of it",
            *(["bytes of a small text; inner batches of 8"] if tiny else ["GPT-2 of 45M in place of the paper's"]),
        ),
        runs=(one_run("text", sweep, tiny),),
        analyses={"compare": f"compare {{text}} --reference '{full}'"},
        expectations=(
            *(fewer(name, f"54 against {steps} steps to 3.25") for name, steps in STEPS.items()),
            fewer("adamw", "AdamW does not get below 4.4 where Gauss-Newton reaches 3.45"),
            fewer(sweep.labels[names[2]], "54 against 78 steps to 3.25"),
            fewer(sweep.labels[names[1]], "prox-linear like full", near=0.25),
        ),
        figure="token_ratio",
        minutes=9.0 if tiny else None,
    )  # fmt: skip
