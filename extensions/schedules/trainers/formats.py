"""How four trainers read a table of batch sizes."""

import ast
import itertools
import math
import shlex

import yaml

from analysis.formatting import number
from cbs.errors import ConfigError
from cbs.registry.values import parse_table
from extensions.schedules.trainers import TRAINERS, ReadSchedule, ScheduleExport, TrainerFormat, of_steps


# Levanter: a list in place of ``trainer.train_batch_size`` (levanter/schedule.py, ``ScheduleStep``). Starts are
# optimizer steps, sizes are examples. There is no factor of the learning rate, whose schedule is also in steps. With a
# list it accumulates gradients only if ``trainer.per_device_parallelism`` is given, which, times the number of devices,
# has to divide every size.
@TRAINERS.register("levanter")
class Levanter(TrainerFormat):
    """The relevant part of the configuration, in YAML."""

    mark = "train_batch_size"

    def write(self, export: ScheduleExport) -> str:
        starts = [0, *itertools.accumulate(export.steps)]
        entries = [{"start": start, "value": size} for start, (_, size) in zip(starts, export.table, strict=False)]
        content = {"trainer": {"train_batch_size": entries, "num_train_steps": starts[-1]}}
        return yaml.safe_dump(content, sort_keys=False)

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule:
        trainer = yaml.safe_load(text)["trainer"]
        entries, steps = trainer[self.mark], trainer.get("num_train_steps")
        if isinstance(entries, int):
            entries = [{"start": 0, "value": entries}]
        if entries[0]["start"] != 0:
            raise ValueError(f"it begins at step {entries[0]['start']}, not at 0")
        starts, sizes = ([int(entry[key]) for entry in entries] for key in ("start", "value"))
        return of_steps(starts, sizes, None if steps is None else int(steps), tokens_per_example)


