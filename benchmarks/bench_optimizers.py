"""Time of one optimizer step, as ratios to torch's AdamW, on the shapes of GPTs of 30 thousand to 124 million entries.

The floor: a fused AdamW in float32 reads w, g, m, v and writes w, m, v, 28 bytes per parameter. A trust ratio is known
only once all of a tensor has been read, so LAMB and MERIT read w and the direction again and write w, 12 bytes more, 40
in all: 1.43 times the fused AdamW where memory is what limits. What they take beyond that is passes over tiles in the
cache and, in small models, calls. One thread; run it as
``taskset -c 0 python benchmarks/bench_optimizers.py [size ...]``.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable

import torch
from interleaved import measure, table
from torch import nn

from cbs.optimizers import LAMB, MERIT, Muon
from cbs.optimizers.lars import LARS
from cbs.optimizers.routing import route
from cbs.workloads.text_parts.gpt import GPT, SIZES, GPTShape

SHAPES = {
    "30k": (SIZES["30k"], 128),
    "200k": (SIZES["200k"], 128),
    "3m": (SIZES["3m"], 128),
    "10m": (GPTShape(width=320, layers=8, heads=5, context=256), 512),
    "40m": (GPTShape(width=512, layers=12, heads=8, context=512), 4096),
    "124m": (SIZES["gpt2-small"], 50257),
}
FLOOR = 40 / 28  # Bytes that a step reads and writes for each weight, over those of AdamW


def candidates(params: list[nn.Parameter]) -> dict[str, Callable[[], object]]:
    """A step of each optimizer over the same parameters."""
    made: dict[str, torch.optim.Optimizer] = {
        "AdamW(foreach)": torch.optim.AdamW(params, lr=1e-6, foreach=True),
        "AdamW(fused)": torch.optim.AdamW(params, lr=1e-6, fused=True),
        "MERIT": MERIT(params, lr=1e-6),
        "LAMB": LAMB(params, lr=1e-6),
        "LARS": LARS(params, lr=1e-6),
    }
    if importlib.util.find_spec("pytorch_optimizer"):
        from pytorch_optimizer import Lamb

        made["pytorch_optimizer Lamb"] = Lamb(params, lr=1e-6)
    return {name: optimizer.step for name, optimizer in made.items()}


def spectral_candidates(params: list[nn.Parameter]) -> dict[str, Callable[[], object]]:
    """A step of Muon over the same matrices, in the precision of torch's own."""
    made: dict[str, torch.optim.Optimizer] = {
        "torch Muon": torch.optim.Muon(params, lr=1e-6, weight_decay=0.0),
        "Muon(bfloat16)": Muon(params, lr=1e-6, ns_dtype="bfloat16"),
        "Muon(float32)": Muon(params, lr=1e-6, ns_dtype="float32"),
    }
    return {name: optimizer.step for name, optimizer in made.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", default=list(SHAPES), help=f"some of {', '.join(SHAPES)}")
    parser.add_argument("--rounds", type=int, default=15, help="turns of every optimizer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for size in arguments.sizes:
        torch.manual_seed(0)
        shape, vocabulary = SHAPES[size]
        model = GPT(shape, vocabulary)
        params = list(model.parameters())
        for param in params:
            param.grad = torch.randn_like(param)
        print(f"\nGPT of {sum(param.numel() for param in params):,} parameters: one step")
        times = measure(candidates(params), rounds=arguments.rounds, clock=time.process_time)
        for reference in ("AdamW(foreach)", "AdamW(fused)"):
            print(table(times, reference))
        print(f"floor of LAMB and MERIT by bytes: {FLOOR:.2f} AdamW(fused)")
        matrices = route(model).matrices
        print(f"{sum(param.numel() for param in matrices):,} of them in hidden matrices")
        times = measure(spectral_candidates(matrices), rounds=max(3, arguments.rounds // 3), clock=time.process_time)
        print(table(times, "torch Muon"))


if __name__ == "__main__":
    main()
