"""Losses that couple examples, and examples that come in copies, are found in a plain loop."""

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale import separation as company
from cbs.noise_scale.coupling import Coupling
from cbs.noise_scale.cut import Call
from cbs.noise_scale.separation import Separation, alike
from tests.kinds import kinds

EXAMPLES = 16


def contrastive(output: Tensor) -> Tensor:
    one, other = normalize(output, dim=1).chunk(2, dim=1)
    return cross_entropy(one @ other.T, torch.arange(len(one)))


def centred(output: Tensor) -> Tensor:
    """Advantages over the mean of a batch."""
    return (output - output.mean(0)).square().mean()


def centred_by_four(output: Tensor) -> Tensor:
    return (output.view(-1, 4, 4) - output.view(-1, 4, 4).mean(1, keepdim=True)).square().mean()


def paired(output: Tensor) -> Tensor:
    """The first half are the better answers."""
    better, worse = output.sum(1).chunk(2)
    return -(better - worse).sigmoid().log().mean()


def single(output: Tensor) -> Tensor:
    return cross_entropy(output, output.detach().argmin(1), label_smoothing=0.1)


def linear(output: Tensor) -> Tensor:
    """Without second derivatives; advantages are data."""
    return (output.sum(1) * torch.linspace(-1, 1, len(output))).mean()


class OneWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.square().mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * torch.ones(EXAMPLES, 4)


def hardest(output: Tensor) -> Tensor:
    return output.square().sum(1).topk(len(output) // 4).values.mean()


def batch(seed: int) -> Tensor:
    return torch.randn(EXAMPLES, 5, generator=torch.Generator().manual_seed(seed))


def run(
    loss: Callable[[Tensor], Tensor],
    source: str = "split",
    of: Callable[[int], Tensor] = batch,
    steps: int = 5,
    **options,
):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    meter = NoiseScaleMeter(model, source=source, **options)
    for step in range(steps):
        loss(model(of(step))).backward()
        plain = [parameter.grad.clone() for parameter in model.parameters()]
        meter.step()
        model.zero_grad()
    return meter, plain


def in_place(output: Tensor) -> Tensor:
    output -= output.mean(0)
    return output.square().mean()


def ranked(output: Tensor) -> Tensor:
    """Hinges of the differences of all pairs, without curvature."""
    scores = output.sum(1)
    return (1 - scores[:, None] + scores).clamp(min=0).mean()


@pytest.mark.parametrize("loss", [contrastive, centred, centred_by_four, paired, in_place, ranked])
@pytest.mark.parametrize("source", ["split", "per_example"])
def test_a_loss_that_couples_examples_is_refused(loss: Callable[[Tensor], Tensor], source: str) -> None:
    backward = torch.autograd.backward
    with pytest.raises(ConfigError, match=r"the loss couples examples.*accumulation.*groups="):
        run(loss, source)
    assert torch.autograd.backward is backward


@pytest.mark.parametrize("others", [(1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)])
def test_terms_of_two_are_found_whichever_half_is_looked_at(others: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="the loss couples examples"):
        run(
            lambda output: (output * output[list(others)]).sum(1).exp().mean(), of=lambda step: batch(step)[:4], steps=1
        )


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(5, 4) for _ in range(6))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [head(x) for head in self.heads]


def of_heads(backward: Callable[[nn.Module, Tensor], object], steps: int = 2, **options) -> NoiseScaleMeter:
    torch.manual_seed(0)
    meter = NoiseScaleMeter(model := Heads(), source="split", **options)
    for step in range(steps):
        backward(model, batch(step))
        meter.step()
        model.zero_grad()
    return meter


def two_passes(model: nn.Module, x: Tensor) -> None:
    one, other = model(x)[0], model(x.flip(1))[1]
    (one @ other.T).mean().backward()


def of_the_last(model: nn.Module, x: Tensor) -> Tensor:
    *others, last = model(x)
    return centred(last) + sum(output.square().mean() for output in others)


def two_outputs(model: nn.Module, x: Tensor) -> None:
    one, other, *_ = model(x)
    (one @ other.T).mean().backward()


