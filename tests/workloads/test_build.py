"""Finding and building workloads, the registered ones and the user's own."""

from __future__ import annotations

import pytest
import torch

from cbs.compute.seeding import generator, seeded
from cbs.errors import ConfigError
from cbs.trial.config import Choice
from cbs.workloads import WORKLOADS, Workload, build_workload


@pytest.mark.parametrize("name", WORKLOADS.names())
def test_every_workload_follows_the_protocol_and_is_repeatable(name):
    workload = build_workload(Choice(name=name))
    assert isinstance(workload, Workload)
    losses, metrics = [], []
    for _ in range(2):
        with seeded(1, "init"):
            model = workload.build_model()
        batch = workload.training_stream(generator(1, "data")).next(6)
        losses.append(workload.example_losses(model, batch))
        metrics.append(workload.validate(model))
    assert losses[0].shape == (6,)
    assert torch.equal(losses[0], losses[1])
    assert metrics[0] == metrics[1]


def test_a_workload_of_the_users_own_is_found_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "mine_of_this_test.py").write_text(
        "from cbs.workloads import WORKLOADS\ndef make(dimension):\n"
        "    return WORKLOADS['noisy_quadratic'](dimension=dimension)\ndef wrong():\n    return object()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(build_workload(Choice(name="mine_of_this_test:make", options={"dimension": 7})).curvature) == 7
    with pytest.raises(ConfigError, match="its options are: dimension"):
        build_workload(Choice(name="mine_of_this_test:make"))
    with pytest.raises(ConfigError, match="without build_model"):
        build_workload(Choice(name="mine_of_this_test:wrong"))
    with pytest.raises(ConfigError, match="no function 'absent'"):
        build_workload(Choice(name="mine_of_this_test:absent"))


def test_a_module_that_fails_to_import_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_of_this_test.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="a_module_that_is_not_there"):
        build_workload(Choice(name="broken_of_this_test:make"))
