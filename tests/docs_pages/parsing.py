"""What is wrong with a command of the documents, by the parsers that would read it."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_ddpscale import cli
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import AUTO, OPTIONS, settings_from
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.command_parser import CommandParser
from tests.docs_pages.commands import ROOT, Command

# Names that documents give to a SKU that nobody has yet, or to any.
_INVENTED_SKUS = {"l40s", "SKU", "NAME"}


class Parsers:
    """The parsers of both commands, as users have them."""

    def __init__(self, config: pytest.Config) -> None:
        self._pytest = config._parser  # pytest has no public way to its options
        self._marks = {line.split(":")[0].split("(")[0] for line in config.getini("markers")}
        thresholds = load_thresholds(ROOT / "thresholds.yaml").thresholds.skus
        aliases = {alias for sku in thresholds.values() for alias in sku.aliases}
        self._skus = {AUTO, *thresholds, *aliases, *_INVENTED_SKUS}

    def problem(self, command: Command) -> str:
        """Why a command would be refused; empty if it would not. Of one with dots, what is there counts."""
        if "…" in command.arguments:
            return self.problem_in_part(command)
        try:
            given = self._given(command)
            settings_from(given, {}, {})
        except (OptionError, ValueError) as error:
            return str(error)
        sku = given.get("gpu_sku")
        return f"there is no SKU {sku!r}" if sku is not None and sku not in self._skus else ""

    def problem_in_part(self, command: Command) -> str:
        """What a command that is only mentioned has that does not exist: a subcommand or an option."""
        if command.program == "pytest":
            groups = [*self._pytest._groups, self._pytest._anonymous]
            known = {name for group in groups for option in group.options for name in option.names()}
        else:
            parser, rest = cli.parser_of_commands(), list(command.arguments)
            while choices := _subcommands(parser):
                name = rest.pop(0) if rest else "…"
                if not name.replace("-", "").isidentifier():  # `ddpscale …`
                    return ""
                if name not in choices:
                    return f"there is no subcommand {name!r}"
                parser = choices[name]
            if isinstance(parser, CommandParser) and parser.later is not None:
                parser.later(parser)
            known = set(parser._option_string_actions)
        flags = {word.split("=")[0].rstrip("…,.") for word in command.arguments if word.startswith("--")} - {"--", ""}
        return ", ".join(f"there is no option {flag}" for flag in sorted(flags - known))

    def _given(self, command: Command) -> dict[str, Any]:
        """Our options that a command gives, by name. Raises ValueError."""
        if command.program == "pytest":
            return self._given_to_pytest(command.arguments)
        parser, said = cli.parser_of_commands(), io.StringIO()
        _refuse_abbreviations(parser)
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                found = vars(parser.parse_args(command.arguments))
        except SystemExit as end:
            if end.code:
                raise ValueError(said.getvalue().strip().splitlines()[-1]) from None
            return {}
        # What a parser read into something else is right if it could be read.
        typed = {option.name: found.get(option.name) for option in OPTIONS.values()}
        return {name: value for name, value in typed.items() if value is True or (value and isinstance(value, str))}

    def _given_to_pytest(self, arguments: Sequence[str]) -> dict[str, Any]:
        try:
            found, unknown = self._pytest.parse_known_and_unknown_args(list(arguments))
        except pytest.UsageError as error:
            raise ValueError(str(error)) from None
        given: Mapping[str, Any] = vars(found)
        words = set(str(given.get("markexpr") or "").replace("(", " ").replace(")", " ").split()) - {"not", "and", "or"}
        if unknown or words - self._marks:
            raise ValueError(f"pytest has no option or mark {' '.join([*unknown, *(words - self._marks)])}")
        return {option.name: given[option.name] for option in OPTIONS.values() if given.get(option.name)}


def _refuse_abbreviations(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = False
    for inner in _subcommands(parser).values():
        _refuse_abbreviations(inner)


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """By name; empty of a command that has none."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}
