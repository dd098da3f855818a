"""Cost of measuring the noise scale: a whole training step with a probe against one without. One thread.

A step is forward, backward, reading the probe and a fused AdamW step. Accumulation is compared with plain accumulation
over as many micro-batches. Per-example norms by ``torch.func`` are for comparison; they replace the backward pass.
The floor under ``split`` is a second backward pass. The meter as it is by default is compared step by step, also with
one that looks for nothing that a batch shares: it measures often at first, and seldom later.
"""

import statistics
import time
from collections.abc import Callable, Iterable

import torch
from interleaved import measure, table
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.probe import Probe
from cbs.workloads.text_parts.gpt import GPT, GPTShape

SHAPES = {
    "small": GPTShape(width=64, layers=2, heads=4, context=64),
    "larger": GPTShape(width=256, layers=4, heads=4, context=128),
}
BATCH = 32
VOCABULARY = 128
MICRO_BATCHES = 4
FIRST, LAST = 600, 1800  # Steps of a run of the default, which measures fewer and fewer of them
Step = Callable[[], object]


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


class ResNet(nn.Module):
    """Residual network with group normalisation, for images of 32 by 32."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.blocks = nn.Sequential(
            *[Block(before, after) for before, after in zip((widths[0], *widths), widths, strict=False)]
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, before), nn.ReLU(), nn.Conv2d(before, after, 3, 2, 1, bias=False))
        self.second = nn.Sequential(nn.GroupNorm(8, after), nn.ReLU(), nn.Conv2d(after, after, 3, 1, 1, bias=False))
        self.shortcut = nn.Conv2d(before, after, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.second(self.first(x))


class Recurrent(nn.Module):
    """LSTM language model."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(ids))[0])


class GPT2(nn.Module):
    """GPT-2 of transformers."""

    def __init__(self) -> None:
        super().__init__()
        shape = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
        drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.inner = GPT2LMHeadModel(GPT2Config(**shape, **drops, use_cache=False))

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(ids).logits


Losses = Callable[[nn.Module], Iterable[Tensor]]
"""The losses of the micro-batches of a step, each computed when it is asked for."""
Build = Callable[[], tuple[nn.Module, Losses]]


def tokens(batch_size: int, context: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch_size, context + 1))


def language_model(build: Callable[[], nn.Module], context: int = 64, micro_batches: int = 1) -> Build:
    """A model on one batch of words."""

    def made() -> tuple[nn.Module, Losses]:
        model, parts = build(), tokens(BATCH, context).chunk(micro_batches)
        return model, lambda model: (loss(model, part) / micro_batches for part in parts)

    return made


def gpt(shape: GPTShape, micro_batches: int = 1) -> Build:
    return language_model(lambda: GPT(shape, VOCABULARY), shape.context, micro_batches)


def residual() -> tuple[nn.Module, Losses]:
    model, images, labels = ResNet(), torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    return model, lambda model: [cross_entropy(model(images), labels)]


OTHERS: dict[str, Build] = {
    "GPT-2 of transformers, width 256, 4 layers, 64 tokens": language_model(GPT2),
    "residual network with group normalisation": residual,
    "LSTM language model, width 256, 2 layers, 64 tokens": language_model(Recurrent),
}


def stepper(build: Build, measure: str | None) -> Step:
    """A step without a probe, with one of a source that measures every step, with the meter as it is by default, or
    with a meter that looks for nothing that a batch shares (``"less"``)."""
    torch.manual_seed(0)
    model, losses = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    watching: Probe | NoiseScaleMeter | None = None
    if measure in ("default", "less"):
        watching = NoiseScaleMeter(model, optimizer)
    elif measure is not None:
        watching = Probe(model, optimizer, source=measure, every=1)
    if measure == "less":
        probe = watching.probe
        watching.detach()
        probe._shared = None
        probe._watch("split")
        probe._source._inputs.add = lambda *_, **__: None

    def step() -> None:
        for part in losses(model):
            part.backward()
        if watching is not None:
            watching.step()
        optimizer.step()
        optimizer.zero_grad()

    return step


def vmap_stepper(shape: GPTShape, *, beside: bool) -> Step:
    """Norms from ``vmap(grad)``: beside the backward pass of an unchanged loop, or in place of it."""
    torch.manual_seed(0)
    model = GPT(shape, VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch, parameters = tokens(BATCH, shape.context), dict(model.named_parameters())

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
                for one, other in (("default", "plain"), ("default", "less")):
                    ratio = times[one][place] / times[other][place]
                    ratios.setdefault((when, one, other), []).append(ratio)
        print(f"\n{name}, {1e3 * times['plain'][1] / (LAST - FIRST):.2f} ms a step")
        for (when, one, other), values in ratios.items():
            print(f"{when}: {one} / {other} {statistics.median(values):.3f}")


def main() -> None:
    torch.set_num_threads(1)
    cost_of_default()
    for name, shape in SHAPES.items():
        candidates = {source or "plain": stepper(gpt(shape), source) for source in (None, "split", "per_example")}
        candidates["vmap(grad) beside"] = vmap_stepper(shape, beside=True)
        candidates["vmap(grad) as backward"] = vmap_stepper(shape, beside=False)
        told(f"{name} GPT, {BATCH} examples of {shape.context} tokens", candidates)
        parts = {
            source or "plain": stepper(gpt(shape, MICRO_BATCHES), source) for source in (None, "accumulation", "split")
        }
        told(f"{name} GPT, {MICRO_BATCHES} micro-batches of {BATCH // MICRO_BATCHES} examples", parts)
    for name, build in OTHERS.items():
        sources = {source or "plain": stepper(build, source) for source in (None, "split", "per_example")}
        told(f"{name}, {BATCH} examples", sources, rounds=5)


def told(what: str, candidates: dict[str, Step], rounds: int = 14) -> None:
    print(f"\n{what}: one training step")
    print(table(measure(candidates, rounds=rounds, clock=time.process_time), "plain"))


if __name__ == "__main__":
    main()
