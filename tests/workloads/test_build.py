"""Finding and building workloads, the registered ones and the user's own."""

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
        torch.manual_seed(len(losses))  # which is not what it draws from
        losses.append(workload.example_losses(model, batch))
        metrics.append(workload.validate(model))
    assert losses[0].shape == (6,)
    assert torch.equal(losses[0], losses[1])
    assert metrics[0] == metrics[1]


def rows(batch: object) -> list[torch.Tensor]:
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple) else (batch,)
    return list(parts)


@pytest.mark.parametrize("name", WORKLOADS.names())
def test_examples_are_the_same_however_they_are_cut_and_skipped(name):
    workload = build_workload(Choice(name=name))
    whole = rows(workload.training_stream(generator(2, "data")).next(150))
    cut, skipped = (workload.training_stream(generator(2, "data")) for _ in range(2))
    parts = zip(*(rows(cut.next(size)) for size in (1, 7, 64, 3, 75)), strict=True)
    for together, pieces in zip(whole, parts, strict=True):
        assert torch.equal(torch.cat(pieces), together)
    skipped.skip(70)
    first = rows(skipped.next(5))
    skipped.skip(2)
    for together, some, more in zip(whole, first, rows(skipped.next(73)), strict=True):
        assert torch.equal(torch.cat([some, more]), torch.cat([together[70:75], together[77:]]))
    assert not torch.equal(rows(workload.training_stream(generator(3, "data")).next(150))[0], whole[0])


@pytest.mark.parametrize("name", WORKLOADS.names())
def test_the_loss_of_an_example_does_not_depend_on_the_others(name):
    workload = build_workload(Choice(name=name))
    with seeded(1, "init"):
        model = workload.build_model().double()
    batch = workload.training_stream(generator(1, "data")).next(4)

    def losses(part: slice) -> torch.Tensor:
        pieces = [row[part].double() if row.is_floating_point() else row[part] for row in rows(batch)]
        return workload.example_losses(model, tuple(pieces) if isinstance(batch, tuple) else pieces[0])

    alone = torch.cat([losses(slice(place, place + 1)) for place in range(4)])
    torch.testing.assert_close(losses(slice(0, 4)), alone)


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
