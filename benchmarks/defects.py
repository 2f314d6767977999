"""Which defects the tests catch, written-down ones and random ones, planted one at a time: docs/testing.md.

    python benchmarks/defects.py --check                 # whether each defect of defects.txt still applies
    python benchmarks/defects.py --plant [ID …]
    python benchmarks/defects.py --rules                 # whether what the list of rules names sees each
    python benchmarks/defects.py --random judge/peers.py judge/slow.py --number 40 --tests tests/judge

A written-down defect is planted in a worktree. The tests of the modules that it touches run first, then all tests that
are not marked lab; each with -x. Exit code 1 if one survives or does not apply. A random one, which turns a comparison,
doubles a number, negates a condition, or exchanges min and max, is planted in forks. It is seen if a fact of the oracle
changes, or, with ``--tests``, if a test fails: then all files of tests that see it are listed.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import mmap
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import oracle
import pytest
from reporting import argument_parser, in_a_fork, positive_int, row, table

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "pytest_ddpscale"
LIMIT_S = 1200.0
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
        seen_by: what shows it: ``oracle: RUN FACT FIELD``, or a test below ``tests``.
        watched_by: a test below ``tests`` that has to fail, of what the oracle does not see.
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
    watched_by: str


def _defect(block: str) -> Defect:
    head, file, *lines = block.split("\n")
    old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    about = dict(line.split(": ", 1) for line in lines if line[0] not in "-+")
    more = (about.get(key, "") for key in ("rule", "seen by", "watched by"))
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
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *arguments]
    how: Any = {"cwd": tree, "env": environment, "capture_output": True, "text": True, "timeout": LIMIT_S}
    try:
        ran = subprocess.run(command, check=False, **how)
    except subprocess.TimeoutExpired:
        return NOT_DONE
    if ran.returncode in (0, 5):  # 5: nothing was chosen
        return ""
    found = _FIRST_FAILURE.search(ran.stdout)
    if found is None:
        raise RuntimeError(f"pytest ended with {ran.returncode}:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return found[1]


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
    for one in defects:
        by, among = try_out(tree, one)
        survivors += not by
        print(row(one.id, one.kind, one.what, by or "**survives**", among), flush=True)
    print(f"\n{len(defects) - survivors} of {len(defects)} caught")
    return survivors


FORK_LIMIT_S = 60  # of CPU, for each command
MOST_LINES = 1000  # of a module
# Quick to give to forks, slow to import in each.
PRELOADED = ("hypothesis", "matplotlib", "msgspec", "numpy", "torch", "xdist", "yaml")
TURNED = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.Is: ast.IsNot}
TURNED |= {new: old for old, new in TURNED.items()}
OTHER = {"min": "max", "minimum": "maximum", "fmin": "fmax", "argmin": "argmax", "nanmin": "nanmax", "floor": "ceil"}
OTHER |= {new: old for old, new in OTHER.items()}
Place = tuple[range, str, str]  # lines of the statement, none outside of functions; old and new code


class Mutator(ast.NodeTransformer):
    """Finds the places of a module, leaving out f-strings and annotations, and mutates the one of a number."""

    def __init__(self, path: Path, number: int = -1) -> None:
        self.places, self._number, self._statements = list[Place](), number, [range(0)]
        self.tree: ast.Module = ast.fix_missing_locations(self.visit(ast.parse(path.read_text(encoding="utf-8"))))

    def visit(self, node: ast.AST) -> Any:
        """The node, mutated if it is the one."""
        if isinstance(node, ast.JoinedStr | ast.arg):
            return node
        lines = self._statements[-1]
        if isinstance(node, ast.stmt) and (lines or isinstance(node, ast.FunctionDef)):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            body = getattr(node, "body", [])
            lines = range(first, body[0].lineno if body else (node.end_lineno or first) + 1)
        self._statements.append(lines)
        node = self._mutated(self.generic_visit(node))
        self._statements.pop()
        return node

    def _mutated(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            node.test = self._offer(node.test, ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.comprehension):
            node.ifs = [self._offer(one, ast.UnaryOp(ast.Not(), one)) for one in node.ifs]
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in TURNED:
            ops: list[ast.cmpop] = [TURNED[type(node.ops[0])](), *node.ops[1:]]
            return self._offer(node, ast.Compare(node.left, ops, node.comparators))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return self._offer(node, ast.Constant(2 * node.value or 1))  # type: ignore[operator]
        elif isinstance(node, ast.Name | ast.Attribute):
            name = "id" if isinstance(node, ast.Name) else "attr"
            if other := OTHER.get(getattr(node, name)):
                return self._offer(node, type(node)(**vars(node) | {name: other}))
        return node

    def _offer(self, node: ast.expr, mutated: ast.expr) -> ast.expr:
        self.places.append((self._statements[-1], ast.unparse(node), ast.unparse(mutated)))
        return mutated if len(self.places) == self._number + 1 else node


def import_instead(path: Path, tree: ast.Module) -> None:
    """Let this process, which has not yet imported a module, import other code in its place."""
    code, own = compile(tree, str(path), "exec", dont_inherit=True), SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        return code if loader.path == str(path) else own(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def fails(case: str) -> bool:
    """Whether a fact of a chain of the oracle's runs differs, or a test of a file fails."""
    if case.endswith(".py"):
        options = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly")
        return pytest.main([*options, case]) not in (0, 5)
    chain = next(chain for chain in oracle.CHAINS if case in chain)
    sys.argv = ["oracle.py", "--check", "--facts-only", "-j", "1", "--only", *chain]
    return oracle.main() > 0


