"""Batch sizes that grow: late or at cuts of the learning rate (Wang et al. 2026, Meterez et al. 2025), as the gradient
falls (Umeda, Iiduka 2025), and by the noise scale in the optimizer's own geometry (Naganuma et al. 2026)."""

from typing import Any

from cbs.registry.choices import Choice, parse_choice
from extensions.papers.experiments import (
    PAPERS,
    Beyond,
    Expectation,
    Monotone,
    Near,
    PaperRecipe,
    PublishedRelation,
    RecipeRun,
    asks,
)
from extensions.papers.experiments.parts import (
    C4,
    PROBE,
    TEXT,
    classifier,
    experiment,
    one_run,
    schedule_less,
    steps_saved,
)
from sweeps.spec.lengths import ScheduleRule

# Of the training at which the batch size switches, as in the paper
SHARES = (0.25, 0.5, 0.75, 0.9)
SOURCE_LATE_SWITCH = "1.1B mixture of experts on 1T tokens, 1024 to 2560; read in two summaries"


@PAPERS.register("late-switch")
def late_switch(scale: str) -> PaperRecipe:
    """Switch once from a small to a large batch size, after a quarter to nine tenths of the examples."""
    tiny = scale == "tiny"
    small, large = (16, 128) if tiny else (1024, 2560)
    names = [f"late_switch(at={share:g}, to={large})" for share in SHARES]
    about = {"batch_schedules": tuple(map(parse_choice, ("constant", *names)))}
    if tiny:
        sweep = experiment(TEXT, ("adamw",), (small, large), budgets=(16_000,), seeds=(0, 1, 2), **about)
    else:
        options = {"size": "gpt2-large", "context": 1024, **C4, "vocab_size": 32128}
        sweep = experiment(Choice(name="text", options=options), ("adamw",), (small, large), budgets=(24_000_000,),
                           precision="bfloat16", **about)  # fmt: skip
    shown = [f"late_switch(at={share:g})" for share in SHARES]

    def against_large(claim: str, published: str, places: tuple[int, ...], relation: PublishedRelation) -> Expectation:
        readings = tuple(schedule_less(shown[place], small, large) for place in places)
        return Expectation(
            claim=claim, published=published, source=SOURCE_LATE_SWITCH, relation=relation, ours=readings
        )

    return PaperRecipe(
        title="late switching: how late the batch may grow",
        paper="Wang et al. 2026, arXiv 2602.14208",
        protocol=f"a constant learning rate; the batch size goes from {small} to {large} after 25, 50, 75 or 90 % of "
        "the examples, compared with both constant batch sizes",
        deviations=(("bytes of a small text",) if tiny else ("a dense model of 770M in place of the 1.1B mixture",)),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"losses": asks("schedule judge", "text")},
        expectations=(
            against_large("a switch at 75 % ends below the large batch size throughout", "75 % beats the constant 2560",
                          (2,), Beyond(0.0, above=False)),
            against_large("the later the switch, the lower the loss", "75 % beats 25 %", (0, 1, 2),
                          Monotone(rising=False)),
        ),
        figure="schedule_losses",
        minutes=6.0 if tiny else None,
    )  # fmt: skip


SOURCE_SEESAW = "Meterez et al. 2025, table of final losses, read in a summary with the pseudocode"
QUARTER = ScheduleRule(name="quarter_cosine")


@PAPERS.register("seesaw")
def seesaw(scale: str) -> PaperRecipe:
    """Compare Seesaw with cuts of two sizes to a cosine decay, from batch sizes below and above the critical one."""
    tiny = scale == "tiny"
    below, above = (8, 128) if tiny else (256, 1024)
    schedules = tuple(map(parse_choice, ("constant", "seesaw(alpha=1.1)", "seesaw(alpha=2)")))
    about = {"schedule": QUARTER, "batch_schedules": schedules}
    if tiny:
        sweep = experiment(TEXT, ("adamw",), (below, above), budgets=(16_000,), seeds=(0, 1, 2), **about)
    else:
        options = {"size": "gpt2-small", "context": 1024, **C4, "vocab_size": 32128}
        sweep = experiment(Choice(name="text", options=options), ("adamw",), (below, above), budgets=(2_930_000,),
                           precision="bfloat16", **about)  # fmt: skip
    margin = 0.03 if tiny else 0.01
    return PaperRecipe(
        title="Seesaw: the loss of a falling learning rate in fewer steps",
        paper="Meterez et al. 2025, arXiv 2510.14717",
        protocol="a learning rate that falls as a quarter of a cosine wave, against Seesaw, which multiplies the batch "
        "size where the rate would be cut; equal examples, learning rate searched for each",
        deviations=(
            ("bytes of a small text; losses scatter by .01 to .02, so equal means within .03 nats",)
            if tiny
            else ("GPT-2 small in place of the 150M model of the paper",)
        ),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"losses": asks("schedule judge", "text")},
        expectations=(
            Expectation(
                claim=f"from batch size {below}, below the critical one, the final loss is the same",
                published="150M, cosine and Seesaw: 3.0353 and 3.0346 at B 256; 3.0282 and 3.0208 at B 128",
                source=SOURCE_SEESAW, relation=Near((0.0,), margin),
                ours=(schedule_less("seesaw(alpha=1.1)", below, below),),
            ),
            Expectation(
                claim=f"from batch size {above}, above the critical one, the final loss is higher",
                published="150M: 3.1214 and 3.1318 at B 1024", source=SOURCE_SEESAW, relation=Beyond(0.0),
                ours=(schedule_less("seesaw(alpha=1.1)", above, above),),
            ),
            steps_saved("seesaw(alpha=2)", below, below, 0.22, "22 % by the closed form", "derived from the schedule"),
            steps_saved("seesaw(alpha=1.1)", below, below, 0.35, "36 % as alpha goes to 1", "Meterez et al., abstract"),
        ),
        figure="schedule_losses",
        minutes=5.0 if tiny else None,
    )  # fmt: skip


