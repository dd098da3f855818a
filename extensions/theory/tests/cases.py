"""What general tests know of this extension."""

from tests.cases import PRESENT, Flags, answer

FLAGS = {
    "theory quadratic": Flags(
        {
            "extensions.theory.quadratic.quadratic": answer,
            "extensions.theory.quadratic.as_notebook": answer,
            "analysis.present.figures.save_figure": None,
            "extensions.theory.noisy_quadratic.NoisyQuadratic.power_law": answer,
            **PRESENT,
        },
        cases={
            "--optim": (["--optim", "nesterov", "--optim", "ema"], "['nesterov', 'ema']"),
            "--power": (["--power", "0,0.5"], "powers=(0.0, 0.5)"),
            "--batch-sizes": (["--batch-sizes", "8..32"], "batch_sizes=(8, 16, 32)"),
            "--momentum": (["--momentum", "0.75,0.5"], "momenta=(0.75, 0.5)"),
            "--ema": (["--ema", "0.75"], "decays=(0.75,)"),
            "--dimension": (["--dimension", "77"], "power_law(77"),
            "--spectrum-power": (["--spectrum-power", "1.5"], "power=1.5"),
            "--as-published": (["--as-published"], "as_notebook("),
        },
    ),
    "theory temperature": Flags({"extensions.theory.temperature.temperature": answer, **PRESENT}, base=["results"]),
}

CALLS: dict[str, list[str]] = {"theory quadratic": []}  # It reads no folder
