"""A parser of commands: help with an example and exit codes, and mistakes in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from pytest_ddpscale.errors import BadInput, HistoryError
from pytest_ddpscale.removed import REMOVED
from pytest_ddpscale.util.nearest import did_you_mean

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # to which a command is added
USER_ERROR = 4  # as pytest's exit code for a usage error


class CommandParser(argparse.ArgumentParser):
    """A parser whose help keeps its lines, and whose mistakes are one line and the exit code of any bad input.

    Attributes:
        later: adds its options once they are needed, if that takes an import.
    """

    later: Callable[[CommandParser], None] | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.register("action", "parsers", _Commands)
        self.set_defaults(parser=self, run=_print_help)

    def complete(self) -> None:
        """Add the options that were left for later."""
        later, self.later = self.later, None
        if later is not None:
            later(self)

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        """As argparse's, with all options."""
        self.complete()
        return super().parse_known_args(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        """End the process."""
        self.exit(USER_ERROR, f"{self.prog}: {message}{'' if message.endswith('?') else '.'} See {self.prog} --help.\n")


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    def add_parser(self, name: str, **options: Any) -> Any:
        """As argparse's; the help of the group describes the command too."""
        explanation = options["help"]
        return super().add_parser(name, description=f"{explanation[0].upper()}{explanation[1:]}.", **options)


def _print_help(arguments: argparse.Namespace) -> int:
    """No command was named, so nothing was done: not a success, as for a script with an empty variable."""
    arguments.parser.print_help()
    return USER_ERROR


def adder(parser: Any) -> Callable[..., None]:
    """Adds options to a parser or a group: flag, metavar, a parser that raises ValueError, help, default, and more."""

    def add(
        flag: str, metavar: str | None, parse: Callable[[str], Any], explanation: str, default: Any = None, **more: Any
    ) -> None:  # fmt: skip
        def read(text: str) -> Any:
            try:
                return parse(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(f"found {text!r}; expected {error}") from None

        explanation = explanation if default is None else f"{explanation}; default: %(default)s".removeprefix("; ")
        parser.add_argument(flag, metavar=metavar, type=read, help=explanation, default=default, **more)

    return add


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of the command that was typed; of a group of commands alone, or none, its help is the command."""
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        command: argparse.ArgumentParser = arguments.parser
        flag = unknown[0].partition("=")[0]
        if instead := REMOVED.get(f"{command.prog} {flag}"):
            command.error(f"{flag} was removed; instead: {instead}")
        known = [flag for action in command._actions for flag in action.option_strings]
        near = "" if flag.startswith("--ddp-") else did_you_mean(flag, known)  # pytest's, which are alike
        command.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    return arguments


def commands_of(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands and groups of commands by their words, the program too."""
    yield words, parser
    for group in parser._actions:  # argparse has no public access to them
        if isinstance(group, argparse._SubParsersAction):
            for name, command in group.choices.items():
                yield from commands_of(command, f"{words} {name}".strip())


def each_run(directories: Sequence[Path], take: Callable[[Path], object]) -> int:
    """Apply `take` to each run directory, so that one bad run does not hide the others. Returns the exit code."""
    code = 0
    for directory in directories:
        try:
            take(directory)
        except HistoryError:
            raise
        except BadInput as error:
            print(f"ddpscale: {error}", file=sys.stderr)
            code = USER_ERROR
    return code
