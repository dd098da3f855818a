"""Umeda, Iiduka (2025): batch sizes and learning rates that grow together."""

from __future__ import annotations

from cbs.registry.choices import Choice, parse_choice
from extensions.papers.experiments import PAPERS, AnswerPath, Beyond, Expectation, PaperRecipe
from extensions.papers.experiments.parts import classifier, experiment, one_run, schedule_less

SOURCE = "repository kamoke1207/momentum-increasing-batch-size of the same group, ResNet-18 on CIFAR-100 with " \
    "momentum; the tables of 2508.05297 could not be read"  # fmt: skip


def workload(tiny: bool) -> Choice:
    """Return LeNet on glyphs at the tiny scale, ResNet-18 on CIFAR-100 at the paper's."""
    if tiny:
        return Choice(name="images", options={"model": "lenet", "image_size": 16})
    return Choice(name="images", options={"model": "resnet18", "norm": "batch", "data": "data/cifar100"})


PUBLISHED = {"model": classifier("resnet18", 100, 3, 32), "parameters": 11.2e6}
SMALL = "glyphs and LeNet in place of CIFAR-100 and ResNet-18"
RATES = "initial learning rates are those tried by a search for the lowest validation loss, and the one that ends at " \
    "the smallest gradient counts; the paper has 0.1"  # fmt: skip


@PAPERS.register("growth")
def growth(scale: str) -> PaperRecipe:
    """Compare constant and doubling batch sizes under SGD without momentum, by the norm of the gradient."""
    tiny = scale == "tiny"
    first, budget = (8, 24_000) if tiny else (16, 10_000_000)
    stage = budget // 15  # four stages that double: 1 + 2 + 4 + 8
    schedules = {
        "growth": f"growth(first_examples={stage}, delta=2, gamma=1.4)",
        "growth_without_lr": f"growth(first_examples={stage}, delta=2, gamma=1.0001)",
    }
    sweep = experiment(
        workload(tiny), ("sgd(momentum=0)",), (first, 8 * first), budgets=(budget,), seeds=(0, 1, 2),
        batch_schedules=tuple(map(parse_choice, ("constant", *schedules.values()))), metrics=("gradient_norm",),
    )  # fmt: skip
    shown = {name: f"growth(gamma={gamma:g})" for name, gamma in (("growth", 1.4), ("growth_without_lr", 1.0001))}

    def below(name: str, size: int, claim: str, published: str) -> Expectation:
        reading: AnswerPath = schedule_less(shown[name], first, size)
        return Expectation(claim=claim, published=published, source=SOURCE, relation=Beyond(0.0, above=False),
                           ours=(reading,))  # fmt: skip

    return PaperRecipe(
        title="growing batch sizes: a smaller gradient at equal examples",
        paper="Umeda, Iiduka 2025, arXiv 2508.05297",
        protocol="SGD without momentum over equal examples: two constant batch sizes, and one that doubles three times "
        "with the learning rate growing by 1.4 or not at all; the norm of the gradient over fixed training examples",
        deviations=(RATES, SMALL if tiny else "ResNet-18 alone, without the wide residual network"),
        runs=(one_run("images", sweep, tiny, **PUBLISHED),),
        analyses={"losses": "schedule judge {images} --target gradient_norm"},
        expectations=(
            below("growth", first, "growing both ends at a smaller gradient than the first batch size throughout",
                  "norm .1 after 2,050,016 examples from batch size 8, doubled, 2,750,000 at 8 throughout"),
            below("growth", 8 * first, "and at a smaller one than the last batch size throughout",
                  "norm .1 after 2,050,016 examples from batch size 8, doubled, 5,755,520 at 128 throughout"),
        ),
        figure="schedule_losses",
        minutes=5.0 if tiny else None,
    )  # fmt: skip
