"""Which defects the tests catch: each is planted in a copy of the tree, and the tests run there.

    python benchmarks/mutation_table.py --check                    # whether each defect still applies
    python benchmarks/mutation_table.py --json mutation_table.json [--only ID …] [--revision HEAD]
    python benchmarks/mutation_table.py --rules                    # whether what the list of rules names sees each

The tests of the modules that a defect touches run first, those marked lab last, then short end-to-end tests; finally
all tests without that mark run on the surviving defects; each with -x. Results already in FILE are kept. Exit code 1 if
a defect survives or does not apply.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from defects import DEFECTS, Defect

ROOT = Path(__file__).parents[1]
PACKAGE = "pytest_ddpscale"
END_TO_END = ("tests/plugin/test_outcomes.py", "tests/simulate/test_writing.py")
LIMIT_S = 1200.0
NOT_DONE = f"not done after {LIMIT_S:g} s"
_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Caught:
    """Result of one defect.

    Attributes:
        id: of the defect.
        kind: likewise.
        what: likewise.
        by: the test that failed first; empty of a survivor.
        among: ``touched``, ``touched, lab``, ``end to end`` or ``not lab``: the tests that were run last.
        seconds: that all runs took.
    """

    id: str
    kind: str
    what: str
    by: str
    among: str
    seconds: float


class NoPlaceError(Exception):
    """A defect whose old text is not in its file exactly once."""


def with_defect(tree: Path, defect: Defect) -> str:
    """Text of a module with the defect in it. Raises NoPlaceError."""
    path = tree / PACKAGE / defect.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if (found := text.count(defect.old)) != 1:
        raise NoPlaceError(f"{defect.id}: {defect.file} has {found} times {defect.old!r}; expected once")
    return text.replace(defect.old, defect.new)


def _write(path: Path, text: str) -> None:
    """Write a module, later than its byte code: that is told by whole seconds and the length."""
    before_s = path.stat().st_mtime
    path.write_text(text, encoding="utf-8")
    os.utime(path, (before_s + 2, before_s + 2))


def without_place(tree: Path, defects: Sequence[Defect] = DEFECTS) -> list[str]:
    """Messages about defects that do not apply to a tree, or name missing tests."""
    wrong = [
        f"{defect.id}: no tests/{name}"
        for defect in defects
        for name in defect.tests
        if not (tree / "tests" / name).exists()
    ]
    for defect in defects:
        try:
            with_defect(tree, defect)
        except NoPlaceError as error:
            wrong.append(str(error))
    return wrong


@contextmanager
def scratch_tree(revision: str) -> Iterator[Path]:
    """A worktree of a revision, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def first_failure(tree: Path, arguments: Sequence[str]) -> str:
    """The first test that fails in a tree; empty if none fails, `NOT_DONE` if they hang.

    Raises:
        RuntimeError: pytest could not be run.
    """
    # PYTHONPATH goes before what is installed, in every process that tests start.
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile the package anew
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *arguments]
    try:
        ran = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return NOT_DONE
    if ran.returncode in (0, 5):  # 5: nothing was chosen
        return ""
    found = _FIRST_FAILURE.search(ran.stdout)
    if found is None:
        raise RuntimeError(f"pytest ended with {ran.returncode}:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return found[1]


@contextmanager
def planted(tree: Path, defect: Defect) -> Iterator[None]:
    """A tree with a defect in it."""
    path = tree / PACKAGE / defect.file
    text = path.read_text(encoding="utf-8")
    _write(path, with_defect(tree, defect))
    try:
        yield
    finally:
        _write(path, text)


def caught_by(tree: Path, defect: Defect, arguments: Sequence[str]) -> str:
    """The first test that fails while a defect is planted; empty if none fails."""
    with planted(tree, defect):
        return first_failure(tree, arguments)


def is_seen(tree: Path, defect: Defect) -> bool:
    """Whether a defect is seen by what it names: a field of a fact of the oracle, or a test."""
    if not defect.seen_by.startswith("oracle: "):
        return bool(caught_by(tree, defect, [f"tests/{defect.seen_by}"]))
    _, run, *_, field = defect.seen_by.split()
    command = [sys.executable, str(tree / "benchmarks" / "oracle.py"), "--check", "--facts-only", "--only", run]
    with planted(tree, defect):
        said = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False).stdout
    return f": {field}" in said


