"""Callbacks that change gradient accumulation inside the real Trainers, against the same steps made by hand."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.schedules.accumulation import replay
from tests.integrations.logs import lightnings_log

transformers = pytest.importorskip("transformers")
lightning = pytest.importorskip("lightning.pytorch")

from cbs.integrations import huggingface_batch_size, lightning_batch_size  # noqa: E402

RULE = "norm_test(theta=0.9, measurements=23, lr_exponent=0.5)"
MICRO, FIRST, CAP, LR = 2, 2, 24, 1e-3
BATCHES = 390
"""Micro-batches of an epoch."""


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(5, 1, bias=False).double()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.inner(x) - y).square().mean()}


def examples(number: int = MICRO * BATCHES) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(number, 5, dtype=torch.float64, generator=generator)
    targets = inputs[:, :1] + 4.0 * torch.randn(number, 1, dtype=torch.float64, generator=generator)
    return [{"x": x, "y": y} for x, y in zip(inputs, targets, strict=True)]


def by_hand(sizes: list[int]) -> torch.Tensor:
    """Weights after steps of these batch sizes over the examples in their order, at the square-root rule of the size in
    force, which is that of the step before in the last step of an epoch."""
    model, data, place = Regression(), examples(), 0
    for step, size in enumerate(sizes):
        taken, place = data[place : place + size], place + size
        loss = model(torch.stack([each["x"] for each in taken]), torch.stack([each["y"] for each in taken]))["loss"]
        (gradient,) = torch.autograd.grad(loss, [model.inner.weight])
        with torch.no_grad():
            model.inner.weight -= LR * (max(sizes[: step + 1]) / (MICRO * FIRST)) ** 0.5 * gradient
    return model.inner.weight.detach()


class Sizes:
    """Examples of every optimizer step, as the model saw them, and the learning rate it was made with."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.held = 0

    def watch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.register_forward_hook(self._forward, with_kwargs=True)
        optimizer.register_step_post_hook(self._step)

    def _forward(self, _module: nn.Module, args: Any, kwargs: dict[str, Any], _output: Any) -> None:
        if torch.is_grad_enabled():
            self.held += len(kwargs.get("x", args[0] if args else ()))

    def _step(self, *_: Any) -> None:
        self.steps.append(self.held)
        self.held = 0


def hugging_face(folder: Path, callback: Any, data: Any = None, **arguments: Any) -> tuple[Any, Sizes]:
    settings = {
        "per_device_train_batch_size": MICRO, "gradient_accumulation_steps": FIRST, "num_train_epochs": 1,
        "max_grad_norm": 0.0, "logging_steps": 5, "learning_rate": LR, "save_strategy": "no",
        "lr_scheduler_type": "constant", "remove_unused_columns": False, **arguments,
    }  # fmt: skip
    model, sizes = Regression(), Sizes()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["learning_rate"])

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    options = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, **settings
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = InOrder(
        model, options, train_dataset=data or examples(), callbacks=[callback], optimizers=(optimizer, schedule)
    )
    sizes.watch(model, optimizer)
    return trainer, sizes


def driven(**changes: Any) -> Any:
    return huggingface_batch_size.BatchSizeCallback(**({"cap": CAP, "rule": RULE, "drives": True} | changes))


class Module(lightning.LightningModule):
    def __init__(self, interval: str = "") -> None:
        super().__init__()
        self.network = Regression()
        self.interval = interval
        self.sizes = Sizes()
        self.before_last = torch.empty(0)

    def on_before_zero_grad(self, _optimizer: Any) -> None:
        self.before_last = self.network.inner.weight.detach().clone()

    def training_step(self, batch: dict[str, torch.Tensor], _number: int) -> torch.Tensor:
        loss: torch.Tensor = self.network(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=LR)
        self.sizes.watch(self.network, optimizer)
        if not self.interval:
            return optimizer
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.interval}}


def lightning_fit(
    callback: Any, module: Any = None, path: str | None = None, others: Any = (), data: Any = None, **settings: Any
) -> Any:
    module = module or Module()
    options = {"max_epochs": 1, "accumulate_grad_batches": FIRST, "logger": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(
        accelerator="cpu", callbacks=[callback, *others], enable_progress_bar=False, enable_model_summary=False,
        **(options | settings),
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data or examples(), batch_size=MICRO), ckpt_path=path)
    return module


def checked(sizes: list[int], rows: list[dict[str, Any]], weight: torch.Tensor, steps: int | None = None) -> None:
    """Steps hold what was decided, from the place on where both numbers of micro-batches fit; nothing is lost."""
    assert sum(sizes) == MICRO * BATCHES
    assert sizes[0] == MICRO * FIRST
    grown = [row for row in rows[1:] if row["next_batch_size"] > row["batch_size"]]
    assert sizes[23] == sizes[0]  # 46 micro-batches are no multiple of four: the decision waits
    assert all(row["taken"] == row["batch_size"] for row in rows[1:])
    assert len(grown) >= 2
    assert set(sizes[:-1]) == {sizes[0], *(row["batch_size"] for row in rows[2:]), sizes[-2]}
    assert max(sizes) <= CAP
    torch.testing.assert_close(weight, by_hand(sizes[:steps]), rtol=1e-10, atol=1e-12)
    place = 0
    for before, size in pairwise(sizes[:-1]):
        place += before
        assert place % size == 0 or size == before


