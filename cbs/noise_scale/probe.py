"""A source and several geometries together: measure the moments of every step."""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cbs.errors import ConfigError
from cbs.noise_scale.distributed import combine, data_parallel_groups, is_sharded, sum_over_ranks, whole_statistics
from cbs.noise_scale.geometries import bound
from cbs.noise_scale.grouping import Grouping, Groups
from cbs.noise_scale.moments import BETWEEN, WITHIN, Moments, solve_moments
from cbs.noise_scale.passes import CountExamples, Weights, first_dimension
from cbs.noise_scale.shared_by_batch import LAGS, OFTEN, SELDOM, SharedByBatch
from cbs.noise_scale.sources import SOURCES, Source

AUTO = "auto"
SPLIT = "split"
PER_EXAMPLE = "per_example"
FALLBACK = "accumulation"
REPLICAS = "replicas"
# Default schedule where measuring takes one extra backward pass: `FIRST` steps whenever their number has doubled, so
# that a window follows the run, at least one in `PERIOD`. An extra pass takes 70 to 90 % of a step, 4 % of a run.
FIRST, PERIOD = 16, 20

NO_BACKWARD = (
    "the noise scale saw no backward pass in this step; create NoiseScaleMeter before the forward pass, on the module "
    "that the training loop calls"
)


class NoiseScaleWarning(UserWarning):
    """The noise scale changes what it measures or how; training goes on."""


