"""Callbacks for the Hugging Face ``Trainer``: its evaluations for a sweep, and the noise scale."""

import json
from typing import Any
from weakref import WeakMethod, finalize

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from cbs.errors import ConfigError, needed
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.boundary import is_sending
from extensions.callbacks import Notes, build, report_metrics

with needed("transformers[torch]", "callbacks of the Trainer"):
    from accelerate.logging import get_logger
    from accelerate.state import GradientState
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState


class ReportCallback(TrainerCallback):
    """Reports every evaluation to the sweep that started the run; outside a sweep it does nothing.

    ::

        trainer = Trainer(..., callbacks=[ReportCallback()])

    The batch size is ``per_device_train_batch_size`` times accumulation and data-parallel processes. Step 0 is reported
    with ``--eval_on_start``. ``--metric`` may name any number of ``metrics``, such as ``eval_loss``.
    """

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            report_metrics(state.global_step, batch_size, metrics or {}, "eval_loss")


class NoiseScaleCallback(TrainerCallback, ExportableState):
    r"""Logs the gradient noise scale of a run, in sequences (McCandlish et al. 2018, equation 2.9).

    ::

        trainer = Trainer(..., callbacks=[NoiseScaleCallback()])

    adds what :meth:`~cbs.noise_scale.NoiseScaleMeter.log` returns, such as ``noise_scale/simple``, to every training
    log: on the screen, in ``trainer.state.log_history`` and for callbacks that are called later. Reporters named in
    ``report_to`` are earlier; ``trainer.add_callback(trainer.pop_callback(WandbCallback))`` moves one to the end.

    A step is measured at the end of the backward pass that completes its gradient, before the Trainer clips or unscales
    it. Gradient accumulation, mixed precision, DDP and FSDP2 are taken into account. Checkpoints hold the averages, and
    a run that resumes from one continues them if the callback has the same arguments. Each message is logged once, on
    the main process.

    When training ends, the hooks are removed from the model. If training raises, the Trainer does not notify callbacks:
    the hooks are then removed when the callback is deleted together with its Trainer, when training starts again, or by
    :meth:`detach`.

    Args:
        options: arguments of :class:`~cbs.noise_scale.NoiseScaleMeter` other than the model and the optimizer. The
            default source is ``replicas`` on several ranks and ``"auto"`` on one.

    Attributes:
        meter: the meter, from the beginning of training on; can be read after training, too.

    Raises:
        ConfigError: when training begins, if the run or the arguments are not supported.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.averages: str | None = None
        self.meter: NoiseScaleMeter | None = None
        self._leave: finalize[Any, NoiseScaleCallback] | None = None
        self._optimizer: Any = None
        self._queued = self._measured = False
        self._tell = Notes(get_logger("extensions.callbacks.huggingface").warning)  # on the main process

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.n_gpu > 1:
            raise ConfigError(
                "the noise scale cannot be measured under DataParallel: start one process per GPU with torchrun"
            )
        if args.deepspeed_plugin is not None:
            raise ConfigError("the noise scale cannot be measured under DeepSpeed: use DDP or FSDP2")
        if isinstance(self.options.get("count"), str):
            raise ConfigError(
                "a checkpoint cannot hold the function given as count=: do not set "
                "restore_callback_states_from_checkpoint, the averages are restored without it"
            )
        self.detach()
        self._queued = self._measured = False
        model, self._optimizer = kwargs["model"], kwargs["optimizer"]
        self.meter = build(
            model,
            getattr(self._optimizer, "optimizer", self._optimizer),
            self.options,
            tell=self._tell,
            micro_batches=args.gradient_accumulation_steps,
            setting="gradient_accumulation_steps",
        )
        alive = WeakMethod(self._watch)  # the callback is deleted with its Trainer, though the model may stay
        handle = model.register_forward_hook(lambda *passed: watch(*passed) if (watch := alive()) else None)
        self._leave = finalize(self, _remove, handle, self.meter)
        self._leave.atexit = False
        saved = state.stateful_callbacks.get(type(self).__name__, []) if state.global_step else []
        for entry in saved if isinstance(saved, list) else [saved]:
            if entry["args"] == self._arguments() and entry["attributes"]["averages"] is not None:
                self.meter.load_state_dict(json.loads(entry["attributes"]["averages"]))
                break

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._measured:
            raise ConfigError(
                "the noise scale saw no backward pass end: the Trainer's loss must come from the outputs of its model, "
                "in tensors, dictionaries or tuples"
            )
        self._measured = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.meter is not None and logs is not None and "loss" in logs:
            values = self.meter.log()
            logs.update(values)
            state.log_history[-1].update(values)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.detach()

    def detach(self) -> None:
        """Remove all hooks from the model; earlier measurements can still be read."""
        if self._leave is not None:
            self._leave()

    def state(self) -> dict[str, Any]:
        """Arguments and averages, for ``trainer_state.json``."""
        if self.meter is not None:
            self.averages = json.dumps(self.meter.state_dict())
        return {"args": self._arguments(), "attributes": {"averages": self.averages}}

    def _arguments(self) -> dict[str, Any]:
        """Return the options in a form that JSON can hold."""
        arguments: dict[str, Any] = json.loads(json.dumps(self.options, default=repr))
        return arguments

    def _watch(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if not (torch.is_grad_enabled() and GradientState().sync_gradients):
            return
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(self._begin)

    def _begin(self, _gradient: Tensor) -> None:
        beside = torch.is_grad_enabled() or is_sending()  # derivatives that are not those of training
        if not (self._queued or beside):
            self._queued = True
            # what a queued callback queues runs after what DDP and FSDP2 queue in the pass to end their reduction
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._measure))

    def _measure(self) -> None:
        assert self.meter is not None
        self._queued = False
        scaler = getattr(self._optimizer, "scaler", None)
        self.meter.step(loss_scale=1.0 if scaler is None else scaler.get_scale())
        self._measured = True


def _remove(handle: RemovableHandle, noise_scale: NoiseScaleMeter) -> None:
    handle.remove()
    noise_scale.detach()
