"""The command line is frozen: every command and every option stands in a list here.

Whoever adds one edits the list, and says in the message of the commit why a setting (``--set``), an option that is
there, or a function of the library does not do. Regenerate it by ``python -m tests.test_frozen``.
"""

from pathlib import Path

import typer.main

import cli
from tests.parameters import COMMANDS, flags_of

LIST = Path(__file__).with_name("frozen_commands.txt")


def frozen() -> str:
    """One line per command, and one of the program itself: its name and its options in the order of their names."""
    program = typer.main.get_command(cli.application())
    everywhere = {max(param.opts, key=len) for param in program.params} - {"--help", "--version"}
    options = {"cbs": everywhere - {"--install-completion", "--show-completion"}} | {
        command: {flag for flag in flags_of(command) if flag.startswith("-")} for command in COMMANDS
    }
    return "".join(f"{' '.join([f'{command}:', *sorted(options[command])])}\n" for command in sorted(options))


def test_nobody_adds_a_command_or_an_option_by_the_way() -> None:
    assert frozen() == LIST.read_text(), __doc__


def test_the_program_stays_small() -> None:
    lines = LIST.read_text().splitlines()
    assert len(lines) - 1 <= MOST_COMMANDS
    assert sum(len(line.partition(":")[2].split()) for line in lines) <= MOST_OPTIONS


MOST_COMMANDS, MOST_OPTIONS = 25, 250  # Of the whole program; these numbers only fall

if __name__ == "__main__":
    LIST.write_text(frozen())
