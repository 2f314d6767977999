"""Tests marked ``lab`` are left out, with one line that says so, unless `-m` chooses or their file is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

_MARK = "pytest.mark.lab"
_LEFT_OUT = pytest.StashKey[int]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m lab``, import no file without such a test: each worker of pytest-xdist would spend seconds on it."""
    is_file = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if config.option.markexpr == "lab" and is_file and not _names_the_mark(collection_path) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect them."""
    if config.option.markexpr:
        return
    named = {_file(config, argument) for argument in config.args}
    left_out = [item for item in items if item.get_closest_marker("lab") and item.path not in named]
    if not left_out:
        return
    for path in {item.path for item in left_out}:
        assert _names_the_mark(path), f"{path}: `-m lab` finds only files with the text {_MARK}"
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workeroutput"):
        config.workeroutput["lab_left_out"] = len(left_out)
    config.stash[_LEFT_OUT] = len(left_out)


def _names_the_mark(file: Path) -> bool:
    return _MARK in file.read_text(encoding="utf-8")


def _file(config: pytest.Config, argument: str) -> Path:
    return (config.invocation_params.dir / argument.partition("::")[0]).resolve()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear from a worker of pytest-xdist, each of which has collected all tests."""
    if left_out := getattr(node, "workeroutput", {}).get("lab_left_out"):
        node.config.stash[_LEFT_OUT] = left_out


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how to run them."""
    if left_out := config.stash.get(_LEFT_OUT, 0):
        words = "1 test with the mark lab was" if left_out == 1 else f"{left_out} tests with the mark lab were"
        terminalreporter.write_line(f"{words} left out: pytest tests -m lab")
