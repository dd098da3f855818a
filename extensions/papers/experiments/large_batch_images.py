"""LARS (2017) and the small experiments of LAMB (2020): accuracy of image classifiers at equal epochs."""

from __future__ import annotations

from cbs.registry.choices import Choice
from extensions.papers.experiments import PAPERS, Expectation, Near, PaperRecipe
from extensions.papers.experiments.base import asks
from extensions.papers.experiments.classifiers import higher, images
from extensions.papers.experiments.parts import FEW, SEEDS, classifier, excess, experiment, lower_loss, one_run
from sweeps.spec.schedule_rule import ScheduleRule

GLYPHS = Choice(name="images", options={"model": "lenet", "image_size": 16, "metric": "accuracy"})


@PAPERS.register("lars")
def lars(scale: str) -> PaperRecipe:
    """Compare LARS and momentum at equal epochs under the quadratic decay of the paper."""
    tiny = scale == "tiny"
    schedule = ScheduleRule(name="polynomial", options={"power": 2.0})
    if tiny:
        sweep = experiment(GLYPHS, ("lars", "sgd"), (16, 512), budgets=(16_384,), schedule=schedule,
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
        sweep = experiment(GLYPHS, optimizers, (128,), budgets=(12_288,), seeds=(0, 1, 2), schedule=schedule)
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
