"""A table of stages, as in Megatron-LM, OLMo-core and the reports of DeepSeek."""

from __future__ import annotations

from cbs.errors import ConfigError
from cbs.registry.values import parse_table
from cbs.schedules.batch_size import BATCH_SCHEDULES, OpenLoop, RunSettings, exponent, joined, of_table


@BATCH_SCHEDULES.register("stages")
def stages(run: RunSettings, *, table: str, unit: str = "examples", lr_exponent: float = 0.0) -> OpenLoop:
    """Return stages that begin at given numbers of examples or tokens.

    Args:
        run: settings of the run, whose batch size is that of the first stage.
        table: ``"0:16 10K:32 40K:64"``: where each stage begins and its batch size in examples.
        unit: unit of these starting points: ``examples`` or ``tokens``.
        lr_exponent: the learning rate follows the batch size with this power.

    Raises:
        ConfigError: if the table is malformed, begins with another batch size than the trial's, goes beyond the
            budget, or has a stage that is shorter than one batch of the stage before.
    """
    parsed, per_unit = parse_table(str(table)), 1
    if unit not in ("examples", "tokens"):
        raise ConfigError(f"unit of batch schedule 'stages' must be examples or tokens, got {unit!r}")
    if unit == "tokens":
        if run.tokens_per_example is None:
            raise ConfigError(
                "batch schedule 'stages' has unit=tokens, but the workload's examples have no tokens; use unit=examples"
            )
        per_unit = run.tokens_per_example
    starts, sizes = [-(-start // per_unit) for start, _ in parsed], [size for _, size in parsed]
    if sizes[0] != run.batch_size:
        raise ConfigError(
            f"the table of stages begins with batch size {sizes[0]}, but the trial with {run.batch_size}; "
            f"use --batch-sizes {sizes[0]}"
        )
    if starts[-1] >= run.examples:
        raise ConfigError(
            f"the stage of batch size {sizes[-1]} begins after {starts[-1]:,} examples, beyond the budget of "
            f"{run.examples:,}; raise max_examples"
        )
    for index in range(1, len(starts)):
        end = starts[index + 1] if index + 1 < len(starts) else run.examples
        if end - starts[index] < sizes[index - 1]:
            raise ConfigError(
                f"the stage of batch size {sizes[index]} holds {end - starts[index]:,} examples, less than one batch "
                f"of the stage before it ({sizes[index - 1]}), so a step might jump over it; lengthen it or leave it "
                "out"
            )
    factors = joined(sizes, run.batch_size, exponent(lr_exponent))
    return of_table(run, zip(starts, sizes, factors, strict=True))
