"""What the documents show of commands that run anywhere is what these print; commands of how-tos run, too."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddpscale import cli
from tests.docs_pages.commands import ROOT, blocks, typed_lines

SHOWING = ("docs/tutorial.md", "README.md")
# Of how-tos without output: what runs beside simulated runs, within seconds.
RUN = {
    "docs/how-to/compare.md": r"ddpscale compare ddpscale-runs/before",
    "docs/how-to/forecast.md": r"ddpscale (forecast|scaling) RUN_DIR",
    "docs/how-to/site-thresholds.md": r"ddpscale thresholds show",
}
PREPARED = ("ddpscale-runs/before", "ddpscale-runs/after", "RUN_DIR")
NEEDS_NOTHING = re.compile(
    r"ddpscale (simulate|thresholds (show|check)|report|compare|scaling|forecast|runs|init)\b"
    r"|pytest .*(--ddp-judge|--collect-only)"
)
COLUMNS = "100"
SKIPPED = "…"


class Desk:
    """A directory in which commands are typed, one after the other; the same one is typed once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said: dict[str, str] = {}

    def output(self, command: str, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
        """What it prints, on a terminal of 100 columns."""
        if command not in self._said:
            patch.chdir(self._path)
            patch.setenv("COLUMNS", COLUMNS)
            program, *arguments = shlex.split(re.sub(r"\s+# .*|>.*", "", command))
            run = self._pytest if program == "pytest" else self._ddpscale
            self._said[command] = run(arguments, capture)
        return self._said[command]

    @staticmethod
    def _ddpscale(arguments: list[str], capture: pytest.CaptureFixture[str]) -> str:
        capture.readouterr()
        code = cli.main(arguments)
        said = capture.readouterr()
        assert code in (0, 1), said.err
        return said.out

    def _pytest(self, arguments: list[str], _: pytest.CaptureFixture[str]) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=self._path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    path = tmp_path_factory.mktemp("desk")
    common = ["--gpu-sku=b200", "--gpus=32", "--rounds=8", "--workloads=resnet50-fp16"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        for seed, name in enumerate(PREPARED):
            Path(name).parent.mkdir(exist_ok=True)
            assert cli.main(["simulate", *common, f"--seed={seed}", f"--out={name}"]) == 0
    return Desk(path)


def shown(document: str) -> list[tuple[str, list[str]]]:
    """Each command that runs anywhere, with the lines that the document shows of it."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(ROOT / document):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            if NEEDS_NOTHING.match(command):
                found.append((command, lines))
    return found


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


@pytest.mark.parametrize("document", SHOWING)
def test_what_a_document_shows_is_what_is_printed(
    desk: Desk, document: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = shown(document)
    assert commands
    for command, lines in commands:
        output = desk.output(command, capsys, monkeypatch)
        assert missing_line(lines, output) is None, f"{command} prints:\n{output}"


@pytest.mark.parametrize("document", RUN)
def test_commands_of_how_tos_run(
    desk: Desk, document: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = [line for block in blocks(ROOT / document) for line in typed_lines(block) if re.match(RUN[document], line)]
    assert typed
    for command in typed:
        assert desk.output(command, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        (["one", "…", "three"], None),
        (["o…e", "two is here"], None),
        (["three", "one"], "one"),
        (["two is there"], "two is there"),
    ],
)
def test_a_line_that_is_not_printed_is_found(lines: list[str], missing: str | None) -> None:
    assert missing_line(lines, "one\ntwo is here\nthree") == missing
