"""A parser of commands: help with an example and exit codes, and mistakes in one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from pytest_ddpscale.removed import REMOVED
from pytest_ddpscale.util.nearest import did_you_mean

USER_ERROR = 4  # as pytest's exit code for a usage error
ExitCodes = Callable[[str], Iterable[tuple[int, str]]]


class CommandParser(argparse.ArgumentParser):
    """A parser whose help keeps its lines, and whose mistakes are one line and the exit code of any bad input.

    Attributes:
        later: adds its options once they are needed, if that takes an import.
    """

    later: Callable[[CommandParser], None] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def complete(self) -> None:
        """Add the options that were left for later."""
        if self.later is not None:
            later, self.later = self.later, None
            later(self)

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        """As argparse's, with all options."""
        self.complete()
        return super().parse_known_args(*arguments, **options)

    def format_help(self) -> str:
        """As argparse's, with all options."""
        self.complete()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """End the process."""
        self.exit(USER_ERROR, f"{self.prog}: {message}{'' if message.endswith('?') else '.'} See {self.prog} --help.\n")


def adder(parser: Any) -> Callable[..., None]:
    """Adds options to a parser or a group: flag, metavar, a parser that raises ValueError, help, and a default."""

    def add(flag: str, metavar: str, parse: Callable[[str], Any], told: str, default: Any = None) -> None:
        def read(text: str) -> Any:
            try:
                return parse(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(f"found {text!r}; expected {error}") from None

        told = told if default is None else f"{told}; default: %(default)s".removeprefix("; ")
        parser.add_argument(flag, metavar=metavar, type=read, help=told, default=default)

    return add


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of the command that was typed; of a group of commands alone, or none, its help is the command."""
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        command: argparse.ArgumentParser = found.parser
        flag = unknown[0].partition("=")[0]
        if instead := REMOVED.get(f"{command.prog} {flag}"):
            command.error(f"{flag} was removed; instead: {instead}")
        known = [one for action in command._actions for one in action.option_strings]
        near = "" if flag.startswith("--ddp-") else did_you_mean(flag, known)  # pytest's, which are alike
        command.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    return found


def add_help(
    parser: argparse.ArgumentParser,
    examples: Mapping[str, str],
    exit_codes: ExitCodes,
    words: str = "",
    explanation: str = "",
) -> None:
    """Give each command its description, an example and its exit codes; a group of commands alone prints its help.

    Args:
        parser: of the command with these `words`, after the program's name; of the program without any.
        examples: by a command's words, without the program's name.
        exit_codes: of the command with these words, with their meaning.
        words: of the command.
        explanation: of the command, as in the help of its group.
    """
    group = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
    parser.set_defaults(parser=parser)
    if explanation:
        parser.description = f"{explanation[0].upper()}{explanation[1:]}."
    example = [] if group else ["example:", f"  {parser.prog.removesuffix(words)}{examples[words]}", ""]
    codes = [f"  {code:>3}  {meaning}" for code, meaning in exit_codes(words)]
    parser.epilog = "\n".join([*example, "exit codes:", *codes])
    if group is None:
        return
    parser.set_defaults(run=_print_help)
    told = {one.dest: one.help or "" for one in group._choices_actions}
    for name, command in group.choices.items():
        add_help(command, examples, exit_codes, f"{words} {name}".strip(), told.get(name, ""))


def commands_of(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands by their words."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for group in groups:
        for name, command in group.choices.items():
            yield from commands_of(command, f"{words} {name}".strip())
    if not groups:
        yield words, parser


def _print_help(arguments: argparse.Namespace) -> int:
    """No command was named, so nothing was done: not a success, as for a script with an empty variable."""
    arguments.parser.print_help()
    return USER_ERROR
