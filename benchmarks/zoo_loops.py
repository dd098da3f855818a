"""Models that return their loss, loops that call a model in other ways than once a batch, and batches in which rows
belong together."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo_entry import (
    CLASSES,
    FIRST,
    TOKENS,
    WIDTH,
    WORDS,
    Batch,
    Entry,
    classify,
    embedding,
    features,
    head,
    linear,
    made,
    words,
)
from benchmarks.zoo_layers import NanoGPT, mlp


class OwnLoss(nn.Module):
    """Wraps a model so that nothing but its loss can be seen."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(x).flatten(0, -2), y.flatten())


class Pair(nn.Module):
    """Both inputs of an example go through the encoder in one call, one half of the rows after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(12, WIDTH), nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(torch.cat(self.encoder(torch.cat([a, b])).relu().chunk(2), 1)), y)


class TimeMajor(nn.Module):
    """Rows of the linear layer are ordered by time, then by example."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        rows = self.words(x).transpose(0, 1).flatten(0, 1)
        return functional.cross_entropy(self.head(rows.tanh()), y.t().flatten())


def experts(m: Any, x: Tensor) -> Tensor:
    """Every position goes to the expert that its first features choose; an expert sees its rows alone."""
    chosen = x[..., : len(m.experts)].argmax(-1)
    mixed = x.new_zeros(*x.shape[:-1], WIDTH)
    for number, expert in enumerate(m.experts):
        rows = chosen == number
        if rows.any():
            mixed = mixed.masked_scatter(rows[..., None], expert(x[rows]).tanh().to(mixed.dtype))
    return m.head(mixed.flatten(1, -2).mean(1) if x.ndim > 2 else mixed)


def whole_sequences(examples: int, generator: torch.Generator) -> Batch:
    """Every example sends its four positions to one expert, another one each."""
    return routed(features(4, 12)(examples, generator), even=0)


def even_at_first(examples: int, generator: torch.Generator) -> Batch:
    """The first step sends one position of every example to every expert, which nobody could tell from no routing."""
    first = generator.initial_seed() == FIRST
    return routed(features(4, 12)(examples, generator), even=examples if first else 0)


def routed(batch: Batch, even: int) -> Batch:
    """Experts by position in the first examples, by example in the others."""
    choice = torch.arange(4).repeat(len(batch["x"]), 1)
    choice[even:] = torch.arange(len(choice))[even:, None] % 4
    batch["x"][..., :4] = batch["x"][..., :4] / 9 + 9 * functional.one_hot(choice, 4)
    return batch


def pairs(examples: int, generator: torch.Generator) -> Batch:
    first, second = features(12)(examples, generator), features(12)(examples, generator)
    return {"a": first["x"], "b": second["x"], "y": first["y"]}


def time_first(examples: int, generator: torch.Generator) -> Batch:
    return {name: tensor.t().contiguous() for name, tensor in words()(examples, generator).items()}


def padded(examples: int, generator: torch.Generator) -> Batch:
    batch = words()(examples, generator)
    lengths = torch.randint(2, TOKENS + 1, (examples, 1), generator=generator)
    return batch | {"y": batch["y"].masked_fill(torch.arange(TOKENS) >= lengths, -100)}


def valid_share(batch: Batch) -> Tensor:
    """The share of every example in the mean over the words that are not ignored."""
    valid = (batch["y"] != -100).sum(1).float()
    return valid / valid.sum()


def two_batches(model: nn.Module, batch: Batch) -> Tensor:
    """The examples in two forward passes, one backward pass."""
    examples = len(batch["x"])
    if examples == 1:
        return classify(model, batch)
    half = (examples + 1) // 2
    parts = [{name: tensor[part] for name, tensor in batch.items()} for part in (slice(half), slice(half, None))]
    return sum(classify(model, part) * (len(part["x"]) / examples) for part in parts)  # type: ignore[return-value]


def both_passes(model: nn.Module, batch: Batch) -> Tensor:
    """Every example in two forward passes."""
    return functional.cross_entropy(model(batch["a"]) + model(batch["b"]), batch["y"])


def preference(better: Tensor, worse: Tensor) -> Tensor:
    return -functional.logsigmoid(better - worse).mean()


def likelihood(logits: Tensor, words: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).gather(-1, words[..., None]).squeeze(-1).sum(-1)


def answers(examples: int, generator: torch.Generator) -> Batch:
    better, worse = words()(examples, generator), words()(examples, generator)
    return {"x": better["x"], "y": better["y"], "worse_x": worse["x"], "worse_y": worse["y"]}


def dpo_two_passes(model: nn.Module, batch: Batch) -> Tensor:
    better, worse = model(batch["x"]), model(batch["worse_x"])
    return preference(likelihood(better, batch["y"]), likelihood(worse, batch["worse_y"]))


