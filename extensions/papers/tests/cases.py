"""What general tests know of this extension."""

from extensions.papers.experiments import PaperRecipe
from extensions.papers.reproducing.telling import RunPrice
from tests.cases import Flags, answer

PRICE = RunPrice(run="r", parameters=1, published=None, trials=1, examples=1.0, tokens=1.0, flops=1e18)

COMPLETED = ["extensions.papers.experiments"]  # Packages of registries whose names are completed

FLAGS = {
    "reproduce": Flags(
        {
            "extensions.papers.reproducing.reproduce.reproduce": answer,
            "extensions.papers.reproducing.reproduce.recipe_of": lambda *_: PaperRecipe(
                title="t", paper="p", protocol="p"
            ),
            "extensions.papers.reproducing.reproduce.store": None,
            "extensions.papers.reproducing.telling.prices": lambda *_: [PRICE],
            "extensions.papers.reproducing.telling.verdict_lines": list,
            "os.cpu_count": 4,
            "cbs.compute.device.count": 1,
            "sweeps.running.access.check_listening": None,
            "time.monotonic": 0.0,
        },
        base=["nqm"],
        cases={
            "name": (["seesaw"], "'seesaw'"),
            "--record": (["--record", "there"], "there/nqm-tiny.json"),
            "--max-time": (["--max-time", "2h"], "limits=Limits(deadline=7200.0"),
            "--dry-run": (["--dry-run"], "prices("),
            "--tflops": (["--dry-run", "--tflops", "50"], "at 50 TFLOP/s"),
            "--workers-per-trial": (["--workers-per-trial", "2"], "workers_per_trial=2"),
            "--launch": (["--launch", "nice -n 1"], "launch='nice -n 1'"),
            "--json": (["--json"], "to_json("),
        },
    ),
    "recipes": Flags(
        {
            "extensions.papers.reproducing.telling.listing": list,
            "extensions.papers.reproducing.telling.listing_lines": list,
        },
        cases={"--json": (["--json"], "printed: []")},
    ),
    "recipes atlas": Flags({"extensions.papers.reproducing.telling.atlas": 3}),
}
