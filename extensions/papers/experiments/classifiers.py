"""Image classifiers: noise scales (McCandlish et al.), momentum (Zhang et al. 2019), LAMB and LARS at large batches."""

from dataclasses import replace

from cbs.registry.choices import Choice
from cbs.trial.config import EvaluationPlan
from cbs.trial.target import Target
from extensions.papers.experiments import PAPERS, Expectation, Near, PaperRecipe, asks
from extensions.papers.experiments.parts import (
    AUTO,
    FEW,
    PROBE,
    SEEDS,
    classifier,
    excess,
    experiment,
    fitted,
    larger_critical,
    lower_loss,
    one_run,
)
from sweeps.spec.lengths import ScheduleRule

GLYPHS = Choice(name="images", options={"model": "lenet", "image_size": 16})
SCORED_GLYPHS = Choice(name="images", options=GLYPHS.options | {"metric": "accuracy"})


def images(model: str, data: str, **options: str) -> Choice:
    """Return the workload of an image classifier on data in a folder or archive."""
    return Choice(name="images", options={"model": model, "data": data, **options})


# Model, channels, width in pixels, norm, target accuracy; published B_simple over B_crit, averaged over a run
DATA = {
    "mnist": ("cnn", 1, 28, "none", 0.99, 900 / 200),
    "svhn": ("cnn", 3, 32, "none", 0.9, 4_000 / 500),
    "cifar10": ("resnet32", 3, 32, "group", 0.8, 2_000 / 900),
    "imagenet": ("resnet50", 3, 224, "group", 0.6, 30_000 / 15_000),
}


@PAPERS.register("mccandlish-images")
def mccandlish_images(scale: str) -> PaperRecipe:
    """Compare the noise scale of classifiers with their critical batch size."""
    tiny, runs, expectations = scale == "tiny", [], []
    for name, (model, channels, size, norm, accuracy, ratio) in DATA.items():
        target = Target(metric="validation_accuracy", value=accuracy, direction="above")
        sweep = experiment(images(model, f"data/{name}", norm=norm, metric="accuracy"), ("sgd",),
                           tuple(2**k for k in range(4, 14)), target=target, max_steps=20_000,
                           max_examples=10_000_000, probe=AUTO, expected=(2_000.0, 1e6))  # fmt: skip
        built = classifier(model, 1000 if name == "imagenet" else 10, channels, size, norm)
        runs.append(one_run(name, sweep, tiny=False, model=built))
        expectations.append(near_ratio(name, "table 1, read in summaries; within half of it", ratio, ratio / 2))
    if tiny:
        sweep = experiment(GLYPHS, ("sgd",), (4, 16, 64, 256, 512), seeds=(0, 1), max_steps=4_000, max_examples=120_000,
                           expected=(150.0, 5_000.0), probe=PROBE, target=0.5)  # fmt: skip
        runs = [one_run("images", sweep, tiny)]
        expectations = [near_ratio("images", "table 1, read in summaries; a factor of 4 either way is taken for small",
                                   2.125, 1.875)]  # fmt: skip
    curve = Expectation(
        claim="steps and examples lie on the hyperbola: the exponent of the curve is 1",
        published="(S/S_min - 1)(E/E_min - 1) = 1", source="equation 2.11, read in summaries",
        relation=Near((1.0,) * len(runs), 0.2),
        ours=tuple(fitted("exponent", question=f"analyze_{run.name}") for run in runs),
    )  # fmt: skip
    return PaperRecipe(
        title="image classifiers: noise scale beside critical batch size",
        paper="McCandlish et al. 2018, arXiv 1812.06162",
        protocol="SGD with momentum to one target at every batch size, learning rate searched at each",
        deviations=("glyphs and LeNet in place of four data sets",) if tiny else
        ("targets are ours; residual networks of 32 and 50 layers with group norm for CIFAR-10 and ImageNet",),
        runs=tuple(runs),
        analyses={f"analyze_{run.name}": asks("analyze", run.name, every_figure=True) for run in runs},
        expectations=(*expectations, curve),
        figure="pareto",
        minutes=6.0 if tiny else None,
    )  # fmt: skip


def near_ratio(name: str, source: str, value: float, tolerance: float) -> Expectation:
    """Return the statement that the ratio of B_simple to B_crit is near a number."""
    published = "; ".join(f"{each}: {row[-1]:.2g}" for each, row in DATA.items() if name in (each, "images"))
    return Expectation(
        claim="the noise scale is the critical batch size, up to a small factor" + f" ({name})" * (name in DATA),
        published=f"B_simple over B_crit, averages: {published}", source=source,
        relation=Near((value,), tolerance), ours=(fitted("noise_scale_ratio", question=f"analyze_{name}"),),
    )  # fmt: skip


