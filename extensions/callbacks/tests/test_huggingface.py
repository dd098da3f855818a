"""The callback inside the real Trainer, on a Llama of two layers, against gradients taken group by group."""

import copy
import gc
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError, MissingDependencyError
from extensions.callbacks.tests.twin import mean_moments
from tests.kinds import kinds

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from extensions.callbacks.huggingface import NoiseScaleCallback, ReportCallback  # noqa: E402

ROUNDING = 1e-4
"""Squared norms are exact to 1e-6 in float32, and the moments are differences of those within a factor of ten."""

STEPS = 16
"""Enough for an interval."""


class Witness(transformers.TrainerCallback):
    """Keeps the weights at the beginning of every step, the batches, and what it could report."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Tensor]] = []
        self.batches: list[dict[str, Tensor]] = []
        self.reported: list[dict[str, float]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
        self.weights.append(copy.deepcopy(model.state_dict()))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        self.reported.append(dict(logs))

    def collate(self, items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        self.batches.append({name: torch.stack([item[name] for item in items]) for name in items[0]})
        return dict(self.batches[-1])

    def steps(self, micro_batches: int) -> list[tuple[dict[str, Tensor], list[dict[str, Tensor]]]]:
        return [
            (weights, self.batches[number * micro_batches : (number + 1) * micro_batches])
            for number, weights in enumerate(self.weights)
        ]


def language_model() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config)


def sequences(number: int) -> list[dict[str, Tensor]]:
    """Five of the forty tokens, so that there is something to learn and a signal to see."""
    tokens = torch.randint(5, (number, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def trainer(folder: Path, callbacks: list[Any], examples: int = 8 * STEPS, **arguments: Any) -> Any:
    settings = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "max_grad_norm": 0.1,
        "logging_steps": STEPS // 2,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        **arguments,
    }
    options = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, **settings
    )
    witness = next((callback for callback in callbacks if isinstance(callback, Witness)), None)
    return transformers.Trainer(
        language_model(),
        options,
        data_collator=None if witness is None else witness.collate,
        train_dataset=sequences(examples),
        eval_dataset=sequences(8),
        callbacks=callbacks,
    )


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch).loss


def watched(model: nn.Module) -> bool:
    hooks = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return hooks or any(parameter._backward_hooks for parameter in model.parameters())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, NoiseScaleCallback, Witness]:
    """Steps of two micro-batches, each of them clipped."""
    witness, callback = Witness(), NoiseScaleCallback(source="accumulation")
    trained = trainer(tmp_path_factory.mktemp("run"), [witness, callback])
    trained.train()
    return trained, callback, witness


def test_moments_are_those_of_the_gradients_before_clipping(run: tuple[Any, NoiseScaleCallback, Witness]) -> None:
    trained, callback, witness = run
    assert all(entry.get("grad_norm", 1.0) > 2 * trained.args.max_grad_norm for entry in trained.state.log_history)
    signal, noise = mean_moments(language_model(), witness.steps(2), loss)
    estimate = callback.meter.estimate()
    assert estimate.steps == STEPS
    assert estimate.examples == 8 * STEPS
    assert estimate.signal == pytest.approx(signal, rel=ROUNDING)
    assert estimate.noise == pytest.approx(noise, rel=ROUNDING)


def test_training_is_what_it_is_without_the_callback(
    run: tuple[Any, NoiseScaleCallback, Witness], tmp_path: Path
) -> None:
    alone = trainer(tmp_path, [])
    alone.train()
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(weight, run[0].model.state_dict()[name]), name


def test_every_training_log_has_the_noise_scale(run: tuple[Any, NoiseScaleCallback, Witness]) -> None:
    trained, callback, _ = run
    logs = [entry for entry in trained.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in logs] == [STEPS // 2, STEPS]
    estimate = callback.meter.estimate()
    assert logs[-1]["noise_scale/simple"] == estimate.value
    assert (logs[-1]["noise_scale/low"], logs[-1]["noise_scale/high"]) == estimate.interval
    assert all("noise_scale/simple" not in entry for entry in trained.state.log_history if "loss" not in entry)


def test_one_process_needs_no_source_and_no_accumulation(tmp_path: Path) -> None:
    """The halves of every batch are the groups."""
    witness, callback = Witness(), NoiseScaleCallback()
    trainer(tmp_path, [witness, callback], gradient_accumulation_steps=1, max_steps=5).train()
    halves = [
        (weights, [{name: rows[part] for name, rows in batch.items()} for part in (slice(2), slice(2, 4))])
        for weights, (batch,) in witness.steps(1)
    ]
    signal, noise = mean_moments(language_model(), halves, loss)
    estimate = callback.meter.estimate()
    assert callback.meter.probe.source == "split"
    assert estimate.examples == 4 * 5
    assert estimate.signal == pytest.approx(signal, rel=ROUNDING)
    assert estimate.noise == pytest.approx(noise, rel=ROUNDING)


def test_after_training_that_raised_the_model_is_left_on_request_or_with_the_callback(tmp_path: Path) -> None:
    class Interrupts(transformers.TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

    for leave in ("on request", "with the callback"):
        trained = trainer(tmp_path, [NoiseScaleCallback(), Interrupts()])
        with pytest.raises(KeyboardInterrupt):
            trained.train()
        model = trained.model
        assert watched(model)
        if leave == "on request":
            callback = trained.pop_callback(NoiseScaleCallback)
            callback.detach()
            assert callback.meter.estimate().steps == 1
        del trained
        gc.collect()
        assert not watched(model), leave


def test_what_hides_the_model_is_refused(tmp_path: Path) -> None:
    for setting, match in ("_n_gpu", "torchrun"), ("deepspeed_plugin", "DDP or FSDP2"):
        trained = trainer(tmp_path, [NoiseScaleCallback()])
        setattr(trained.args, setting, 2)
        with pytest.raises(ConfigError, match=match):
            trained.train()
        assert not watched(trained.model)


def test_loss_scale_of_a_grad_scaler_is_taken_out(tmp_path: Path) -> None:
    """float16 needs a GPU, its scaler does not; clipping is off, as the Trainer unscales for it under float16 alone."""
    estimates = []
    for scale in (None, 2.0**10):
        callback = NoiseScaleCallback(source="accumulation")
        trained = trainer(tmp_path, [callback], max_grad_norm=0.0, max_steps=3)
        if scale is not None:
            trained.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        trained.train()
        estimates.append(callback.meter.estimate())
    assert estimates[1].steps == 3
    assert estimates[1].signal == pytest.approx(estimates[0].signal, rel=ROUNDING)
    assert estimates[1].noise == pytest.approx(estimates[0].noise, rel=ROUNDING)


@pytest.mark.parametrize("restore", kinds([True], [False]))
def test_a_resumed_run_goes_on_with_its_averages(
    run: tuple[Any, NoiseScaleCallback, Witness], tmp_path: Path, restore: bool
) -> None:
    trainer(tmp_path, [NoiseScaleCallback(source="accumulation")], save_strategy="steps", save_steps=12).train()
    again = trainer(
        tmp_path, [NoiseScaleCallback(source="accumulation")], restore_callback_states_from_checkpoint=restore
    )
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    callback = again.pop_callback(NoiseScaleCallback)
    resumed, whole = callback.meter.estimate(), run[1].meter.estimate()
    assert resumed.steps == STEPS
    assert resumed.signal == pytest.approx(whole.signal, rel=ROUNDING)
    assert resumed.noise == pytest.approx(whole.noise, rel=ROUNDING)


def test_too_few_micro_batches_are_refused_before_training(tmp_path: Path) -> None:
    trained = trainer(tmp_path, [NoiseScaleCallback(source="accumulation")], gradient_accumulation_steps=1)
    with pytest.raises(ConfigError, match="gradient_accumulation_steps=1"):
        trained.train()
    assert not watched(trained.model)


def test_the_install_command_is_named_where_transformers_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "extensions.callbacks.huggingface")
    with pytest.raises(MissingDependencyError, match=re.escape("pip install 'transformers[torch]'")):
        importlib.import_module("extensions.callbacks.huggingface")


def test_every_evaluation_is_reported_with_its_step_and_examples(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CBS_FOLDER", str(tmp_path))
    trained = trainer(
        tmp_path, [ReportCallback()], max_steps=4, eval_strategy="steps", eval_steps=2, eval_on_start=True
    )
    trained.train()
    rows = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert [(row["step"], row["examples"]) for row in rows] == [(0, 0), (2, 16), (4, 32)]
    logged = [entry["eval_loss"] for entry in trained.state.log_history if "eval_loss" in entry]
    assert [row["loss"] for row in rows] == [row["eval_loss"] for row in rows] == logged
