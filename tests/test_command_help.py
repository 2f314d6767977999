"""What all commands of `ddpscale` share: help, and one exit code for a wrong option."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from pytest_ddpscale.cli import EXAMPLES, main, parser_of_commands
from pytest_ddpscale.util.command_parser import USER_ERROR, commands_of, parsed

EVERY = dict(commands_of(parser_of_commands()))
COMMANDS = {words: command for words, command in EVERY.items() if command._subparsers is None}


def exit_code(*arguments: str) -> int:
    """Exit code of a command that argparse may end."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_each_command_has_a_description_an_example_that_it_takes_and_its_exit_codes() -> None:
    assert COMMANDS.keys() == EXAMPLES.keys()
    parser = parser_of_commands()
    for words, command in COMMANDS.items():
        assert len((command.description or "").split()) > 3
        typed, _, _ = EXAMPLES[words].partition(" >")
        assert parsed(parser, shlex.split(typed)).parser.prog == f"ddpscale {words}" == command.prog
        told = command.format_help()
        assert f"  ddpscale {EXAMPLES[words]}" in told
        assert "  4  wrong option or other bad input\n" in told


def test_a_wrong_option_is_one_line_and_the_same_exit_code_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for words in COMMANDS:
        typed, _, _ = EXAMPLES[words].partition(" >")
        assert exit_code(*shlex.split(typed), "--no-such-option") == USER_ERROR
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"ddpscale {words}: unrecognized arguments: --no-such-option.")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        # Without a command the help is printed, and nothing was done: a script with an empty variable must not go on.
        *((group, f"usage: {f'ddpscale {group}'.strip()} [-h]") for group in ("", "suite", "thresholds", "import")),
        ("reprot x", "argument COMMAND: invalid choice: 'reprot' (choose from "),
        ("runs a b", "unrecognized arguments: b."),
        ("suite inference --sku cpu", "unrecognized arguments: --sku cpu; did you mean '--gpu-sku'? See ddpscale"),
        ("report", "the following arguments are required: RUN_DIR."),
        ("history n --accept", "--accept was removed; instead: --forget NODE, after which its next runs"),
        ("import pytorch-ddp a --out b", "--out was removed; instead: the file itself, which import prints and"),
        ("suite whole-run --bounds=a", "--bounds was removed; instead: --at-most-time-to-train and --at-least"),
        ("calibrate a --history b", "--history was removed; instead: the run directories of those nights"),
        ("compare a --history=b", "--history was removed; instead: pytest --ddp-history=FILE, which judges"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_what_went_by_what_to_use_instead(
    capsys: pytest.CaptureFixture[str], typed: str, said: str
) -> None:
    assert exit_code(*typed.split()) == USER_ERROR
    printed = capsys.readouterr()
    assert said in (printed.out if said.startswith("usage") else printed.err)


def test_help_imports_no_library() -> None:
    code = (
        "import sys; from pytest_ddpscale.cli import parser_of_commands; parser_of_commands().format_help()\n"
        "sys.exit({'torch', 'numpy', 'msgspec', 'pydantic', 'yaml', 'matplotlib', 'pytest'} & {*sys.modules} or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
