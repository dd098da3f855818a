"""Cost of measuring the noise scale: a whole training step with a probe against one without. One thread.

A step is forward, backward, reading the probe and a fused AdamW step. Accumulation is compared with plain accumulation
over as many micro-batches. Per-example norms by ``torch.func`` are for comparison; they replace the backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from interleaved import measure, table
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from cbs.noise_scale.probe import Probe
from cbs.text.gpt import GPT, GPTShape

SHAPES = {
    "small": GPTShape(width=64, layers=2, heads=4, context=64),
    "larger": GPTShape(width=256, layers=4, heads=4, context=128),
}
BATCH = 32
VOCABULARY = 128
MICRO_BATCHES = 4
Step = Callable[[], object]


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def build(shape: GPTShape, batch_size: int = BATCH) -> tuple[GPT, torch.optim.Optimizer, Tensor]:
    torch.manual_seed(0)
    model = GPT(shape, VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return model, optimizer, torch.randint(VOCABULARY, (batch_size, shape.context + 1))


def stepper(shape: GPTShape, source: str | None, micro_batches: int = 1, **options: object) -> Step:
    model, optimizer, batch = build(shape)
    probe = None if source is None else Probe(model, optimizer, source=source, **options)

    def step() -> None:
        for part in batch.chunk(micro_batches):
            (loss(model, part) / micro_batches).backward()
        if probe is not None:
            probe.step()
        optimizer.step()
        optimizer.zero_grad()

    return step


def vmap_stepper(shape: GPTShape, *, beside: bool) -> Step:
    """Norms from ``vmap(grad)``: beside the backward pass of an unchanged loop, or in place of it."""
    model, optimizer, batch = build(shape)
    parameters = dict(model.named_parameters())

    def example_loss(values: dict[str, Tensor], example: Tensor) -> Tensor:
        logits = functional_call(model, values, (example[None, :-1],))
        return cross_entropy(logits.flatten(0, 1), example[1:])

    gradients_of_examples = vmap(grad(example_loss), in_dims=(None, 0))

    def step() -> None:
        gradients = gradients_of_examples({name: value.detach() for name, value in parameters.items()}, batch)
        for name, parameter in parameters.items():
            torch.linalg.vector_norm(gradients[name])
            if not beside:
                parameter.grad = gradients[name].mean(0)
        if beside:
            optimizer.zero_grad(set_to_none=True)
            loss(model, batch).backward()
        optimizer.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    for name, shape in SHAPES.items():
        candidates = {
            "plain": stepper(shape, None),
            "split": stepper(shape, "split"),
            "per_example": stepper(shape, "per_example"),
            "norm_layers": stepper(shape, "norm_layers"),
            "vmap(grad) beside": vmap_stepper(shape, beside=True),
            "vmap(grad) as backward": vmap_stepper(shape, beside=False),
        }
        rounds = 61 if name == "small" else 9
        print(f"\n{name} GPT, {BATCH} examples of {shape.context} tokens: one training step")
        print(table(measure(candidates, rounds=rounds, clock=time.process_time), "plain"))
        accumulated = {
            "plain": stepper(shape, None, MICRO_BATCHES),
            "accumulation": stepper(shape, "accumulation", MICRO_BATCHES),
            "split": stepper(shape, "split", MICRO_BATCHES),
        }
        print(f"\n{name} GPT, {MICRO_BATCHES} micro-batches of {BATCH // MICRO_BATCHES} examples: one training step")
        print(table(measure(accumulated, rounds=rounds, clock=time.process_time), "plain"))


if __name__ == "__main__":
    main()
