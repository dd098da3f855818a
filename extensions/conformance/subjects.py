"""The optimizer under test with the small model that it trains, and the checks that are run on it."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from cbs.optimizers.problem import Problem, ProblemOptimizer
from cbs.training.averaging import trained_weights

Shapes = dict[str, tuple[int, ...]]

# All different, or a transposed matrix would pass
_WORDS, _WIDTH, _HIDDEN, _CLASSES = 8, 6, 5, 3


class Failure(AssertionError):
    """An optimizer does not pass a check; the message says what it does instead."""


class NotApplicable(Exception):
    """A check does not apply to an optimizer; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An optimizer under test.

    Attributes:
        name: name in reports.
        build: ``build(model, lr, **options)`` returns the optimizer over the trainable parameters of a model.
        lr_grid: increasing learning rates; it has to learn at one of them, and most checks use the second.
        matrices: whether it accepts only matrices, like ``torch.optim.Muon``.
        construct: the class or function that is called with parameters or groups of them; ``None`` if it is built over
            a model.
        options: arguments of every construction.
    """

    name: str
    build: Callable[..., torch.optim.Optimizer]
    lr_grid: tuple[float, ...]
    matrices: bool = False
    construct: Callable[..., torch.optim.Optimizer] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def lr(self) -> float:
        """The learning rate of most checks."""
        return self.lr_grid[min(1, len(self.lr_grid) - 1)]

    def run(
        self, *, dtype: torch.dtype = torch.float32, extra: Shapes | None = None, lr: Any = None, **options: Any
    ) -> OptimizerRun:
        """Return the optimizer over a new model, which is the same at every call."""
        if extra and self.matrices:
            raise NotApplicable("it accepts only matrices")
        return OptimizerRun(self, Model(extra or {}, matrices=self.matrices).to(dtype), lr=lr, **options)

    def over(self, params: Any, **options: Any) -> torch.optim.Optimizer:
        """Return the optimizer over parameters or groups of them."""
        if self.construct is None:
            raise NotApplicable("it is built over a model, not over parameters")
        return self.construct(params, **{"lr": self.lr, **self.options, **options})


def subject(
    target: Subject | str | Callable[..., torch.optim.Optimizer],
    *,
    lr: float | None = None,
    matrices: bool = False,
    **options: Any,
) -> Subject:
    """Return the subject for an optimizer to test.

    Args:
        target: a class of optimizers, or any function called as ``target(params, lr=...)``; a name that ``--optim``
            accepts, with ``module:name`` for your own; or a :class:`Subject`, returned as it is.
        lr: a learning rate at which it learns; by default that of its signature, and for a name its grid.
        matrices: whether it accepts only matrices.
        options: further arguments of every construction.

    Raises:
        TypeError: if no learning rate is known.
        ConfigError: if there is no optimizer of that name.
    """
    if isinstance(target, Subject):
        return target
    if isinstance(target, str):
        return _registered(target, lr, options)
    if lr is None:
        given = inspect.signature(target).parameters.get("lr")
        if given is None or not isinstance(given.default, float):
            raise TypeError(f"{target!r} has no default learning rate: pass one at which it learns as lr=")
        lr = given.default

    def build(model: nn.Module, lr: Any, **more: Any) -> torch.optim.Optimizer:
        return target([param for param in model.parameters() if param.requires_grad], lr=lr, **{**options, **more})

    return Subject(
        name=getattr(target, "__name__", repr(target)),
        build=build,
        lr_grid=tuple(lr * 2.0**power for power in (-1, 0, 1, 2, 3)),
        matrices=matrices,
        construct=target,
        options=options,
    )


def _registered(name: str, lr: float | None, options: dict[str, Any]) -> Subject:
    from cbs.optimizers import OPTIMIZERS, build_optimizer
    from cbs.trial.config import Choice

    def build(model: nn.Module, lr: Any, **more: Any) -> torch.optim.Optimizer:
        return build_optimizer(Choice(name=name, options={**options, **more}), model, lr)

    return Subject(name=name, build=build, lr_grid=OPTIMIZERS[name].lr_grid if lr is None else (lr,), options=options)


class Model(nn.Module):
    """A small classifier: an embedding, a normalization, a hidden matrix with a bias and a head, or only two matrices.

    Args:
        extra: names and shapes of further parameters, which shift the first output.
        matrices: whether the model consists of matrices only.
    """

    def __init__(self, extra: Shapes, *, matrices: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.matrices = matrices
        if not matrices:
            self.words = nn.Embedding(_WORDS, _WIDTH)
            self.norm = nn.LayerNorm(_WIDTH)
        self.hidden = nn.Linear(_WORDS if matrices else _WIDTH, _HIDDEN, bias=not matrices)
        self.head = nn.Linear(_HIDDEN, _CLASSES, bias=False)
        self.extra = nn.ParameterDict({name: torch.empty(shape) for name, shape in extra.items()})
        with torch.no_grad():
            for param in self.parameters():
                param.copy_(torch.randn(param.shape, generator=generator) * 0.5)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits, shape ``[examples, 3]``."""
        dtype = self.head.weight.dtype
        x = one_hot(words, _WORDS).to(dtype) if self.matrices else self.norm(self.words(words))
        logits = self.head(torch.relu(self.hidden(x)))
        for param in self.extra.values():
            shift = (param.flatten() * torch.linspace(-1, 1, param.numel(), dtype=param.dtype)).sum().to(dtype)
            logits = logits + shift * one_hot(words[:, None] % 2, _CLASSES)[:, 0].to(dtype)
        return logits


