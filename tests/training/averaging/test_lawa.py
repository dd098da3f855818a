"""Latest weight averaging: which weights it averages, and when it takes them."""

from typing import Any

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.training.averaging.lawa import LAWA


def averages(batch_size: int, steps: int, *, checkpoints: int, every_examples: int) -> list[float]:
    """The average after every step of a weight that is the number of steps."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = LAWA(model, checkpoints=checkpoints, every_examples=every_examples)
    found = []
    for step in range(1, steps + 1):
        nn.init.constant_(model.weight, step)
        average.update(step * batch_size, batch_size)
        with average.in_place():
            found.append(model.weight.item())
        assert model.weight.item() == step
    return found


def test_the_mean_of_the_latest_checkpoints_of_all_while_there_are_few_of_the_weights_before_the_first() -> None:
    found = averages(4, 12, checkpoints=3, every_examples=8)
    # Checkpoints after steps 2, 4, 6, ...
    assert found == [1, 2, 2, 3, 3, 4, 4, 6, 6, 8, 8, 10]


def test_checkpoints_are_as_far_apart_at_every_batch_size() -> None:
    # At 3 examples a step, 8, 16 and 24 examples are passed in steps 3, 6 and 8.
    assert averages(3, 8, checkpoints=1, every_examples=8) == [1, 2, 3, 3, 3, 6, 6, 8]
    assert averages(16, 4, checkpoints=2, every_examples=8) == [1, 1.5, 2.5, 3.5]


def test_a_checkpoint_is_a_copy() -> None:
    model = nn.Linear(2, 2)
    average = LAWA(model, checkpoints=2, every_examples=1)
    average.update(1, 1)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    with average.in_place():
        assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    "options",
    [
        *({"checkpoints": value, "every_examples": 8} for value in (0, 1.5, True, "3")),
        *({"checkpoints": 3, "every_examples": value} for value in (0, 1.5, None)),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="whole number of at least 1") as caught:
        LAWA(nn.Linear(1, 1), **options)
    assert "\n" not in str(caught.value)
