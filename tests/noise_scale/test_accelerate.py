"""The meter's probe in a loop of ``accelerate``, against the same loop without it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from cbs.noise_scale.probe import Probe

accelerate = pytest.importorskip("accelerate")

PASSES, SIZE = 2, 8  # Backward passes to a step, and examples to a pass

Loop = tuple[nn.Module, Tensor, Tensor]


@pytest.fixture
def loop() -> Loop:
    generator = torch.Generator().manual_seed(0)
    examples = torch.randn(4 * PASSES * SIZE, 8, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    return model, examples, (torch.rand(len(examples), generator=generator) < 0.2).long()


@pytest.fixture(params=["no", "bf16"])
def accelerator(request: pytest.FixtureRequest) -> Iterator[accelerate.Accelerator]:
    forget()  # what another trainer left in this process
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=PASSES, mixed_precision=request.param)
    forget()


def forget() -> None:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def told(probe: Probe) -> list[float]:
    moments = probe.step()
    return [float(part.sum()) for part in (moments["l2"].signal, moments["l2"].noise)]


def plainly(loop: Loop, source: str, precision: str) -> list[list[float]]:
    model, examples, labels = loop
    probe, found = Probe(model, source=source), []
    for number, (x, y) in enumerate(zip(examples.split(SIZE), labels.split(SIZE), strict=True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = model(x)
        (nn.functional.cross_entropy(logits.float(), y) / PASSES).backward()
        if number % PASSES == PASSES - 1:
            found.append(told(probe))
            model.zero_grad()
    probe.detach()
    return found


@pytest.mark.parametrize("source", ["split", "per_example", "accumulation"])
def test_accumulated_steps_are_those_of_the_plain_loop(
    loop: Loop, accelerator: accelerate.Accelerator, source: str
) -> None:
    expected = plainly(loop, source, accelerator.mixed_precision)
    bare, examples, labels = loop
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(examples, labels), batch_size=SIZE)
    model, optimizer, loader = accelerator.prepare(bare, torch.optim.SGD(bare.parameters(), lr=0.0), loader)
    probe, found = Probe(model, source=source), []
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                found.append(told(probe))
                accelerator.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    assert found == [pytest.approx(step, rel=1e-3, abs=1e-3) for step in expected]
