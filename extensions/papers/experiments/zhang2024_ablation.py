"""Zhang et al. (2024), ablations: width against depth, context, beta2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cbs.registry.choices import Choice
from extensions.papers.experiments import PAPERS, Expectation, Near, PaperRecipe, RecipeRun
from extensions.papers.experiments.parts import experiment, fitted, lower_loss
from extensions.papers.experiments.zhang2024 import PAPER

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
    deep = fitted("critical_batch_size", analysis="analyze_deep")
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
        analyses={f"analyze_{name}": f"analyze {{{name}}}" for name in shapes} | {"budget": "budget {betas}"},
        expectations=(
            Expectation(
                claim="deeper or wider, the critical batch size is the same: ratio of the two",
                published="151M to 604M by width or by depth: curves overlap",
                source=SOURCE,
                relation=Near((1.0,), 0.35),
                ours=(replace(deep, over=fitted("critical_batch_size", analysis="analyze_wide")),),
            ),
            lower_loss(BETAS[1], BETAS[0], first, "larger beta2 helps long runs at small batch sizes", SOURCE),
        ),
        figure="steps",
        minutes=9.0 if tiny else None,
    )
