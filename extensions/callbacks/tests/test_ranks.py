"""The callbacks on two ranks under DDP, against gradients taken group by group."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from extensions.callbacks.tests.twin import mean_moments
from tests.ranks import found_by

pytest.importorskip("transformers")
pytest.importorskip("lightning")

WORKER = Path(__file__).with_name("distributed_worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by(WORKER, tmp_path_factory.mktemp("ranks"))


def halves(batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(batch[0][part], batch[1][part]) for part in (slice(2), slice(2, 4))]


GROUPS = {"replicas": lambda own: own, "split": lambda own: [half for batch in own for half in halves(batch)]}
"""What a source compares, from the micro-batches of a rank."""


@pytest.mark.parametrize(
    ("case", "source", "rounding"),
    [("huggingface", "replicas", 1e-4), ("lightning", "replicas", 1e-10), ("lightning, split", "split", 1e-10)],
)
def test_estimates_are_those_of_all_ranks(ranks: list[dict[str, Any]], case: str, source: str, rounding: float) -> None:
    if case == "huggingface":
        from extensions.callbacks.tests import test_huggingface as single

        model = single.language_model()
    else:
        from extensions.callbacks.tests import test_lightning as single

        model = single.regression()
        assert ranks[0][case]["layers"] == ["network.0", "network.2"]
    first, second = (rank[case] for rank in ranks)
    assert first["called"] == "DistributedDataParallel"
    assert first["source"] == source
    assert first["estimate"] == second["estimate"]
    groups = GROUPS[source]
    steps = [
        (weights, groups(own) + groups(other))
        for (weights, own), (_, other) in zip(first["steps"], second["steps"], strict=True)
    ]
    signal_, noise = mean_moments(model, steps, single.loss)
    assert first["estimate"].steps == 5
    assert first["estimate"].examples == 5 * 2 * 2 * 4
    assert first["estimate"].signal == pytest.approx(signal_, rel=rounding)
    assert first["estimate"].noise == pytest.approx(noise, rel=rounding)


def test_a_source_that_needs_the_wrapper_is_refused_where_it_is_hidden(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "use source 'replicas'" in rank["huggingface, refused"]
