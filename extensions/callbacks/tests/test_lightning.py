"""The callback inside the real Trainer, against gradients taken group by group."""

import copy
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError, MissingDependencyError
from extensions.callbacks.tests.twin import mean_moments

lightning = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.loggers.logger import Logger  # noqa: E402

from extensions.callbacks.lightning import LightningNoiseScaleCallback, LightningReportCallback  # noqa: E402

ROUNDING = 1e-10  # The network is in float64, and the two sides differ in the order of sums
STEPS = 40
"""Enough for an interval."""


class Memory(Logger):
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[int, dict[str, float]]] = []

    name = version = "memory"

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step, dict(metrics)))


def regression(base: type = lightning.LightningModule, **options: Any) -> Any:
    class Regression(base):
        """Never called itself: ``training_step`` runs a part of it, twice."""

        def __init__(self, *, manual: bool = False, skip: int = -1) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()
            self.automatic_optimization = not manual
            self.skip = skip
            self.weights: list[dict[str, Tensor]] = []
            self.batches: list[tuple[Tensor, Tensor]] = []
            self.norms: list[float] = []
            self.called = ""

        def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor | None:
            with torch.no_grad():
                self.network(batch[0])
            return None if number == self.skip else loss(self, batch)

        def on_train_batch_start(self, batch: Any, number: int) -> None:
            if number % self.trainer.accumulate_grad_batches == 0:
                self.weights.append(copy.deepcopy(self.state_dict()))
            self.batches.append(batch)

        def on_train_start(self) -> None:
            self.called = type(self.trainer.strategy.model).__name__

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
            self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Regression(**options)


def steps_of(module: Any) -> list[tuple[dict[str, Tensor], list[tuple[Tensor, Tensor]]]]:
    return [(weights, module.batches[2 * i : 2 * i + 2]) for i, weights in enumerate(module.weights)]


