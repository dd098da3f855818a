"""The noise scale of every variant of a model against a loop over the examples; what mixes examples is refused."""

from typing import Any

import pytest

from cbs.errors import ConfigError
from tests.kinds import kinds_of
from tests.workloads.test_every_workload import checked

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "two contexts": ("masked_text", {"later_context": 48, "switch": 3}),
    **{model: ("images", {"model": model, "width": 8}) for model in ("resnet8", "resnet18", "resnet50", "wrn-10-2")},
    "lenet": ("images", {"model": "lenet"}),
    "vgg11": ("images", {"model": "vgg11", "width": 4, "image_size": 32}),
    "no norm": ("images", {"model": "resnet8", "width": 8, "norm": "none"}),
}


@pytest.mark.parametrize("variant", kinds_of(VARIANTS, ["two contexts", "resnet8"]))
def test_the_noise_scale_is_that_of_a_loop_over_examples(variant: str) -> None:
    found = checked(*VARIANTS[variant], "split")
    assert found.ok, str(found)
    assert found.source == "split"
    assert not found.coupled


def test_batch_normalisation_is_refused() -> None:
    options = {"model": "resnet8", "width": 8, "norm": "batch"}
    found = checked("images", options, "auto")
    assert found.source == "accumulation"
    assert "(BatchNorm2d) mixes the examples of a batch" in found.refusal
    with pytest.raises(ConfigError, match="mixes the examples of a batch"):
        checked("images", options, "split")
