"""Time of one optimizer step, as ratios to torch's AdamW, on the shapes of the ``text`` model. One thread."""

from __future__ import annotations

import torch
from interleaved import measure, table

from cbs.optimizers import LAMB, MERIT
from cbs.text.gpt import GPT, SIZES


def stepper(kind: type[torch.optim.Optimizer], size: str, **options: object):
    torch.manual_seed(0)
    model = GPT(SIZES[size], 128)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return kind(model.parameters(), lr=1e-6, **options).step


def main() -> None:
    torch.set_num_threads(1)
    for size in ("30k", "200k", "3m"):
        candidates = {
            "AdamW(foreach)": stepper(torch.optim.AdamW, size, foreach=True),
            "AdamW(fused)": stepper(torch.optim.AdamW, size, fused=True),
            "MERIT": stepper(MERIT, size),
            "LAMB": stepper(LAMB, size),
        }
        print(f"\ntext model {size}: one step")
        print(table(measure(candidates), "AdamW(foreach)"))


if __name__ == "__main__":
    main()