def two_losses(model: nn.Module, x: Tensor) -> None:
    one, other, *_ = model(x)
    losses = [one.square().mean(), centred(other)]
    torch.autograd.backward(losses)


def vector(model: nn.Module, x: Tensor) -> None:
    one, other, *_ = model(x)
    (one * other.mean(0)).sum(1).backward(torch.ones(len(x)))


@pytest.mark.parametrize(
    ("backward", "options"),
    [
        (lambda model, x: of_the_last(model, x).backward(), {}),
        (two_outputs, {}),
        (two_passes, {"count": lambda args, kwargs: len(args[0])}),
        (two_losses, {}),
        (vector, {}),
    ],
)
def test_coupling_is_found_in_all_that_is_differentiated(
    backward: Callable[[nn.Module, Tensor], object], options: dict
) -> None:
    with pytest.raises(ConfigError, match="the loss couples examples"):
        of_heads(backward, steps=1, **options)


def test_a_loss_that_nobody_could_look_at_is_named() -> None:
    def by_hand(model: nn.Module, x: Tensor) -> None:
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(of_the_last(model, x), parameters), strict=True):
            parameter.grad = gradient

    said = "not checked whether the loss couples examples: its gradients do not come from loss.backward()"
    assert said in of_heads(by_hand).probe.caveat

    def looked_on(model: nn.Module, x: Tensor) -> None:
        outputs = model(x)
        model(x[:3])
        sum(output.square().mean() for output in outputs).backward()
        model(x[:2])

    assert of_heads(looked_on).probe.caveat == ""
    ways = iter([by_hand, looked_on])
    assert of_heads(lambda model, x: next(ways)(model, x)).probe.caveat == ""  # of the latest loss


def test_two_passes_are_kept_until_the_backward_pass() -> None:
    coupling, kept = Coupling([]), []
    for number in range(3):

        def ends(number: int = number) -> list:
            return []

        kept.append(weakref.ref(ends))
        coupling.look(number, ends, [])
        del ends
    assert [held() is None for held in kept] == [True, False, False]
    coupling.forget()
    assert not any(held() for held in kept)


def test_two_backward_passes_over_the_same_examples_are_refused() -> None:
    def twice(model: nn.Module, x: Tensor, other: Tensor) -> None:
        for inputs in (x, other):
            sum(output.square().mean() for output in model(inputs)).backward()

    with pytest.raises(ConfigError, match="two backward passes of a step are over the same examples"):
        of_heads(lambda model, x: twice(model, x, x))
    assert of_heads(lambda model, x: twice(model, x, x.flip(0))).estimate().steps == 2


def test_hooks_of_others_belong_to_the_model() -> None:
    for register, hook in (
        ("register_forward_hook", lambda module, args, output: output - output.mean(0)),
        ("register_forward_pre_hook", lambda module, args: (args[0] - args[0].mean(0),)),
    ):
        model = nn.Linear(5, 4)
        getattr(model, register)(hook)
        meter = NoiseScaleMeter(model, source="split")
        model(batch(0)).square().mean().backward()
        with pytest.raises(ConfigError, match="the model mixes examples"):
            meter.step()


