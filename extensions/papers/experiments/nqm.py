"""Zhang et al. (2019): which algorithmic choices matter at which batch sizes, on the noisy quadratic."""

from dataclasses import replace
from typing import Any

from extensions.papers.experiments import PAPERS, Beyond, Expectation, Measured, Near, OurNumber, PaperRecipe, asks
from extensions.papers.experiments.parts import fits

# Last step with a loss above 0.01 at B = 4, 256, 4096, 65536, by optimizer and power of the preconditioner
PUBLISHED = {
    ("sgd", 0.0): (1507367, 25880, 8117, 7309),
    ("sgd", 0.25): (593849, 9312, 1002, 786),
    ("sgd", 0.5): (345591, 5421, 342, 88),
    ("sgd", 0.75): (261782, 4071, 257, 16),
    ("momentum", 0.0): (1499783, 20969, 1280, 208),
    ("momentum", 0.5): (345280, 4572, 293, 21),
    ("ema", 0.0): (227963, 9142, 7506, 7365),
    ("ema", 0.5): (208785, 3350, 195, 89),
}

SOURCE = "the authors' notebook nqm.ipynb, its recurrences and grids evaluated on their own; the paper has curves"


@PAPERS.register("nqm")
def nqm(scale: str) -> PaperRecipe:
    """Compute the table of steps exactly, and test the paper's three statements with finely tuned learning rates."""
    sizes, tuned = (4, 256, 4096, 65536), (4, 64, 1024, 16384, 65536)
    table = {
        f"steps_{o}_{p:g}": asks("theory quadratic --as-published", optimizers=(o,), powers=(p,), batch_sizes=sizes)
        for o, p in PUBLISHED
    }

    def steps_of(result: Any) -> list[Measured]:
        return [Measured("steps", row.steps) for row in result.rows]

    exact = tuple(
        Expectation(
            claim=f"steps to 0.01, {optimizer} with preconditioner h^-{power:g}, B = 4, 256, 4096, 65536",
            published=", ".join(f"{last + 1}" for last in steps),
            source=SOURCE,
            relation=Near(tuple(last + 1.0 for last in steps), 0.0),
            ours=(OurNumber(question=f"steps_{optimizer}_{power:g}", of=steps_of, exact=True),),
        )
        for (optimizer, power), steps in PUBLISHED.items()
    )

    def critical(name: str) -> OurNumber:
        def measured(result: Any) -> list[Measured]:
            return [Measured("critical", fit.critical) for fit in fits(result.fit, name)]

        return OurNumber(question="preconditioned" if "p =" in name else "curves", of=measured, exact=True)

    def over_sgd(claim: str, name: str, above: bool) -> Expectation:
        return Expectation(
            claim=claim, published="curves", source="arXiv 1907.04164, section 3, read in a summary",
            relation=Beyond(1.0, above), ours=(replace(critical(name), over=critical("sgd")),),
        )  # fmt: skip

    return PaperRecipe(
        title="noisy quadratic: steps to a loss of 0.01 against the batch size",
        paper="Zhang et al. 2019, arXiv 1907.04164",
        protocol="closed forms on 10,000 curvatures 1/i, noise equal to the curvature; learning rate, momentum and "
        "average tuned at every batch size, as the notebook does for the table and finely for the curves",
        deviations=("steps are those that reach the target, one more than the notebook returns",),
        analyses=table
        | {
            "curves": asks("theory quadratic", batch_sizes=tuned, figure="steps.png"),
            "preconditioned": asks("theory quadratic", optimizers=("sgd",), powers=(0.5,), batch_sizes=tuned),
        },
        expectations=(
            *exact,
            over_sgd("momentum moves the critical batch size out", "momentum", True),
            over_sgd("preconditioning moves the critical batch size out", "sgd, p = 0.5", True),
            over_sgd("averaging the iterates moves it in", "ema", False),
        ),
        figure="steps",
        minutes=3.0,
    )
