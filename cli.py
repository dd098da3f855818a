"""The command ``cbs``, put together of ``sweeps.commands``, the questions of ``analysis`` and the extensions.

Sweeps know the analysis, not the other way round.
"""

import atexit
import os
import shlex
import signal
import sys

_STOPPED = 130  # Exit code after a signal


def stop_at_once(*_: object) -> None:
    """What a signal does while modules are imported, where an exception may be lost."""
    line = f"cbs: stopped; to run it again: {shlex.join(['cbs', *sys.argv[1:]])}\n"
    os.write(2, line.encode(errors="backslashreplace"))
    os._exit(_STOPPED)


def leave_at_once() -> None:
    """What is done last after a signal: threads that are still in C code would abort a Python that takes itself
    apart."""
    if _status == _STOPPED:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(_STOPPED)


_status = 0
PROGRAM = __name__ == "__main__" or os.path.basename(sys.argv[0]) == "cbs"
if PROGRAM:
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:
            signal.signal(getattr(signal, name), stop_at_once)
    atexit.register(leave_at_once)  # what is registered first runs last

import contextlib
import copy
import functools
import importlib
import importlib.util
import io
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console

import cbs
from cbs import interrupts
from cbs.errors import CbsError, ConfigError, reason
from cbs.registry.commands import INTERVALS_ANYWHERE, command_line, command_modules, intervals_first, typed
from cbs.registry.extensions import BUILT_IN, load

FIRST = ("sweep", "analyze")  # Commands that ``cbs --help`` begins with

PANELS = ("Begin", "Measure", "Analyze", "Decide", "Bring your data", "Extensions")
"""Headings of ``cbs --help``, in their order."""

HELP_ALL = "--help-all"
FIRST_SENTENCE = 200  # Characters that the line of a command may have in a list of commands; longer ones would be cut

# What an unknown flag or a malformed value raises; typer brings a click of its own and exports only the subclass
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_HELP = (
    "How large a batch can an optimizer use? Sweep, then analyze. The critical batch size B_crit is the one around "
    "which steps x examples is least on average: from half to twice B_crit, steps halve and examples double."
)
DISTRIBUTION = "critical-batch-size"

errors = Console(stderr=True, highlight=False, emoji=False)
"""As :data:`analysis.command_options.errors`, which may be another package's before :func:`neighbours` has looked."""


