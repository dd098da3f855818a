"""Abreu et al. (2025): Gauss-Newton steps at batch sizes beyond those of other optimizers."""

from dataclasses import replace

from cbs.registry.choices import Choice
from extensions.papers.experiments import PAPERS, Near, PaperRecipe, RecipeRun, asks
from extensions.papers.experiments.parts import TEXT, experiment, lower_loss

VARIANTS = ("full", "prox_linear", "layerwise")
# Number of steps of the paper at its largest batch size
STEPS = 20

BELOW = {
    "gauss_newton(variant=layerwise)": "54 against 78 steps to 3.25",
    "soap": "54 against 292 steps to 3.25",
    "muon": "54 against 864 steps to 3.25",
    "adamw": "150M, 20 steps of 120M tokens: 3.45 against above 4.4",
}


@PAPERS.register("gn")
def gauss_newton(scale: str) -> PaperRecipe:
    """Compare Gauss-Newton variants, SOAP, Muon and AdamW by the loss after 20 steps of one very large batch."""
    return _recipe(scale, checkpoint=False)


@PAPERS.register("gn-checkpoint")
def gauss_newton_from_checkpoint(scale: str) -> PaperRecipe:
    """Compare the optimizers of ``gn`` from one checkpoint of AdamW, as in the paper."""
    return _recipe(scale, checkpoint=True)


def _recipe(scale: str, *, checkpoint: bool) -> PaperRecipe:
    tiny = scale == "tiny"
    inner = "" if tiny else ", inner_batch_size=128, inner_clip=1"
    variants = [f"gauss_newton(variant={name}{inner})" for name in VARIANTS]
    optimizers = (*variants, "soap", "muon", "adamw")
    if tiny:
        size, before = 512, 4_096
        sweep = experiment(
            TEXT, optimizers, (size,), budgets=(STEPS * size,), seeds=tuple(range(3 if checkpoint else 6))
        )
        trunk = experiment(TEXT, ("adamw",), (16,), budgets=(before,), lrs=(0.004,), keep=(before,))
    else:
        size, before = 117_188, 512_000
        data = {"data": "data/c4/train.bin", "validation": "data/c4/validation.bin", "dtype": "uint16"}
        options = {"size": "gpt2-small", "heads": 16, "context": 1024, "vocab_size": 32128} | data
        sweep = experiment(Choice(name="text", options=options), optimizers, (size,), budgets=(STEPS * size,),
                           micro_batch_size=128, precision="bfloat16")  # fmt: skip
        trunk = sweep.replace(optimizers=(Choice(name="adamw"),), batch_sizes=(512,), budgets=(before,), lrs=(1e-3,),
                              keep=(before,))  # fmt: skip
    source = "table of steps, read in a summary; ratios agree with the abstract"
    full, linear = (f"gauss_newton(variant={name})" for name in VARIANTS[:2])
    same = lower_loss(full, linear, size, "prox-linear is like full Gauss-Newton", "read in a summary")
    return PaperRecipe(
        title=f"Gauss-Newton: losses after a few steps of a very large batch{', one checkpoint' if checkpoint else ''}",
        paper="Abreu et al. 2025, arXiv 2510.09378",
        protocol=(f"one checkpoint of AdamW after {before:,} examples; from it " if checkpoint else "")
        + f"Gauss-Newton (full, prox-linear, layerwise; Muon inside), SOAP, Muon and AdamW: {STEPS} steps of one large "
        "batch, learning rate searched for each",
        deviations=(
            "the step of the paper's checkpoint is not known; optimizers start without state"
            if checkpoint
            else "every run starts from fresh weights, the paper's from one checkpoint after a warmup with AdamW",
            "the line search takes half of the batch; that of the paper takes further examples",
            "losses after equal steps in place of steps to one loss",
            *([] if checkpoint or not tiny else ["six seeds, as the intervals of three held both answers"]),
            *(["bytes of a small text; inner batches of 8"] if tiny else ["one batch size, constant learning rates"]),
        ),
        runs=(RecipeRun(name="trunk", sweep=trunk), RecipeRun(name="text", sweep=sweep.replace(after="trunk")))
        if checkpoint
        else (RecipeRun(name="text", sweep=sweep),),
        analyses={"budget": asks("budget", "text")},
        expectations=(
            *(lower_loss(full, other, size, published, source) for other, published in BELOW.items()),
            replace(same, claim=f"full and prox-linear end within .05 at batch size {size}",
                    relation=Near((0.0,), 0.05)),
        ),
        figure="budget_losses",
        minutes=7.0 if tiny else None,
    )  # fmt: skip
