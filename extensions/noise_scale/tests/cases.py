"""What general tests know of this extension."""

from cbs.noise_scale.geometries import GEOMETRIES
from cbs.noise_scale.sources import SOURCES
from cbs.optimizers import OPTIMIZERS
from cbs.workloads import WORKLOADS
from tests.cases import PRESENT, Flags, answer

FLAGS = {
    "noise-scale": Flags(
        {
            "extensions.noise_scale.measuring.measure": dict,
            "extensions.noise_scale.measuring.check": answer,
            "extensions.noise_scale.measuring.one_step": answer,
            **PRESENT,
        },
        cases={
            "--optim": (["--optim", "muon"], "optimizer='muon'"),
            "--geometry": (["--geometry", "l1", "--geometry", "nuclear"], "geometries=['l2', 'l1', 'nuclear']"),
            "--wide": (["--wide"], "wide=True"),
            "--check": (["--check"], "check(workload="),
            "--one-step": (["--one-step"], "one_step(workload="),
            "--from-checkpoint": (
                ["--one-step", "--from-checkpoint", "some.pt"],
                "from_checkpoint=PosixPath('some.pt')",
            ),
            "--json": (["--json"], "printed: {}"),
        },
    )
}

MISTAKES = [
    (["noise-scale", "--optim", "sgd(momentun=.9)"], ["momentun", "did you mean 'momentum'"]),
    (["noise-scale", "--optim", "merti"], ["merti", "did you mean merit"]),
    (["noise-scale", "--workload", "txt"], ["txt", "did you mean text"]),
    (["noise-scale", "--probe", "splt"], ["splt", "did you mean split"]),
    (["noise-scale", "--probe", "none"], ["none", "split"]),
    (["noise-scale", "--geometry", "l3"], ["l3", "did you mean"]),
    (["noise-scale", "--parts", "1"], ["parts", "at least 2"]),
    (["noise-scale", "--steps", "8"], ["8 steps", "4 phases"]),
    (["noise-scale", "--phases", "0"], ["phases"]),
    (["noise-scale", "--batch-size", "0"], ["batch sizes"]),
    (["noise-scale", "--lr", "-1"], ["lr"]),
    (["noise-scale", "--confidence", "95"], ["confidence must be between 0 and 1"]),
    (["noise-scale", "--resamples", "200"], ["--resamples", "leave it out"]),
    (["noise-scale", "--set", "max_step=3"], ["max_step"]),
]

NAMES = [
    ("noise-scale", "--workload", WORKLOADS),
    ("noise-scale", "--optim", OPTIMIZERS),
    ("noise-scale", "--probe", SOURCES),
    ("noise-scale", "--geometry", GEOMETRIES),
]
"""What a flag takes, which its help names."""

ASKING = {"GEOMETRIES": "noise-scale --probe split(geometry=mine)", "SOURCES": "noise-scale --probe mine"}
CALLS: dict[str, list[str]] = {"noise-scale": []}  # It reads no folder
BESIDE_A_SWEEP = ["noise-scale"]
