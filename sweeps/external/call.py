"""Calls a training function: ``python -m sweeps.external.call package.module:name batch_size=8 lr=0.1 seed=0 ...``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from cbs.errors import CbsError, ConfigError
from cbs.registry import Imported
from cbs.registry.choices import parse_value

_AS_TEXT = ("folder", "optimizer")


def taken(name: str, given: Mapping[str, Any], *, several: bool = False) -> tuple[Callable[..., Any], set[str]]:
    """The function, and which of the values that are given it takes.

    Args:
        name: ``package.module:name``.
        given: values by name.
        several: whether there are several optimizers.

    Raises:
        ConfigError: if it cannot be imported, needs what there is not, or takes no batch size, learning rate, seed or,
            where there are several, optimizer.
    """
    function = Imported("training function").get(name)
    if function is None:
        raise ConfigError(f"--function {name!r} is not package.module:name")
    parameters = inspect.signature(function).parameters.values()
    own = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needed = [p.name for p in parameters if p.name in own and p.default is p.empty and p.name not in given]
    if needed:
        raise ConfigError(f"{name} needs {', '.join(needed)}; there are {', '.join(sorted(given))}")
    taken = set(given) if any(p.kind is p.VAR_KEYWORD for p in parameters) else own & set(given)
    ignored = [key for key in ("batch_size", "lr", "seed", *(["optimizer"] if several else [])) if key not in taken]
    if ignored:
        raise ConfigError(f"{name} takes no {', '.join(ignored)}: trials that differ in it would train alike")
    return function, taken


def main() -> None:
    """Call the function that the arguments name."""
    name, *pairs = sys.argv[1:]
    texts = dict(pair.split("=", 1) for pair in pairs)
    given = {key: text if key in _AS_TEXT else parse_value(text) for key, text in texts.items()}
    try:
        function, names = taken(name, given)
    except CbsError as error:
        sys.exit(str(error))
    function(**{key: given[key] for key in names})


if __name__ == "__main__":
    main()
