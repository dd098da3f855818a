"""Naganuma et al. (2026): batch sizes that follow the noise scale in the geometry of the optimizer."""

from __future__ import annotations

from cbs.registry.choices import Choice, parse_choice
from extensions.papers.experiments import PAPERS, Beyond, Expectation, PaperRecipe, RecipeRun
from extensions.papers.experiments.base import asks
from extensions.papers.experiments.parts import C4, TEXT, experiment, schedule_less

SOURCE = "table of validation losses of the 160M model, ten seeds; LaTeX source"


@PAPERS.register("neg")
def neg(scale: str) -> PaperRecipe:
    """Compare signSGD with a batch size set from the noise scale in the l1 norm to constant batch sizes."""
    tiny = scale == "tiny"
    first, budget = (16, 16_000) if tiny else (64, 1_562_500)
    rules = tuple(map(parse_choice, (
        "constant", "dual_norm(theta=0.6, measurements=20)", "norm_test(theta=0.3, measurements=20)"
    )))  # fmt: skip
    about = {"batch_schedules": rules, "probe": Choice(name="auto", options={"every": 5})}  # a decision every 100 steps
    if tiny:
        sweep = experiment(TEXT, ("signsgd",), (first, 4 * first), budgets=(budget,), seeds=(0, 1, 2), **about)
    else:
        options = {"size": "llama-130m", "context": 2048, **C4, "vocab_size": 32000}
        sweep = experiment(Choice(name="text", options=options), ("signsgd",), (first, 4 * first), budgets=(budget,),
                           precision="bfloat16", micro_batch_size=32, **about)  # fmt: skip

    def below(rule: str, size: int, published: str) -> Expectation:
        return Expectation(
            claim=f"{rule} from batch size {first} ends below batch size {size} throughout", published=published,
            source=SOURCE, relation=Beyond(0.0, above=False), ours=(schedule_less(rule, first, size),),
        )  # fmt: skip

    return PaperRecipe(
        title="signSGD: batch sizes that follow the noise scale in its own geometry",
        paper="Naganuma et al. 2026, arXiv 2602.03001",
        protocol="signSGD over equal examples: two constant batch sizes, and one that grows where the noise scale asks "
        "for it, in the l1 norm (theta .6) and in the Euclidean norm (theta .3); learning rate searched for each",
        deviations=(
            "the lower end of a noise scale's interval is used; the learning rate is constant",
            *(["bytes of a small text"] if tiny else ["one seed; Llama of 134M parameters"]),
        ),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"losses": asks("schedule judge", "text")},
        expectations=(
            below("dual_norm", first, "3.6817 from 64 against 4.1390 at 64"),
            below("dual_norm", 4 * first, "3.6817 from 64 against 3.9357 at 256"),
            below("norm_test", first, "3.7431 from 64 against 4.1390 at 64"),
        ),
        figure="schedule_losses",
        minutes=6.0 if tiny else None,
    )  # fmt: skip
