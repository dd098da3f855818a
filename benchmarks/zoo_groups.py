"""Losses and batches in which several rows belong together, with and without saying so."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo_entry import CLASSES, Batch, Entry, classify, features
from benchmarks.zoo_layers import mlp
from benchmarks.zoo_loops import pairs

MEMBERS = 4  # Rows of a group
ANSWERS = 8  # Answers to a prompt that share an advantage


def side_by_side(rows: int) -> Tensor:
    return torch.arange(rows) // MEMBERS


def side_by_side_answers(rows: int) -> Tensor:
    return torch.arange(rows) // ANSWERS


def one_after_the_other(rows: int) -> Tensor:
    return torch.arange(rows) % (rows // MEMBERS)


def answers(groups: int, generator: torch.Generator) -> Batch:
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


def of_pairs(batch: Batch) -> Tensor:
    pairs = len(batch["x"]) // 2
    return torch.full((pairs,), 1.0 / pairs)


PAIRED: dict[str, Any] = {
    "build": mlp, "batch": behind, "loss": preferred, "group": paired, "shares": of_pairs, "skips": ("trainer",),
}  # fmt: skip

GROUPS = {
    "answers behind one another, groups= given": Entry(
        **PAIRED, options={"groups": lambda args, kwargs: paired(len([*args, *kwargs.values()][0]))}
    ),
    "answers behind one another, count= given": Entry(
        **PAIRED, options={"count": lambda args, kwargs: len([*args, *kwargs.values()][0]) // 2}
    ),
    "answers behind one another": Entry(**PAIRED, counted=2),
    "answers to a prompt, groups= given": grouped(answers, policy, side_by_side, MEMBERS),
    "answers to a prompt": grouped(answers, policy, side_by_side),
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
