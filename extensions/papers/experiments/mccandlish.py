"""McCandlish et al. (2018): noise scale beside critical batch size, autoencoders, and the temperature of training."""

from typing import Any

from cbs.registry.choices import Choice
from cbs.trial.config import EvaluationPlan
from extensions.papers.experiments import (
    PAPERS,
    Beyond,
    Expectation,
    Measured,
    Monotone,
    Near,
    OurNumber,
    PaperRecipe,
    RecipeRun,
    asks,
    nth,
    only,
)
from extensions.papers.experiments.parts import AUTO, PROBE, TEXT, classifier, experiment, fitted, one_run
from sweeps.spec.lengths import ScheduleRule

PAPER = "McCandlish et al. 2018, arXiv 1812.06162"
SOURCE = "read in two summaries with equation numbers"
LRS = tuple(0.02 * 2.0**power for power in range(5))


@PAPERS.register("mccandlish-temperature")
def temperature(scale: str) -> PaperRecipe:
    """Measure the noise scale at constant learning rates and at batch sizes that both span a factor of 16."""
    tiny = scale == "tiny"
    probe = Choice(name="auto", options={"every": 1})
    deviations = [
        "every run has its own learning rate and equally many steps, enough to be stationary; with equal examples "
        "instead, as first planned, the large batches were not, and nothing followed 1/T"
    ]
    if tiny:
        workload = Choice(name="noisy_quadratic", options={"dimension": 400, "spectrum_power": 0})
        sizes, steps = (16, 64, 256), 3_000
        deviations.append("noisy quadratic with 400 equal curvatures, not SVHN")
    else:
        workload = Choice(name="images", options={"model": "cnn", "data": "data/svhn"})
        sizes, steps = (32, 128, 512), 40_000
    sweep = experiment(workload, ("sgd(momentum=0)",), sizes, target=0.0, max_steps=steps, max_examples=0, lrs=LRS,
                       prune_factor=None, probe=probe)  # fmt: skip

    def power(of: str, value: float, claim: str) -> Expectation:
        def measured(result: Any) -> Measured:
            law = nth(result.laws, 0)
            return Measured(of, getattr(law, of), {"unsettled": law.unsettled})

        return Expectation(
            claim=claim, published="LR/B lowered 16-fold raises B_simple about 16-fold; B at a fixed LR/B leaves it",
            source=f"appendix C, {SOURCE}", relation=Near((value,), 0.2),
            ours=(OurNumber(question="temperature", of=measured),),
        )  # fmt: skip

    return PaperRecipe(
        title="temperature: the noise scale goes as batch size over learning rate",
        paper=PAPER,
        protocol="SGD without momentum at five learning rates and three batch sizes, each for the same steps; the "
        "noise scale of the second half of every run",
        deviations=tuple(deviations),
        runs=(one_run("grid", sweep, tiny, model=classifier("cnn", 10, 3, 32, "none")),),
        analyses={"temperature": asks("theory temperature", "grid")},
        expectations=(
            power("lr", -1.0, "at a fixed batch size B_simple goes as 1/LR"),
            power("batch_size", 1.0, "at a fixed learning rate B_simple goes as B"),
            power("temperature", -1.0, "B_simple goes as 1/T, T = LR/B"),
        ),
        figure="temperature",
        minutes=3.0 if tiny else None,
    )