def loss(module: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (module.network(batch[0]) - batch[1]).square().mean()


def batches(number: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(number, 4, 6, dtype=torch.float64, generator=generator)
    return [(x, x[:, :1] + 0.5) for x in inputs]


def fit(
    module: Any, callbacks: list[Any], library: Any = lightning, steps: int = STEPS, seed: int = 1, **arguments: Any
) -> Any:
    settings = {
        "max_epochs": 1,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.01,
        "log_every_n_steps": STEPS // 2,
        "logger": False,
        "enable_checkpointing": False,
        **arguments,
    }
    path = settings.pop("ckpt_path", None)
    trainer = library.Trainer(
        accelerator="cpu", callbacks=callbacks, enable_progress_bar=False, enable_model_summary=False, **settings
    )
    data = torch.utils.data.DataLoader(batches(2 * steps, seed), batch_size=None)
    trainer.fit(module, data, ckpt_path=path)
    return trainer


def watched(module: nn.Module) -> bool:
    hooks = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    return hooks or any(parameter._backward_hooks for parameter in module.parameters())


@pytest.fixture(scope="module")
def run() -> tuple[Any, LightningNoiseScaleCallback, Memory]:
    """Steps of two micro-batches, each of them clipped."""
    module, callback, memory = regression(), LightningNoiseScaleCallback(source="accumulation", window=None), Memory()
    fit(module, [callback], logger=memory)
    return module, callback, memory


def test_moments_are_those_of_the_gradients_before_clipping(
    run: tuple[Any, LightningNoiseScaleCallback, Memory],
) -> None:
    module, callback, _ = run
    assert min(module.norms) > 0.02
    signal, noise = mean_moments(regression(), steps_of(module), loss)
    estimate = callback.meter.estimate()
    assert estimate.steps == STEPS
    assert estimate.examples == 8 * STEPS
    assert estimate.signal == pytest.approx(signal, rel=ROUNDING)
    assert estimate.noise == pytest.approx(noise, rel=ROUNDING)


def test_training_is_what_it_is_without_the_callback(run: tuple[Any, LightningNoiseScaleCallback, Memory]) -> None:
    alone = regression()
    fit(alone, [])
    for name, weight in alone.state_dict().items():
        assert torch.equal(weight, run[0].state_dict()[name]), name


def test_the_logger_gets_the_noise_scale_when_the_trainer_logs(
    run: tuple[Any, LightningNoiseScaleCallback, Memory],
) -> None:
    _, callback, memory = run
    logs = [(step, metrics) for step, metrics in memory.logged if "noise_scale/simple" in metrics]
    assert [step for step, _ in logs] == [STEPS // 2 - 1, STEPS - 1]
    estimate = callback.meter.estimate()
    found = [logs[-1][1][f"noise_scale/{name}"] for name in ("simple", "low", "high")]
    assert found == pytest.approx([estimate.value, estimate.low, estimate.high], rel=1e-6)  # Lightning logs float32


def test_one_process_needs_no_source_and_no_accumulation() -> None:
    """The halves of every batch are the groups."""
    module, callback = regression(), LightningNoiseScaleCallback()
    fit(module, [callback], steps=5, accumulate_grad_batches=1)
    halves = [
        (weights, [(inputs[part], targets[part]) for part in (slice(2), slice(2, 4))])
        for weights, (inputs, targets) in zip(module.weights, module.batches, strict=True)
    ]
    signal, noise = mean_moments(regression(), halves, loss)
    estimate = callback.meter.estimate()
    assert callback.meter.probe.source == "split"
    assert estimate.steps == len(halves)
    assert estimate.signal == pytest.approx(signal, rel=ROUNDING)
    assert estimate.noise == pytest.approx(noise, rel=ROUNDING)


def test_a_resumed_run_goes_on_with_its_averages(tmp_path: Path) -> None:
    first, second, options = regression(), regression(), {"source": "accumulation", "window": None}
    callback = LightningNoiseScaleCallback(**options)
    fit(first, [LightningNoiseScaleCallback(**options)], max_steps=30).save_checkpoint(tmp_path / "run.ckpt")
    fit(second, [callback], max_epochs=2, max_steps=STEPS, ckpt_path=tmp_path / "run.ckpt")
    signal, noise = mean_moments(regression(), steps_of(first) + steps_of(second), loss)
    estimate = callback.meter.estimate()
    assert (len(first.weights), len(second.weights), estimate.steps) == (30, STEPS - 30, STEPS)
    assert estimate.signal == pytest.approx(signal, rel=ROUNDING)
    assert estimate.noise == pytest.approx(noise, rel=ROUNDING)


def test_manual_optimization_is_refused() -> None:
    with pytest.raises(ConfigError, match="manual_backward"):
        fit(regression(manual=True), [LightningNoiseScaleCallback()], gradient_clip_val=None, accumulate_grad_batches=1)


def test_too_few_micro_batches_are_refused_before_training() -> None:
    module = regression()
    with pytest.raises(ConfigError, match="accumulate_grad_batches=1"):
        fit(module, [LightningNoiseScaleCallback(source="accumulation")], accumulate_grad_batches=1)
    assert not watched(module)


def test_the_install_command_is_named_where_lightning_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "extensions.callbacks.lightning")
    with pytest.raises(MissingDependencyError, match=r"pip install lightning$"):
        importlib.import_module("extensions.callbacks.lightning")


def test_every_validation_is_reported_with_the_updates_made_and_their_examples(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CBS_FOLDER", str(tmp_path))

    class Validated(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Tensor, number: int) -> Tensor:
            return (self.weight - batch).square().mean()

        def validation_step(self, batch: Tensor, number: int) -> None:
            self.log("val_loss", (self.weight - 1).square())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.25)

    module, loader = Validated(), torch.utils.data.DataLoader(torch.ones(24), batch_size=2)
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
    trained = lightning.Trainer(
        accelerator="cpu", callbacks=[LightningReportCallback()], max_steps=6, accumulate_grad_batches=2,
        val_check_interval=4, **quiet,
    )  # fmt: skip
    trained.validate(module, loader, verbose=False)
    trained.fit(module, loader, loader)
    trained.validate(module, loader, verbose=False)
    rows = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert [(row["step"], row["examples"], row["val_loss"]) for row in rows] == [
        (step, 4 * step, 0.25**step) for step in (0, 2, 4, 6)
    ]
    with pytest.raises(ConfigError, match="pass batch_size="):
        lightning.Trainer(accelerator="cpu", callbacks=[LightningReportCallback()], max_steps=4, **quiet).fit(
            module, torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=None), loader
        )
