"""McCandlish et al. (2018): autoencoders, whose noise scale stays small."""

from __future__ import annotations

from cbs.registry.choices import Choice
from extensions.papers.experiments import PAPERS, Beyond, Expectation, PaperRecipe
from extensions.papers.experiments.parts import AUTO, PROBE, experiment, fitted, one_run

PUBLISHED = {"autoencoder": (2, 40), "vae": (10, 200)}
"""B_simple and B_crit on SVHN, each averaged over a run."""

TARGETS = {"tiny": {"autoencoder": 0.03, "vae": 16.0}, "paper": {"autoencoder": 0.02, "vae": 600.0}}
"""Target losses in the units of the workloads; not from the paper."""


@PAPERS.register("mccandlish-autoencoders")
def autoencoders(scale: str) -> PaperRecipe:
    """Compare the noise scales of an autoencoder and a variational autoencoder with their critical batch sizes."""
    tiny, runs = scale == "tiny", []
    for name, target in TARGETS[scale].items():
        about = {"target": target, "probe": PROBE if tiny else AUTO}
        if tiny:
            sweep = experiment(Choice(name=name), ("adam",), (2, 8, 32, 128, 512), seeds=(0, 1), max_steps=3_000,
                               max_examples=60_000, expected=(150.0, 3_000.0), **about)  # fmt: skip
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
            *(["patches of a photo in place of SVHN"] if tiny else []),
        ),
        runs=tuple(runs),
        analyses={f"analyze_{run.name}": f"analyze {{{run.name}}}" for run in runs} | {"both": "analyze {output}"},
        expectations=tuple(
            Expectation(
                claim=f"B_simple of the {name} is smaller than its critical batch size",
                published=f"SVHN {name}: B_simple {simple}, B_crit {critical}: {simple / critical:g}",
                source="table 1, averages of a run, read in summaries", relation=Beyond(1.0, above=False),
                ours=(fitted("simple_noise_scale_ratio", analysis=f"analyze_{name}"),),
            )
            for name, (simple, critical) in PUBLISHED.items()
        ),
        figure="noise_against_critical",
        minutes=5.0 if tiny else None,
    )  # fmt: skip
