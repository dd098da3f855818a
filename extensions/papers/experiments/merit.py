"""MERIT (2025): final losses at large batch sizes, and the effect of each part of the optimizer."""

from __future__ import annotations

from cbs.registry.choices import Choice
from extensions.papers.experiments import PAPERS, AnswerPath, Expectation, Near, PaperRecipe, RecipeRun
from extensions.papers.experiments.parts import COSINE, OPENWEBTEXT, TEXT, experiment, lower_loss

PAPER = "MERIT, ICML 2025, arXiv 2508.20577"
SOURCE = "table of validation losses, read in a summary"
UNPUBLISHED = "learning rates, betas, weight decay and warmup are not published: the rate is searched at every batch " \
    "size, betas are (0.9, 0.99), there is no weight decay and the warmup takes ten steps"  # fmt: skip
TINY = "30 thousand parameters on 0.4 MB of text and 16,000 sequences of 32 bytes, not GPT-2 on OpenWebText"
OPTIMIZERS = ("adamw", "lamb", "merit")

MODELS = {
    "small": (125e6, 1024, (3.470, 3.355, 3.280)),
    "medium": (355e6, 4096, (3.172, 3.068, 2.982)),
    "large": (770e6, 8192, (3.039, 2.971, 2.897)),
}
"""Parameters, batch size in sequences of 1024 tokens, and validation losses of AdamW, LAMB and MERIT."""

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
        sweep = experiment(TEXT, OPTIMIZERS, (16, 64, 256), budgets=(16_000,), seeds=(0, 1, 2), schedule=COSINE)
        runs, size = [RecipeRun(name="text", sweep=sweep)], 256
    else:
        runs, size = [at_paper_scale(name, OPTIMIZERS) for name in MODELS], MODELS["large"][1]
    places = [run.name for run in runs]
    losses = "; ".join(f"{name}, B {b}: {' / '.join(map(str, each))}" for name, (_, b, each) in MODELS.items())
    orders = [("merit", "lamb"), ("merit", "adamw"), ("lamb", "adamw")]
    expectations = [
        lower_loss(better, worse, size, f"AdamW / LAMB / MERIT at GPT-2 {losses}", SOURCE,
                   analysis=f"budget_{places[-1]}")
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
            TINY
            if tiny
            else "20 tokens for each parameter, as the paper gives no number; no GPT-2 medium on 48 billion tokens",
        ),
        runs=tuple(runs),
        analyses={f"budget_{name}": f"budget {{{name}}}" for name in places},
        expectations=tuple(expectations),
        figure="budget_losses",
        minutes=4.0 if tiny else None,
    )


def final_loss(name: str, optimizer: str) -> AnswerPath:
    """Return the position of an optimizer's final loss at the only batch size of a run."""
    path = ("budgets", 0, "optimizers", {"optimizer": optimizer}, "sizes", 0, "metric")
    return AnswerPath(analysis=f"budget_{name}", path=path)


@PAPERS.register("merit-ablation")
def merit_ablation(scale: str) -> PaperRecipe:
    """Compare MERIT with variants without clip, lower bound, or row and column ratios, and with Euclidean norms."""
    tiny, optimizers = scale == "tiny", ("merit", *ABLATIONS)
    sweep = experiment(TEXT, optimizers, (256,), budgets=(16_000,), seeds=(0, 1, 2), schedule=COSINE)
    run = RecipeRun(name="small", sweep=sweep) if tiny else at_paper_scale("small", optimizers)
    size = sweep.axes.batch_sizes[0] if tiny else MODELS["small"][1]
    return PaperRecipe(
        title="MERIT: what its clip, its lower bound and its ratios are worth",
        paper=PAPER,
        protocol="as merit-gpt2, GPT-2 small alone, at its one batch size",
        deviations=(UNPUBLISHED, *([TINY] if tiny else [])),
        runs=(run,),
        analyses={"budget": "budget {small}"},
        expectations=tuple(
            lower_loss(
                "merit", other, size, f"3.280 against {loss} (GPT-2 small, B 1024)", "ablations, read in summaries"
            )
            for other, loss in ABLATIONS.items()
        ),
        figure="budget_losses",
        minutes=5.0 if tiny else None,
    )


LLAMAS = {"130m": (134e6, 1024, (3.277, 3.265, 3.199)), "350m": (368e6, 4096, (None, 3.001, 2.957))}
"""Parameters with a vocabulary of 32,000, batch size, and validation losses of AdamW, LAMB and MERIT."""


@PAPERS.register("merit-llama")
def merit_llama(scale: str) -> PaperRecipe:
    """Compare AdamW, LAMB and MERIT on Llama models, at 2.6 billion tokens."""
    tiny = scale == "tiny"
    if tiny:
        workload = Choice(name="text", options={"size": "llama-30k", "corpus": "stdlib"})
        sweep = experiment(workload, OPTIMIZERS, (32, 256), budgets=(12_000,), seeds=(0, 1, 2), schedule=COSINE)
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
        deviations=(UNPUBLISHED, *(["30 thousand parameters on the source of Python's library"] if tiny else [])),
        runs=tuple(runs),
        analyses={f"budget_{run.name}": f"budget {{{run.name}}}" for run in runs},
        expectations=tuple(
            lower_loss("merit", worse, size, losses, SOURCE, analysis=f"budget_{name}") for name, size, worse in orders
        ),
        figure="budget_losses",
        minutes=5.0 if tiny else None,
    )