@PAPERS.register("mccandlish-lm")
def language_model(scale: str) -> PaperRecipe:
    """Compare B_crit and B_simple of a language model at three losses of the same runs."""
    tiny = scale == "tiny"
    targets = (3.0, 2.8, 2.6) if tiny else (5.0, 4.5, 4.2)
    if tiny:
        workload, sizes = TEXT, tuple(2**k for k in (1, 2, 3, 5, 7))
        limits = {"max_steps": 1500, "max_examples": 60_000, "expected": (120.0, 4_500.0), "probe": PROBE}
        # the easier losses are passed early, when evaluations for the hardest one are still far apart
        limits |= {"schedule": ScheduleRule(warmup_steps=2), "evaluation": EvaluationPlan(far_growth=1.1)}
    else:
        data = {"data": "data/lm1b/train.bin", "validation": "data/lm1b/heldout.bin", "dtype": "uint16"}
        options = {"width": 1024, "layers": 2, "context": 20, "vocab_size": 40_000, **data}
        workload, sizes = Choice(name="lstm", options=options), tuple(2**k for k in range(5, 16, 2))
        limits = {"max_steps": 50_000, "max_examples": 100_000_000, "expected": (5_000.0, 2e7), "probe": AUTO}
    sweep = experiment(workload, ("adamw",), sizes, target=targets[-1], seeds=(0, 1), **limits)
    return PaperRecipe(
        title="language model: noise scale beside critical batch size, along the loss",
        paper=PAPER,
        protocol="Adam to the hardest of three losses at every batch size, learning rate searched at each; the easier "
        "losses are read off the same runs",
        deviations=(
            "a Transformer on bytes of a small text, not an LSTM on the Billion Word Benchmark",
            "the noise scale is measured every second step; measured as rarely as in a long run, as first planned, it "
            "had no interval",
            "batch sizes from 2 to 128, two steps of warmup and frequent evaluations; from 4 to 512, as first planned, "
            "the critical ones of the easier losses lay below them",
        )
        if tiny
        else ("two layers of width 1024; those of the paper have 1024 and 512",),
        runs=(RecipeRun(name="text", sweep=sweep),),
        analyses={"analyze": asks("analyze", "text", targets=targets, every_figure=True)},
        expectations=(
            Expectation(
                claim="steps and examples lie on the hyperbola: the exponent of the curve is 1",
                published="(S/S_min - 1)(E/E_min - 1) = 1", source=f"equation 2.11, {SOURCE}",
                relation=Near((1.0,), 0.15),
                ours=(fitted("exponent", optimizer="adamw", target=targets[-1]),),
            ),
            Expectation(
                claim="the critical batch size rises as the loss falls",
                published="Billion Word: 700 tokens at the start, 100,000 on average", source=f"table 1, {SOURCE}",
                relation=Monotone(),
                ours=tuple(fitted("critical", optimizer="adamw", target=t) for t in targets),
            ),
            Expectation(
                claim="the noise scale is the critical batch size, up to a small factor",
                published="Billion Word: B_simple 150,000, B_crit 100,000 tokens: 1.5",
                source=f"table 1, {SOURCE}; a factor of 3 either way is taken for small",
                relation=Near((5 / 3,), 4 / 3),
                ours=(fitted("noise_scale_ratio", optimizer="adamw", target=targets[-1]),),
            ),
        ),
        figure="pareto",
        minutes=8.0 if tiny else None,
    )  # fmt: skip


