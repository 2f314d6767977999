"""Files of other repositories at a commit, read from clones at hand, and numbers in their lines."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = "this repository"
Files = list[tuple[str, str]]  # path and text


class Wrong(Exception):
    """A number that its source does not hold, or that does not follow from others."""


@cache
def files_of(copies: Path | None, at: str, path: str) -> Files | None:
    """The file of ``owner/name@commit``, or all that a pattern with * matches; None without a copy of the commit.

    Args:
        copies: folder of clones, bare or not: owner+name/repo, owner+name or owner/name; files of commits that a clone
            lacks as owner+name@COMMIT/PATH.
        at: repository and commit, or ``this repository``.
        path: in the repository.
    """
    if at == HERE:
        return [(path, (ROOT / path).read_text(encoding="utf-8"))]
    if copies is None:
        return None
    name, _, commit = at.partition("@")
    owned = name.replace("/", "+")
    for folder in (copies / owned / "repo", copies / owned, copies / name):
        paths = _git(folder, "ls-tree", "-r", "--name-only", "-z", commit) if folder.is_dir() else None
        if paths is not None:
            found = [one for one in paths.split("\0") if fnmatch(one, path)]
            return [(one, _git(folder, "show", f"{commit}:{one}") or "") for one in found]
    folder = copies / f"{owned}@{commit}"
    return [(str(one.relative_to(folder)), one.read_text("utf-8")) for one in sorted(folder.glob(path))] or None


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None if it fails, as in a clone without the commit."""
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def reader(line: str, seen: list[str]) -> Callable[..., float | list[float]]:
    """A function of files, and of a name in place of NAME, that gives the numbers of all lines that match.

    Args:
        line: regular expression with the number as its group.
        seen: collects path, line and number of each match.
    """

    def numbers(files: Files, name: str = "") -> float | list[float]:
        found, wanted = [], re.compile(line.replace("NAME", re.escape(name)), re.MULTILINE)
        for path, text in files:
            for match in wanted.finditer(text):
                found.append(float(match[1]))
                seen.append(f"{path}:{text.count(chr(10), 0, match.start(1)) + 1} {match[1]}")
        if not found:
            raise Wrong(f"no line {wanted.pattern!r} in {', '.join(path for path, _ in files[:3]) or 'any file'}")
        return found[0] if len(found) == 1 else found

    return numbers