class Lines:
    """Which lines of modules are executed, also in forks of this process; those of a module after those of another."""

    def __init__(self, modules: Sequence[Path]) -> None:
        self._starts = {str(path): at * MOST_LINES for at, path in enumerate(modules)}
        self._lines = mmap.mmap(-1, max(1, len(modules)) * MOST_LINES)
        if modules:
            sys.settrace(self._trace)

    def executed(self) -> list[int]:
        """Their numbers."""
        sys.settrace(None)
        return [number for number, is_executed in enumerate(self._lines[:]) if is_executed]

    def _trace(self, frame: FrameType, *_: object) -> Any:
        if (start := self._starts.get(frame.f_code.co_filename)) is None:
            return None

        def note(frame: FrameType, *_: object) -> Any:
            self._lines[start + frame.f_lineno] = 1
            return note

        return note(frame)


Mutation = tuple[Path, int]
Tried = tuple[bool, list[int], float]  # whether a case fails, the lines that it executes, and its CPU seconds


def _try(modules: Sequence[Path], mutation: Mutation | None, case: str, told: Path) -> None:
    if mutation:
        resource.setrlimit(resource.RLIMIT_CPU, (FORK_LIMIT_S, FORK_LIMIT_S))
        import_instead(mutation[0], Mutator(*mutation).tree)
    lines = Lines(modules)
    found = fails(case)
    told.write_text(json.dumps([found, lines.executed(), sum(os.times()[:4])]))


def tried(modules: Sequence[Path], mutation: Mutation | None, case: str) -> Tried:
    """A case in a fork of its own, of code with a mutation or, with lines of modules, without."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        in_a_fork(partial(_try, modules, mutation, case, told), Path(os.devnull))
        return tuple(json.loads(told.read_text())) if told.exists() else (True, [], 0.0)


def who_sees(work: tuple[Mutation, Sequence[str]]) -> list[str]:
    """Which cases see a mutation: all files of tests, or the first chain of runs."""
    mutation, cases = work
    seen = (case for case in cases if tried((), mutation, case)[0])
    return [Path(one).stem for one in (seen if cases and cases[0].endswith(".py") else islice(seen, 1))]


def try_random(code: Sequence[str], tests: Sequence[str], number: int, seed: int, processes: int) -> None:
    """Plant random defects in modules and packages, and print who sees each."""
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    modules = sorted(file for one in code for file in files_at(Path(PACKAGE, one).resolve(), "*.py"))
    places = [(at, *one) for at, path in enumerate(modules) for one in enumerate(Mutator(path).places)]
    chosen = random.Random(seed).sample(places, min(number, len(places)))
    cases = [str(file) for one in tests for file in files_at(Path(one), "test_*.py")]
    cases = cases or [chain[0] for chain in map(list, oracle.CHAINS)]
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    survivors = 0
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        sound = dict(zip(cases, pool.map(partial(tried, modules, None), cases), strict=True))
        cases = sorted((case for case in cases if not sound[case][0]), key=lambda case: sound[case][2])
        work: list[tuple[Mutation, list[str]]] = []
        for at, which, (lines, *_) in chosen:
            own = {at * MOST_LINES + line for line in lines}
            work.append(((modules[at], which), [case for case in cases if not own or own & {*sound[case][1]}]))
        for who, ((path, _), executed), (_, _, (lines, old, new)) in zip(
            pool.map(who_sees, work), work, chosen, strict=True
        ):
            survivors += not who
            said = ", ".join(who) or f"not seen, executed by {len(executed)} of {len(cases)}"
            print(f"{path.name}:{(*lines, 1)[0]}: {old} → {new}: {said}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations of {' '.join(code)} are seen")


def files_at(path: Path, pattern: str) -> Iterable[Path]:
    """A file, or those of a folder."""
    return path.rglob(pattern) if path.is_dir() else [path]


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__, with_json=False)
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--check", action="store_true", help="only list defects that do not apply to this checkout")
    does.add_argument("--plant", nargs="*", metavar="ID", help="plant these, or all")
    does.add_argument("--rules", action="store_true", help="plant those that break a rule, for what sees them alone")
    does.add_argument("--random", nargs="+", metavar="CODE", help="modules and packages below pytest_ddpscale")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="of test files; default: the oracle")
    parser.add_argument("--number", type=positive_int, default=100, metavar="N", help="of random ones (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which ones (%(default)s)")
    parser.add_argument("-j", type=positive_int, default=2, metavar="N", help="processes (%(default)s)")
    given = parser.parse_args()
    if given.random:
        try_random(given.random, given.tests or (), given.number, given.seed, given.j)
        return 0
    defects = [defect for defect in DEFECTS if not given.plant or defect.id in given.plant]
    with contextlib.nullcontext(ROOT) if given.check else scratch_tree() as tree:
        wrong = [text for one in defects for text in without_place(tree, one)]
        if given.rules and not wrong:
            wrong = [f"{one.id}: not seen by {one.seen_by}" for one in defects if one.rule and not is_seen(tree, one)]
        if wrong or given.plant is None:
            print(*wrong or [f"{len(defects)} defects {'are seen' if given.rules else 'apply'}"], sep="\n")
            return int(bool(wrong))
        return int(plant_all(tree, defects) > 0)


if __name__ == "__main__":
    sys.exit(main())
