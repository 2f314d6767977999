"""What is wrong with a command of the documents, by the parsers that would read it."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from pytest_ddpscale import cli
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import AUTO, OPTIONS, settings_from
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.docs_pages.commands import ROOT, Command

# Names that documents give to a SKU that nobody has yet, or to any.
INVENTED_SKUS = {"l40s", "SKU", "NAME"}


class Parsers:
    """The parsers of both commands, as users have them."""

    def __init__(self, config: pytest.Config) -> None:
        self._pytest = config._parser  # pytest has no public way to its options
        self._marks = {line.split(":")[0].split("(")[0] for line in config.getini("markers")}
        thresholds = load_thresholds(ROOT / "thresholds.yaml").thresholds.skus
        aliases = {alias for sku in thresholds.values() for alias in sku.aliases}
        self._skus = {AUTO, *thresholds, *aliases, *INVENTED_SKUS}

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
        flags = {word.split("=")[0].rstrip("…,.") for word in command.arguments if word.startswith("--")} - {"--", ""}
        known = self._pytest_flags() if command.program == "pytest" else None
        if known is None:
            parser, rest = ddpscale_parser(), list(command.arguments)
            while choices := subcommands(parser):
                name = rest.pop(0) if rest else "…"
                if not name.isidentifier() and "-" not in name:  # `ddpscale …`
                    return ""
                if name not in choices:
                    return f"there is no subcommand {name!r}; expected one of {', '.join(choices)}"
                parser = choices[name]
            known = set(parser._option_string_actions)
        unknown = sorted(flags - known)
        return f"there is no option {unknown[0]}" if unknown else ""

    def _given(self, command: Command) -> dict[str, Any]:
        """Our options that a command gives, by name. Raises ValueError."""
        if command.program == "pytest":
            return self._given_to_pytest(command.arguments)
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                found = vars(ddpscale_parser().parse_args(command.arguments))
        except SystemExit as end:
            if end.code:
                raise ValueError(said.getvalue().strip().splitlines()[-1]) from None
            return {}
        return {option.name: found[option.name] for option in OPTIONS.values() if _is_typed(found.get(option.name))}

    def _given_to_pytest(self, arguments: Sequence[str]) -> dict[str, Any]:
        try:
            found = self._pytest.parse_known_and_unknown_args(list(arguments))
        except pytest.UsageError as error:
            raise ValueError(str(error)) from None
        if found[1]:
            raise ValueError(f"pytest has no option {' '.join(found[1])}")
        given: Mapping[str, Any] = vars(found[0])
        words = set(str(given.get("markexpr") or "").replace("(", " ").replace(")", " ").split()) - {"not", "and", "or"}
        if words - self._marks:
            raise ValueError(f"there is no mark {', '.join(sorted(words - self._marks))}")
        return {option.name: given[option.name] for option in OPTIONS.values() if given.get(option.name)}

    def _pytest_flags(self) -> set[str]:
        groups = [*self._pytest._groups, self._pytest._anonymous]
        return {name for group in groups for option in group.options for name in option.names()}


def _is_typed(value: object) -> bool:
    """Not what a parser read into something else: that is right if it could be read."""
    return value is True or (isinstance(value, str) and value != "")


def ddpscale_parser() -> argparse.ArgumentParser:
    """That of `ddpscale`, which here takes no abbreviations."""
    parser = cli._parser()
    for one in _all(parser):
        one.allow_abbrev = False
    return parser


def _all(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for inner in subcommands(parser).values():
        yield from _all(inner)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """By name; empty of a command that has none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
