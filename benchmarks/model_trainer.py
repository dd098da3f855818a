"""A model inside the Trainer of ``transformers`` with the callback, seen step by step."""

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.model_reference import Micro, reference
from benchmarks.zoo_entry import FIRST, Batch, Entry, from_output
from extensions.callbacks.huggingface import NoiseScaleCallback

STEPS, SIZE = 3, 4  # As in `model_cells`: layers are looked at in the first steps only


class Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Examples one by one, along their dimension of the batch."""

    def __init__(self, entry: Entry, count: int) -> None:
        self._batch = entry.batch(count, torch.Generator().manual_seed(FIRST - 1))
        self._dimension, self._count = entry.dimension, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: tensor.select(self._dimension, index) for name, tensor in self._batch.items()}


class Seeded(transformers.Trainer):
    """Draws the same masks as the loop that it is compared with, and takes down what every micro-batch was."""

    def __init__(self, entry: Entry, untouched: nn.Module, **options: Any) -> None:
        super().__init__(**options)
        self.entry, self.untouched = entry, untouched
        self.micros: list[Micro] = []

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        # What the Trainer divides by differs between models; the ratio to the mean loss has it all.
        seed = 7 * self.state.global_step + len(self.micros)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            self.untouched.load_state_dict(self.model.state_dict())
            mean = float(self.entry.loss(self.untouched, dict(inputs)))
        torch.manual_seed(seed)
        own = self.entry.loss is from_output and "labels" in inputs
        loss = super().compute_loss(model, dict(inputs), num_items_in_batch=num_items_in_batch) if own else None
        if loss is None:
            loss = self.entry.loss(model, inputs)
        divided = not self.model_accepts_loss_kwargs or num_items_in_batch is None
        factor = float(loss) / mean / (self.current_gradient_accumulation_steps if divided else 1)
        self.micros.append(Micro(batch=dict(inputs), seed=seed, factor=factor))
        return loss


class Witness(transformers.TrainerCallback):
    """Keeps the state at the beginning of every step, and what the probe says at its end."""

    def __init__(self, callback: NoiseScaleCallback, found: list[Any]) -> None:
        self.callback, self.found = callback, found
        self.trainer: Any = None
        self.before: dict[str, Tensor] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.callback.meter is not None
        probe = self.callback.meter.probe
        inner = probe.step

        def step(**options: Any) -> Any:
            gradients = [
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                for parameter in probe.parameters
            ]
            moments = inner(**options)
            micros, self.trainer.micros = self.trainer.micros, []
            self.found.append((self.before, micros, moments or {}, gradients, probe.source))
            return moments

        probe.step = step  # type: ignore[method-assign]

    def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
        self.before = {name: tensor.clone() for name, tensor in model.state_dict().items()}


def train(entry: Entry, build: Callable[[], nn.Module], source: str, found: list[Any]) -> str:
    """Train for some steps, with two micro-batches a step where the source may need them.

    Args:
        entry: of the model.
        build: the model, always the same.
        source: of the noise scale.
        found: what was seen of every step is appended: the reference, the moments, the gradients and the source.

    Returns:
        The note of the estimate.
    """
    micro_batches = 1 if source in ("split", "per_example") else 2
    seen: list[Any] = []
    callback = NoiseScaleCallback(source=source, **entry.options)
    witness = Witness(callback, seen)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=SIZE, learning_rate=0.01, optim="sgd",
            gradient_accumulation_steps=micro_batches, report_to=[], use_cpu=True, save_strategy="no",
            logging_strategy="no", disable_tqdm=True, remove_unused_columns=False, seed=3,
        )  # fmt: skip
        trainer = Seeded(
            entry,
            build(),
            model=build(),
            args=arguments,
            train_dataset=Data(entry, STEPS * SIZE * micro_batches),
            data_collator=lambda items: {
                name: torch.stack([item[name] for item in items], entry.dimension) for name in items[0]
            },
            callbacks=[callback, witness],
        )
        witness.trainer = trainer
        try:
            trainer.train()
        finally:
            for before, micros, moments, gradients, used in seen:
                trainer.untouched.load_state_dict(before)
                found.append((reference(entry, trainer.untouched, micros, nullcontext), moments, gradients, used))
    assert callback.meter is not None
    return callback.meter.estimate().note
