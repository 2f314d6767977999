"""`python -m pytest_ddpscale.node --try COMMAND`: what a site's command to a host has to carry for an agent."""

from __future__ import annotations

import sys

import pytest

from pytest_ddpscale.node import __main__ as node


@pytest.mark.parametrize(
    ("before", "code", "says"),
    [
        ("env", 0, "both streams, their ends and the exit code arrive"),
        ("""sh -c 'exec "$@" </dev/null' sh""", 1, "does not arrive: 256000 bytes and back; it ended with 7"),
        ("""sh -c '"$@"; exit 0' sh""", 1, "does not arrive: exit code 7; it ended with 0: word"),
        ("""sh -c '"$@" 2>&1' sh""", 1, "does not arrive: 256000 bytes and back, standard error, by itself"),
        ("sh -c 'sleep 30'", 1, "the end of standard input, or that of the command, does not arrive within 2 s"),
        ("env 'never", 1, "cannot be started: No closing quotation"),
        ("no-such-program", 1, "cannot be started: [Errno 2] No such file"),
    ],
)
def test_what_a_command_does_not_carry_is_told(
    before: str, code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node, "LIMIT_S", 2 if "sleep" in before else 60)
    monkeypatch.setattr(sys, "argv", ["node", "--try", f"{before} {sys.executable}"])
    assert node.main() == code
    assert says in capsys.readouterr().out
