import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.compute import seeding
from cbs.errors import CbsError, ConfigError, DataError, UnknownNameError
from cbs.training.loop import TrainingLoop
from cbs.training.run import run_trial
from cbs.trial.config import Choice, Schedule, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target
from cbs.workloads import WORKLOADS, Workload, build_workload
from cbs.workloads.text import TextWorkload, text
from cbs.workloads.text_parts import GPTShape
from sweeps.recipes import RECIPES
from sweeps.spec.overrides import override


@pytest.fixture(scope="module")
def workload() -> TextWorkload:
    return text()


def build(workload: TextWorkload, seed: int = 0) -> nn.Module:
    with seeding.seeded(seed, "init"):
        return workload.build_model()


def draw(workload: TextWorkload, sizes: list[int], seed: int = 0) -> Tensor:
    stream = workload.training_stream(seeding.generator(seed, "data"))
    return torch.cat([stream.next(size) for size in sizes])


def write_counting_ids(folder: Path, count: int = 5000) -> Path:
    """Token ids that tell their own position."""
    path = folder / "ids.u16"
    np.arange(count, dtype="<u2").tofile(path)
    return path


def test_defaults(workload: TextWorkload) -> None:
    assert "text" in WORKLOADS
    assert isinstance(workload, Workload)
    assert isinstance(build_workload(Choice(name="text")), TextWorkload)
    assert (workload.metric, workload.metric_unit, workload.direction) == ("validation_loss", "nats/byte", "below")
    assert (workload.default_target, workload.example_unit, workload.tokens_per_example) == (2.4, "sequence", 32)
    assert workload.data_hash is not None
    assert len(workload.data_hash) == 16
    assert sum(parameter.numel() for parameter in build(workload).parameters()) == 29_856


def test_tokens_have_their_own_unit_and_target(tmp_path: Path) -> None:
    tokens = text(data=str(write_counting_ids(tmp_path)), vocab_size=5000, validation_sequences=64)
    assert tokens.metric_unit == "nats/token"
    assert 0 < tokens.default_target < math.log(5000)


def test_llamas_by_name_and_changed() -> None:
    assert build(text(size="llama-200k")).shape.groups == 2
    wider = build(text(size="llama-200k", width=96, layers=1)).shape
    assert (wider.heads, wider.groups, wider.hidden) == (6, 6, 256)
    assert build(text(size="llama-30k", kv_heads=1, mlp_width=40)).shape.hidden == 40
    assert build(text(size="llama-1b", width=64, layers=1, context=8)).shape.hidden == 176
    assert build(text(init="nanogpt")).blocks[0].mlp_in.weight.std().item() == pytest.approx(0.02, rel=0.1)


def short_trial(**options: object) -> TrialConfig:
    return TrialConfig(
        workload=Choice(name="text", options={"validation_sequences": 32} | options),
        optimizer=Choice(name="adamw"),
        lr=0.0078125,
        batch_size=4,
        seed=0,
        target=Target(metric="validation_loss", value=1.0),
        max_steps=6,
        schedule=Schedule(warmup_examples=12),
        probe=None,
        device="cpu",
    )


def test_a_sweep_in_mup_scales_the_learning_rates_along_the_schedule() -> None:
    sweep = override(RECIPES["default"](), ["workload.parametrization=mup", "workload.width=64"])
    assert sweep.trial.workload.options == {"parametrization": "mup", "width": 64}
    config = short_trial(**sweep.trial.workload.options)
    loop = TrainingLoop(config, build_workload(config.workload), torch.device("cpu"))
    for step, multiplier in ((1, 1 / 3), (2, 2 / 3), (3, 1.0)):
        loop.train_step(step)
        assert [group["lr"] for group in loop.optimizer.param_groups] == pytest.approx(
            [config.lr * multiplier, config.lr * multiplier / 2]
        )
    assert [len(group["params"]) for group in loop.optimizer.param_groups] == [7, 8]
    result = run_trial(config)
    assert result.status is TrialStatus.BUDGET_EXHAUSTED
    assert result.workload.parameters == GPTShape(width=64, layers=2, heads=4, context=32).parameters(128)
    assert result.evaluations[-1].value < result.evaluations[0].value


def test_examples_are_windows_of_the_training_text(workload: TextWorkload) -> None:
    whole = bytes(workload.corpus.training)
    batch = draw(workload, [16])
    assert batch.shape == (16, 33)
    assert batch.dtype == torch.long
    assert all(bytes(window.tolist()) in whole for window in batch)