SOURCE_GROWTH = "repository kamoke1207/momentum-increasing-batch-size of the same group, ResNet-18 on CIFAR-100 with " \
    "momentum; the tables of 2508.05297 could not be read"  # fmt: skip


def workload(tiny: bool) -> Choice:
    """Return LeNet on glyphs at the tiny scale, ResNet-18 on CIFAR-100 at the paper's."""
    if tiny:
        return Choice(name="images", options={"model": "lenet", "image_size": 16})
    return Choice(name="images", options={"model": "resnet18", "norm": "batch", "data": "data/cifar100"})


PUBLISHED: dict[str, Any] = {"model": classifier("resnet18", 100, 3, 32), "parameters": 11.2e6}
SMALL = "glyphs and LeNet in place of CIFAR-100 and ResNet-18"
# At the rates of the least validation loss, or of the least gradient among those tried, every interval was open: the
# gradient is least at the edge of what such a search tries.
RATE = "a first run searched initial learning rates, and the one that ended at the smallest gradient lay at the edge"


@PAPERS.register("growth")
def growth(scale: str) -> PaperRecipe:
    """Compare constant and doubling batch sizes under SGD without momentum, by the norm of the gradient."""
    tiny = scale == "tiny"
    first, budget = (8, 24_000) if tiny else (16, 10_000_000)
    stage = budget // 15  # four stages that double: 1 + 2 + 4 + 8
    schedules, shown = ["constant", f"growth(first_examples={stage}, delta=2, gamma=1.4)"], "growth"
    if not tiny:  # as in the paper; no statement is about it
        schedules.append(f"growth(first_examples={stage}, delta=2, gamma=1.0001)")
        shown = "growth(gamma=1.4)"
    sweep = experiment(
        workload(tiny), ("sgd(momentum=0)",), (first, 8 * first), budgets=(budget,), lrs=(0.1,),
        seeds=tuple(range(8 if tiny else 3)),
        batch_schedules=tuple(map(parse_choice, schedules)), metrics=("gradient_norm",),
    )  # fmt: skip

    def below(size: int, claim: str, published: str) -> Expectation:
        reading = schedule_less(shown, first, size)
        return Expectation(claim=claim, published=published, source=SOURCE_GROWTH, relation=Beyond(0.0, above=False),
                           ours=(reading,))  # fmt: skip

    return PaperRecipe(
        title="growing batch sizes: a smaller gradient at equal examples",
        paper="Umeda, Iiduka 2025, arXiv 2508.05297",
        protocol="SGD without momentum over equal examples: two constant batch sizes, and one that doubles three times "
        f"with the learning rate growing by 1.4{'' if tiny else ' or not at all'}; the norm of the gradient over fixed "
        "training examples",
        deviations=((SMALL, RATE) if tiny else ("ResNet-18 alone, without the wide residual network",)),
        runs=(one_run("images", sweep, tiny, **PUBLISHED),),
        analyses={"losses": asks("schedule judge", "images", metric="gradient_norm")},
        expectations=(
            below(first, "growing both ends at a smaller gradient than the first batch size throughout",
                  "norm .1 after 2,050,016 examples from batch size 8, doubled, 2,750,000 at 8 throughout"),
            below(8 * first, "and at a smaller one than the last batch size throughout",
                  "norm .1 after 2,050,016 examples from batch size 8, doubled, 5,755,520 at 128 throughout"),
        ),
        figure="schedule_losses",
        minutes=5.0 if tiny else None,
    )  # fmt: skip


# Factors of the learning rate and of the batch size from stage to stage, those of the paper's ablation
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
        workload(tiny), ("sgd(momentum=0)",), (first, 8 * first), budgets=(budget,), lrs=(0.1,),
        seeds=tuple(range(8 if tiny else 3)), batch_schedules=(Choice(name="constant"), rule),
        metrics=("gradient_norm",),
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
            *([SMALL, RATE, f"a first threshold of {norm:g}; the example of the code has .5"] if tiny else []),
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
            *([SMALL, RATE] if tiny else []),
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


SOURCE_NEG = "table of validation losses of the 160M model, ten seeds; LaTeX source"


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
            source=SOURCE_NEG, relation=Beyond(0.0, above=False), ours=(schedule_less(rule, first, size),),
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