@pytest.mark.parametrize("examples", [32, 64])
def test_a_batch_of_two_kinds_one_behind_the_other_is_told(examples: int) -> None:
    rows = torch.randn(examples, 6, generator=torch.Generator().manual_seed(0))
    rows[examples // 2 :] += 1.5
    assert alike(rows)[0] == 1
    assert alike(rows[torch.randperm(examples, generator=torch.Generator().manual_seed(0))]) == (0, 0.0)


def test_auto_falls_back_and_says_why() -> None:
    meter, _ = run(contrastive, "auto")
    assert meter.probe.source == "accumulation"
    assert "the loss couples examples" in meter.estimate().note


@pytest.mark.parametrize("loss", [single, linear])
def test_a_loss_of_single_examples_is_measured(loss: Callable[[Tensor], Tensor]) -> None:
    backward = torch.autograd.backward
    meter, gradients = run(loss)
    assert meter.estimate().steps == 5
    assert meter.probe.caveat == ""
    assert torch.autograd.backward is backward
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    loss(model(batch(4))).backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def terms(output: Tensor) -> Tensor:
    return output.square()


ROWS = torch.arange(EXAMPLES)[:, None]
SEEN = (torch.arange(EXAMPLES * 4).view(-1, 4) % 7 < 5) & (torch.arange(4) <= ROWS)
"""Which tokens of padded sequences count: 41 of 64."""
LABELS = torch.arange(EXAMPLES) % 5 % 4
CLASSES = torch.tensor([0.4, 1.0, 2.0, 7.3])


def seen(step: int) -> Tensor:
    """Fewer of them in every step."""
    return SEEN & (step <= ROWS)


def positives(output: Tensor, number: int) -> Tensor:
    return binary_cross_entropy_with_logits(output[:, 0], (ROWS[:, 0] < number).float())


def many_labels(output: Tensor) -> Tensor:
    """A quarter of the examples have all four labels."""
    labels = (len(output) > 4 * ROWS[: len(output)]).expand(-1, 4).float()
    return binary_cross_entropy_with_logits(output, labels, reduction="none").sum(1).mean()


DIVIDED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "class weights": lambda output, _: cross_entropy(output, LABELS, weight=CLASSES, label_smoothing=0.1),
    "ignored": lambda output, _: cross_entropy(output, LABELS - 1, ignore_index=-1) / 4,
    "masked": lambda output, step: (terms(output) * seen(step)).sum() / seen(step).sum(),
    "divided first": lambda output, _: (terms(output) * (SEEN / SEEN.sum())).sum(),
    "mean one": lambda output, _: (terms(output).mean(1) * (CLASSES[LABELS] / CLASSES[LABELS].mean())).mean(),
    "filled": lambda output, step: terms(output).masked_fill(~seen(step), 0).sum() * (1 / seen(step).sum()),
    "selected": lambda output, step: terms(output)[seen(step)].mean(),
    "summed": lambda output, _: cross_entropy(output, LABELS, weight=CLASSES, reduction="sum") / 99.5,  # of many passes
    "product": lambda output, step: (
        torch.einsum("bt,bt->", terms(output), seen(step).float()) / seen(step).sum().item()
    ),
}
OF_EXAMPLES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "same weights": lambda output, _: cross_entropy(output, LABELS, weight=torch.full((4,), 3.0)),
    "mean of masked": lambda output, step: (terms(output) * (4 * ROWS + torch.arange(4) < EXAMPLES - step)).mean(),
    "mean of means": lambda output, step: ((terms(output) * seen(step)).sum(1) / seen(step).sum(1).clamp(min=1)).mean(),
    "hardly unequal": lambda output, _: cross_entropy(output, LABELS, weight=1 + 0.01 * CLASSES),
    "sum over examples": lambda output, _: (
        cross_entropy(output, LABELS - 1, ignore_index=-1, reduction="sum") * (1 / torch.tensor(EXAMPLES))
    ),
    "per class": lambda output, step: binary_cross_entropy_with_logits(output, seen(step).float(), pos_weight=CLASSES),
    "accumulated": lambda output, _: cross_entropy(output / 0.07, LABELS) / 3,
    "one of two classes once": lambda output, _: positives(output, 1),
    "positives as many as passes": lambda output, _: positives(output, 4) / 4,
    "labels as many as examples": lambda output, _: many_labels(output),
    "labels as many as passes": lambda output, step: cross_entropy(output, (ROWS[:, 0] < 3 + step).long()) / 4,
}


@pytest.mark.parametrize("name", [*DIVIDED, *OF_EXAMPLES])
def test_a_loss_divided_by_its_own_batchs_weights_is_told_once(name: str) -> None:
    loss = (DIVIDED | OF_EXAMPLES)[name]
    said: list[str] = []
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    meter = NoiseScaleMeter(model, tell=said.append)
    for step in range(3):
        loss(model(batch(step)), step).backward()
        meter.step()
        model.zero_grad()
    assert len(said) == (name in DIVIDED) == meter.estimate().note.count("the sum of its own batch's weights")
    assert meter.probe.source == "split"