def test_losses_are_mean_cross_entropies(workload: TextWorkload) -> None:
    model, batch = build(workload), draw(workload, [3])
    with torch.no_grad():
        probabilities = model(batch[:, :-1]).double().softmax(-1)
        losses = workload.example_losses(model, batch)
    for window, table, loss in zip(batch.tolist(), probabilities, losses, strict=True):
        by_hand = -sum(math.log(table[position, token]) for position, token in enumerate(window[1:])) / 32
        assert loss.item() == pytest.approx(by_hand, abs=1e-5)


def test_validation_at_the_start_is_a_uniform_guess(workload: TextWorkload) -> None:
    assert workload.validate(build(workload)) == pytest.approx(math.log(128), abs=0.05)


@pytest.mark.parametrize("sequences", [512, 300])
def test_validation_windows_span_the_held_out_text(tmp_path: Path, sequences: int) -> None:
    path, other = str(write_counting_ids(tmp_path)), tmp_path / "other.u16"
    np.arange(40, dtype="<u2").tofile(other)
    workload = text(data=str(other), validation=path, vocab_size=5000, validation_sequences=sequences)
    seen: list[Tensor] = []

    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, ids: Tensor) -> Tensor:
            seen.append(ids)
            return torch.zeros(*ids.shape, 5000)

    assert workload.validate(Recorder()) == pytest.approx(math.log(5000))
    assert max(len(part) for part in seen) <= 128
    starts = torch.cat(seen)[:, 0]
    assert len(starts) == sequences
    assert (starts[0], starts[-1]) == (0, 5000 - 33)
    gaps = starts.diff()
    assert gaps.max() - gaps.min() <= 1


def test_validation_leaves_no_trace(workload: TextWorkload) -> None:
    model = build(workload)
    state = torch.random.get_rng_state()
    workload.validate(model)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def one_line_error(kind: type[CbsError], **options: object) -> str:
    with pytest.raises(kind) as caught:
        text(**options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (UnknownNameError, {"size": "7b"}, "known sizes are 30k, "),
        (ConfigError, {"context": 0}, "context"),
        (ConfigError, {"context": True}, "context"),
        (ConfigError, {"context": 32.0}, "context"),
        (ConfigError, {"width": 0}, "width"),
        (ConfigError, {"layers": 0}, "layers"),
        (ConfigError, {"heads": "4"}, "heads"),
        (ConfigError, {"width": 40}, "not a multiple of 16, the head size of '30k'"),
        (ConfigError, {"width": 40, "heads": 3}, "width 40 of workload 'text' is not divisible by heads=3"),
        (ConfigError, {"kv_heads": 2}, "kv_heads of workload 'text' is for the sizes of Llama, not for '30k'"),
        (ConfigError, {"size": "llama-200k", "kv_heads": 3}, "must be a multiple of kv_heads=3"),
        (UnknownNameError, {"init": "gpt"}, "known are scaled, nanogpt"),
        (UnknownNameError, {"corpus": "code"}, "known are topics, stdlib"),
        (ConfigError, {"corpus": "stdlib", "data": "a.txt"}, "exclude one another"),
        (ConfigError, {"heads": 3}, "width 32 of workload 'text' is not divisible by heads=3"),
        (ConfigError, {"parametrization": "mup", "base_width": 0}, "base_width"),
        (ConfigError, {"base_width": 16}, "base_width of workload 'text' needs parametrization=mup"),
        (UnknownNameError, {"parametrization": "muP2"}, "did you mean mup? known are standard, mup"),
        (UnknownNameError, {"parametrization": "Standart"}, "did you mean standard?"),
        (UnknownNameError, {"parametrization": 3}, "known are standard, mup"),
        (ConfigError, {"vocab_size": 0}, "vocab_size"),
        (ConfigError, {"validation_sequences": 0}, "validation_sequences"),
        (ConfigError, {"tokenizer": "tokenizer.json"}, "needs data=PATH"),
        (ConfigError, {"validation": "val.txt"}, "needs data=PATH"),
        (ConfigError, {"dtype": "uint16"}, "needs data=PATH"),
        (DataError, {"vocab_size": 100}, "outside the vocabulary"),
        (DataError, {"context": 10**6}, "tokens for training"),
        (DataError, {"context": 10**5}, "tokens for validation"),
    ],
)
def test_bad_options(kind: type[CbsError], options: dict[str, object], expected: str) -> None:
    assert expected in one_line_error(kind, **options)