class OptimizerRun:
    """An optimizer and the model that it trains, step by step; the random numbers of a step depend only on its
    number.
    """

    def __init__(
        self,
        subject: Subject,
        model: Any,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        lr: Any = None,
        **options: Any,
    ) -> None:
        self.subject = subject
        self.model: Any = model
        seed(0)
        lr = subject.lr if lr is None else lr
        self.optimizer = subject.build(model, lr, **options) if optimizer is None else optimizer
        trained_weights(self.optimizer)
        words = torch.arange(2 * _WORDS) % _WORDS
        self.batch = (words, (words * words) % _CLASSES)
        self.steps = 0
        if isinstance(self.optimizer, ProblemOptimizer):
            self.optimizer.attach(
                Problem(model=model, outputs=outputs, output_losses=output_losses, curvature_sample=curvature_sample)
            )

    @property
    def named(self) -> dict[str, Any]:
        """The parameters by name."""
        return dict(self.model.named_parameters())

    @property
    def params(self) -> list[Any]:
        """The parameters of the optimizer, in its order."""
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    def values(self) -> dict[str, Tensor]:
        """Return copies of the parameters."""
        return {name: param.detach().clone() for name, param in self.named.items()}

    def loss(self) -> Tensor:
        """Return the mean loss of the batch."""
        return output_losses(outputs(self.model, self.batch), self.batch).mean()

    def backward(self) -> Tensor:
        """Compute new gradients; return the loss."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def prepare(self) -> None:
        """Do what is needed before every step."""
        self.steps += 1
        seed(self.steps)
        if isinstance(self.optimizer, ProblemOptimizer):
            self.optimizer.observe(self.batch)

    def only_step(self, *closure: Callable[[], Any]) -> Any:
        """Run a step with the current gradients."""
        self.prepare()
        return self.optimizer.step(*closure)

    def train(self, steps: int = 3) -> OptimizerRun:
        """Run several steps, each with new gradients."""
        for _ in range(steps):
            self.backward()
            self.only_step()
        return self

    def finite(self) -> bool:
        """Return whether all parameters are finite."""
        return all(bool(param.isfinite().all()) for param in self.model.parameters())

    def needs_gradients(self) -> None:
        """Raise NotApplicable if the optimizer computes its own gradients."""
        if isinstance(self.optimizer, ProblemOptimizer):
            raise NotApplicable("it evaluates the model itself")


def seed(value: int) -> None:
    """Seed torch's own generator; ``torch.manual_seed`` takes a thousand times as long."""
    torch.default_generator.manual_seed(value)