@PAPERS.register("nqm-neural")
def neural(scale: str) -> PaperRecipe:
    """Compare the critical batch sizes of SGD, momentum and Adam on a small convolutional network."""
    tiny = scale == "tiny"
    optimizers = ("sgd(momentum=0)", "sgd(momentum=0.9)", "adam")
    if tiny:
        sweep = experiment(GLYPHS, optimizers, (2, 8, 16, 32, 64, 128), seeds=(0, 1), target=0.7, max_steps=4_000,
                           max_examples=60_000, expected=(200.0, 5_000.0),
                           evaluation=EvaluationPlan(far_growth=1.1))  # fmt: skip
    else:
        target = Target(metric="validation_accuracy", value=0.99, direction="above")
        workload = images("cnn", "data/mnist", metric="accuracy")
        sweep = experiment(workload, optimizers, tuple(2**k for k in range(1, 16)), target=target,
                           max_steps=40_000, max_examples=3_000_000, expected=(1_000.0, 2e5))  # fmt: skip
    return PaperRecipe(
        title="optimizers against batch size on a small network",
        paper="Zhang et al. 2019, arXiv 1907.04164",
        protocol="SGD, momentum and Adam to one target at every batch size, learning rate searched at each",
        deviations=(
            "targets of the paper could not be read",
            "one network; no residual networks and VGG, no averages and K-FAC",
            *(
                [
                    "glyphs in place of MNIST",
                    "batch sizes from 2, often evaluated; from 4, as first planned, that of plain SGD lay below them, "
                    "and without 16 and 64 the curve of momentum looked bent",
                ]
                if tiny
                else []
            ),
        ),
        runs=(one_run("images", sweep, tiny, model=classifier("cnn", 10, 1, 28, "none")),),
        analyses={"compare": asks("compare", "images")},
        expectations=(
            larger_critical("sgd(momentum=0.9)", "sgd(momentum=0)", "momentum extends perfect scaling", "abstract"),
            larger_critical("adam", "sgd(momentum=0)", "preconditioned methods extend perfect scaling", "abstract"),
        ),
        figure="token_ratio",
        minutes=9.0 if tiny else None,
    )


@PAPERS.register("lamb-resnet50")
def lamb_resnet50(scale: str) -> PaperRecipe:
    """Compare LAMB, LARS and momentum after equal epochs at several batch sizes."""
    tiny = scale == "tiny"
    optimizers = ("lamb", "lars", "sgd")
    schedule = ScheduleRule(name="polynomial", options={"power": 1.0})
    if tiny:
        sweep = experiment(SCORED_GLYPHS, optimizers, (512,), budgets=(24_576,), schedule=schedule, **SEEDS)
    else:
        workload = images("resnet50", "data/imagenet", norm="batch", metric="accuracy")
        sweep = experiment(workload, optimizers, tuple(2**k for k in range(9, 16)), budgets=(115_300_000,),
                           schedule=schedule)  # fmt: skip
    large = sweep.axes.batch_sizes[-1]
    return PaperRecipe(
        title="LAMB and LARS: accuracy at equal epochs up to large batches",
        paper="You et al. 2020, arXiv 1904.00962, and 2017, arXiv 1708.03888",
        protocol="equal epochs under a linear decay, learning rate searched at every batch size",
        deviations=(
            "the learning rate is searched; the paper scales it by the square root and lengthens the warmup",
            *(["glyphs and LeNet in place of ImageNet and ResNet-50", FEW] if tiny else []),
        ),
        runs=(one_run("images", sweep, tiny, model=classifier("resnet50", 1000, 3, 224), parameters=25.6e6),),
        analyses={"budget": asks("budget", "images")},
        expectations=(
            higher(
                lower_loss("lamb", "sgd", large, "LAMB holds 76.4 % top-1 at 32K, momentum does not", "from memory")
            ),
            higher(
                lower_loss("lars", "sgd", large, "LARS trains ResNet-50 at 32K without loss of accuracy", "abstract")
            ),
        ),
        figure="budget_losses",
        minutes=5.0 if tiny else None,
    )


def higher(expectation: Expectation) -> Expectation:
    """Return a statement about a loss as one about an accuracy, the negative of which is the loss in ``cbs budget``."""
    return replace(expectation, claim=expectation.claim.replace("below", "above"))