# Megatron-LM: ``--step-batch-size-schedule`` (NVIDIA/Megatron-LM, pull request 4411, 2026). Thresholds are tokens: it
# always uses its own ``--seq-length`` to convert them to whole samples, rounded down
# (core/num_microbatches_calculator.py). Batch sizes are samples. It steps until at least ``--train-samples`` are
# consumed (``update_train_iters`` of training/training.py), so only the samples of whole steps end at the same point as
# a plan. There is no factor of the learning rate. A batch size has to be divisible by micro-batch size times
# data-parallel size.
@TRAINERS.register("megatron")
class Megatron(TrainerFormat):
    """Command-line arguments."""

    mark = "--step-batch-size-schedule"
    in_tokens = "Megatron-LM reads thresholds as tokens, by its own --seq-length"

    def write(self, export: ScheduleExport) -> str:
        length = self.tokens(export.tokens_per_example)
        table = " ".join(f"{start * length}:{size}" for start, size in export.table)
        return f'{self.mark} "{table}" --seq-length {length} --train-samples {export.seen}\n'

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule:
        words = shlex.split(text.replace("\\\n", " ").replace("=", " "))
        given = dict(itertools.pairwise(words))
        table, last = parse_table(given[self.mark]), given.get("--train-samples")
        samples = None if last is None else int(last)
        length = self.tokens(max(int(given.get("--seq-length", tokens_per_example or 0)), 0) or None)
        if tokens_per_example is not None and length != tokens_per_example:
            raise ConfigError(f"--seq-length {length} and --tokens-per-example {tokens_per_example} differ")
        each = tokens_per_example or 1
        places = [(start // length, size) for start, size in table]
        end = None if samples is None else _consumed(places, samples) * each
        return ReadSchedule(table=tuple((start * each, size) for start, size in places), end=end)


def _consumed(places: list[tuple[int, int]], samples: int) -> int:
    """Return the number of samples in the whole steps until Megatron-LM has consumed at least ``samples``."""
    seen = 0
    for (_, size), (later, _) in zip(places, [*places[1:], (samples, 0)], strict=True):
        seen += max(0, -(-(min(later, samples) - seen) // size)) * size
    return seen


_LAST = "--training.steps"


# torchtitan: one run per stage, each from the checkpoint of the previous one (pytorch/torchtitan, August 2026).
# ``training.num_tokens_per_train_step`` is read once, when a run starts (trainer.py); earlier versions count sequences
# in ``training.global_batch_size``. A checkpoint contains the optimizer, the position in the data and the step, and a
# run whose ``training.steps`` are done ends at once, so the same script continues where it was interrupted. Two
# defaults would silently break it: the last checkpoint contains only the model (components/checkpointer/base.py), and
# the learning-rate schedule ends with the steps of the current run (components/optimizer/lr_scheduler.py).
@TRAINERS.register("torchtitan")
class Torchtitan(TrainerFormat):
    """A shell script, to be started in the folder of ``run_train.sh``; its arguments are passed to every run."""

    mark = "--training.num_tokens_per_train_step"
    in_tokens = "torchtitan counts batch sizes in tokens"

    def write(self, export: ScheduleExport) -> str:
        tokens = self.tokens(export.tokens_per_example)
        ends = list(itertools.accumulate(export.steps))
        kept = "--checkpoint.enable --checkpoint.no-last-save-model-only"
        runs = [
            f'./run_train.sh "$@" {kept} --lr_scheduler.total_steps {ends[-1]} {self.mark} '
            f"{size * tokens} {_LAST} {end}"
            for (_, size), end in zip(export.table, ends, strict=True)
        ]
        told = "# torchtitan changes no batch size within a run: one run per stage. The learning rate takes no factor"
        return "\n".join(["#!/usr/bin/env bash", told, "set -e", *runs]) + "\n"

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule:
        each = self.tokens(tokens_per_example)
        lines = text.replace("\\\n", " ").replace("=", " ").splitlines()
        runs = [dict(itertools.pairwise(shlex.split(line))) for line in lines if self.mark in line]
        ends = [int(run[_LAST]) for run in runs]
        sizes = [self.examples(int(run[self.mark]), each) for run in runs]
        return of_steps([0, *ends[:-1]], sizes, ends[-1], each)


OPTIMIZERS = ("adam", "adamw")


# OLMo-core: ``BatchSizeSchedulerCallback`` (allenai/OLMo-core, train/callbacks/batch_size_scheduler.py, 2026). Batch
# sizes and starts are tokens. It changes the batch size by integer factors only, multiplies the learning rate by the
# square root of the factor itself, and supports only Adam-like optimizers. Factors refer to ``global_batch_size`` of
# the data loader, so that has to be the batch size of the first stage. An increase waits until the number of batches
# done, counted in the current size, is divisible by its factor: stages are written to begin where it will begin them.
# It steps until ``max_duration`` is reached or passed (train/trainer.py), so that is set to the end of the last whole
# step.
@TRAINERS.register("olmo-core")
class OlmoCore(TrainerFormat):
    """The call that creates the callback, and the duration of the run."""

    mark = "BatchSizeSchedulerCallback"
    in_tokens = "OLMo-core counts batch sizes in tokens"
    carries_lr = True

    def write(self, export: ScheduleExport) -> str:
        tokens = self.tokens(export.tokens_per_example)
        if export.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"OLMo-core changes the batch size of {' and '.join(OPTIMIZERS)} alone, not of "
                f"{export.optimizer or 'an unnamed optimizer: give --optimizer'}"
            )
        sizes = [size for _, size in export.table]
        for stage, (before, after) in enumerate(itertools.pairwise(sizes), 1):
            if max(before, after) % min(before, after):
                raise ConfigError(
                    f"OLMo-core changes the batch size by whole factors, and {before} to {after} is none: use "
                    "--rule 'doubling(first_batch_size=N)'"
                )
            root, factor = math.sqrt(after / sizes[0]), export.lr_factors[stage]
            low, high = factor.interval
            if low is not None and high is not None and not low <= root <= high:
                raise ConfigError(
                    f"OLMo-core multiplies the learning rate by the root, {number(root)} at {after}, where "
                    f"{number(factor.value)} [{number(low)}, {number(high)}] is planned; to take it "
                    "all the same: --lr-exponent 0.5"
                )
        places, end = _waited(export)
        starts = ", ".join(f"Duration.tokens({start * tokens})" for start in places)
        return (
            f"{self.mark}(  # it multiplies the learning rate by the root of the batch size's factor by itself\n"
            f"    batch_sizes={[size * tokens for size in sizes]},\n    schedule=[{starts}],\n)\n"
            f"global_batch_size = {sizes[0] * tokens}  # of the data loader; another value changes the learning rate\n"
            f"max_duration = Duration.tokens({end * tokens})\n"
        )

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule:
        each, end = self.tokens(tokens_per_example), None
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == self.mark:
                parts = {keyword.arg: keyword.value for keyword in node.keywords}
                sizes = ast.literal_eval(parts["batch_sizes"])
                starts = [_tokens(place) for place in parts["schedule"].elts]  # type: ignore[attr-defined]
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "max_duration":
                end = _tokens(node.value)
        table = [(start, self.examples(size, each)) for start, size in zip(starts, sizes, strict=True)]
        return ReadSchedule(table=tuple(table), end=end)


def _waited(export: ScheduleExport) -> tuple[list[int], int]:
    """Return the examples at which stages begin and the run ends, given that every increase waits for a suitable batch;
    ``done`` is the number of batches so far, counted in the current size."""
    seen, done, places = 0, 0, [0]
    ends = [*(start for start, _ in export.table[2:]), export.examples]
    for ((_, size), (start, after)), end in zip(itertools.pairwise(export.table), ends, strict=False):
        count = -(-(start - seen) // size)
        count += -(done + count) % max(after // size, 1)
        seen, done = seen + count * size, (done + count) * size // after
        places.append(seen)
        if seen >= end:
            raise ConfigError(
                f"OLMo-core can begin the stage of batch size {after} after {seen:,} examples, when the next one is "
                "due or the run has ended: plan longer stages"
            )
    last = export.table[-1][1]
    return places, seen + max((export.examples - seen) // last, 1) * last


def _tokens(node: ast.expr) -> int:
    """Return n of ``Duration.tokens(n)``."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "tokens" or len(node.args) != 1:
        raise ValueError("a duration that is not Duration.tokens(n)")
    value = ast.literal_eval(node.args[0])
    if not isinstance(value, int):
        raise ValueError(f"{value!r} tokens")
    return value
