"""What the callbacks report of an evaluation, whatever the library."""

from typing import Any

import pytest
import torch

import extensions.callbacks as callbacks


@pytest.mark.parametrize(
    ("metrics", "loss", "further"),
    [
        ({"accuracy": 0.5, "val_loss": torch.tensor(2.0)}, 2.0, {"accuracy": 0.5, "val_loss": 2.0}),
        ({"other_loss": 3.0, "score": 2.0}, 2.0, {"other_loss": 3.0, "score": 2.0}),
        ({"accuracy": 0.5, "other_loss": 3.0, "name": "x"}, 3.0, {"accuracy": 0.5, "other_loss": 3.0}),
        ({"step": 7, "loss": 3.0}, 3.0, {}),
    ],
)
def test_the_loss_is_the_main_metric_or_the_first_that_is_called_so(
    monkeypatch: pytest.MonkeyPatch, metrics: dict[str, Any], loss: float, further: dict[str, float]
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(callbacks, "report", lambda *values, **more: told.append((values, more)))
    main = "score" if "score" in metrics else "val_loss"
    callbacks.report_metrics(10, 32, metrics, main)
    assert told == [((10, 320, loss), further)]


def test_an_evaluation_without_a_loss_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "report", lambda *values, **more: pytest.fail("reported"))
    callbacks.report_metrics(10, 32, {"accuracy": 0.5}, "val_loss")
