"""Which layer kind watches which module."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from cbs.errors import ConfigError
from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.recorder import Recorder


def plan(model: nn.Module, indices: dict[int, int], recorder: Recorder) -> list[Layer]:
    """One layer for every module with parameters to watch.

    Args:
        model: to watch.
        indices: index by ``id`` of the parameter tensor, for those to watch.
        recorder: for the layers.

    Raises:
        ConfigError: if a module cannot be watched.
    """
    layers: list[Layer] = []
    seen: set[int] = set()

    def visit(name: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        watched = {attribute: indices[key] for attribute, key in _owned(module) if key in indices}
        kind = _kind(module, watched)
        if (watched or kind.alone) and _is_called(module):
            if isinstance(vars(module).get("forward"), Layer):
                raise ConfigError(f"layer {name!r} is watched already; detach the other probe first")
            why = kind.refuse(module)
            if why is not None:
                raise ConfigError(f"layer {name!r} ({type(module).__name__}) {why}; use the source 'accumulation'")
            layers.append(kind(module, name, watched, recorder))
        if not _uses_descendants(module):
            for child_name, child in module.named_children():
                visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    return layers


STATE_SPACE = "A_log"
"""Parameter by which a state-space mixer is known, whoever wrote it: Mamba, Mamba-2, and the hybrids with them."""


def _uses_descendants(module: nn.Module) -> bool:
    """Whether a module uses the parameters of its descendants instead of calling them, or as well."""
    known = _is(module, nn.MultiheadAttention) or _is(module, ParametrizationList)
    return known or STATE_SPACE in dict(module.named_parameters(recurse=False))


def _is_called(module: nn.Module) -> bool:
    """Whether a module takes part in a forward pass itself; one that only holds parameters does not."""
    return type(module).forward is not nn.Module.forward and not isinstance(module, ParametrizationList)


def _owned(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Name within the module and ``id`` of the parameters that the module itself uses."""
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        yield name, id(parameter)
    for child_name, child in module.named_children():
        if _uses_descendants(module) or not _is_called(child):
            for name, key in _owned(child):
                yield f"{child_name}.{name}", key


def _kind(module: nn.Module, watched: dict[str, int]) -> type[Layer]:
    """The kind that knows the ``forward`` of a module and all its parameters; the fallback where there is none."""
    for kind in (LAYERS[name] for name in LAYERS):
        if "forward" in vars(module) or not any(_is(module, type_) for type_ in kind.types):
            continue
        names, parameters = {*kind.names_of(module)}, dict(module.named_parameters(remove_duplicate=False))
        absent = {name for name in names - {*parameters} if getattr(module, name, module) is None}
        if {*watched} <= names <= {*parameters, *absent}:
            return kind
    return LAYERS["fallback"]


def _is(module: nn.Module, type_: type[nn.Module] | str) -> bool:
    """Whether a module is of a type, given itself or by its qualified name, and has kept its ``forward``."""
    for base in type(module).__mro__:
        if type_ in (base, f"{base.__module__}.{base.__qualname__}"):
            return type(module).forward is getattr(base, "forward", None)
    return False
