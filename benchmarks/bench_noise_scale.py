"""Cost of measuring the noise scale: a whole training step with a probe against one without. One thread.

A step is forward, backward, reading the probe and a fused AdamW step. Accumulation is compared with plain accumulation
over as many micro-batches. The floor under ``split`` is a second backward pass. The meter as it is by default is
compared step by step, also with one that looks for nothing that a batch shares: it measures often at first, and seldom
later.
"""

import statistics
import time
from collections.abc import Callable, Iterable

import torch
from interleaved import measure, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.probe import Probe
from cbs.workloads.text_parts.gpt import GPT, GPTShape

SHAPES = {
    "small": GPTShape(width=64, layers=2, heads=4, context=64),
    "larger": GPTShape(width=256, layers=4, heads=4, context=128),
}
BATCH = 32
VOCABULARY = 128  # Of the default workload, ASCII
MICRO_BATCHES = 4
FIRST, LAST = 600, 1800  # Steps of a run of the default, which measures fewer and fewer of them
Step = Callable[[], object]


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


Losses = Callable[[nn.Module], Iterable[Tensor]]
"""The losses of the micro-batches of a step, each computed when it is asked for."""
Build = Callable[[], tuple[nn.Module, Losses]]


def tokens(batch_size: int, context: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch_size, context + 1))


def gpt(shape: GPTShape, micro_batches: int = 1) -> Build:
    """A GPT on one batch of words."""

    def made() -> tuple[nn.Module, Losses]:
        model, parts = GPT(shape, VOCABULARY), tokens(BATCH, shape.context).chunk(micro_batches)
        return model, lambda model: (loss(model, part) / micro_batches for part in parts)

    return made


def stepper(build: Build, measure: str | None) -> Step:
    """A step without a probe, with one of a source that measures every step, with the meter as it is by default, or
    with a meter that looks for nothing that a batch shares (``"less"``)."""
    torch.manual_seed(0)
    model, losses = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    watching: Probe | NoiseScaleMeter | None = None
    if measure in ("default", "less"):
        watching = NoiseScaleMeter(model, optimizer)
        if measure == "less":
            probe = watching.probe
            watching.detach()
            probe._shared = None
            probe._watch("split")
            probe._source._inputs.add = lambda *_, **__: None  # type: ignore[attr-defined]
    elif measure is not None:
        watching = Probe(model, optimizer, source=measure, every=1)

    def step() -> None:
        for part in losses(model):
            part.backward()
        if watching is not None:
            watching.step()
        optimizer.step()
        optimizer.zero_grad()

    return step


def mlp() -> tuple[nn.Module, Losses]:
    model = nn.Sequential(nn.Linear(20, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 1))
    return model, lambda model: [(model(torch.randn(128, 20)) - torch.randn(128, 1)).square().mean()]


def small_gpt() -> tuple[nn.Module, Losses]:
    return GPT(SHAPES["small"], VOCABULARY), lambda model: [loss(model, tokens(8, SHAPES["small"].context))]


def cost_of_default(rounds: int = 3) -> None:
    for name, make in {"MLP, 128 examples": mlp, "small GPT, 8 examples": small_gpt}.items():
        ratios: dict[tuple[str, str, str], list[float]] = {}
        for _ in range(rounds):
            steps = {meter or "plain": stepper(make, meter) for meter in (None, "less", "default")}
            times = {kind: [0.0, 0.0] for kind in steps}
            for number in range(LAST):
                for kind, step in steps.items():
                    started = time.process_time()
                    step()
                    times[kind][number >= FIRST] += time.process_time() - started
            for place, when in enumerate((f"first {FIRST} steps", "later steps")):
                for other in ("plain", "less"):
                    ratio = times["default"][place] / times[other][place]
                    ratios.setdefault((when, "default", other), []).append(ratio)
        print(f"\n{name}, {1e3 * times['plain'][1] / (LAST - FIRST):.2f} ms a step")
        for (when, one, other), values in ratios.items():
            print(f"{when}: {one} / {other} {statistics.median(values):.3f}")


def main() -> None:
    torch.set_num_threads(1)
    cost_of_default()
    for name, shape in SHAPES.items():
        candidates = {source or "plain": stepper(gpt(shape), source) for source in (None, "split", "per_example")}
        told(f"{name} GPT, {BATCH} examples of {shape.context} tokens", candidates)
        parts = {
            source or "plain": stepper(gpt(shape, MICRO_BATCHES), source) for source in (None, "accumulation", "split")
        }
        told(f"{name} GPT, {MICRO_BATCHES} micro-batches of {BATCH // MICRO_BATCHES} examples", parts)


def told(what: str, candidates: dict[str, Step]) -> None:
    print(f"\n{what}: one training step")
    print(table(measure(candidates, rounds=14, clock=time.process_time), "plain"))


if __name__ == "__main__":
    main()
