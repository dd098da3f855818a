"""What a parameter is: its kind, from the type of the module that holds it, or guessed from name and shape; and how it
is read as matrices ``[out, in]``: which dimension is which side, and which dimension counts matrices.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

Layout = Literal["out_in", "in_out", "experts_out_in", "experts_in_out"]
"""``out_in``: ``[out, in]`` as in ``nn.Linear``, and kernels ``[out, in, ...]``, flattened behind the first dimension.
``in_out``: ``[in, out]``, as in the ``Conv1D`` of transformers, and transposed convolutions ``[in, out, ...]``.
``experts_*``: a stack of separate matrices, ``[experts, out, in]`` or ``[experts, in, out]``."""

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
Kind = Literal["hidden", "experts", "kernel", "embedding", "output layer", "not a matrix"]
OUTPUT_NAMES = frozenset({"head", "lm_head", "output", "output_layer", "classifier", "fc", "logits", "unembed"})
"""Usual names of a model's output layer; if it is a module, its last matrix is meant."""

OUTPUT_LINEARS = frozenset({"decoder", "embed_out", "score", "qa_outputs", "proj_out", "prediction"})
"""Names that are output layers only where they name a single linear layer."""

EMBEDDINGS = nn.Embedding, nn.EmbeddingBag
CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
_EMBEDDING = re.compile(r"embed|_emb$|_tokens?$|(^|\.)(w[tp]e$|pos(ition)?s?(_|$))")
# Names of two-dimensional parameters that do not act as matrices: Mamba's `A_log`, biases of experts, gains
_NO_MATRIX = re.compile(r"(_log|(^|\.)D|(bias|norm|scale|gain|gamma|beta|decay)[^.]*(\.weight)?)$", re.IGNORECASE)


def as_matrices(tensor: Tensor, layout: Layout = "out_in") -> Tensor:
    """Return ``tensor`` as ``[out, in]`` or ``[experts, out, in]``; a view where strides allow it."""
    if layout.startswith("experts"):
        return tensor if layout == "experts_out_in" else tensor.mT
    return (tensor if layout == "out_in" else tensor.transpose(0, 1)).flatten(1)


def as_parameter(matrices: Tensor, shape: Sequence[int], layout: Layout = "out_in") -> Tensor:
    """Return the inverse of :func:`as_matrices`, for a parameter of ``shape``."""
    if layout == "out_in":
        return matrices.reshape(shape)
    if layout == "in_out":
        return matrices.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)
    return matrices if layout == "experts_out_in" else matrices.mT


KindRule = tuple[Kind, Layout, bool]  # Kind and layout of a parameter, and whether they are guessed


def kinds(model: nn.Module) -> dict[int, KindRule]:
    """Return the kind of every parameter, by its id; the first module that holds a parameter decides."""
    tables = [_weight(module) for module in model.modules() if isinstance(module, EMBEDDINGS)]
    outputs = _outputs(model, tables)
    rule: dict[int, KindRule] = {id(table): ("embedding", "out_in", False) for table in tables}
    owners = {key: owner for owner in model.modules() for key in _originals(owner)}
    for path, module in model.named_modules():
        for name, param in module.named_parameters(path, recurse=False):
            if id(param) not in rule:
                kind, layout, guessed = _rule_of(owners.get(id(param), module), name, param)
                if kind == "hidden" and id(param) in outputs:
                    kind, guessed = "output layer", outputs[id(param)]
                rule[id(param)] = kind, layout, guessed
    inside = nn.modules.linear.NonDynamicallyQuantizableLinear  # of attention
    layers = [module for module in model.modules() if isinstance(module, nn.Linear) and not isinstance(module, inside)]
    linears = [_weight(layer) for layer in layers]
    if linears and not outputs and not any(weight is table for weight in linears for table in tables):
        # Without a known output layer, it is only a guess that the last linear layer is hidden.
        rule[id(linears[-1])] = (*rule[id(linears[-1])][:2], True)
    return rule


