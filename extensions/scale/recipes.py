"""The sweep for the policy ``telescope``."""

from cbs.registry.choices import Choice
from cbs.trial.target import Target
from sweeps.recipes import RECIPES
from sweeps.spec.axes import Axes
from sweeps.spec.spec import SearchPlan, Sweep, prototype


@RECIPES.register("essential_telescope")
def essential_telescope() -> Sweep:
    """Embedded text in muP, batch size 64, target 2.8 nats/byte; for the policy telescope(widths=16..128)."""
    return Sweep(
        name="essential_telescope",
        trial=prototype(
            workload=Choice(name="text", options={"parametrization": "mup", "context": 16}),
            target=Target(metric="validation_loss", value=2.8),
            probe=None,
        ),
        axes=Axes(optimizers=(Choice(name="adamw"), Choice(name="muon")), batch_sizes=(64,)),
        search=SearchPlan(prune_factor=3.0),
        max_steps=400,
        max_examples=0,
    )
