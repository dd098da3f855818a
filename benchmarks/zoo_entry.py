"""An entry of the zoo of tiny models: a model, the loss of a batch, and what one example has in it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = dict[str, Tensor]
"""Tensors of a micro-batch by name, examples along one dimension that is the same for all of them."""

TOKENS, WORDS, WIDTH, CLASSES = 6, 17, 16, 5
"""Length of a sequence, size of the vocabulary, width of the models that are written here, classes of an example."""

FIRST = 1000  # Seed of the generator in the first step of a run; the next one has the next seed


def from_output(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that a model computes itself."""
    output = model(**batch)
    loss: Tensor = output if isinstance(output, Tensor) else output.loss
    return loss


def uniform(batch: Batch) -> Tensor:
    """The share of every example where the loss is the mean over examples."""
    examples = next(iter(batch.values())).shape[0]
    return torch.full((examples,), 1.0 / examples)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model, its data and its loss.

    Attributes:
        build: the model, from the global random state, in the mode it is trained in.
        batch: of some examples, from a generator.
        loss: of a micro-batch, a scalar.
        shares: with :attr:`loss` of one example alone: its weight in the loss of the micro-batch, shape ``[examples]``.
        terms: where the model draws random numbers: what every example adds to the loss of the micro-batch, shape
            ``[examples]``.
        dimension: of the examples.
        group: of every row, from their number, where several rows are one example.
        passes: forward passes that share the examples of a micro-batch among them.
        counted: rows of the model's input that belong to one example, and that nobody has told the noise scale.
        change: what is done to the model before a step, from its number.
        blocks: modules to recompute under checkpointing; ``None`` for the model's own switch.
        options: further arguments of ``NoiseScaleMeter``.
        only_check: whether nothing but ``NoiseScaleMeter.check``, or a note, can tell that examples are coupled or
            counted otherwise.
        skips: modes in which the model itself does not run, or is another one.
        compiled: whether it compiles in seconds.
        also: further modes, that few models are run in.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[int, torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor] = from_output
    shares: Callable[[Batch], Tensor] = uniform
    terms: Callable[[nn.Module, Batch], Tensor] | None = None
    dimension: int = 0
    group: Callable[[int], Tensor] | None = None
    passes: int = 1
    counted: int = 1
    change: Callable[[nn.Module, int], object] | None = None
    blocks: tuple[str, ...] | None = ()
    options: dict[str, Any] = field(default_factory=dict)
    only_check: bool = False
    skips: tuple[str, ...] = ()
    compiled: bool = True
    also: tuple[str, ...] = ()

    def take(self, batch: Batch, examples: list[int]) -> Batch:
        """Some examples of a batch."""
        index = torch.tensor(examples)
        if self.group is not None:
            index = torch.isin(self.group(len(next(iter(batch.values())))), index).nonzero()[:, 0]
        return {name: tensor.index_select(self.dimension, index) for name, tensor in batch.items()}


def features(*shape: int) -> Callable[[int, torch.Generator], Batch]:
    """Normal inputs ``x`` of a shape, whose mean moves with a class ``y`` so that there is a signal."""

    def batch(examples: int, generator: torch.Generator) -> Batch:
        y = torch.randint(CLASSES, (examples,), generator=generator)
        x = torch.randn(examples, *shape, generator=generator) + y.view(-1, *[1] * len(shape)) / 3
        return {"x": x, "y": y}

    return batch


def words(length: int = TOKENS, vocabulary: int = WORDS) -> Callable[[int, torch.Generator], Batch]:
    """Sequences ``x`` and the words ``y`` that follow."""

    def batch(examples: int, generator: torch.Generator) -> Batch:
        tokens = torch.randint(vocabulary, (examples, length + 1), generator=generator)
        return {"x": tokens[:, :-1].contiguous(), "y": tokens[:, 1:].contiguous()}

    return batch


def classify(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy over examples, and over positions where there are some."""
    logits = model(batch["x"])
    return functional.cross_entropy(logits.flatten(0, -2), batch["y"].flatten())


def classify_terms(model: nn.Module, batch: Batch) -> Tensor:
    """The same, example by example."""
    logits = model(batch["x"])
    values = functional.cross_entropy(logits.flatten(0, -2), batch["y"].flatten(), reduction="none")
    return values.view(len(logits), -1).mean(1) / len(logits)


class Formula(nn.Module):
    """Trainable parameters (shapes, or a shape with its dtype), frozen tables and modules, and what is made of them and
    of one input."""

    def __init__(self, formula: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.formula = formula
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            elif isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                shape, dtype = (part, torch.float32) if not isinstance(part, list) else part
                start = torch.randn(shape, dtype=dtype) / (shape[-1] ** 0.5 if shape else 1)
                setattr(self, name, nn.Parameter(start))

    def forward(self, x: Tensor) -> Any:
        return self.formula(self, x)


def made(formula: Callable[[Any, Tensor], Any], **parts: Any) -> Callable[[], nn.Module]:
    """What builds a formula; parts that are functions make a module or a parameter."""
    return lambda: Formula(formula, **{name: part() if callable(part) else part for name, part in parts.items()})


def linear(rows: int, columns: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(rows, columns, **options)


def small(rows: int, columns: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(rows, WIDTH), nn.Tanh(), nn.Linear(WIDTH, columns))


def head(rows: int = WIDTH) -> Callable[[], nn.Module]:
    return linear(rows, CLASSES)


def embedding() -> nn.Module:
    return nn.Embedding(WORDS, WIDTH)


PLAIN: dict[str, Any] = {"batch": features(12), "loss": classify}
IMAGES: dict[str, Any] = {"batch": features(3, 6, 6), "loss": classify}
LANGUAGE: dict[str, Any] = {"batch": words(), "loss": classify}