def outputs(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """See :class:`~cbs.optimizers.problem.Problem`."""
    return model(batch[0])


def output_losses(outputs: Tensor, batch: Sequence[Tensor]) -> Tensor:
    """See :class:`~cbs.optimizers.problem.Problem`."""
    return cross_entropy(outputs.float() if outputs.dtype.itemsize == 2 else outputs, batch[1], reduction="none")


def curvature_sample(outputs: Tensor, batch: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """See :class:`~cbs.optimizers.problem.Problem`."""
    probabilities = outputs.detach().softmax(-1)
    drawn = torch.multinomial(probabilities.float(), 1, generator=generator)[:, 0]
    return probabilities - one_hot(drawn, outputs.shape[1]).to(probabilities.dtype)


def ensure(condition: bool, message: str) -> None:
    """Fail with ``message`` unless ``condition``."""
    if not condition:
        raise Failure(message)


def same(one: dict[str, Tensor], other: dict[str, Tensor], message: str, *, tolerance: float = 0.0) -> None:
    """Fail unless tensors of the same names are equal, within ``tolerance`` of the largest entry."""
    for name in one:
        a, b = one[name].detach(), other[name].detach()
        if a.shape != b.shape or a.dtype != b.dtype:
            raise Failure(f"{message}: {name} is {a.dtype}{list(a.shape)} here and {b.dtype}{list(b.shape)} there")
        if tolerance:
            # Written so that values that are not finite count as different.
            apart = a.numel() > 0 and not (a - b).abs().max() <= tolerance * a.abs().max() < math.inf
        else:
            apart = not torch.equal(a, b)
        if apart:
            raise Failure(f"{message}: {name} differs by up to {(a - b).abs().max().item():.2g}")


def moved(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    """Return the names of the tensors that differ."""
    return {name for name in one if not torch.equal(one[name], other[name])}


def refused(action: Callable[[], Any], kinds: tuple[type[Exception], ...], message: str) -> None:
    """Fail unless ``action`` raises one of ``kinds`` with a message."""
    try:
        action()
    except kinds as error:
        ensure(bool(str(error)), f"{message}: it raises {type(error).__name__} without a message")
        return
    except Exception as error:
        raise Failure(f"{message}: it raises {type(error).__name__}: {error}") from error
    raise Failure(f"{message}: it is accepted")


@dataclass(frozen=True)
class ContractCheck:
    """One promise of an optimizer.

    Attributes:
        name: name of the function, ``check_...``.
        function: called with a subject; raises :class:`Failure`, or :class:`NotApplicable`.
        beyond_torch: whether the promise is one that torch's own optimizers do not make.
        slow: whether the check takes more than a second.
    """

    name: str
    function: Callable[[Subject], None]
    beyond_torch: bool = False
    slow: bool = False

    @property
    def contract(self) -> str:
        """The promise in words."""
        return " ".join((inspect.getdoc(self.function) or "").split())

    def __call__(self, subject: Subject) -> None:
        """Run the check.

        Raises:
            Failure: if the promise is broken; any other error of the optimizer counts as a failure, too.
            NotApplicable: if the promise does not apply to the optimizer.
        """
        default = torch.get_default_dtype()
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.function(subject)
            except (Failure, NotApplicable):
                raise
            except Exception as error:
                raise Failure(f"it raises {type(error).__name__}: {error}") from error
            finally:
                torch.set_default_dtype(default)


CHECKS: list[ContractCheck] = []
"""All checks, in the order of their files."""


def check(*, beyond_torch: bool = False, slow: bool = False) -> Callable[..., Callable[[Subject], None]]:
    """Decorate a function ``check_...(subject)`` and add it to :data:`CHECKS`."""

    def decorate(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
        CHECKS.append(ContractCheck(function.__name__, function, beyond_torch, slow))
        return function

    return decorate
