"""Umeda, Iiduka (2025): batch sizes and learning rates that grow together, or batch sizes as gradients get smaller."""

from __future__ import annotations

from cbs.registry.choices import Choice, parse_choice
from extensions.papers.experiments import PAPERS, Beyond, Expectation, Monotone, PaperRecipe
from extensions.papers.experiments.base import asks
from extensions.papers.experiments.parts import PROBE, classifier, experiment, one_run, schedule_less

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
        reading = schedule_less(shown[name], first, size)
        return Expectation(claim=claim, published=published, source=SOURCE, relation=Beyond(0.0, above=False),
                           ours=(reading,))  # fmt: skip

    return PaperRecipe(
        title="growing batch sizes: a smaller gradient at equal examples",
        paper="Umeda, Iiduka 2025, arXiv 2508.05297",
        protocol="SGD without momentum over equal examples: two constant batch sizes, and one that doubles three times "
        "with the learning rate growing by 1.4 or not at all; the norm of the gradient over fixed training examples",
        deviations=(RATES, SMALL if tiny else "ResNet-18 alone, without the wide residual network"),
        runs=(one_run("images", sweep, tiny, **PUBLISHED),),
        analyses={"losses": asks("schedule judge", "images", metric="gradient_norm")},
        expectations=(
            below("growth", first, "growing both ends at a smaller gradient than the first batch size throughout",
                  "norm .1 after 2,050,016 examples from batch size 8, doubled, 2,750,000 at 8 throughout"),
            below("growth", 8 * first, "and at a smaller one than the last batch size throughout",
                  "norm .1 after 2,050,016 examples from batch size 8, doubled, 5,755,520 at 128 throughout"),
        ),
        figure="schedule_losses",
        minutes=5.0 if tiny else None,
    )  # fmt: skip


GAMMAS, DELTAS = (1.1, 1.2, 1.3, 1.4), (2, 3, 4)
GUIDELINE = "repository hikarumeda1030/tracking_cbs, README of the additional experiments"


@PAPERS.register("growth-adaptive")
def adaptive(scale: str) -> PaperRecipe:
    """Let batch size and learning rate grow when the gradient falls below a threshold."""
    tiny = scale == "tiny"
    first, budget, norm = (8, 24_000, 1.0) if tiny else (8, 10_000_000, 0.5)
    options = {"first_norm": norm, "delta": 2, "gamma": 1.4} | ({"measurements": 25, "cap": 64} if tiny else {})
    rule = Choice(name="growth_by_gradient", options=options)
    sweep = experiment(
        workload(tiny), ("sgd(momentum=0)",), (first, 8 * first), budgets=(budget,), seeds=(0, 1, 2),
        batch_schedules=(Choice(name="constant"), rule), metrics=("gradient_norm",),
        probe=PROBE if tiny else Choice(name="auto", options={"every": 10}),
    )  # fmt: skip
    return PaperRecipe(
        title="batch sizes that grow as the gradient falls, at equal examples",
        paper="Umeda, Iiduka 2025, arXiv 2508.05302",
        protocol="SGD without momentum over equal examples: two constant batch sizes, and one that doubles, with a "
        "learning rate 1.4 times as large, whenever the norm of the gradient is below a threshold that falls as the "
        "root of the batch size",
        deviations=(
            "the gradient norm is the upper end of an interval estimated from the gradients of the steps; the paper "
            "computes it from all data every 1,000 steps",
            RATES,
            *([SMALL, f"a first threshold of {norm:g}; the example of the code has .5"] if tiny else []),
        ),
        runs=(one_run("images", sweep, tiny, **PUBLISHED),),
        analyses={"losses": asks("schedule judge", "images", metric="gradient_norm")},
        expectations=tuple(
            Expectation(
                claim=f"it ends at a smaller gradient than batch size {size} throughout",
                published="the growing batch size reaches a smaller norm of the full gradient",
                source="code of the paper and its summary; the tables could not be read",
                relation=Beyond(0.0, above=False), ours=(schedule_less("growth_by_gradient", first, size),),
            )
            for size in (first, 8 * first)
        ),
        figure="schedule_losses",
        minutes=5.0 if tiny else None,
    )  # fmt: skip


@PAPERS.register("growth-ablation")
def ablation(scale: str) -> PaperRecipe:
    """Compare growth of the learning rate by 1.1 to 1.4, of the batch size by 2 to 4, and lengths of the stages."""
    tiny = scale == "tiny"
    first, budget = (8, 12_000) if tiny else (16, 10_000_000)
    stage, lengths = budget // 15, (0.0, 1.5)
    settings = [(2, gamma, 1.0) for gamma in GAMMAS] + [(delta, 1.4, 1.0) for delta in DELTAS[1:]]
    settings += [(2, 1.4, power) for power in lengths]
    names = [f"growth(delta={d}, gamma={g:g}, stage_power={p:g})" for d, g, p in settings]
    given = [f"{name[:-1]}, first_examples={stage})" for name in names]
    sweep = experiment(
        workload(tiny), ("sgd(momentum=0)",), (first,), budgets=(budget,), lrs=(0.1,),
        seeds=tuple(range(6 if tiny else 3)),
        batch_schedules=tuple(map(parse_choice, ("constant", *given))), metrics=("gradient_norm",),
    )  # fmt: skip
    readings = {name: schedule_less(name, first, first) for name in names}
    return PaperRecipe(
        title="growing batch sizes: the learning rate as the root of the batch size",
        paper="Umeda, Iiduka 2025, arXiv 2508.05297",
        protocol="SGD without momentum over equal examples; the batch size grows by 2, 3 or 4 a stage, the learning "
        "rate by 1.1 to 1.4, stages as long as the last one or longer; the norm of the gradient at the end",
        deviations=(
            "delta 2 with gamma 2, the paper's control, diverges by its own theorem and is refused; no Adam",
            *([SMALL, "a first run searched initial learning rates, and the best one lay at the edge"] if tiny else []),
        ),
        runs=(one_run("images", sweep, tiny, **PUBLISHED),),
        analyses={"losses": asks("schedule judge", "images", metric="gradient_norm")},
        expectations=(
            Expectation(
                claim="with doubling batch sizes the gradient ends smaller the nearer gamma is to the root of 2",
                published="delta = gamma^2 is the guideline", source=GUIDELINE, relation=Monotone(rising=False),
                ours=tuple(readings[name] for name in names[: len(GAMMAS)]),
            ),
            Expectation(
                claim="with gamma 1.4 the gradient ends larger the further delta is above gamma^2",
                published="delta = gamma^2 is the guideline", source=GUIDELINE, relation=Monotone(),
                ours=tuple(readings[names[place]] for place in (3, 4, 5)),
            ),
        ),
        figure="schedule_losses",
        minutes=5.0 if tiny else None,
    )  # fmt: skip
