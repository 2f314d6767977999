"""What the documents show of commands that run anywhere is what these print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pytest_ddpscale import cli
from tests.approved import without_counts
from tests.docs_pages.commands import ROOT, blocks
from tests.plugin.forked import run_pytest

NEEDS_NOTHING = re.compile(
    r"ddpscale (simulate|thresholds (show|check)|report|compare|runs|init)\b"
    r"|pytest .*(--ddp-judge|--collect-only)"
)
SKIPPED = "…"


@pytest.mark.parametrize("document", ["docs/tutorial.md", "README.md"])
def test_what_a_document_shows_is_what_is_printed(
    document: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path / "site")
    monkeypatch.setenv("COLUMNS", "100")
    commands = shown(document)
    assert commands
    for command, lines in commands:
        program, *arguments = shlex.split(re.sub(r"\s+# .*|>.*", "", command))
        output = (
            printed_by_pytest(tmp_path, arguments) if program == "pytest" else printed_by_ddpscale(arguments, capsys)
        )
        printed = without_counts(output)
        assert missing_line(list(map(without_counts, lines)), printed) is None, f"{command} prints:\n{output}"


def shown(document: str) -> list[tuple[str, list[str]]]:
    """Each command that runs anywhere, with the lines that the document shows of it."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(ROOT / document):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            if NEEDS_NOTHING.match(command):
                found.append((command, lines))
    return found


def printed_by_ddpscale(arguments: list[str], capture: pytest.CaptureFixture[str]) -> str:
    capture.readouterr()
    code = cli.main(arguments)
    said = capture.readouterr()
    assert code in (0, 1), said.err
    return said.out


def printed_by_pytest(folder: Path, arguments: list[str]) -> str:
    done = run_pytest(folder, "-p", "no:cacheprovider", *arguments)
    assert done.ret in (0, 1), [*done.outlines, *done.errlines]
    return "\n".join(done.outlines)


def missing_line(lines: list[str], output: str) -> str | None:
    """The first line that is not in the output, in order; `…` stands for anything."""
    printed = iter(output.splitlines())
    for line in lines:
        if line.strip() == SKIPPED:
            continue
        pattern = re.compile(".*".join(re.escape(part.rstrip()) for part in line.split(SKIPPED)))
        if not any(pattern.match(one) for one in printed):
            return line
    return None


@pytest.mark.parametrize(
    ("lines", "missing"),
    [(["one", "…", "three"], None), (["o…e", "two is here"], None), (["three", "one"], "one")],
)
def test_a_line_that_is_not_printed_is_found(lines: list[str], missing: str | None) -> None:
    assert missing_line(lines, "one\ntwo is here\nthree") == missing
