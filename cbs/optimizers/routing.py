"""Which parameters a method for matrices takes, and which it leaves to another: one rule, with an override."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

OUTPUT_NAMES = frozenset({"head", "lm_head", "output", "output_layer", "classifier", "fc", "logits", "unembed"})
"""Names under which models keep their output layer."""

Matrices = str | Sequence[str]
"""``"hidden"``, ``"all"``, or patterns over parameter names; see :func:`route`."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """Where one trainable parameter goes.

    Attributes:
        name: its name in the model; of a shared parameter the first.
        parameter: the parameter.
        is_matrix: whether the matrix part takes it.
        reason: what the rule says of it, ``"hidden"``, ``"embedding"``, ``"output layer"`` or ``"not a matrix"``; or
            ``"by override"`` where it goes elsewhere.
    """

    name: str
    parameter: nn.Parameter
    is_matrix: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Where every trainable parameter of a model goes, in the model's order.

    Attributes:
        routes: one for each parameter.
    """

    routes: tuple[Route, ...]

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The parameters of the matrix part."""
        return [route.parameter for route in self.routes if route.is_matrix]

    @property
    def rest(self) -> list[nn.Parameter]:
        """All others."""
        return [route.parameter for route in self.routes if not route.is_matrix]


def route(model: nn.Module, matrices: Matrices = "hidden") -> Routing:
    """Divide the trainable parameters of ``model`` into a matrix part and the rest.

    By the rule, ``"hidden"``, a parameter belongs to the matrix part if it has two dimensions and is neither

    - an embedding: the weight of an ``nn.Embedding`` or ``nn.EmbeddingBag``, which covers an output layer tied to it,
      or a parameter whose name contains ``embed`` or ends in ``_emb``; nor
    - the output layer: the last two-dimensional parameter of a module called one of :data:`OUTPUT_NAMES`. Inside a
      numbered stack of layers, as in ``blocks.3.attention.output``, such a name means a hidden layer.

    Convolution kernels, biases and normalisation weights do not have two dimensions. In a model whose output layer has
    another name, such as a bare ``nn.Sequential``, that layer counts as hidden.

    Args:
        model: the model.
        matrices: ``"hidden"`` for the rule, ``"all"`` for every parameter with two dimensions, or a list of patterns.
            A pattern is a parameter's name in which ``*``, ``?`` and ``[...]`` are wildcards, and ``*`` also stands for
            dots. Each adds the matrices it matches, and one that begins with ``!`` takes them away again, in order. A
            list that begins by taking away begins from the rule.

    Raises:
        ValueError: if ``matrices`` is none of these, a pattern changes nothing, or a pattern that adds matches a
            parameter that does not have two dimensions.
    """
    rule = _rule(model)
    hidden = {key for key, reason in rule.items() if reason == "hidden"}
    if not isinstance(matrices, str):
        taken = _matched(model, matrices, hidden)
    elif matrices in ("hidden", "all"):
        taken = hidden if matrices == "hidden" else {key for key, reason in rule.items() if reason != "not a matrix"}
    else:
        raise ValueError(f'matrices must be "hidden", "all" or a list of patterns, got {matrices!r}')
    return Routing(
        routes=tuple(
            Route(
                name=name,
                parameter=param,
                is_matrix=id(param) in taken,
                reason=rule[id(param)] if (id(param) in taken) == (id(param) in hidden) else "by override",
            )
            for name, param in model.named_parameters()
            if param.requires_grad
        )
    )


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters of ``model`` that are matrices between hidden layers, by the rule of :func:`route`."""
    return route(model).matrices


def _rule(model: nn.Module) -> dict[int, str]:
    """Why each trainable parameter, by its id, goes where it goes."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
    outputs: set[int] = set()
    for name, module in model.named_modules():
        *path, last = name.split(".")
        if last in OUTPUT_NAMES and not any(part.isdigit() for part in path):
            outputs.update([id(param) for param in module.parameters() if param.ndim == 2][-1:])

    def reason(name: str, param: nn.Parameter) -> str:
        if param.ndim != 2:
            return "not a matrix"
        if id(param) in embeddings or "embed" in name or name.endswith("_emb"):
            return "embedding"
        return "output layer" if id(param) in outputs else "hidden"

    return {id(param): reason(name, param) for name, param in model.named_parameters() if param.requires_grad}


def _matched(model: nn.Module, patterns: Sequence[str], hidden: set[int]) -> set[int]:
    """Ids of the parameters that ``patterns`` leave in the matrix part."""
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f'matrices must be "hidden", "all" or a list of patterns, got {list(patterns)}')
    named = [(name, param) for name, param in model.named_parameters(remove_duplicate=False) if param.requires_grad]
    matrices = [name for name, param in named if param.ndim == 2]
    taken = set(hidden) if patterns[0].startswith("!") else set()
    for pattern in patterns:
        found = [(name, param) for name, param in named if fnmatchcase(name, pattern.removeprefix("!"))]
        keys = {id(param) for _, param in found}
        if pattern.startswith("!"):
            if not keys & taken:
                raise _refusal(pattern, "takes nothing away", [name for name, param in named if id(param) in taken])
            taken -= keys
            continue
        flat = next((name for name, param in found if param.ndim != 2), None)
        if flat is not None:
            raise _refusal(pattern, f"matches {flat!r}, which is not a matrix", matrices)
        if not found:
            raise _refusal(pattern, "matches no trainable parameter", matrices)
        taken |= keys
    return taken


def _refusal(pattern: str, problem: str, names: Sequence[str]) -> ValueError:
    bare = pattern.removeprefix("!")
    near = [name for name in names if fnmatchcase(name, bare)] or get_close_matches(bare, names, n=3)
    hint = f"did you mean {' or '.join(near[:3])}?" if near else f"there are {', '.join(names[:3]) or 'none'}"
    return ValueError(f"pattern {pattern!r} of matrices {problem}: {hint}")
