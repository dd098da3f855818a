"""A planned table inside the real Trainer: the steps that were planned, at the learning rates that were planned."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from analysis.arrays import Quantity
from analysis.extensions.schedule_plan.stages import stages
from analysis.extensions.schedule_plan.trainers import ScheduleExport, write_schedule
from cbs.errors import ConfigError, DataError

transformers = pytest.importorskip("transformers")

from cbs.integrations.huggingface_stages import StagesCallback, _From  # noqa: E402

MICRO, FIRST, DATA, LR = 2, 2, 200, 1e-3
TABLE = ((0, 4), (50, 10), (150, 14))
"""No stage begins where the micro-batches before it are a multiple of its own."""
FACTORS = (1.0, 1.5, 3.0)


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(5, 1, bias=False).double()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.inner(x) - y).square().mean()}


def examples(number: int = MICRO * 390) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(number, 5, dtype=torch.float64, generator=generator)
    targets = inputs[:, :1] + 4.0 * torch.randn(number, 1, dtype=torch.float64, generator=generator)
    return [{"x": x, "y": y} for x, y in zip(inputs, targets, strict=True)]


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


class Endless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(examples())


def written(folder: Path, *, table: Any = TABLE, budget: int = DATA, factors: Any = FACTORS, end: str = "") -> Path:
    """What ``--export transformers`` prints, in a file."""
    told = ScheduleExport(
        table=table, steps=tuple(1 for _ in table), examples=budget, optimizer="adamw",
        lr_factors=tuple(Quantity(factor, (factor, factor)) for factor in factors),
    )  # fmt: skip
    path = folder / f"plan{end}.json"
    path.write_text(write_schedule("transformers", told))
    return path


def planned(path: Path) -> list[int]:
    """Batch size of every step, as ``cbs schedule plan`` says."""
    return [stage.batch_size for stage in stages(str(path)).stages for _ in range(stage.steps)]


def train(folder: Path, path: Path, *, number: int = DATA, **arguments: Any) -> tuple[Any, list[int], StagesCallback]:
    callback = StagesCallback(str(path))
    trainer, sizes = hugging_face(folder, callback, data=examples(number), **arguments)
    trainer.train(resume_from_checkpoint=arguments.get("resume_from_checkpoint"))
    return trainer, sizes.steps, callback


def by_hand(sizes: list[int], data: list[dict[str, torch.Tensor]], factor: dict[int, float]) -> torch.Tensor:
    """Weights after steps of these batch sizes over the examples in their order."""
    model, place = Regression(), 0
    for size in sizes:
        taken, place = data[place : place + size], place + size
        loss = model(torch.stack([each["x"] for each in taken]), torch.stack([each["y"] for each in taken]))["loss"]
        (gradient,) = torch.autograd.grad(loss, [model.inner.weight])
        with torch.no_grad():
            model.inner.weight -= LR * factor[size] * gradient
    return model.inner.weight.detach()


def test_the_trainer_takes_the_steps_that_were_planned(tmp_path: Path) -> None:
    path = written(tmp_path)
    trainer, sizes, callback = train(tmp_path, path, logging_steps=1)
    # 13 steps reach 52 >= 50; 10 reach 152 >= 150; 3 of 14 fit into 200
    assert sizes == planned(path) == [4] * 13 + [10] * 10 + [14] * 3
    weight = trainer.model.inner.weight.detach()
    factors = dict(zip((4, 10, 14), FACTORS, strict=True))
    torch.testing.assert_close(weight, by_hand(sizes, examples(DATA), factors), rtol=1e-10, atol=1e-12)
    assert callback.examples == sum(sizes) == trainer.state.global_step * 4 + 10 * 6 + 3 * 10
    assert trainer.args.gradient_accumulation_steps == 2
    assert trainer.optimizer.param_groups[0]["lr"] == LR
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert {(entry["batch_size"], entry["batch_size/lr_factor"]) for entry in logs} == set(factors.items())


def test_a_plan_goes_on_through_epochs_which_end_with_a_smaller_step(tmp_path: Path) -> None:
    path = written(tmp_path, table=((0, 4), (30, 10)), factors=(1.0, 2.0), budget=100)
    _, sizes, callback = train(tmp_path, path, number=48, num_train_epochs=3)
    # 32 + 10 of 48 examples, then the 6 that are left; 4 tens of 48 and 8; with 96 seen no ten fits into 100
    assert sizes == [4] * 8 + [10, 6] + [10] * 4 + [8]
    assert callback.examples == 96


def test_without_known_factors_the_learning_rate_stays(tmp_path: Path) -> None:
    told = ScheduleExport(
        table=TABLE, steps=(1, 1, 1), examples=DATA, lr_factors=(Quantity(1.0), Quantity(), Quantity())
    )
    text = write_schedule("transformers", told)
    assert [row["lr_factor"] for row in json.loads(text)["stages"]] == [1.0, 1.0, 1.0]


def test_a_run_that_resumes_takes_the_same_steps_or_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    saved = {"save_strategy": "steps", "save_steps": 10, "restore_callback_states_from_checkpoint": True}
    whole, sizes, _ = train(tmp_path, path, **saved)
    resumed, rest, _ = train(tmp_path, path, resume_from_checkpoint=str(tmp_path / "checkpoint-10"), **saved)
    assert rest == sizes[10:]
    assert torch.equal(resumed.model.inner.weight, whole.model.inner.weight)
    later = str(tmp_path / "checkpoint-20")
    with pytest.raises(ConfigError, match="ignore_data_skip=True"):
        train(tmp_path, path, resume_from_checkpoint=later)
    _, rest, callback = train(tmp_path, path, resume_from_checkpoint=later, ignore_data_skip=True, num_train_epochs=2)
    assert rest == sizes[20:]
    assert callback.examples == sum(sizes)
    arguments = torch.load(tmp_path / "checkpoint-20" / "training_args.bin", weights_only=False)
    assert type(arguments.gradient_accumulation_steps) is int
    # another callback's checkpoint has no place in the plan
    state = tmp_path / "checkpoint-10" / "trainer_state.json"
    told = json.loads(state.read_text())
    told["stateful_callbacks"].pop("StagesCallback")
    state.write_text(json.dumps(told))
    with pytest.raises(ConfigError, match="no position in the plan"):
        train(tmp_path, path, resume_from_checkpoint=str(tmp_path / "checkpoint-10"))


def test_a_number_whose_multiples_count_from_a_place() -> None:
    number = _From(5, 13)
    assert [step for step in range(13, 30) if step % number == 0] == [13, 18, 23, 28]
    assert (number * 2, 12 // number, len(range(number))) == (10, 2, 5)
    assert type(pickle.loads(pickle.dumps(number))) is int


@pytest.mark.parametrize(
    ("plan", "arguments", "said"),
    [
        ({}, {"gradient_accumulation_steps": 1}, "set gradient_accumulation_steps=2"),
        (
            {},
            {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1},
            "is not a multiple of the 4 examples",
        ),
        ({"budget": 900}, {}, "raise num_train_epochs"),
        ({}, {"max_steps": 20}, "26 steps, but the Trainer ends earlier"),
        ({"table": ((0, 4), (50, 2)), "factors": (1.0, 1.0)}, {}, "batch sizes fall"),
        ({}, {"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({}, {"accelerator_config": {"split_batches": True}}, "split_batches"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_line(
    plan: dict[str, Any], arguments: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        train(tmp_path, written(tmp_path, **plan), **arguments)
    assert len(str(error.value).splitlines()) == 1


def test_another_hand_on_the_steps_is_seen(tmp_path: Path) -> None:
    class Meddles(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            args.gradient_accumulation_steps = 1

    trainer, _ = hugging_face(tmp_path, StagesCallback(written(tmp_path)), data=examples(DATA))
    trainer.add_callback(Meddles())
    with pytest.raises(ConfigError, match="took 1 micro-batches in a step of 2"):
        trainer.train()


def test_a_run_that_ends_before_its_plan_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Stops(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 15

    trainer, _ = hugging_face(tmp_path, StagesCallback(written(tmp_path)), data=examples(DATA))
    trainer.add_callback(Stops())
    trainer.train()
    assert "ended after 72 of the 200 examples" in caplog.text


def test_data_without_a_length_and_a_schedule_in_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = StagesCallback(written(tmp_path))
    with pytest.raises(ConfigError, match="without a length"):
        hugging_face(tmp_path, callback, data=Endless(), max_steps=50)[0].train()
    assert "counts steps" not in caplog.text
    train(tmp_path, written(tmp_path), lr_scheduler_type="cosine")
    assert "counts steps" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"stages": [], "examples": 5}', '{"stages": [1], "examples": 5}',
        '{"stages": [{"examples": 3, "batch_size": 4}], "examples": 9}',
        '{"stages": [{"examples": 0, "batch_size": 0}], "examples": 9}',
        '{"stages": [{"examples": 0, "batch_size": 4.5}], "examples": 9}',
        '{"stages": [{"examples": 0, "batch_size": 4, "lr_factor": NaN}], "examples": 9}',
        '{"stages": [{"examples": 0, "batch_size": 4, "lr_factor": null}], "examples": 9}',
        '{"stages": [{"examples": 0, "batch_size": 4}, {"examples": 0, "batch_size": 8}], "examples": 9}',
        '{"stages": [{"examples": 0, "batch_size": 4}], "examples": 1e9}',
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_read_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ConfigError) as error:
        StagesCallback(tmp_path / "plan.json")
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(DataError, match="cannot read the plan"):
        StagesCallback(tmp_path / "none.json")
