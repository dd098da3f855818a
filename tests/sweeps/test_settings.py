"""What a trial may leave other than it found it in its process is seen, whatever it is."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from sweeps.running.trials import changed, settings

CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "torch.set_default_dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    ),
    "torch.set_default_device": (
        lambda: torch.set_default_device("meta"),
        lambda: torch.set_default_device(None),
    ),
    "torch.set_grad_enabled": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "torch.set_num_threads": (lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1)),
    "torch.use_deterministic_algorithms": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "torch.set_float32_matmul_precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: [
            setattr(backend.matmul, "fp32_precision", "none")
            for backend in (torch.backends.cuda, torch.backends.mkldnn)
        ],
    ),
    "torch.backends.cudnn": (
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: setattr(torch.backends.cudnn, "benchmark", False),
    ),
    "numpy.seterr": (lambda: np.seterr(over="ignore"), lambda: np.seterr(over="warn")),
}


def test_every_setting_has_its_change():
    assert set(CHANGES) == set(settings())


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_and_what_is_put_back_is_none(name):
    change, back = CHANGES[name]
    before = settings()
    assert changed(before) == []
    try:
        change()
        assert changed(before) == [name]
    finally:
        back()
    assert changed(before) == []