class Probe(AbstractContextManager["Probe"]):
    """Measurement of both moments at every step of a training loop.

    Call :meth:`step` after the last backward pass of a step and before anything that changes gradients (unscaling,
    clipping, the optimizer's step). The arguments are those of :class:`~cbs.noise_scale.meter.NoiseScaleMeter`, except:

    Args:
        source: ``"auto"`` is ``split`` where possible, ``accumulation`` from the first step on that shows that
            ``split`` is impossible, and ``replicas`` for sharded models. With ``"auto"`` no error is raised after the
            first step; a warning says what changed.
        geometries: names in :data:`~cbs.noise_scale.geometries.GEOMETRIES`, or ``package.module:class`` of your own;
            ``"matched"`` for that of the optimizer, ``"all"`` for all that the optimizer and the model support.

    Attributes:
        parameters: the trainable parameter tensors, in the order of :attr:`Moments.indices`.
        names: names of the parameter tensors.
        micro_batches: least number of micro-batches into which a training loop should split a step.
        why: why the source is another than the preferred one; empty if it is not.
        automatic: whether the source is chosen automatically.
        stopped: why nothing is measured any more; empty while measuring.
        uneven: why unequal weights of examples make the noise scale inexact; empty if they do not.
        tell: function that receives messages, see :class:`~cbs.noise_scale.meter.NoiseScaleMeter`.
        renewals: number of times that the set of trained parameters changed.

    Raises:
        ConfigError: if a name is unknown, the model has no trainable parameter, or the source cannot measure it.

    Example:

        >>> _ = torch.manual_seed(0)
        >>> model, inputs = nn.Linear(3, 1), torch.randn(64, 3)
        >>> with Probe(model) as probe:
        ...     (model(inputs) - 1).square().mean().backward()
        ...     moments = probe.step()["l2"]
        >>> moments.sizes.big, (moments.noise.sum() / moments.signal.sum()).item() > 0
        (64.0, True)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        source: str = AUTO,
        geometries: Sequence[str] = ("l2",),
        parts: int = 2,
        groups: Groups = 1,
        every: int | None = None,
        count: CountExamples = first_dimension,
        weights: Weights | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        for what, value, least in (("parts", parts, 2), ("every", 1 if every is None else every, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{what} must be a whole number of at least {least}, got {value}")
        self._model, self._optimizer, self._geometry_names = model, optimizer, geometries
        self._every, self._step, self._coming, self.stopped = every, 0, 0, ""
        self.tell = tell or partial(warnings.warn, category=NoiseScaleWarning, stacklevel=4)
        self.renewals, self._left_out, self._why_left_out, self._since, self._alone, self.uneven = 0, 0, "", "", 0, ""
        compiled = self._bind()
        self._parts, self._count, self._grouping, self._weights = parts, count, Grouping(groups), weights
        self.automatic = source == AUTO
        self._sharded = any(is_sharded(parameter) for parameter in self.parameters)
        if self._sharded:
            if source not in (AUTO, REPLICAS):
                raise ConfigError(f"source {source!r} cannot see sharded parameters; use source 'replicas'")
            source = REPLICAS
        try:
            if compiled and source in (AUTO, SPLIT, PER_EXAMPLE):
                raise ConfigError(f"a compiled model can run its backward pass only once; use the source {FALLBACK!r}")
            self._watch(SPLIT if source == AUTO else source)
        except ConfigError as error:
            if source != AUTO:
                raise
            self._watch(FALLBACK, str(error))
            self._say(self.caveat)
        self._ranks = self._source.ranks or data_parallel_groups(model)
        if weights is not None and not (weights in ("examples", "ranks") or (callable(weights) and not self._ranks)):
            self._source.detach()
            raise ConfigError(
                "weights must be 'examples', 'ranks' or, in one process, a function of (args, kwargs) that returns the "
                f"weight of every example, got {weights!r}"
            )

    def _bind(self) -> bool:
        """Find the trained parameters and bind the geometries to them; return whether the model is compiled."""
        trainable = {name: parameter for name, parameter in self._model.named_parameters() if parameter.requires_grad}
        unknown = next((name for name, tensor in trainable.items() if is_lazy(tensor)), None)
        if unknown is not None:
            raise ConfigError(f"parameter {unknown!r} is lazy and has no shape yet: run the model on a batch first")
        if isinstance(self._model, torch.jit.RecursiveScriptModule):
            raise ConfigError(
                "a scripted model accepts no hooks: wrap it in a module that calls it, and measure the wrapper"
            )
        if not trainable:
            raise ConfigError("the model has no trainable parameter; there is no gradient to measure")
        self.names = [name.replace("_orig_mod.", "") for name in trainable]  # prefix that torch.compile adds
        self.parameters = list(trainable.values())
        self.geometries = bound(self._geometry_names, self.parameters, self._optimizer)
        self._shared = None if any(map(is_sharded, self.parameters)) else SharedByBatch(self.parameters)
        return any("_orig_mod." in name for name in trainable)

    def _watch(self, source: str, why: str = "") -> None:
        if self._other_parameters():
            self._renew()
        self.why = why
        built: Source = SOURCES.make(
            source,
            self._model,
            self.parameters,
            [*self.geometries, *([self._shared.sketch] if self._shared else [])],
            groups=self._parts,
            count=self._count,
            grouping=self._grouping,
            weights=self._weights,
        )
        built.attach()
        self._source, self.source = built, source
        self.micro_batches = built.micro_batches

    def fall_back(self, why: str) -> None:
        """Measure with ``accumulation`` from now on; ``why`` gives the reason."""
        self._source.detach()
        self._watch(FALLBACK, why)
        self._say(self.caveat)

    def differentiate(self, loss: Tensor) -> None:
        """Treat a loss as the end of the current forward pass, before its backward pass: no module returned it."""
        self._source.differentiate(loss)

    def _leave_out(self, why: str) -> None:
        """Skip a step that cannot be measured."""
        self._left_out += 1
        if why != self._why_left_out:
            self._say(f"a step is left out, and so are others like it: {why}")
        self._why_left_out = why

    def _say(self, what: str) -> None:
        self.tell(f"noise scale: {what}")

    def _other_parameters(self) -> bool:
        """Return whether the set of trained parameters differs from the one that is measured."""
        if self._sharded:
            return False
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        return [id(tensor) for tensor in trained] != [id(tensor) for tensor in self.parameters] and bool(trained)

    def _renew(self) -> None:
        """Bind to the parameters that are trained now, and report the change."""
        known = {id(tensor) for tensor in self.parameters}
        self._bind()
        self.renewals += 1
        new = [name for name, tensor in zip(self.names, self.parameters, strict=True) if id(tensor) not in known]
        fewer = "fewer parameters are trained"
        what = f"{len(new)} more parameter tensors are trained, such as {new[0]!r}" if new else fewer
        self._since = f"measured from step {self._step + 2} on, as {what} since"
        self._say(self._since)

    def stop(self, why: str) -> None:
        """Stop measuring from the next step on; ``why`` gives the reason. Training goes on."""
        self._source.detach()
        self.stopped, self._source.active = why, False

    @property
    def caveat(self) -> str:
        """Caveats to show beside every number; empty if there are none."""
        own = f"measured with {FALLBACK!r}, which needs two micro-batches or more in a step, because {self.why}"
        left_out = f"{self._left_out} steps left out: {self._why_left_out}" * bool(self._left_out)
        alone = f"{self._alone} steps had a single group of examples, so nothing to compare" * (not self.why)
        caveats = (
            self.stopped,
            own * bool(self.why and not self.stopped),
            self._since,
            left_out,
            alone * bool(self._alone),
            self._source.caveat,
            self.uneven,
            self._shared.told if self._shared else "",
        )
        return "; ".join(filter(None, caveats))

    @property
    def unseen(self) -> float:
        """Largest share of the signal that examples of a batch may have in common without a caveat."""
        return self._shared.unseen if self._shared else 1.0

    def step(self, *, loss_scale: float = 1.0, gradients_unscaled: bool = False) -> dict[str, Moments]:
        """Return the moments of the step whose gradients are in ``.grad``, by geometry; where examples belong together,
        also :data:`~cbs.noise_scale.moments.BETWEEN` and :data:`~cbs.noise_scale.moments.WITHIN`.

        The dictionary is empty if this step was not to be measured or was skipped.

        Args:
            loss_scale: factor by which the loss was multiplied before the backward passes, as a GradScaler does.
            gradients_unscaled: whether ``.grad`` was divided by that factor already.

        Raises:
            ConfigError: if the step cannot be measured, as without a backward pass, or if ``.grad`` is not what its
                backward passes computed; with source ``"auto"`` only in the first step.
        """
        scale = 1.0 if gradients_unscaled else loss_scale
        if not self.watching:
            self.start_at(self._step + 1)
            self._look_for_shared(scale, None)
            return {}
        source, sample, first = self._source, self._source.sample, self._step == 0
        small, failure = None, None
        try:
            small = source.collect()
        except ConfigError as error:
            failure = error
        source.end_step()
        told, self.uneven = self.uneven, source.uneven
        if self.uneven and not told:
            self._say(self.uneven)
        if self._other_parameters():
            source.detach()
            self._watch(self.source, self.why)
        elif self.automatic:
            failure = self._agree(failure)
            if failure is not None and self.source == SPLIT:
                self.fall_back(str(failure))
        self.start_at(self._step + 1)
        # What the old source collected belongs to other parameters or other passes.
        if self._source is not source:
            return {}
        if failure is None and small is not None:
            try:
                # Gradients that were clipped, scaled or averaged since would count as signal.
                sample.compare(divisor=loss_scale if gradients_unscaled else 1.0, ranks=self._ranks)
            except ConfigError as error:
                failure = error
            failure = self._agree(failure) if self.automatic else failure
        if failure is not None or small is None:
            sample.forget()
            failure = failure or ConfigError(NO_BACKWARD)
            if first or not self.automatic:
                raise failure
            self._leave_out(str(failure))
            return {}
        try:
            within = combine(small.within, self._ranks, self._weights) if small.within else None
            small = combine(small, self._ranks, self._weights)
        except ConfigError as error:  # of ranks that differ in size
            if first:
                raise
            self._leave_out(str(error))
            return {}
        members, counted = source.latest.units.shape[1], small.sizes
        sizes = replace(counted, small=counted.small / members, big=counted.big / members, members=members)
        self._alone += sizes.groups < 2
        moments: dict[str, Moments] = {}
        for geometry, statistics in zip(source.geometries, small.statistics, strict=True):
            indices = tuple(filter(geometry.covers, range(len(self.parameters))))
            if not indices and self._shared and geometry is self._shared.sketch:
                continue
            signal = noise = torch.full((len(indices),), float("nan"), dtype=torch.float64)
            if sizes.groups > 1 and small.weighted:
                sent = {index: one * (loss_scale / scale) for index, one in self._gradients(indices).items()}
                statistics = small.weighted.statistics(geometry, statistics, sent, sizes.groups)
            if sizes.groups > 1:
                whole = whole_statistics(geometry, self._gradients(indices))
                for entries, factor in ((statistics, loss_scale**-2), (whole, scale**-2)):
                    for entry in entries if factor != 1.0 else ():
                        entry.mul_(factor)
                signal, noise = geometry.read(statistics, whole, sizes)
            moments[geometry.name] = Moments(indices=indices, signal=signal, noise=noise, sizes=sizes)
            if within is not None and geometry.name == "l2":
                fine, coarse = (torch.stack(side).double() for side in (within.statistics[0], statistics))
                _, trace = solve_moments(fine * loss_scale**-2, within.sizes.small, coarse, small.sizes.small)
                moments[WITHIN] = replace(moments["l2"], noise=trace)
                moments[BETWEEN] = replace(moments["l2"], noise=noise - trace / sizes.members)
        if self._shared:
            told = self._shared.told
            self._look_for_shared(scale, moments.pop(self._shared.sketch.name, None))
            if self._shared.told and not told:
                self._say(self._shared.told)
        return moments

    def _look_for_shared(self, scale: float, moments: Moments | None) -> None:
        """Compare the step that was made with those before it if its turn has come, or keep it for the next ones."""
        step, left = self._step - 1, self._coming - self._step + 1
        if self._shared is None or self.stopped:
            return
        if left <= LAGS:
            self._shared.add(step, scale, moments, last=left <= 1)
        if left <= 0:
            gap = 1 if self._every == 1 else max(OFTEN, min(SELDOM, step // SELDOM))
            self._coming = next(filter(self._due, itertools.count(step + gap)))
        self._shared.sketch.active = self._coming == self._step

    @property
    def watching(self) -> bool:
        """Whether the next step is measured."""
        return self._source.active

    def start_at(self, step: int) -> None:
        """Continue as after ``step`` steps; the number of steps decides which of the next ones are measured."""
        self._step = step
        self._source.active = not self.stopped and self._due(step)

    def _due(self, step: int) -> bool:
        passes = self._source.backward_passes
        every = max(1, min(PERIOD * passes, 2 ** ((step * passes // FIRST).bit_length() - 1)))
        return step % (self._every or every) == 0

    def measure_every(self, every: int) -> None:
        """Measure one step in this many from now on, counted from the very first step."""
        self._every, self._coming = every, 0
        self.start_at(self._step)

    def indices(self, geometry: str) -> tuple[int, ...]:
        """Return the parameter tensors that a geometry measures, as positions in :attr:`parameters`."""
        covers = next(entry.covers for entry in self.geometries if entry.name == geometry)
        return tuple(filter(covers, range(len(self.parameters))))

    def detach(self) -> None:
        """Stop measuring and leave the model as it was."""
        self._source.detach()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not measure inside the block, for passes that are not part of a training step."""
        self._source.detach()
        try:
            yield
        finally:
            if not self.stopped and self._other_parameters():
                self._watch(self.source, self.why)
                self.start_at(self._step)
            elif not self.stopped:
                self._source.attach()

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _agree(self, failure: ConfigError | None) -> ConfigError | None:
        """Return the failure of this rank or of another one, so that all ranks fall back together."""
        if not self._ranks:
            return failure
        failed = torch.tensor([float(failure is not None)], device=self.parameters[0].device)
        if not sum_over_ranks([failed], self._ranks)[0]:
            return None
        return failure or ConfigError("another rank cannot measure its part of the batch")

    def _gradients(self, indices: Sequence[int]) -> dict[int, Tensor]:
        """Return the gradients of the whole step, by index; zeros where a parameter has none."""
        tensors = {index: self.parameters[index] for index in indices}
        return {
            index: (torch.zeros_like(one) if one.grad is None else one.grad).detach() for index, one in tensors.items()
        }
