"""Every example is a group, but only normalisation layers are watched."""

from __future__ import annotations

from typing import Any

from cbs.errors import ConfigError
from cbs.noise_scale.sources import SOURCES
from cbs.noise_scale.sources.inside_backward import InsideBackward


@SOURCES.register("norm_layers")
class NormLayers(InsideBackward):
    """Gradients of single examples with respect to gains and biases of normalisation layers (Gray et al. 2024, arXiv
    2411.00999, section 5).

    A tracker, not an estimate of the noise scale of the model: it follows the shape of the curve at next to no cost,
    but its level differs by a factor that depends on the model (0.4 to 0.8 where we compared) and has to be calibrated
    against another source.

    Raises:
        ConfigError: if no normalisation layer has a trainable parameter.
    """

    single = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        found = {
            id(parameter)
            for module in self._model.modules()
            if type(module).__name__.endswith("Norm")
            for parameter in module.parameters(recurse=False)
        }
        self._found = [id(parameter) in found for parameter in self._parameters]
        if not any(self._found):
            raise ConfigError(
                "source 'norm_layers' needs a normalisation layer with trainable parameters, and the model has none; "
                "use the source 'split'"
            )

    def watched(self, index: int) -> bool:
        return self._found[index]
