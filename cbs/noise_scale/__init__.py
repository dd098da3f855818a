"""The gradient noise scale: sources, geometries, averages with intervals, and the drop-in for any training loop.

Names are imported when they are asked for, so that readers of results can use the intervals without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cbs.noise_scale.averages import Estimate as Estimate
    from cbs.noise_scale.averages import MomentAverages as MomentAverages
    from cbs.noise_scale.geometries import GEOMETRIES as GEOMETRIES
    from cbs.noise_scale.meter import NoiseScaleMeter as NoiseScaleMeter
    from cbs.noise_scale.probe import Probe as Probe
    from cbs.noise_scale.sources import SOURCES as SOURCES
    from cbs.optimizers.matching import matched as matched

_HOMES = {
    "GEOMETRIES": "cbs.noise_scale.geometries",
    "SOURCES": "cbs.noise_scale.sources",
    "Estimate": "cbs.noise_scale.averages",
    "MomentAverages": "cbs.noise_scale.averages",
    "NoiseScaleMeter": "cbs.noise_scale.meter",
    "Probe": "cbs.noise_scale.probe",
    "matched": "cbs.optimizers.matching",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cbs.noise_scale' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
