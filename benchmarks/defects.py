"""Which written-down defects the tests catch, planted one at a time: docs/testing.md.

    python benchmarks/defects.py --check                 # whether each defect of defects.txt still applies
    python benchmarks/defects.py --plant [ID …]
    python benchmarks/defects.py --rules                 # whether what the list of rules names sees each

A defect is planted in a worktree. The tests of the modules that it touches run first, then all tests that are not
marked lab; each with -x. Exit code 1 if one survives or does not apply.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from reporting import argument_parser, row, run, table

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "pytest_ddpscale"
LIMIT_S = 1200.0
PYTEST = (sys.executable, "-m", "pytest")
NOT_DONE = f"not done after {LIMIT_S:g} s"
_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Defect:
    """A plausible programming mistake.

    Attributes:
        id: short and permanent.
        kind: the part of the work that it breaks.
        what: what is wrong, as a sentence.
        file: below ``pytest_ddpscale``.
        old: text that occurs in the file once.
        new: its replacement.
        tests: paths below ``tests`` that touch it.
        rule: of the list in docs/testing.md that it breaks; empty if none.
        seen_by: what has to show it: ``oracle: RUN FACT FIELD``, or a test below ``tests``; empty if any test may.
    """

    id: str
    kind: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    rule: str
    seen_by: str


def _defect(block: str) -> Defect:
    head, file, *lines = block.split("\n")
    old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    about = dict(line.split(": ", 1) for line in lines if line[0] not in "-+")
    more = (about.get(key, "") for key in ("rule", "seen by"))
    id_, kind, what = head.split(" | ")
    return Defect(id_, kind, what, file, old, new, tuple(about["tests"].split()), *more)


_LISTED = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
DEFECTS = [_defect(block) for block in _LISTED.strip().split("\n\n") if not block.startswith("#")]


def without_place(tree: Path, defect: Defect) -> Iterator[str]:
    """Messages about a defect whose old text is not there exactly once, or that names missing tests."""
    yield from (f"{defect.id}: no tests/{name}" for name in defect.tests if not (tree / "tests" / name).exists())
    path = tree / PACKAGE / defect.file
    if (found := path.read_text(encoding="utf-8").count(defect.old) if path.is_file() else 0) != 1:
        yield f"{defect.id}: {defect.file} has {found} times {defect.old!r}; expected once"


@contextmanager
def planted(tree: Path, defect: Defect) -> Iterator[None]:
    """A tree with a defect in it, and no byte code of the other text."""
    path = tree / PACKAGE / defect.file
    before, compiled = path.read_text(encoding="utf-8"), Path(cache_from_source(str(path)))
    try:
        path.write_text(before.replace(defect.old, defect.new), encoding="utf-8")
        compiled.unlink(missing_ok=True)
        yield
    finally:
        path.write_text(before, encoding="utf-8")
        compiled.unlink(missing_ok=True)


@contextmanager
def scratch_tree() -> Iterator[Path]:
    """A worktree of what is committed, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="defects-") as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", f"{folder}/tree"], check=True)
        try:
            yield Path(folder) / "tree"
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/tree"], check=True)


def first_failure(tree: Path, arguments: Sequence[str]) -> str:
    """The first test that fails in a tree; empty if none fails, `NOT_DONE` if they hang.

    Raises:
        RuntimeError: pytest could not be run.
    """
    # PYTHONPATH goes before what is installed, in every process that tests start.
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile the package anew
    environment.pop("TESTS_FORK_SERVER", None)  # whose forks have the package of this checkout
    command = [*PYTEST, "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *arguments]
    ended = run(command, tree, tree.with_name("said"), environment, LIMIT_S)
    if ended.code in (0, 5):  # 5: nothing was chosen
        return ""
    found = _FIRST_FAILURE.search(ended.said)
    if found is None and ended.code is not None:
        raise RuntimeError(f"pytest ended with {ended.code}:\n{ended.said[-4000:]}")
    return found[1] if found else NOT_DONE


def caught_by(tree: Path, defect: Defect, arguments: Sequence[str]) -> str:
    """The first test that fails while a defect is planted; empty if none fails."""
    with planted(tree, defect):
        return first_failure(tree, arguments)


def is_seen(tree: Path, defect: Defect) -> bool:
    """Whether a defect is seen by what it names: a field of a fact of the oracle, or a test."""
    if not defect.seen_by.startswith("oracle: "):
        return bool(caught_by(tree, defect, [f"tests/{defect.seen_by}"]))
    _, name, *_, field = defect.seen_by.split()
    command: list[str | Path] = [
        sys.executable,
        tree / "benchmarks" / "oracle.py",
        "--check",
        "--facts-only",
        "--only",
        name,
    ]
    with planted(tree, defect):
        return f": {field}" in run(command, tree, tree.with_name("said"), os.environ, LIMIT_S).said


def try_out(tree: Path, defect: Defect) -> tuple[str, str]:
    """The test that catches a defect, empty of a survivor, and among which.

    A test that also fails without the defect has caught nothing: it is left out, and the tests run again.
    """
    touched, left_out = [f"tests/{name}" for name in defect.tests], list[str]()
    for among, arguments in ("touched", touched), ("not lab", ["tests", "-m", "not lab"]):
        while by := caught_by(tree, defect, [*arguments, *left_out]):
            if by == NOT_DONE or not first_failure(tree, [by]):
                return by, among
            left_out.append(f"--deselect={by}")
    return "", "all"


def plant_all(tree: Path, defects: Sequence[Defect]) -> int:
    """Print a table of what catches each. Returns how many survive."""
    print(table(("defect", "kind", "what is wrong", "caught by", "among"), ()))
    survivors = 0
    for defect in defects:
        by, among = try_out(tree, defect)
        survivors += not by
        print(row(defect.id, defect.kind, defect.what, by or "**survives**", among), flush=True)
    print(f"\n{len(defects) - survivors} of {len(defects)} caught")
    return survivors


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--check", action="store_true", help="only list defects that do not apply to this checkout")
    does.add_argument("--plant", nargs="*", metavar="ID", help="plant these, or all")
    does.add_argument("--rules", action="store_true", help="plant those that break a rule, for what sees them alone")
    given = parser.parse_args()
    wanted = [defect for defect in DEFECTS if defect.rule] if given.rules else DEFECTS
    defects = [defect for defect in wanted if not given.plant or defect.id in given.plant]
    with contextlib.nullcontext(ROOT) if given.check else scratch_tree() as tree:
        wrong = [text for defect in defects for text in without_place(tree, defect)]
        if given.rules and not wrong:
            wrong = [f"{defect.id}: not seen by {defect.seen_by}" for defect in defects if not is_seen(tree, defect)]
        if wrong or given.plant is None:
            print(*wrong or [f"{len(defects)} defects {'are seen' if given.rules else 'apply'}"], sep="\n")
            return int(bool(wrong))
        return int(plant_all(tree, defects) > 0)


if __name__ == "__main__":
    sys.exit(main())
