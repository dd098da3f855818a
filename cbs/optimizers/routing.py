"""The rule that divides parameters between a method for matrices and another optimizer, with an override."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakSet

from torch import nn

from cbs.optimizers.layout import Kind, KindRule, Layout, kinds

TAKEN: dict[str, tuple[Kind, ...]] = {
    "hidden": ("hidden", "experts"),
    "kernels": ("hidden", "experts", "kernel"),
    "all": ("hidden", "experts", "embedding", "output layer"),
}
"""Kinds of parameters in the matrix part, by the value of ``matrices``."""

Matrices = str | Sequence[str]  # A key of :data:`TAKEN`, or patterns over parameter names; see :func:`route`

_warned: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True, kw_only=True)
class Route:
    """Where one trainable parameter goes.

    Attributes:
        name: name in the model; for a shared parameter the first one.
        parameter: the parameter.
        kind: kind according to the rule: ``"hidden"``, ``"experts"``, ``"kernel"``, ``"embedding"``, ``"output layer"``
            or ``"not a matrix"``.
        layout: how it is read as matrices, if it is one; see :mod:`cbs.optimizers.layout`.
        guessed: whether the kind was guessed from a name or a shape, and not known from the module's type or the model.
        is_matrix: whether it belongs to the matrix part.
        reason: the kind, or ``"by override"`` where it does not go where the rule would send it.
    """

    name: str
    parameter: nn.Parameter
    kind: Kind
    layout: Layout
    guessed: bool
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
    def groups(self) -> list[dict[str, Any]]:
        """The parameters of the matrix part as groups for an optimizer, one for each ``layout``."""
        members: dict[Layout, list[nn.Parameter]] = {}
        for route in self.routes:
            if route.is_matrix:
                members.setdefault(route.layout, []).append(route.parameter)
        return [{"params": params, "layout": layout} for layout, params in members.items()]

    @property
    def rest(self) -> list[nn.Parameter]:
        """All other parameters."""
        return [route.parameter for route in self.routes if not route.is_matrix]


def route(model: nn.Module, matrices: Matrices = "hidden") -> Routing:
    """Divide the trainable parameters of ``model`` into a matrix part and the rest.

    The rule first uses the type of the module that holds a parameter. Weights of linear layers (including transformers'
    ``Conv1D``, which are ``[in, out]``), attention and recurrent layers are *hidden* matrices; those of
    ``nn.Embedding`` are *embeddings*, also where they are tied to an output layer; those of convolutions are *kernels*,
    except in depthwise convolutions. Expert modules with an attribute ``is_transposed``, as in transformers, hold
    *experts*: a stack of matrices. What a model returns as ``get_output_embeddings()`` is an *output layer*.

    The rest is guessed from name and shape, and a warning says so once for each model:

    - A linear layer is the output layer if it is the last matrix of a module with one of ``kinds.OUTPUT_NAMES``, or has
      one of ``kinds.OUTPUT_LINEARS`` itself. Inside a numbered stack, as in ``blocks.3.attention.output``, such a name
      means a hidden layer. If this finds no output layer, and none is tied to an embedding, the output layer is the
      linear layer with as many outputs as the largest embedding has rows, if it is the last or not in a numbered stack.
      A linear layer with ``embed`` in its name is an embedding.
    - A parameter of a module of another type is, by its name, an embedding or, like ``A_log`` and biases, not a matrix.
      Otherwise it is a hidden matrix ``[out, in]`` with two dimensions, experts ``[experts, out, in]`` with three.

    In a model whose output layer has another name, such as a bare ``nn.Sequential``, that layer counts as hidden; the
    warning then lists the last linear layer as a guess.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
    >>> [(one.name, one.kind) for one in route(model).routes if one.is_matrix]
    [('1.weight', 'hidden')]

    Args:
        model: the model.
        matrices: ``"hidden"`` for hidden matrices and experts, ``"kernels"`` to add kernels, which are matrices
            ``[out, rest]``, ``"all"`` to add embeddings and output layers to the hidden ones, or a list of patterns.
            A pattern is a parameter's name with the wildcards ``*``, ``?`` and ``[...]``, where ``*`` also matches
            dots. In order, each pattern adds the matrices it matches; a pattern that begins with ``!`` removes them.
            The list may begin with one of the three words; if its first pattern removes, it starts from ``"hidden"``.

    Raises:
        ValueError: if ``matrices`` is none of these, a pattern changes nothing, or a pattern that adds matches a
            parameter that is not a matrix.
    """
    patterns = isinstance(matrices, list | tuple) and matrices and all(isinstance(one, str) for one in matrices)
    if not patterns and not (isinstance(matrices, str) and matrices in TAKEN):
        names = ", ".join(f'"{name}"' for name in TAKEN)
        raise ValueError(f"matrices must be {names} or a list of patterns, got {matrices!r}")
    rule = kinds(model)
    asked = TAKEN["kernels" if matrices == "kernels" or matrices[0] == "kernels" else "hidden"]
    taken = _matched(model, [matrices] if isinstance(matrices, str) else matrices, rule)
    routes = []
    for name, param in model.named_parameters():
        if param.requires_grad:
            (kind, layout, guessed), is_matrix = rule[id(param)], id(param) in taken
            routes.append(
                Route(
                    name=name,
                    parameter=param,
                    kind=kind,
                    layout=layout,
                    guessed=guessed,
                    is_matrix=is_matrix,
                    reason=kind if is_matrix == (kind in asked) else "by override",
                )
            )
    if isinstance(matrices, str):
        _warn(model, routes)
    return Routing(routes=tuple(routes))


def _warn(model: nn.Module, routes: Sequence[Route]) -> None:
    """Warn once per model about guessed kinds, with layers of a stack together, and about how to override them."""
    alike: dict[str, list[Route]] = {}
    for route in routes:
        if route.guessed:
            name = ".".join("*" if part.isdigit() else part for part in route.name.split("."))
            alike.setdefault(name, []).append(route)
    if not alike or model in _warned:
        return
    _warned.add(model)
    guesses = {name if len(members) > 1 else members[0].name: members[0] for name, members in alike.items()}
    shown = [f"{name} ({first.kind})" for name, first in guesses.items()]
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    name, first = max(guesses.items(), key=lambda guess: guess[1].is_matrix or guess[1].parameter.ndim == 2)
    warnings.warn(
        f"{type(model).__name__}: guessed by name or shape: {', '.join(shown[:4])}{more}; if wrong, override it: "
        f'matrices=["hidden", "{"!" if first.is_matrix else ""}{name}"]',
        stacklevel=3,
    )


def _matched(model: nn.Module, patterns: Sequence[str], rule: dict[int, KindRule]) -> set[int]:
    """Return the ids of the parameters that ``patterns`` leave in the matrix part."""
    named = [(name, param) for name, param in model.named_parameters(remove_duplicate=False) if param.requires_grad]
    matrices = [name for name, param in named if _can_be_matrix(param, rule)]
    start = "hidden" if patterns[0].startswith("!") else patterns[0]
    taken = {key for key, (kind, _, _) in rule.items() if kind in TAKEN.get(start, ())}
    for pattern in patterns[patterns[0] in TAKEN :]:
        matched = [(name, param) for name, param in named if fnmatchcase(name, pattern.removeprefix("!"))]
        keys = {id(param) for _, param in matched}
        if pattern.startswith("!"):
            if not keys & taken:
                raise _refusal(pattern, "removes nothing", [name for name, param in named if id(param) in taken])
            taken -= keys
            continue
        flat = next((name for name, param in matched if not _can_be_matrix(param, rule)), None)
        if flat is not None:
            raise _refusal(pattern, f"matches {flat!r}, which is not a matrix", matrices)
        if not matched:
            raise _refusal(pattern, "matches no trainable parameter", matrices)
        taken |= keys
    return taken


def _can_be_matrix(param: nn.Parameter, rule: dict[int, KindRule]) -> bool:
    return param.ndim == 2 or rule[id(param)][0] in ("experts", "kernel")


def _refusal(pattern: str, problem: str, names: Sequence[str]) -> ValueError:
    bare = pattern.removeprefix("!")
    near = [name for name in names if fnmatchcase(name, bare)] or get_close_matches(bare, names, n=3)
    hint = f"did you mean {' or '.join(near[:3])}?" if near else f"there are {', '.join(names[:3]) or 'none'}"
    return ValueError(f"pattern {pattern!r} of matrices {problem}: {hint}")
