"""Cost of the diagnostics: a whole training step with one against a step without. One thread.

A step is forward, backward, reading the diagnostic and a fused AdamW step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from interleaved import measure, table
from torch.nn.functional import cross_entropy

from cbs.diagnostics import DIAGNOSTICS
from cbs.workloads.text_parts.gpt import GPT, SIZES

CASES = {"30k": (4, 64, 256), "3m": (8,)}
VOCABULARY = 128


def stepper(size: str, batch_size: int, diagnostic: str | None) -> Callable[[], object]:
    torch.manual_seed(0)
    shape = SIZES[size]
    model = GPT(shape, VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randint(VOCABULARY, (batch_size, shape.context + 1))
    watching = None if diagnostic is None else DIAGNOSTICS[diagnostic]()

    def step() -> None:
        with watching or contextlib.nullcontext():
            loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        if watching is not None:
            watching.columns()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    torch.set_num_threads(1)
    for size, batch_sizes in CASES.items():
        for batch_size in batch_sizes:
            candidates = {"plain": stepper(size, batch_size, None)}
            candidates |= {name: stepper(size, batch_size, name) for name in DIAGNOSTICS}
            rounds = 25 if size == "30k" else 9
            print(f"\n{size}, {batch_size} examples: one training step")
            print(table(measure(candidates, rounds=rounds), "plain"))


if __name__ == "__main__":
    main()
