"""How often the noise scale refuses, falls back or raises on standard models that it should measure.

``python -m benchmarks.false_refusals`` trains eight standard models, tiny, from many seeds, in float32 and under
autocast to bfloat16, and counts the runs in which anything was said, left out or raised. Minutes on one core.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import transformers
from torch import Tensor, nn

from benchmarks.zoo_entry import Entry, classify, features, words
from benchmarks.zoo_layers import NanoGPT, Norm, Recurrent, ResNet, mlp
from benchmarks.zoo_transformers import IMAGE, LANGUAGE, SMALL
from cbs.noise_scale import NoiseScaleMeter


def nano(*, small: bool) -> nn.Module:
    """With the initialisation of torch, or that of GPT-2."""
    model = NanoGPT(8)
    for module in model.modules() if small else ():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    return model


def library(kind: str, config: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: getattr(transformers, kind)(getattr(transformers, config)(**options)).train()


MODELS = {
    "nanoGPT, initialised by torch": Entry(build=lambda: nano(small=False), batch=words(8), loss=classify),
    "nanoGPT, initialised as GPT-2": Entry(build=lambda: nano(small=True), batch=words(8), loss=classify),
    "ViT": Entry(
        build=library("ViTForImageClassification", "ViTConfig", num_labels=5, hidden_size=16, intermediate_size=32,
                      num_hidden_layers=2, num_attention_heads=2, **IMAGE),
        batch=lambda n, g: {"pixel_values": torch.randn(n, 3, 8, 8, generator=g),
                            "labels": torch.randint(5, (n,), generator=g)},
    ),
    "ResNet, GroupNorm": Entry(build=lambda: ResNet(Norm), batch=features(3, 6, 6), loss=classify),
    "LSTM": Entry(build=lambda: Recurrent(nn.LSTM), batch=words(), loss=classify),
    "T5": Entry(
        build=library("T5ForConditionalGeneration", "T5Config", d_model=16, d_ff=32, d_kv=8, num_layers=2,
                      num_heads=2, vocab_size=SMALL["vocab_size"], dropout_rate=0.0, decoder_start_token_id=0),
        **LANGUAGE,
    ),
    "MLP": Entry(build=mlp, batch=features(12), loss=classify),
    "MLP, 12 layers of tanh": Entry(
        build=lambda: nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(12, 12), nn.Tanh()))),
        batch=features(12), loss=classify,
    ),
}  # fmt: skip


def trained(entry: Entry, seed: int, context: Callable[[], AbstractContextManager[object]], steps: int) -> str:
    """What was said or raised in a run; empty if nothing."""
    torch.manual_seed(seed)
    model = entry.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    meter = NoiseScaleMeter(model)
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(1, steps + 1):
            with context():
                loss: Tensor = entry.loss(model, entry.batch(8, generator))
            loss.backward()
            try:
                meter.step()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
                return f"raised in step {step}: {error}"
            optimizer.step()
            optimizer.zero_grad()
    return "; ".join([str(each.message) for each in said if "noise scale" in str(each.message)]) or meter.probe.caveat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=21, help="checks are in the 1st, 2nd, 5th, 10th, 20th ... step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    autocast = partial(torch.autocast, "cpu", torch.bfloat16)
    for name, entry in MODELS.items():
        for precision, context in (("float32", nullcontext), ("autocast", autocast)):
            found = [trained(entry, seed, context, options.steps) for seed in range(options.seeds)]
            said = Counter(filter(None, found))
            print(f"{name}, {precision}: {sum(said.values())} of {options.seeds} refused", *said.most_common(3))


if __name__ == "__main__":
    main()