def test_labels_as_many_as_examples_are_no_weights_where_batches_differ_in_size() -> None:
    said: list[str] = []
    meter = NoiseScaleMeter(model := nn.Linear(5, 4), tell=said.append)
    for size in (16, 12):
        many_labels(model(batch(size)[:size])).backward()
        meter.step()
        model.zero_grad()
    assert not said


def test_a_loss_from_inside_the_model_is_looked_through() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            output = self.head(x)
            return DIVIDED["ignored"](output, 0), DIVIDED["summed"](output, 0), output

    torch.manual_seed(0)
    meter = NoiseScaleMeter(model := Whole(), tell=lambda _: None)
    (model(batch(0))[1] * 0.5).backward()
    meter.step()
    weights = CLASSES[LABELS] / CLASSES[LABELS].mean()
    wrong = (1 + float(weights.std(correction=0)) / EXAMPLES**0.5) ** 2 - 1
    assert f"{float(weights.max()):.2g} times the mean of the examples" in meter.probe.uneven
    assert f"up to about {wrong:.0%}" in meter.probe.uneven


def hardest_pairs(output: Tensor) -> Tensor:
    """In distances that torch does not differentiate twice."""
    return torch.cdist(output, output).amax(1).mean()


@pytest.mark.parametrize("loss", [OneWay.apply, hardest_pairs])
def test_a_loss_without_second_derivatives_is_named(loss: Callable[[Tensor], Tensor]) -> None:
    meter, _ = run(loss)
    assert "not checked whether the loss couples examples: " in meter.estimate().note


def test_coupling_within_groups_is_theirs() -> None:
    meter, _ = run(centred_by_four, groups=4)
    assert meter.estimate().steps == 5
    with pytest.raises(ConfigError, match="the loss couples examples"):
        run(centred_by_four, groups=2)


def test_examples_without_a_gradient_are_told() -> None:
    meter, _ = run(hardest)
    assert "the loss has no gradient for 12 of 16 examples" in meter.estimate().note


def augmented(step: int, *, apart: bool, spread: float = 0.05) -> Tensor:
    rows = batch(step)[:4]
    rows = rows.repeat(4, 1) if apart else rows.repeat_interleave(4, 0)
    return rows + spread * batch(step + 100)


@pytest.mark.parametrize(("apart", "said"), [(False, "next to them"), (True, "4 places on")])
def test_copies_are_told(apart: bool, said: str) -> None:
    meter, _ = run(single, of=lambda step: augmented(step, apart=apart))
    assert f"examples resemble those {said} (correlation" in meter.estimate().note
    ids = torch.arange(EXAMPLES) % 4 if apart else torch.arange(EXAMPLES) // 4
    for groups in (ids, *([] if apart else [4])):
        meter, _ = run(single, of=lambda step: augmented(step, apart=apart), groups=groups)
        assert "examples resemble" not in meter.estimate().note


@pytest.mark.parametrize("examples", kinds([4, 16], [8, 64]))
@pytest.mark.parametrize("numbers", [1, 2, 20])
def test_independent_examples_are_no_copies(examples: int, numbers: int) -> None:
    generator = torch.Generator().manual_seed(examples + numbers)
    for _ in range(100):
        assert alike(torch.randn(examples, numbers, generator=generator)) == (0, 0.0)
        assert alike(torch.randint(2, (examples, numbers), generator=generator).double()) == (0, 0.0)
    assert alike(torch.ones(examples, numbers)) == (0, 0.0)