def test_the_trainer_takes_the_steps_that_were_decided(tmp_path: Path) -> None:
    callback = driven(log=str(tmp_path / "log.jsonl"))
    trainer, sizes = hugging_face(tmp_path, callback)
    trainer.train()
    checked(sizes.steps, callback.controller.rows, trainer.model.inner.weight.detach())
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [stage.batch_size for _, stage in replay(lines)] == [row["next_batch_size"] for row in lines[1:]]
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logs[0]["batch_size"] == MICRO * FIRST
    assert logs[-1]["batch_size"] == max(sizes.steps)
    assert logs[-1]["batch_size/lr_factor"] == pytest.approx((max(sizes.steps) / 4) ** 0.5)
    assert trainer.args.gradient_accumulation_steps == FIRST
    assert trainer.optimizer.param_groups[0]["lr"] == LR


def test_lightning_takes_the_steps_that_were_decided() -> None:
    callback = lightning_batch_size.LightningBatchSizeCallback(cap=CAP, rule=RULE, drives=True)
    module = lightning_fit(callback)
    rows = callback.controller.rows
    # Lightning divides the last, smaller step by the number of batches of a whole one, so it is left out
    assert callback.controller.micro_batches * MICRO == module.sizes.steps[-2]
    checked(module.sizes.steps, rows, module.before_last, steps=-1)


def test_who_is_advised_trains_as_without(tmp_path: Path) -> None:
    callback = driven(drives=False)
    trainer, sizes = hugging_face(tmp_path, callback)
    trainer.train()
    assert set(sizes.steps) == {MICRO * FIRST}
    assert callback.controller.advised.batch_size > MICRO * FIRST
    torch.testing.assert_close(trainer.model.inner.weight.detach(), by_hand(sizes.steps), rtol=1e-10, atol=1e-12)
    other = lightning_batch_size.LightningBatchSizeCallback(cap=CAP, rule=RULE)
    assert set(lightning_fit(other).sizes.steps) == {MICRO * FIRST}
    assert other.controller.advised == callback.controller.advised


def test_a_trainer_that_resumes_decides_the_same_or_is_refused(tmp_path: Path) -> None:
    whole = driven()
    hugging_face(tmp_path / "whole", whole)[0].train()
    grows = next(row["step"] for row in whole.controller.rows[1:] if row["next_batch_size"] > 4)
    hugging_face(tmp_path, driven(), save_strategy="steps", save_steps=grows - 5)[0].train()
    again = driven()
    trainer, _ = hugging_face(tmp_path, again)
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{grows - 5}"))
    assert [row["next_batch_size"] for row in again.controller.rows[1:]] == [
        row["next_batch_size"] for row in whole.controller.rows[1:]
    ]
    assert again.controller.rows[1]["low"] == pytest.approx(whole.controller.rows[1]["low"], rel=1e-9)
    later = max(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))
    refused, _ = hugging_face(tmp_path, driven())
    with pytest.raises(ConfigError, match="ignore_data_skip=True"):
        refused.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{later}"))
    accepted, sizes = hugging_face(tmp_path, driven(), ignore_data_skip=True, num_train_epochs=3)
    accepted.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{later}"))
    assert sizes.steps[0] > MICRO * FIRST


def test_a_lightning_run_that_resumes_decides_the_same(tmp_path: Path) -> None:
    """Lightning reads its data from the beginning again; here they repeat every 30 batches, or 15 steps."""
    whole, again = (lightning_batch_size.LightningBatchSizeCallback(cap=CAP, rule=RULE, drives=True) for _ in range(2))
    first, data = Module(), examples(60) * (MICRO * BATCHES // 60)

    class Saves(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, _module: Any, _batch: Any, batch_idx: int) -> None:
            if batch_idx == 30:
                trainer.save_checkpoint(tmp_path / "run.ckpt")

    lightning_fit(whole, first, others=[Saves()], data=data)
    second = lightning_fit(again, path=str(tmp_path / "run.ckpt"), data=data)
    assert first.sizes.steps[15:] == second.sizes.steps
    assert second.sizes.steps[-2] > second.sizes.steps[0]
    assert again.controller.rows == whole.controller.rows
    assert torch.equal(first.network.inner.weight, second.network.inner.weight)


class Endless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(examples())


def test_what_counts_steps_is_told_and_what_cannot_change_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="without a length"):
        hugging_face(tmp_path, driven(), data=Endless(), max_steps=5)[0].train()
    hugging_face(tmp_path, driven(), lr_scheduler_type="cosine", max_steps=2)[0].train()
    assert "learning-rate schedule SchedulerType.COSINE counts steps" in caplog.text
    assert "max_steps counts steps" in caplog.text
    callback = lightning_batch_size.LightningBatchSizeCallback(cap=CAP, drives=True)
    with lightnings_log() as lines:
        lightning_fit(callback, Module("step"), max_steps=2)
    assert [sum(what in line for line in lines) for what in ("interval='step'", "max_steps counts steps")] == [1, 1]
    scheduler = lightning.callbacks.GradientAccumulationScheduler({0: 2})
    with pytest.raises(ConfigError, match="GradientAccumulationScheduler"):
        lightning_fit(callback, others=[scheduler], accumulate_grad_batches=1)
    with lightnings_log() as lines:
        lightning_fit(lightning_batch_size.LightningBatchSizeCallback(cap=CAP), Module("step"), limit_train_batches=2)
    assert not any("more examples" in line for line in lines)