@PAPERS.register("mccandlish-adaptive")
def adaptive(scale: str) -> PaperRecipe:
    """Compare a batch size that follows the noise scale with the Pareto front of constant batch sizes."""
    tiny = scale == "tiny"
    options = {"price": 64, "cap": 512, "measurements": 25} if tiny else {"price": 500, "cap": 8192}
    rule = Choice(name="noise_rule", options=options)
    about = {"batch_schedules": (Choice(name="constant"), rule), "probe": PROBE if tiny else AUTO}
    if tiny:
        sweep = experiment(TEXT, ("adamw",), (8, 32, 128, 512), target=2.6, seeds=(0, 1, 2), max_steps=1_500,
                           max_examples=60_000, expected=(120.0, 4_500.0), **about)  # fmt: skip
    else:
        workload = Choice(name="images", options={"model": "cnn", "data": "data/svhn"})
        sweep = experiment(workload, ("sgd",), tuple(2**k for k in range(4, 14)), target=0.4, max_steps=20_000,
                           max_examples=5_000_000, expected=(1_000.0, 5e5), **about)  # fmt: skip
    first = sweep.axes.batch_sizes[0]

    def gamma(result: Any) -> Measured:
        gain = only(result.entries, batch_size=first).comparison
        return Measured("gamma", None if gain is None else gain.gamma)

    return PaperRecipe(
        title="adaptive batch size: what following the noise scale buys",
        paper=PAPER,
        protocol="B = sqrt(r B_simple) from the noise scale measured during the run, and constant batch sizes, to one "
        "target; gamma is 1 on the Pareto front of constant batch sizes and below 1 for a run that beats them all",
        deviations=("B_simple is the lower end of its interval", *(["bytes of a small text"] if tiny else [])),
        runs=(one_run("runs", sweep, tiny, model=classifier("cnn", 10, 3, 32, "none")),),
        analyses={"judge": asks("schedule judge", "runs")},
        expectations=(
            Expectation(
                claim="following the noise scale gains little: gamma is near .96",
                published="gamma = 24/25 for SVHN, where B_crit grows as the root of the steps",
                source=f"appendix D, {SOURCE}", relation=Near((0.96,), 0.25),
                ours=(OurNumber(question="judge", of=gamma),),
            ),
        ),
        figure="schedule_front",
        minutes=9.0 if tiny else None,
    )  # fmt: skip


PUBLISHED = {"autoencoder": (2, 40), "vae": (10, 200)}  # B_simple and B_crit on SVHN, each averaged over a run

# Target losses in the units of the workloads; not from the paper
TARGETS = {"tiny": {"autoencoder": 0.03, "vae": 16.0}, "paper": {"autoencoder": 0.02, "vae": 600.0}}


@PAPERS.register("mccandlish-autoencoders")
def autoencoders(scale: str) -> PaperRecipe:
    """Compare the noise scales of an autoencoder and a variational autoencoder with their critical batch sizes."""
    tiny, runs = scale == "tiny", []
    for name, target in TARGETS[scale].items():
        about = {"target": target, "probe": PROBE if tiny else AUTO}
        if tiny:
            sweep = experiment(Choice(name=name), ("adam",), tuple(2**k for k in range(1, 10)), seeds=(0, 1, 2),
                               max_steps=3_000, max_examples=60_000, expected=(150.0, 3_000.0), **about)  # fmt: skip
        else:
            options = {"data": "data/svhn", "width": 1024, "code": 64}
            sweep = experiment(Choice(name=name, options=options), ("adam",), tuple(2**k for k in range(12)),
                               max_steps=50_000, max_examples=5_000_000, expected=(3_000.0, 1e5), **about)  # fmt: skip
        runs.append(one_run(name, sweep, tiny))
    return PaperRecipe(
        title="autoencoders: the noise scale lies below the critical batch size",
        paper="McCandlish et al. 2018, arXiv 1812.06162",
        protocol="Adam to one loss at every batch size, learning rate searched at each; noise scales of the same runs",
        deviations=(
            "fully connected layers; other targets than the paper's, which could not be read",
            *(["patches of a photo in place of SVHN", "every batch size of 2 to 512 on three seeds; five sizes on two, "
               "as first planned, left both answers open"] if tiny else []),
        ),
        runs=tuple(runs),
        analyses={f"analyze_{run.name}": asks("analyze", run.name) for run in runs}
        | {"both": asks("analyze", ".", every_figure=True)},
        expectations=tuple(
            Expectation(
                claim=f"B_simple of the {name} is smaller than its critical batch size",
                published=f"SVHN {name}: B_simple {simple}, B_crit {critical}: {simple / critical:g}",
                source="table 1, averages of a run, read in summaries", relation=Beyond(1.0, above=False),
                ours=(fitted("noise_scale_ratio", question=f"analyze_{name}"),),
            )
            for name, (simple, critical) in PUBLISHED.items()
        ),
        figure="noise_against_critical",
        minutes=5.0 if tiny else None,
    )  # fmt: skip