def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    confidence: Annotated[float | None, typer.Option(help="Coverage of every interval. [default: 0.95]")] = None,
    resamples: Annotated[int | None, typer.Option(help="Posterior draws of every curve. [default: 2000]")] = None,
) -> None:
    """How large a batch can an optimizer use? Sweep, then analyze.

    Example: cbs sweep --optim merit --optim adamw --recipe quick && cbs analyze results/
    """
    from analysis.config import INTERVALS

    given = {"confidence": confidence, "resamples": resamples}
    INTERVALS.set({name: value for name, value in given.items() if value is not None})
    if version:
        typer.echo(f"cbs {cbs.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@functools.cache
def application(only: str | None = None) -> typer.Typer:
    """The command with all its commands, see :func:`cbs.registry.commands.command_modules`.

    Args:
        only: name of a command; where there is one of this name, the others are left out, which saves their imports.
    """
    app = typer.Typer(
        name="cbs",
        cls=Program,
        help=_HELP,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback(invoke_without_command=True)(root)
    known = command_modules()
    for name in [only] if only in known else known:
        homes = [load(module) for module in known[name]]
        if all(hasattr(home, "__path__") for home in homes):
            app.add_typer(_group(homes), name=name, rich_help_panel=_panel(homes))
        elif len(homes) == 1:
            app.command(name, cls=OptionPanels, rich_help_panel=_panel(homes))(homes[0].command)
        else:
            raise ConfigError(f"two commands are called {name!r}: those of {' and '.join(known[name])}")
    return app


def _panel(homes: Sequence[ModuleType]) -> str:
    """The heading under which a command is listed: ``PANEL`` of its module or of a package around it, the nearest one;
    ``Extensions`` where none says so."""
    for home in homes:
        parts = home.__name__.split(".")
        for count in range(len(parts), 0, -1):
            panel = getattr(sys.modules[".".join(parts[:count])], "PANEL", None)
            if panel is not None:
                return str(panel)
    return PANELS[-1]


class Panels(typer.core.TyperGroup):
    """Lists commands under headings, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        under: dict[str, list[tuple[str, str]]] = {name: [] for name in PANELS}
        first = [name for name in FIRST if name in self.commands]
        for name in (*first, *sorted(self.commands.keys() - FIRST)):
            command = self.commands[name]
            panel = PANELS[0] if name in FIRST else getattr(command, "rich_help_panel", None) or "Commands"
            under.setdefault(panel, []).append((name, command.get_short_help_str(limit=FIRST_SENTENCE)))
        _write_panels(formatter, {panel: rows for panel, rows in under.items() if rows})


class Program(Panels):
    """Takes the options of the intervals, which it has once for all commands, at any place."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        everywhere, others = intervals_first(args)
        return super().parse_args(ctx, [*everywhere, *others])


class OptionPanels(typer.core.TyperCommand):
    """Lists options under the headings that they name; hidden ones only with ``--help-all`` and in completion."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)
        if not any(getattr(parameter, "hidden", False) for parameter in parameters):
            return parameters
        parameters = [*parameters[:-1], _help_all(parameters[-1]), parameters[-1]]
        return [_shown(parameter) for parameter in parameters] if ctx.resilient_parsing else parameters

    def invoke(self, ctx: Any) -> Any:
        asked = ctx.find_root().params
        given = [name for name in INTERVALS_ANYWHERE if asked.get(name.removeprefix("--")) is not None]
        if given and not getattr(self.callback, "intervals", False):
            raise ConfigError(f"{', '.join(given)}: '{ctx.command_path}' has no intervals; leave it out")
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        under: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            hidden = getattr(parameter, "hidden", False)
            if hidden and not ctx.meta.get(HELP_ALL):
                continue
            record = _shown(parameter).get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None) or f"{parameter.param_type_name}s".capitalize()
                under.setdefault(panel, []).append(record)
        _write_panels(formatter, under)


def _shown(parameter: Any) -> Any:
    (shown := copy.copy(parameter)).hidden = False
    return shown


def _help_all(help_option: Any) -> Any:
    """The option ``--help-all``, made of ``--help``: the help text with the options that are hidden otherwise."""

    def show(ctx: Any, parameter: Any, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            ctx.meta[HELP_ALL] = True
            typer.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    option = copy.copy(help_option)
    option.opts, option.name, option.callback = [HELP_ALL], "help_all", show
    option.help = "Show every option and exit."
    return option


def _write_panels(formatter: Any, rows_by_panel: dict[str, list[tuple[str, str]]]) -> None:
    """Headings with what stands under them, without empty lines between, so that all of it fits a screen."""
    formatter.write_paragraph()
    for panel, rows in rows_by_panel.items():
        formatter.write_heading(panel)
        with formatter.indentation():
            formatter.write_dl(rows)


def _group(packages: Sequence[ModuleType]) -> typer.Typer:
    """The commands of packages behind their name; alone, the name does what the function ``command`` of one of them
    does, or says which there are."""
    group = typer.Typer(cls=Panels, rich_markup_mode=None, add_completion=False)

    def overview(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    overview.__doc__ = packages[0].__doc__
    alone = next((package.command for package in packages if hasattr(package, "command")), overview)
    group.callback(invoke_without_command=True)(alone)
    for package in packages:
        for module in pkgutil.iter_modules(package.__path__):
            group.command(typed(module.name), cls=OptionPanels)(load(f"{package.__name__}.{module.name}").command)
    return group


def commands() -> dict[str, Any]:
    """Every command by what is typed; one of a group after the name of the group."""
    by_name: dict[str, Any] = {}
    for name, command in typer.main.get_command(application()).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        by_name |= {f"{name} {part}": each for part, each in (inner or {}).items()}
        if inner is None or command.params:  # a group with options answers alone, too
            by_name[name] = command
    return by_name


def neighbours() -> None:
    """Check that ``sweeps``, ``analysis`` and ``extensions`` are the ones installed with this command.

    These are common names; another distribution may put its own package in front of ours, or on top of it.

    Raises:
        ConfigError: naming the path of the rival, or what is not installed.
    """
    home = Path(__file__).resolve().parent
    for name in ("sweeps", "analysis", *([BUILT_IN] if (home / BUILT_IN).is_dir() else [])):
        spec = importlib.util.find_spec(name)
        ours = home / name / "__init__.py"
        if spec is None:  # an editable installation finds the packages that there were when it was made
            raise ConfigError(f"{ours.parent} is not installed with the rest; install {DISTRIBUTION} again")
        origin = Path(spec.origin).resolve() if spec.origin else None
        if origin != ours:
            where = origin or list(spec.submodule_search_locations or [])
            problem = f"another package called {name!r} is in the way at {where} (ours belongs at {ours.parent})"
        elif f'"{DISTRIBUTION}"' not in ours.read_text():
            problem = f"another package called {name!r} has overwritten ours at {ours}"
        else:
            continue
        raise ConfigError(f"{problem}; remove it, or install {DISTRIBUTION} into a virtual environment of its own")


def open_streams() -> None:
    """What was closed when this was started leads nowhere from now on, so that no file is given its number; and what
    Python says of errors has a number of its own."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open to the end
    if PROGRAM:  # what Ray's C code writes to 2 is discarded while Ray starts in another thread
        encoding = sys.stderr.encoding
        sys.stderr = sys.__stderr__ = open(os.dup(2), "w", buffering=1, encoding=encoding)  # type: ignore[misc] # noqa: SIM115


def cannot_be_told(error: OSError) -> bool:
    """Whether an error is that standard output takes nothing, not even the end of a line, as on a full disk; what is
    still to be written there is dropped then."""
    if error.filename is not None:
        return False
    try:
        print(flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def outcome() -> int:
    """Run the command and return its exit code; one clear line and code 2 for anything a person can put right."""
    # on small matrices, threads of numpy's linear algebra double the work by waiting for one another
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be anything, also what the locale cannot write
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            os.getcwd()  # libraries that are loaded end the process where it is gone
        except OSError as error:
            raise ConfigError(f"the current folder is gone ({reason(error)}); change to one that exists") from None
        neighbours()
        _, others = intervals_first(sys.argv[1:])
        status = application(next(iter(others), None))(standalone_mode=False)
    except CbsError as error:
        errors.print(f"cbs: {error}", markup=False, soft_wrap=True)
        return error.exit_code
    except UsageError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "cbs"
        message = error.format_message()  # type: ignore[attr-defined]
        errors.print(f"cbs: {message} See '{path} --help'.", markup=False, soft_wrap=True)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        status = _STOPPED
    except Exception as error:
        if interrupts.interrupted():  # libraries make other errors of it
            status = _STOPPED
        elif isinstance(error, OSError) and cannot_be_told(error):
            errors.print(f"cbs: cannot write the answer to standard output: {reason(error)}", soft_wrap=True)
            return 2
        else:
            raise
    if status == _STOPPED:  # typer's own answer to Ctrl-C, too
        tell_stopped()
    return status if isinstance(status, int) else 0


def tell_stopped() -> None:
    """Say how to run again what a signal has stopped."""
    errors.print(f"cbs: stopped; to run it again: {command_line()}", markup=False, soft_wrap=True)


def main() -> None:
    """Entry point."""
    global _status
    try:
        with interrupts.signals_as_interrupt(ignored_after=PROGRAM):
            _status = outcome()
    except KeyboardInterrupt:  # in the last moment
        _status = _STOPPED
        tell_stopped()
    sys.exit(_status)


if __name__ == "__main__":
    main()