@pytest.mark.parametrize("lag", [1, 2, 32])
def test_views_are_alike_however_much_they_differ(lag: int) -> None:
    """Half of the variance is the example's: two views have the correlation 1/2. Side by side every second has one."""
    generator = torch.Generator().manual_seed(lag)
    rows = torch.randn(64 // 2, 20, generator=generator)
    rows = rows.unflatten(0, (-1, lag)).repeat(1, 2, 1).flatten(0, 1)
    found, correlation = alike(rows + torch.randn(64, 20, generator=generator))
    assert found == lag
    assert correlation == pytest.approx(0.5 if lag == 32 else 0.25, abs=0.1)


def test_a_batch_that_is_mixed_up_with_itself_in_reverse_order_is_alike() -> None:
    rows = torch.randn(64, 20, generator=torch.Generator().manual_seed(0))
    found, correlation = alike(0.7 * rows + 0.3 * rows.flip(0))
    assert found == -1
    assert correlation == pytest.approx(2 * 0.7 * 0.3 / (0.7**2 + 0.3**2), abs=0.1)


def test_a_large_batch_is_known_from_a_part_of_it() -> None:
    rows = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
    assert alike(rows) == (0, 0.0)
    assert alike(rows.repeat(2, 1))[0] == 1000


def labelled(step: int, classes: int = 4) -> Tensor:
    return torch.randint(classes, (EXAMPLES,), generator=torch.Generator().manual_seed(step))


def rearranged(labels: Tensor, step: int, within: int = EXAMPLES) -> Tensor:
    """The labels in another order, in which they stay within groups of so many."""
    generator = torch.Generator().manual_seed(step)
    places = [torch.randperm(within, generator=generator) + at for at in range(0, EXAMPLES, within)]
    return labels[torch.cat(places)]


def with_targets(
    targets: Callable[[int], tuple[Tensor, Tensor]],
    loss: Callable[..., Tensor] = nn.functional.cross_entropy,
    source: str = "split",
    **options,
) -> NoiseScaleMeter:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    meter = NoiseScaleMeter(model, source=source, **options)
    for step in range(21):
        output, (one, other) = model(batch(step)), targets(step)
        (0.3 * loss(output, one) + 0.7 * loss(output, other)).backward()
        meter.step()
        model.zero_grad()
    return meter


@pytest.mark.parametrize(
    ("targets", "loss"),
    [
        (lambda step: (labelled(step), rearranged(labelled(step), step)), nn.functional.cross_entropy),
        (lambda step: (labelled(step, 2), rearranged(labelled(step, 2), step)), nn.functional.cross_entropy),
        (lambda step: (batch(step)[:, :4], rearranged(batch(step)[:, :4], step)), nn.functional.mse_loss),
    ],
)
def test_a_loss_that_holds_the_targets_twice_in_another_order_is_refused(
    targets: Callable[[int], tuple[Tensor, Tensor]], loss: Callable[..., Tensor]
) -> None:
    """As under mixup with an order that the training code draws: a term is one example's, and they share targets."""
    with pytest.raises(ConfigError, match=r"targets of a batch twice, in another order.*'accumulation'"):
        with_targets(targets, loss)
    meter = with_targets(targets, loss, "auto")
    assert meter.probe.source == "accumulation"
    assert "targets of a batch twice" in meter.estimate().note


@pytest.mark.parametrize(
    "targets",
    [
        lambda step: (labelled(step), labelled(step)),
        lambda step: (labelled(step), labelled(step + 100)),
        lambda step: (labelled(step, 2), labelled(step + 100, 2)),
        # as many of each by chance, once
        lambda step: (labelled(step, 2), labelled(step + 100, 2) if step else rearranged(labelled(step, 2), step)),
        # labels and their complement, as many of each
        lambda step: (torch.arange(EXAMPLES) % 2, 1 - torch.arange(EXAMPLES) % 2),
    ],
)
def test_two_targets_of_their_own_are_measured(targets: Callable[[int], tuple[Tensor, Tensor]]) -> None:
    meter = with_targets(targets)
    assert meter.estimate().steps == 21
    assert meter.probe.caveat == ""


def test_targets_may_be_shared_within_groups() -> None:
    def within(members: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        return lambda step: (labelled(step), rearranged(labelled(step), step, members))

    assert with_targets(within(4), groups=4, every=1).estimate().steps == 21
    with pytest.raises(ConfigError, match="targets of a batch twice"):
        with_targets(within(EXAMPLES), groups=4)


def mixed(
    step: int, share: float = 0.3, smoothing: float = 0.0, *, drawn: bool = True, within: int = EXAMPLES
) -> Tensor:
    """Labels of every example and of its partner in the batch, or of an example of its own, in one tensor."""
    labels = labelled(step)
    others = rearranged(labels, step, within) if drawn else labelled(step + 100)
    one, other = (nn.functional.one_hot(each, 4).float() for each in (labels, others))
    return (1 - smoothing) * (share * one + (1 - share) * other) + smoothing / 4


def of_mixed(targets: Callable[[int], Tensor], loss: Callable[..., Tensor], **options) -> NoiseScaleMeter:
    return with_targets(lambda step: (targets(step),) * 2, loss, **options)


def spelled_out(output: Tensor, labels: Tensor) -> Tensor:
    return -(labels * output.log_softmax(1)).sum(1).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.functional.mse_loss, spelled_out])
