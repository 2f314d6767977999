"""A rank's last words, out of its log, and those of its NCCL."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.util.masking import masked_text

_LAST_LINES = 8
_NCCL_LINES = 20
_FRAMES = 10
_STACK = "most recent call first"  # faulthandler's heading
_READ_BYTES = 65536


def last_words(log: Path | None) -> list[str]:
    """The last lines of a rank's standard error: the stack it left when it was ended, if it did, and what came before.

    Args:
        log: the file; None if there is none.
    """
    clean = [] if log is None else _lines_at_the_end(log)
    headings = [number for number, line in enumerate(clean) if _STACK in line and line.startswith("Current thread")]
    if not headings:
        return [line for line in clean if line.strip()][-_LAST_LINES:]
    before = [line for line in clean[: headings[-1]] if line.strip() and not _is_stack(line)]
    stack = clean[headings[-1] : headings[-1] + 1 + _FRAMES]
    return before[-_LAST_LINES // 2 :] + stack


def last_nccl_lines(log: Path) -> list[str]:
    """The last lines that NCCL wrote of itself, warnings and others; none where there is no such file."""
    return [line for line in _lines_at_the_end(log) if " NCCL " in line][-_NCCL_LINES:]


def _lines_at_the_end(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _READ_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    # Output may be anything: what a terminal would act on is left out.
    return [masked_text("".join(c for c in line if c.isprintable())) for line in lines]


def _is_stack(line: str) -> bool:
    return _STACK in line or line.startswith('  File "')