def _rule_of(module: nn.Module, name: str, param: nn.Parameter) -> KindRule:
    """Return the kind of a parameter of ``module``, without regard to output layers."""
    if param.ndim < 2 or name.endswith("weight_g"):
        return "not a matrix", "out_in", False
    if isinstance(module, EMBEDDINGS):
        return "embedding", "out_in", False
    # of transformers, which is not a dependency
    conv1d = type(module).__name__ == "Conv1D" and param.ndim == 2 and param.shape[1] == getattr(module, "nf", None)
    if isinstance(module, nn.Linear) or conv1d:
        layout: Layout = "out_in" if isinstance(module, nn.Linear) else "in_out"
        return ("embedding" if "embed" in name else "hidden"), layout, "embed" in name
    if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)):
        if module.groups > 1 and module.groups == module.in_channels:
            return "not a matrix", "out_in", False
        return "kernel", ("in_out" if isinstance(module, TRANSPOSED) else "out_in"), False
    holds_anything = isinstance(module, nn.ParameterList | nn.ParameterDict) or type(module) is nn.Module
    if type(module).__module__.startswith("torch.nn.modules") and not holds_anything:
        plain = param.ndim == 2 and "Norm" not in type(module).__name__
        return ("hidden" if plain else "not a matrix"), "out_in", False
    if param.ndim > 3 or (param.ndim == 3 and min(param.shape) == 1):
        return "not a matrix", "out_in", False
    if _EMBEDDING.search(name):
        return ("embedding" if param.ndim == 2 else "not a matrix"), "out_in", True
    if min(param.shape) == 1 or _NO_MATRIX.search(name):
        return "not a matrix", "out_in", True
    if param.ndim == 2:
        return "hidden", "out_in", True
    transposed = getattr(module, "is_transposed", None)
    return "experts", ("experts_in_out" if transposed else "experts_out_in"), transposed is None


def _originals(module: nn.Module) -> dict[int, nn.Parameter]:
    """Return, by id, the parameters from which ``torch.nn.utils.parametrize`` computes tensors of the same shape."""
    made = getattr(module, "parametrizations", {}).items() if is_parametrized(module) else ()
    every = [(getattr(module, name).shape, source) for name, part in made for source in part.parameters(recurse=False)]
    return {id(source): source for shape, source in every if source.shape == shape}


def _weight(module: nn.Module) -> Tensor:
    """Return the weight of a module, or the parameter of the same shape from which it is computed."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    return next((source for source in _originals(module).values() if source.shape == weight.shape), weight)


def _outputs(model: nn.Module, tables: Sequence[Tensor]) -> dict[int, bool]:
    """Return the ids of the matrices of output layers, and whether they are guessed."""
    outputs: dict[int, bool] = {}
    for name, module in model.named_modules():
        *path, last = name.split(".")
        if any(part.isdigit() for part in path):
            continue
        if last in OUTPUT_NAMES or (last in OUTPUT_LINEARS and isinstance(module, nn.Linear)):
            outputs.update({id(param): True for param in [p for p in module.parameters() if p.ndim == 2][-1:]})
    for module in model.modules():
        outputs.update({id(_weight(layer)): False for layer in _declared(module)})
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not outputs and not any(_weight(module) is table for _, module in linears for table in tables):
        vocabulary = max(map(len, tables), default=0)
        for index, (name, module) in enumerate(linears, 1):
            numbered = any(part.isdigit() for part in name.split("."))
            if module.out_features == vocabulary and (index == len(linears) or not numbered):
                outputs[id(_weight(module))] = True
    return outputs


def _declared(module: nn.Module) -> Iterator[Any]:
    """Yield the output layer that a model of transformers declares."""
    get = getattr(module, "get_output_embeddings", None)
    if callable(get):
        try:
            layer = get()
        except NotImplementedError:
            return
        if isinstance(layer, nn.Module) and hasattr(layer, "weight"):
            yield layer
