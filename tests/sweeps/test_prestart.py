"""A Ray that starts ahead is taken over once, stopped if nobody does, and fails where it is asked for."""

from pathlib import Path

import pytest
import ray

from cbs.errors import Unfinished
from sweeps.running.cluster import EngineLost, PrestartedRay, connected
from sweeps.running.resources import Resources


class Stand:
    """In the place of Ray: what is done to it."""

    def __init__(self, monkeypatch) -> None:
        self.done: list[str] = []
        self.folders: list[Path] = []
        self.error: Exception | None = None
        self.up = False
        monkeypatch.setattr(ray, "is_initialized", lambda: self.up)
        monkeypatch.setattr(ray, "init", self.init)
        monkeypatch.setattr(ray, "shutdown", self.shutdown)

    def init(self, **options) -> None:
        self.done.append("init")
        self.folders.append(Path(options["_temp_dir"]))
        if self.error is not None:
            raise self.error
        self.up = True

    def shutdown(self) -> None:
        self.done.append("shutdown")
        self.up = False


@pytest.fixture
def stand(monkeypatch) -> Stand:
    return Stand(monkeypatch)


def test_it_is_taken_over_once_and_its_folder_goes_with_it(stand):
    with PrestartedRay(Resources(workers=1)) as ahead:
        with connected(Resources(workers=1), ahead.taken()) as ours:
            assert ours
            assert stand.done == ["init"]
            assert stand.folders[0].exists()
        assert stand.done == ["init", "shutdown"]
        with connected(Resources(workers=1), ahead.taken()) as ours:
            assert ours
        assert stand.done == ["init", "shutdown"] * 2
    assert stand.done == ["init", "shutdown"] * 2
    assert len(set(stand.folders)) == 2
    assert not any(folder.exists() for folder in stand.folders)


def test_where_nobody_takes_it_over_it_is_stopped(stand):
    with pytest.raises(Unfinished, match="something else"), PrestartedRay(Resources(workers=1)):
        raise Unfinished("something else")
    assert stand.done == ["init", "shutdown"]
    assert not stand.folders[0].exists()


def test_a_connection_that_exists_is_left_alone(stand):
    stand.up = True
    with PrestartedRay(Resources(workers=1)) as ahead, connected(Resources(workers=1), ahead.taken()) as ours:
        assert not ours
    assert stand.done == []
    assert stand.up


def test_one_that_does_not_start_is_told_to_who_needs_it_and_the_next_one_is_another(stand):
    stand.error = RuntimeError("the node timed out")
    with PrestartedRay(Resources(workers=1)) as ahead:
        with pytest.raises(EngineLost, match="the node timed out"), connected(Resources(workers=1), ahead.taken()):
            pytest.fail("nobody is connected")
        stand.error = None
        with connected(Resources(workers=1), ahead.taken()) as ours:
            assert ours
    with PrestartedRay(Resources(workers=1)):
        stand.error = RuntimeError("and nobody needs it")
    assert not any(folder.exists() for folder in stand.folders)


def test_one_serves_all_sweeps_of_a_command_until_one_of_them_fails(stand):
    with PrestartedRay() as ahead:
        assert ahead.taken() is None
        for _ in range(2):
            with connected(Resources(workers=1), ahead.taken(), ahead.keep) as ours:
                assert ours
            assert stand.done == ["init"]
        with pytest.raises(KeyError), connected(Resources(workers=1), ahead.taken(), ahead.keep):
            raise KeyError
        assert stand.done == ["init", "shutdown"]
        with connected(Resources(workers=1), ahead.taken(), ahead.keep) as ours:
            assert ours
        assert stand.done == ["init", "shutdown", "init"]
    assert stand.done == ["init", "shutdown"] * 2
    assert not any(folder.exists() for folder in stand.folders)
