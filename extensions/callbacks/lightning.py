"""Callbacks for the Lightning ``Trainer``: its validations for a sweep, and the noise scale."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

from torch import nn

from cbs.compute.state import IN_AUXILIARY_PASS
from cbs.errors import ConfigError, needed
from cbs.noise_scale import NoiseScaleMeter
from extensions.callbacks import Notes, build, report_metrics

with needed("lightning", "callbacks of Lightning"):
    try:
        from lightning.pytorch import Callback
        from lightning.pytorch.utilities import rank_zero_info
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[assignment]
        from pytorch_lightning.utilities import rank_zero_info


class LightningReportCallback(Callback):
    """Reports every validation to the sweep that started the run; outside a sweep it does nothing.

    ::

        trainer = Trainer(..., callbacks=[LightningReportCallback()])

    ``--metric`` may name any number that was logged before, such as ``val_loss``. Validation before training is step 0:
    ``trainer.validate(module)`` in front of ``trainer.fit(module)``.

    Args:
        batch_size: examples per update, over all devices and micro-batches; by default ``batch_size`` of the training
            DataLoader times accumulation and processes.
    """

    def __init__(self, batch_size: int | None = None) -> None:
        self.batch_size = batch_size

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        counts = trainer.state.fn == "fit" or not trainer.global_step
        if trainer.sanity_checking or not trainer.is_global_zero or not counts:
            return
        size = self.batch_size
        if size is None and trainer.global_step:
            size = getattr(trainer.train_dataloader, "batch_size", None)
            if size is None:
                raise ConfigError("the training data is no DataLoader with a batch_size: pass batch_size= per update")
            size *= trainer.accumulate_grad_batches * trainer.world_size
        report_metrics(trainer.global_step, size or 0, trainer.callback_metrics, "val_loss")


class LightningNoiseScaleCallback(Callback):
    r"""Logs the gradient noise scale of a run, in examples (McCandlish et al. 2018, equation 2.9).

    ::

        trainer = Trainer(..., callbacks=[NoiseScaleCallback()])

    logs what :meth:`~cbs.noise_scale.NoiseScaleMeter.log` returns, such as ``noise_scale/simple``, to the Trainer's
    logger, as often as the Trainer logs. Works with ``lightning`` and ``pytorch_lightning``, under automatic
    optimization. Each message goes to Lightning's own log once, on rank zero.

    A step is measured in ``on_before_optimizer_step``, before the Trainer clips the gradient. Gradient accumulation,
    mixed precision, DDP and FSDP2 are taken into account. Checkpoints hold the averages.

    Args:
        options: arguments of :class:`~cbs.noise_scale.NoiseScaleMeter` other than the model and the optimizer. The
            default source is ``replicas`` on several ranks and ``"auto"`` on one. ``count`` is called with
            ``((batch,), {})``; the default is the first dimension of the batch's first tensor.

    Attributes:
        meter: the meter, from the beginning of training on; can be read after training, too.

    Raises:
        ConfigError: when training begins, if the run or the arguments are not supported.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.meter: NoiseScaleMeter | None = None
        self._batches: _Batches | None = None
        self._saved: str | None = None
        self._differentiated = False
        self._tell = Notes(rank_zero_info)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not pl_module.automatic_optimization:
            raise ConfigError(
                "the callback cannot tell when a manual optimization clips and steps: "
                "use cbs.noise_scale.NoiseScaleMeter in training_step, after manual_backward"
            )
        if getattr(trainer.strategy, "strategy_name", None) == "deepspeed":
            raise ConfigError(
                "the noise scale cannot be measured under DeepSpeed: use strategy 'ddp' or ModelParallelStrategy"
            )
        self._detach()
        self._batches = _Batches(trainer.strategy.model, pl_module)
        self.meter = build(
            self._batches,
            trainer.optimizers[0],
            self.options,
            tell=self._tell,
            micro_batches=trainer.accumulate_grad_batches,
            setting="accumulate_grad_batches",
        )
        if self._saved is not None:
            self.meter.load_state_dict(json.loads(self._saved))
            self._saved = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        assert self._batches is not None
        self._batches(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if self.meter is not None:
            self.meter.probe.differentiate(loss)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self._differentiated = True

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if not self._differentiated:
            return
        assert self.meter is not None
        self._differentiated = False
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.meter.step(
            loss_scale=1.0 if scaler is None else scaler.get_scale(),
            gradients_unscaled=not getattr(optimizer, "_step_supports_amp_scaling", False),
        )
        if (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
            pl_module.log_dict(self.meter.log(), on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._detach()

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self._saved if self.meter is None else json.dumps(self.meter.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict["averages"]

    def _detach(self) -> None:
        if self.meter is not None:
            self.meter.detach()
        self._batches = None


class _Batches(nn.Module):
    """Replaces the module that other training loops call, because Lightning calls none.

    ``training_step`` may run any part of the LightningModule any number of times, so a forward pass is defined by the
    batch: this module is called with every batch, before ``training_step``. In auxiliary passes it runs
    ``training_step`` itself and drops what that logs. Parameters get their names from the LightningModule, ``named``.
    """

    def __init__(self, module: nn.Module, named: Any) -> None:
        super().__init__()
        self.module, self.named = module, named

    def forward(self, batch: Any) -> None:
        if not IN_AUXILIARY_PASS.get():
            return
        step = self.named.training_step
        silent = dict.fromkeys(("log", "log_dict"), lambda *_, **__: None)
        vars(self.named).update(silent)
        try:
            step(*[batch, 0][: len(inspect.signature(step).parameters)])
        finally:
            for name in silent:
                del vars(self.named)[name]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.named.named_parameters(*args, **kwargs)