def dpo_one_pass(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(torch.cat([batch["x"], batch["worse_x"]]))
    return preference(*likelihood(logits, torch.cat([batch["y"], batch["worse_y"]])).chunk(2))


def contrastive(model: nn.Module, batch: Batch) -> Tensor:
    """Every example is told apart from the others of its batch."""
    both = functional.normalize(model(torch.stack([batch["a"], batch["b"]], 1)), dim=-1).float()
    return functional.cross_entropy(both[:, 0] @ both[:, 1].t() / 0.5, torch.arange(len(both)))


def second_dimension(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Examples of an input whose first dimension is time."""
    (x,) = (*args, *kwargs.values())
    return int(x.shape[1])


def half(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Pairs of an input that has all better answers first."""
    (x,) = (*args, *kwargs.values())
    return len(x) // 2


EXPERTS: dict[str, Any] = {
    "build": made(experts, experts=lambda: nn.ModuleList(nn.Linear(12, WIDTH) for _ in range(4)), head=head()),
    "loss": classify,
}
LOOPS = {
    "returns its loss": Entry(build=lambda: OwnLoss(mlp()), batch=features(12)),
    "nanoGPT that returns its loss": Entry(
        build=lambda: OwnLoss(NanoGPT(TOKENS)), batch=words(), blocks=("model.blocks.0", "model.blocks.1")
    ),
    "two inputs in one call, returns its loss": Entry(build=Pair, batch=pairs),
    "time-major rows, returns its loss": Entry(build=TimeMajor, batch=words(4)),
    "GRU, time first": Entry(
        build=made(
            lambda m, x: m.head(m.gru(m.words(x))[0]), words=embedding, gru=lambda: nn.GRU(WIDTH, WIDTH),
            head=linear(WIDTH, WORDS),
        ),
        batch=time_first, loss=classify, dimension=1, options={"count": second_dimension},
        shares=lambda batch: torch.full((batch["x"].shape[1],), 1.0 / batch["x"].shape[1]),
    ),
    "experts, position by position": Entry(**EXPERTS, batch=features(4, 12)),
    "experts, example by example": Entry(**EXPERTS, batch=features(12)),
    "experts, whole sequences": Entry(**EXPERTS, batch=whole_sequences),
    "experts, evenly at first": Entry(**EXPERTS, batch=even_at_first),
    "padding, mean over words": Entry(
        build=lambda: NanoGPT(0, tied=False), batch=padded, loss=classify, shares=valid_share
    ),
    "two passes of half the examples": Entry(build=mlp, batch=features(12), loss=two_batches, passes=2),
    "two passes of all examples": Entry(build=mlp, batch=pairs, loss=both_passes),
    "preferences, two passes": Entry(build=lambda: NanoGPT(0), batch=answers, loss=dpo_two_passes),
    "preferences, one pass": Entry(
        build=lambda: NanoGPT(0), batch=answers, loss=dpo_one_pass, counted=2
    ),
    "preferences, one pass, count= given": Entry(
        build=lambda: NanoGPT(0), batch=answers, loss=dpo_one_pass, options={"count": half}
    ),
    "contrastive loss": Entry(build=mlp, batch=pairs, loss=contrastive),
}  # fmt: skip


MEMBERS = 4  # Rows of a group
ANSWERS = 8  # Answers to a prompt that share an advantage


def side_by_side(rows: int) -> Tensor:
    return torch.arange(rows) // MEMBERS


def side_by_side_answers(rows: int) -> Tensor:
    return torch.arange(rows) // ANSWERS


def one_after_the_other(rows: int) -> Tensor:
    return torch.arange(rows) % (rows // MEMBERS)


def answers_to_prompts(groups: int, generator: torch.Generator) -> Batch:
    """Several answers to every prompt, with a reward each."""
    prompts = features(12)(groups, generator)["x"].repeat_interleave(MEMBERS, 0)
    y = torch.randint(CLASSES, (len(prompts),), generator=generator)
    return {"x": prompts, "y": y, "reward": torch.randn(len(prompts), generator=generator) + (y == 0)}


def policy(model: nn.Module, batch: Batch) -> Tensor:
    """Policy gradients; the advantage of an answer is over the mean of its prompt."""
    reward = batch["reward"].view(-1, min(MEMBERS, len(batch["reward"])))
    advantage = (reward - reward.mean(1, keepdim=True)).flatten()
    chosen = model(batch["x"]).log_softmax(-1).gather(1, batch["y"][:, None])[:, 0]
    return -(advantage * chosen).mean()


def answers_of_one_advantage(groups: int, generator: torch.Generator) -> Batch:
    """Inputs of a prompt and an answer that is a small part of them; all answers to a prompt count alike."""
    x = features(12)(groups, generator)["x"].repeat_interleave(ANSWERS, 0)
    x = x + 0.05 * torch.randn(x.shape, generator=generator)
    y = torch.randint(CLASSES, (len(x),), generator=generator)
    advantage = torch.randn(groups, generator=generator).repeat_interleave(ANSWERS)
    return {"x": x, "y": y, "advantage": advantage}


def policy_of_one_advantage(model: nn.Module, batch: Batch) -> Tensor:
    """Policy gradients; rows are independent, given their advantage."""
    chosen = model(batch["x"]).log_softmax(-1).gather(1, batch["y"][:, None])[:, 0]
    return -(batch["advantage"] * chosen).mean()


def augmented_side_by_side(groups: int, generator: torch.Generator) -> Batch:
    """Variants of every example, next to each other."""
    batch = features(12)(groups, generator)
    x = batch["x"].repeat_interleave(MEMBERS, 0)
    x = x + 0.02 * torch.randn(x.shape, generator=generator)
    return {"x": x, "y": batch["y"].repeat_interleave(MEMBERS)}


def augmented(groups: int, generator: torch.Generator) -> Batch:
    """Variants of every example, all examples once and then once more."""
    batch = features(12)(groups, generator)
    x = batch["x"].repeat(MEMBERS, 1)
    return {"x": x + 0.02 * torch.randn(x.shape, generator=generator), "y": batch["y"].repeat(MEMBERS)}


def hard_pairs(groups: int, generator: torch.Generator) -> Batch:
    return pairs(groups * MEMBERS, generator)


def contrastive_in_groups(model: nn.Module, batch: Batch) -> Tensor:
    """Every example is told apart from the others of its group."""
    both = functional.normalize(model(torch.stack([batch["a"], batch["b"]], 1)), dim=-1).float()
    one, other = (both[:, side].view(-1, MEMBERS, both.shape[-1]) for side in (0, 1))
    return functional.cross_entropy((one @ other.mT / 0.5).flatten(0, 1), torch.arange(len(both)) % MEMBERS)


def hardest(model: nn.Module, batch: Batch) -> Tensor:
    """The hardest quarter of a batch counts."""
    losses = functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
    return losses.topk(max(1, len(losses) // 4)).values.mean()


def grouped(
    batch: Callable[[int, torch.Generator], Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    group: Callable[[int], Tensor],
    said: Any = None,
    members: int = MEMBERS,
) -> Entry:
    """A model whose examples are groups of rows.

    Args:
        batch: of so many groups.
        loss: of a batch.
        group: of every row.
        said: what the noise scale is told of them; nothing if absent.
        members: rows of a group.
    """
    return Entry(
        build=mlp,
        batch=batch,
        loss=loss,
        group=group,
        shares=functools.partial(shares, members=members),
        options={} if said is None else {"groups": said},
        counted=members if said is None else 1,
        only_check=said is None,
        skips=("trainer",),  # whose batches are of rows
    )


def shares(batch: Batch, members: int) -> Tensor:
    """Of every group."""
    groups = len(next(iter(batch.values()))) // members
    return torch.full((groups,), 1.0 / groups)


def first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Groups of a batch that has all examples several times."""
    (x,) = (*args, *kwargs.values())
    return one_after_the_other(len(x))


def paired(rows: int) -> Tensor:
    return torch.arange(rows) % (rows // 2)


def behind(groups: int, generator: torch.Generator) -> Batch:
    """The better of two answers to every prompt, then the worse of all of them."""
    x = features(12)(groups, generator)["x"]
    return {"x": torch.cat([x + 0.5, x + torch.randn(x.shape, generator=generator)])}


def preferred(model: nn.Module, batch: Batch) -> Tensor:
    better, worse = model(batch["x"])[:, 0].chunk(2)
    return -functional.logsigmoid(better - worse).mean()


PAIRED: dict[str, Any] = {
    "build": mlp, "batch": behind, "loss": preferred, "group": paired, "skips": ("trainer",),
    "shares": functools.partial(shares, members=2),
}  # fmt: skip

GROUPS = {
    "answers behind one another, groups= given": Entry(
        **PAIRED, options={"groups": lambda args, kwargs: paired(len([*args, *kwargs.values()][0]))}
    ),
    "answers behind one another, count= given": Entry(
        **PAIRED, options={"count": lambda args, kwargs: len([*args, *kwargs.values()][0]) // 2}
    ),
    "answers behind one another": Entry(**PAIRED, counted=2),
    "answers to a prompt, groups= given": grouped(answers_to_prompts, policy, side_by_side, MEMBERS),
    "answers to a prompt": grouped(answers_to_prompts, policy, side_by_side),
    "answers that share an advantage, groups= given": grouped(
        answers_of_one_advantage, policy_of_one_advantage, side_by_side_answers, ANSWERS, members=ANSWERS
    ),
    "answers that share an advantage": grouped(
        answers_of_one_advantage, policy_of_one_advantage, side_by_side_answers, members=ANSWERS
    ),
    "augmentations side by side, groups= given": grouped(augmented_side_by_side, classify, side_by_side, MEMBERS),
    "augmentations side by side": grouped(augmented_side_by_side, classify, side_by_side),
    "augmentations, groups= given": grouped(augmented, classify, one_after_the_other, first),
    "augmentations": grouped(augmented, classify, one_after_the_other),
    "contrastive within groups, groups= given": grouped(hard_pairs, contrastive_in_groups, side_by_side, MEMBERS),
    "contrastive within groups": grouped(hard_pairs, contrastive_in_groups, side_by_side),
    "hardest quarter": Entry(build=mlp, batch=features(12), loss=hardest, only_check=True),
}