def test_labels_that_were_mixed_before_the_loss_are_unmixed(loss: Callable[..., Tensor], smoothing: float) -> None:
    with pytest.raises(ConfigError, match="targets of a batch twice, in another order"):
        of_mixed(lambda step: mixed(step, smoothing=smoothing), loss)


@pytest.mark.parametrize(
    "targets",
    [
        lambda step: mixed(step, drawn=False),  # two annotators
        lambda step: mixed(step, 1.0, smoothing=0.1),  # labels of one class, smoothed
        lambda step: batch(step)[:, :4].softmax(1),  # of a teacher
    ],
)
def test_labels_of_several_classes_that_no_two_examples_share_are_measured(targets: Callable[[int], Tensor]) -> None:
    meter = of_mixed(targets, nn.functional.cross_entropy)
    assert meter.estimate().steps == 21
    assert meter.probe.caveat == ""


def test_labels_may_be_mixed_within_groups() -> None:
    assert of_mixed(lambda step: mixed(step, within=4), spelled_out, groups=4, every=1).estimate().steps == 21


def test_large_tensors_are_compared_by_a_part_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(32, 1000, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(company, "NUMBERS", 32 * 50)
    assert alike(rows) == (0, 0.0)
    found, correlation = alike(rows.repeat(2, 1))
    assert (found, correlation) == (32, pytest.approx(1.0, abs=0.1))


def test_a_pass_is_let_go_before_the_one_after_the_next_is_made() -> None:
    """The logits of a language model are gigabytes: nine passes of them fill a device."""
    alive: list[weakref.ref[Tensor]] = []

    def run(kept: Tensor, others: Tensor) -> list[Call]:
        assert sum(held() is not None for held in alive) <= 2
        rows = torch.where(kept, torch.arange(16), others)[:, None].float()
        alive.append(weakref.ref(rows))
        return [Call("", [rows])]

    Separation().verify(run, [], torch.arange(16)[:, None])
    assert len(alive) == 9


class Bare(nn.Module):
    """A model without modules inside it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Parameter(torch.randn(64, 64) / 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second


def test_the_rounding_of_autocast_is_known_where_there_are_no_modules() -> None:
    meter = NoiseScaleMeter(model := Bare(), source="split")
    for step in range(3):
        x = torch.randn(12, 64, generator=torch.Generator().manual_seed(step))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        assert meter.step() is not None
        model.zero_grad()


def test_calls_that_come_only_with_other_examples_are_refused() -> None:
    """Also where the pass as it was has none."""
    rows = Call("later", [torch.ones(16, 1)])
    with pytest.raises(ConfigError, match="which modules of the model are called depends"):
        Separation().verify(lambda kept, others: [] if kept.all() else [rows], [], torch.arange(16)[:, None])


def test_targets_that_two_passes_of_as_many_examples_share_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr("cbs.noise_scale.coupling.chance_of_match", lambda *_: asked.append(0.05) or 0.05)
    model = nn.Linear(3, 2)
    meter = NoiseScaleMeter(model, source="split", count=lambda args, kwargs: len(args[0]))
    first, second = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    (model(first).square().mean() + model(second).square().mean()).backward()
    meter.step()
    assert asked == [0.05]
