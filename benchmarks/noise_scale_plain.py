"""False notes of the noise scale: plain training runs in which nothing is shared, coupled or weighted.

``python -m benchmarks.noise_scale_plain [RUNS]`` trains tiny models on independent examples, each run with other
weights, data, batch size, optimizer and learning rate, up to rates at which the loss hardly falls, and counts the runs
whose estimate has a note that questions it. One run in five measures as the meter does by default; the others, every
step, which tests hardest.
"""

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from cbs.noise_scale import NoiseScaleMeter

STEPS = 420  # Twice the 200 batches within which what a batch shares is told
Loss = Callable[[Tensor], Tensor]


class Words(nn.Module):
    """Next word from the words so far."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(11, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.inner(self.table(ids))[0])


def half_square(output: Tensor, y: Tensor) -> Tensor:
    return mse_loss(output, y) / 2


def of_words(output: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(output.mT, ids)


def regression(size: int, draws: torch.Generator) -> tuple[nn.Module, Iterator[tuple[Tensor, Loss]]]:
    def batches() -> Iterator[tuple[Tensor, Loss]]:
        while True:
            x = torch.randn(size, 6, generator=draws)
            y = x[:, :1] * 1.5 + torch.randn(size, 1, generator=draws)
            yield x, partial(mse_loss, target=y)

    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), batches()


def classes(size: int, draws: torch.Generator) -> tuple[nn.Module, Iterator[tuple[Tensor, Loss]]]:
    centres = torch.randn(5, 10, generator=draws)

    def batches() -> Iterator[tuple[Tensor, Loss]]:
        while True:
            labels = torch.randint(5, (size,), generator=draws)
            x = centres[labels] + 1.5 * torch.randn(size, 10, generator=draws)
            yield x, partial(cross_entropy, target=labels)

    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 5)), batches()


def images(size: int, draws: torch.Generator) -> tuple[nn.Module, Iterator[tuple[Tensor, Loss]]]:
    data = torch.randn(256, 1, 6, 6, generator=draws)
    labels = (data.mean((1, 2, 3)) > 0).long()

    def batches() -> Iterator[tuple[Tensor, Loss]]:
        while True:
            for some in torch.randperm(len(data), generator=draws).split(size):
                yield data[some], partial(cross_entropy, target=labels[some])

    convolutions = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    return nn.Sequential(convolutions, nn.Dropout(0.1), nn.Linear(16, 2)), batches()


def words(size: int, draws: torch.Generator) -> tuple[nn.Module, Iterator[tuple[Tensor, Loss]]]:
    def batches() -> Iterator[tuple[Tensor, Loss]]:
        while True:
            start = torch.randint(11, (size, 1), generator=draws)
            ids = (start + torch.arange(7) * torch.randint(1, 3, (size, 1), generator=draws)) % 11
            yield ids[:, :-1], partial(of_words, ids=ids[:, 1:])

    return Words(), batches()


def noisy_line(size: int, draws: torch.Generator) -> tuple[nn.Module, Iterator[tuple[Tensor, Loss]]]:
    """A quadratic with curvatures from 0.01 to 1 that soon is nothing but noise."""
    scales = torch.logspace(-1, 0, 8)

    def batches() -> Iterator[tuple[Tensor, Loss]]:
        while True:
            x = torch.randn(size, 8, generator=draws) * scales
            y = torch.randn(size, 1, generator=draws)
            yield x, partial(half_square, y=y)

    return nn.Linear(8, 1), batches()


TASKS = {"regression": regression, "classes": classes, "images": images, "words": words, "noisy line": noisy_line}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer] | None] = {
    "at rest": None,
    "SGD .02": lambda model: torch.optim.SGD(model.parameters(), lr=0.02),
    "SGD .2": lambda model: torch.optim.SGD(model.parameters(), lr=0.2),
    "SGD .5": lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
    "momentum .05": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "momentum .2": lambda model: torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True),
    "AdamW .001": lambda model: torch.optim.AdamW(model.parameters(), lr=0.001),
    "AdamW .01": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "RMSprop .01": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01),
    "Adam .03": lambda model: torch.optim.Adam(model.parameters(), lr=0.03, betas=(0.8, 0.95)),
}
SIZES = (4, 12, 32, 64)  # From the smallest that halves into groups of two; 12 is no power of two


def note(task: str, optimizer: str, size: int, seed: int, steps: int = STEPS) -> str:
    """Train, and return what the meter said and what its estimate notes, apart from its precision."""
    torch.manual_seed(seed)
    model, batches = TASKS[task](size, torch.Generator().manual_seed(1000 + seed))
    build, said = OPTIMIZERS[optimizer], list[str]()
    stepper = None if build is None else build(model)
    meter = NoiseScaleMeter(model, every=None if seed % 5 == 4 else 1, tell=said.append)
    for _, (inputs, loss) in zip(range(steps), batches, strict=False):
        model.zero_grad()
        loss(model(inputs)).backward()
        meter.step()
        if stepper is not None:
            stepper.step()
    precision = ("effectively independent", "too few steps", "is not positive", "exclude neither", "no positive value")
    notes = [each for each in meter.estimate().note.split("; ") if each and not any(one in each for one in precision)]
    meter.detach()
    if not all(tensor.isfinite().all() for tensor in model.parameters()):
        return ""  # diverged, and that is what it says
    return "; ".join([*said, *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=int, default=1600)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="this part of so many, for several processes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = options.part
    found: Counter[str] = Counter()
    settings = itertools.islice(enumerate(itertools.cycle(itertools.product(TASKS, OPTIMIZERS, SIZES))), options.runs)
    for number, (task, optimizer, size) in settings:
        if number % parts != part:
            continue
        if number % 100 == part:
            print(f"{number} runs so far", flush=True)
        what = note(task, optimizer, size, number)
        if what:
            found[what[:60]] += 1
            print(f"{number} {task}, {optimizer}, {size} examples: {what[:160]}", flush=True)
    print(f"{sum(found.values())} of {options.runs // parts} runs with a note", dict(found))


if __name__ == "__main__":
    main()