def try_out(tree: Path, defect: Defect, rungs: Mapping[str, Sequence[str]]) -> Caught:
    """Plant a defect, run tests until one fails, and remove it again.

    A test that also fails without the defect has caught nothing: it is left out, and the tests run again.

    Args:
        tree: into which it is put.
        defect: to be caught.
        rungs: arguments of pytest by what they choose, one after the other.
    """
    began = time.monotonic()
    left_out: list[str] = []
    among = by = ""
    for among, arguments in rungs.items():  # noqa: B007 - the last one is told
        while True:
            by = caught_by(tree, defect, [*arguments, *left_out])
            if by in ("", NOT_DONE) or not first_failure(tree, [by]):
                break
            left_out.append(f"--deselect={by}")
        if by:
            break
    return Caught(defect.id, defect.kind, defect.what, by, among, round(time.monotonic() - began, 1))


def try_out_all(tree: Path, defects: Sequence[Defect], found: dict[str, Caught]) -> Iterator[Caught]:
    """Each defect without a result so far, and finally the survivors against all tests that are not marked lab."""
    for defect in defects:
        if defect.id not in found:
            touched = [f"tests/{name}" for name in defect.tests]
            at_once, lab = [*touched, "-m", "not lab"], [*touched, "-m", "lab"]
            yield try_out(tree, defect, {"touched": at_once, "touched, lab": lab, "end to end": END_TO_END})
    for defect in defects:
        if not found[defect.id].by and found[defect.id].among != "not lab":
            yield try_out(tree, defect, {"not lab": ("tests", "-m", "not lab")})


def as_table(found: Sequence[Caught]) -> str:
    """Markdown, a line for each defect."""
    lines = ["| defect | kind | what is wrong | caught by | among | s |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {c.id} | {c.kind} | {c.what} | {c.by or '**survives**'} | {c.among} | {c.seconds:.0f} |" for c in found
    ]
    caught = sum(bool(one.by) for one in found)
    return "\n".join([*lines, "", f"{caught} of {len(found)} caught"])


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only list defects that do not apply to this checkout")
    parser.add_argument("--rules", action="store_true", help="plant those that break a rule, for what sees them alone")
    parser.add_argument("--only", nargs="+", metavar="ID", help="ids of the defects to try")
    parser.add_argument("--revision", default="HEAD", help="revision of the repository to plant them in")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the results, each as it comes")
    arguments = parser.parse_args()
    defects = [defect for defect in DEFECTS if arguments.only is None or defect.id in arguments.only]
    if arguments.check:
        wrong = without_place(ROOT, defects)
        print(*wrong or [f"{len(defects)} defects apply"], sep="\n")
        return 1 if wrong else 0
    with scratch_tree(arguments.revision) as tree:
        if wrong := without_place(tree, defects):
            print(*wrong, sep="\n", file=sys.stderr)
            return 1
        if arguments.rules:
            unseen = [f"{one.id}: not seen by {one.seen_by}" for one in defects if one.rule and not is_seen(tree, one)]
            print(*unseen or ["each rule has a defect that is seen"], sep="\n")
            return 1 if unseen else 0
        kept = arguments.json.read_text(encoding="utf-8") if arguments.json and arguments.json.exists() else "[]"
        found = {one["id"]: Caught(**one) for one in json.loads(kept)}
        for one in try_out_all(tree, defects, found):
            found[one.id] = one
            print(f"{one.id}: {one.by or 'SURVIVES'} ({one.among}, {one.seconds:.0f} s)", file=sys.stderr, flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(list(map(asdict, found.values())), indent=1), encoding="utf-8")
    print(as_table([found[defect.id] for defect in defects]))
    return 0 if all(found[defect.id].by for defect in defects) else 1


if __name__ == "__main__":
    sys.exit(main())
