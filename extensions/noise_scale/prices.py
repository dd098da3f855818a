"""What the noise scale costs, where a sweep is out of reach."""

from sweeps.outlook.price import CriticalRun, Instead, Price, price

# Steps of `cbs noise-scale`, and the time of a measured step relative to a plain one (GPT-2 small on an H100,
# docs/clusters.md).
NOISE_STEPS, MEASURED_STEP = 256, 1.9


def noise_scale_price(run: CriticalRun, gpu_hour: float | None = None) -> Price | None:
    """Return the price of ``cbs noise-scale`` with its default number of steps, each at B_crit; ``None`` if the steps
    of a run are unknown."""
    if run.steps is None:
        return None
    share = NOISE_STEPS / run.steps
    return price((share, share, share), run, gpu_hour, work=MEASURED_STEP)


INSTEAD = Instead("cbs noise-scale", f"{NOISE_STEPS} measured steps at B_crit", noise_scale_price)