@PAPERS.register("lars")
def lars(scale: str) -> PaperRecipe:
    """Compare LARS and momentum at equal epochs under the quadratic decay of the paper."""
    tiny = scale == "tiny"
    schedule = ScheduleRule(name="polynomial", options={"power": 2.0})
    if tiny:
        sweep = experiment(SCORED_GLYPHS, ("lars", "sgd"), (16, 512), budgets=(16_384,), schedule=schedule,
                           **SEEDS)  # fmt: skip
    else:
        workload = images("resnet50", "data/imagenet", norm="batch", metric="accuracy")
        sweep = experiment(workload, ("lars", "sgd"), (256, 8_192, 16_384, 32_768), budgets=(115_300_000,),
                           schedule=schedule)  # fmt: skip
    large = sweep.axes.batch_sizes[-1]
    return PaperRecipe(
        title="LARS: large batches without loss of accuracy",
        paper="You et al. 2017, arXiv 1708.03888",
        protocol="equal epochs under a quadratic decay, learning rate searched at every batch size",
        deviations=(
            "the learning rate is searched; the paper scales it and warms it up over epochs",
            *(
                ["glyphs and LeNet in place of ImageNet", FEW]
                if tiny
                else ["ResNet-50 alone, without the AlexNet of the paper"]
            ),
        ),
        runs=(one_run("images", sweep, tiny, model=classifier("resnet50", 1000, 3, 224), parameters=25.6e6),),
        analyses={"budget": asks("budget", "images")},
        expectations=(
            Expectation(
                claim=f"LARS at batch size {large} ends within .02 of the accuracy of its best batch size",
                published="AlexNet to 8K and ResNet-50 to 32K without loss of accuracy", source="abstract, from memory",
                relation=Near((0.0,), 0.02), ours=(excess("lars", large),),
            ),
            higher(lower_loss("lars", "sgd", large, "momentum loses accuracy at 8K and beyond", "from memory")),
        ),
        figure="budget_losses",
        minutes=5.0 if tiny else None,
    )  # fmt: skip


@PAPERS.register("lamb-small")
def lamb_small(scale: str) -> PaperRecipe:
    """Compare LAMB with Adam, AdamW and momentum on the small problems of its appendix."""
    tiny = scale == "tiny"
    optimizers = ("lamb", "adam", "adamw(weight_decay=0.01)", "sgd")
    schedule = ScheduleRule(name="linear")
    if tiny:
        sweep = experiment(SCORED_GLYPHS, optimizers, (128,), budgets=(12_288,), seeds=(0, 1, 2), schedule=schedule)
        runs = [one_run("mnist", sweep, tiny)]
    else:
        rows = {
            "mnist": (images("lenet", "data/mnist", metric="accuracy"), 1_024, 30 * 60_000),
            "cifar10": (images("resnet8", "data/cifar10", norm="batch", metric="accuracy"), 512, 24 * 50_000),
        }
        built = {"mnist": classifier("lenet", 10, 1, 28), "cifar10": classifier("resnet8", 10, 3, 32)}
        runs = [
            one_run(name, experiment(workload, optimizers, (size,), budgets=(budget,), seeds=(0, 1, 2, 3, 4),
                                     schedule=schedule), tiny, model=built[name])
            for name, (workload, size, budget) in rows.items()
        ]  # fmt: skip
    wanted = [(run, worse) for run in runs for worse in ("adam", "adamw")]
    return PaperRecipe(
        title="LAMB on small problems: accuracy beside other adaptive methods",
        paper="You et al. 2020, arXiv 1904.00962",
        protocol="LeNet on MNIST for 30 epochs and a residual network on CIFAR-10 for 24, learning rate searched",
        deviations=(
            "glyphs in place of MNIST, and no CIFAR-10"
            if tiny
            else "a residual network of 8 layers in place of DavidNet; batch sizes are ours",
        ),
        runs=tuple(runs),
        analyses={f"budget_{run.name}": asks("budget", run.name) for run in runs},
        expectations=tuple(
            higher(lower_loss("lamb", worse, run.sweep.axes.batch_sizes[-1], f"{run.name}: LAMB ahead of {worse}",
                              "tables of the appendix, from memory", question=f"budget_{run.name}"))
            for run, worse in wanted
        ),
        figure="budget_losses",
        minutes=4.0 if tiny else None,
    )  # fmt: skip
