"""Which defects the tests catch, written-down ones and random ones, planted one at a time: docs/testing.md.

    python benchmarks/defects.py --check                 # whether each defect of defects.txt still applies
    python benchmarks/defects.py --plant [ID …] [--json FILE]
    python benchmarks/defects.py --rules                 # whether what the list of rules names sees each
    python benchmarks/defects.py --random judge/peers.py judge/slow.py --number 40 --tests tests/judge

A written-down defect is planted in a worktree. The tests of the modules that it touches run first, those marked lab
after them, then short end-to-end tests, finally all tests without that mark; each with -x. Exit code 1 if one survives
or does not apply. A random one, which turns a comparison, doubles a number, negates a condition, or exchanges min and
max, is planted in forks. It is seen if a fact of the oracle changes, or, with ``--tests``, if a test fails: then all
test files that see it are listed, too.
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
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import oracle
import pytest
from reporting import argument_parser, keep, positive_int

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "pytest_ddpscale"
END_TO_END = ("tests/plugin/test_outcomes.py", "tests/simulate/test_writing.py")
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
    id_, kind, what = head.split(" | ")
    old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    about = dict(line.split(": ", 1) for line in lines if line[0] not in "-+")
    more = (about.get(key, "") for key in ("rule", "seen by", "watched by"))
    return Defect(id_, kind, what, file, old, new, tuple(about["tests"].split()), *more)


_LISTED = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
DEFECTS = [_defect(block) for block in _LISTED.strip().split("\n\n") if not block.startswith("#")]


def with_defect(tree: Path, defect: Defect) -> str:
    """Text of a module with the defect in it. Raises LookupError if its old text is not there exactly once."""
    path = tree / PACKAGE / defect.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if (found := text.count(defect.old)) != 1:
        raise LookupError(f"{defect.id}: {defect.file} has {found} times {defect.old!r}; expected once")
    return text.replace(defect.old, defect.new)


def without_place(tree: Path, defects: Sequence[Defect]) -> Iterator[str]:
    """Messages about defects that do not apply to a tree, or name missing tests."""
    for defect in defects:
        yield from (f"{defect.id}: no tests/{name}" for name in defect.tests if not (tree / "tests" / name).exists())
        try:
            with_defect(tree, defect)
        except LookupError as error:
            yield str(error)


@contextmanager
def planted(tree: Path, defect: Defect) -> Iterator[None]:
    """A tree with a defect in it; files are later than their byte code, which whole seconds and the length tell."""
    path = tree / PACKAGE / defect.file
    before, at_s = path.read_text(encoding="utf-8"), path.stat().st_mtime
    try:
        for number, text in enumerate((with_defect(tree, defect), before), 1):
            path.write_text(text, encoding="utf-8")
            os.utime(path, (at_s + 2 * number,) * 2)
            if number == 1:
                yield
    finally:
        path.write_text(before, encoding="utf-8")
        os.utime(path, (at_s + 4,) * 2)


@contextmanager
def scratch_tree(revision: str) -> Iterator[Path]:
    """A worktree of a revision, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="defects-") as folder:
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
    rungs = {
        "touched": [*touched, "-m", "not lab"], "touched, lab": [*touched, "-m", "lab"],
        "end to end": END_TO_END, "not lab": ["tests", "-m", "not lab"],
    }  # fmt: skip
    for among, arguments in rungs.items():
        while by := caught_by(tree, defect, [*arguments, *left_out]):
            if by == NOT_DONE or not first_failure(tree, [by]):
                return by, among
            left_out.append(f"--deselect={by}")
    return "", among


def plant_all(tree: Path, defects: Sequence[Defect], file: Path | None) -> int:
    """Print a table of what catches each. Returns how many survive."""
    print("| defect | kind | what is wrong | caught by | among | s |\n| --- | --- | --- | --- | --- | --- |")
    found = []
    for one in defects:
        began_s = time.monotonic()
        by, among = try_out(tree, one)
        found.append(asdict(one) | {"by": by, "among": among})
        cells = (one.id, one.kind, one.what, by or "**survives**", among, f"{time.monotonic() - began_s:.0f}")
        print(f"| {' | '.join(cells)} |", flush=True)
        keep(file, "defects", {"found": found})
    survivors = sum(not one["by"] for one in found)
    print(f"\n{len(found) - survivors} of {len(found)} caught")
    return survivors


FORK_LIMIT_S = 60  # of CPU, for each command
MOST_LINES = 1000  # of a module
READ = ("verdicts.json", "junit.xml")  # of all reports, by the oracle
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
        elif isinstance(node, ast.Name) and node.id in OTHER:
            return self._offer(node, ast.Name(OTHER[node.id], node.ctx))
        elif isinstance(node, ast.Attribute) and node.attr in OTHER:
            return self._offer(node, ast.Attribute(node.value, OTHER[node.attr], node.ctx))
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


@dataclass(frozen=True)
class Case:
    """A chain of runs, or a test; its CPU seconds, and the lines that it executes as `Lines` numbers them."""

    name: str
    cpu_s: float
    lines: frozenset[int]


class Lines:
    """Which lines of modules are executed, also in forks of this process."""

    def __init__(self, modules: Sequence[Path]) -> None:
        self._starts = {str(path): at * MOST_LINES for at, path in enumerate(modules)}
        self._lines = mmap.mmap(-1, len(modules) * MOST_LINES)

    def __enter__(self) -> Lines:
        self._lines[:] = bytes(len(self._lines))
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def executed(self) -> list[int]:
        """Numbers of the lines since it was entered: those of a module, `MOST_LINES`, after those of another."""
        return [number for number, is_executed in enumerate(self._lines[:]) if is_executed]

    def _trace(self, frame: FrameType, *_: object) -> Any:
        if (start := self._starts.get(frame.f_code.co_filename)) is None:
            return None

        def note(frame: FrameType, *_: object) -> Any:
            self._lines[start + frame.f_lineno] = 1
            return note

        return note(frame)


class Oracle:
    """Chains of the oracle's runs, made once; what a session decides while it measures is decided anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name, command in oracle.RUNS.items():
            oracle.RUNS[name] = command.removesuffix(" with texts")
        os.environ |= oracle.ENVIRONMENT | {"PYTEST_ADDOPTS": "--tb=no"}

    def cases(self, modules: Sequence[Path], processes: int) -> list[Case]:
        """All chains."""
        chains = range(len(oracle.CHAINS))
        with ProcessPoolExecutor(processes, get_context("fork")) as pool:
            list(pool.map(partial(in_a_fork, self._expect, modules), chains))
        found = [json.loads((self._folder / f"{chain}.json").read_text()) for chain in chains]
        return [Case(str(chain), cpu_s, frozenset(lines)) for chain, (cpu_s, lines, _) in enumerate(found)]

    def _expect(self, modules: Sequence[Path], chain: int) -> None:
        self._prepare(self._folder / "expected" / str(chain))
        with Lines(modules) as lines:
            facts = dict(self._judged(chain))
        (self._folder / f"{chain}.json").write_text(json.dumps([sum(os.times()[:4]), lines.executed(), facts]))

    def who_sees(self, cases: Sequence[Case]) -> Iterator[str]:
        """The first run whose facts differ. Code that breaks, or needs more than `FORK_LIMIT_S` for a run, ends it."""
        with tempfile.TemporaryDirectory(dir=self._folder) as own:
            self._prepare(Path(own) / "runs")
            for case in cases:
                expected = json.loads((self._folder / f"{case.name}.json").read_text())[2]
                for name, facts in self._judged(int(case.name)):
                    if oracle.fact_differences({name: expected[name]}, {name: facts}, oracle.Retired(Path("none"))):
                        yield name
                        return

    def _prepare(self, folder: Path) -> None:
        """Import the package, and let the oracle work in a folder, make runs once and write only what it reads."""
        make, made = oracle.make, self._folder / "made"

        def make_once(run: str, number: int) -> None:
            is_made = (made / run).exists()
            if is_made and not oracle.RUNS[run].startswith("session"):
                _copy(run, made, Path())
                return
            make(run, number)
            Path(run, "report.md").touch()
            if not is_made:
                _copy(run, Path(), made)

        folder.mkdir(parents=True)
        (folder / "pytest.ini").write_text("[pytest]\n")
        oracle.find_all([], folder, 1)
        files = importlib.import_module("pytest_ddpscale.report.files")
        vars(files)["_attempt"] = lambda what, write: (write() or "") if what in READ else ""
        vars(oracle)["make"] = make_once
        os.chdir(folder)

    @staticmethod
    def _judged(chain: int) -> Iterator[tuple[str, Any]]:
        """Names and facts of the runs of a chain."""
        for number, name in enumerate(oracle.CHAINS[chain]):
            yield name, oracle.found(name, number, f"history-{chain}")[0]


class Tests:
    """Tests of these paths; of each file the first that fails counts."""

    def __init__(self, folder: Path, paths: Sequence[str]) -> None:
        self._folder, self._paths = folder, paths
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def cases(self, modules: Sequence[Path], _: int) -> list[Case]:
        """All tests."""
        in_a_fork(self._expect, Lines(modules))
        found = json.loads((self._folder / "tests.json").read_text())
        return [Case(name, cpu_s, frozenset(lines)) for name, cpu_s, lines in found]

    def _expect(self, lines: Lines) -> None:
        tests: list[tuple[str, float, list[int]]] = []

        class Noted:
            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
                began_s = time.process_time()
                with lines:
                    yield
                tests.append((item.nodeid, time.process_time() - began_s, lines.executed()))

        self._run(self._paths, Noted())
        (self._folder / "tests.json").write_text(json.dumps(tests))

    def who_sees(self, cases: Sequence[Case]) -> Iterator[str]:
        """Files of which a test fails."""
        asked, seen = {case.name for case in cases}, set[str]()

        def note(report: pytest.TestReport | pytest.CollectReport) -> None:
            if report.failed:
                seen.add(Path(str(report.fspath)).stem)

        class First:
            pytest_runtest_logreport = pytest_collectreport = staticmethod(lambda report: note(report))

            def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
                items[:] = [item for item in items if item.nodeid in asked]

            @pytest.hookimpl(tryfirst=True)
            def pytest_runtest_setup(self, item: pytest.Item) -> None:
                if item.path.stem in seen:  # its fixtures are torn down, so that no other file fails for them
                    pytest.skip("seen already")

        if asked:  # without paths pytest would collect others
            self._run(sorted({name.partition("::")[0] for name in asked}), First())
        yield from sorted(seen)

    @staticmethod
    def _run(paths: Sequence[str], plugin: object) -> None:
        os.chdir(ROOT)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        pytest.main(["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly", *paths], plugins=[plugin])


def in_a_fork(work: Callable[..., None], *given: Any) -> int | None:
    """Exit code of this work."""
    fork = get_context("fork").Process(target=work, args=given)
    fork.start()
    fork.join()
    return fork.exitcode


def _copy(run: str, source: Path, target: Path) -> None:
    """Copy a run directory and the files beside it."""
    shutil.copytree(source / run, target / run)
    for file in source.glob(f"{run}.*"):
        shutil.copy2(file, target)


Mutation = tuple[Path, int, Sequence[Case]]


def _try_mutation(judge: Oracle | Tests, mutation: Mutation, said: Path) -> None:
    """Write who sees a mutation."""
    resource.setrlimit(resource.RLIMIT_CPU, (FORK_LIMIT_S, FORK_LIMIT_S))
    path, number, cases = mutation
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:  # what `reporting` needs
        del sys.modules[name]
    import_instead(path, Mutator(path, number).tree)
    said.write_text(" ".join(judge.who_sees(cases)))


def who_sees(judge: Oracle | Tests, folder: Path, mutation: Mutation) -> str:
    """Who sees a mutation, in words; empty for nobody."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        said = Path(name) / "seen"
        code = in_a_fork(_try_mutation, judge, mutation, said)
        return said.read_text() if said.exists() else f"(ended with {code})"


def try_random(code: Sequence[str], tests: Sequence[str], number: int, seed: int, processes: int) -> None:
    """Plant random defects in modules and packages, and print who sees each."""
    paths = [ROOT / PACKAGE / one for one in code]
    modules = sorted(file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))
    places = [(at, *one) for at, path in enumerate(modules) for one in enumerate(Mutator(path).places)]
    chosen = random.Random(seed).sample(places, min(number, len(places)))
    sys.path.insert(0, str(ROOT))
    survivors = 0
    with tempfile.TemporaryDirectory() as name:
        judge = Tests(Path(name), tests) if tests else Oracle(Path(name))
        cases = sorted(judge.cases(modules, processes), key=lambda case: case.cpu_s)
        mutations: list[Mutation] = []
        for at, which, (lines, *_) in chosen:
            own = {at * MOST_LINES + line for line in lines}
            mutations.append((modules[at], which, [case for case in cases if not own or own & case.lines]))
        with ProcessPoolExecutor(processes, get_context("fork")) as pool:
            seen = pool.map(partial(who_sees, judge, Path(name)), mutations)
            for who, (path, _, executed), (_, _, (lines, old, new)) in zip(seen, mutations, chosen, strict=True):
                survivors += not who
                place = f"{path.name}:{(*lines, 1)[0]}: {old} → {new}"
                print(f"{place}: {who or f'not seen, executed by {len(executed)} of {len(cases)}'}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations of {' '.join(code)} are seen")


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--check", action="store_true", help="only list defects that do not apply to this checkout")
    does.add_argument("--plant", nargs="*", metavar="ID", help="plant these, or all")
    does.add_argument("--rules", action="store_true", help="plant those that break a rule, for what sees them alone")
    does.add_argument("--random", nargs="+", metavar="CODE", help="modules and packages below pytest_ddpscale")
    parser.add_argument("--revision", default="HEAD", help="revision of the repository to plant them in (%(default)s)")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="of test files; default: the oracle")
    parser.add_argument("--number", type=positive_int, default=100, metavar="N", help="of random ones (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which ones (%(default)s)")
    parser.add_argument("-j", type=positive_int, default=2, metavar="N", help="processes (%(default)s)")
    given = parser.parse_args()
    if given.random:
        try_random(given.random, given.tests or (), given.number, given.seed, given.j)
        return 0
    defects = [defect for defect in DEFECTS if not given.plant or defect.id in given.plant]
    with contextlib.nullcontext(ROOT) if given.check else scratch_tree(given.revision) as tree:
        wrong = list(without_place(tree, defects))
        if given.rules and not wrong:
            wrong = [f"{one.id}: not seen by {one.seen_by}" for one in defects if one.rule and not is_seen(tree, one)]
        if wrong or given.plant is None:
            print(*wrong or [f"{len(defects)} defects {'are seen' if given.rules else 'apply'}"], sep="\n")
            return int(bool(wrong))
        return int(plant_all(tree, defects, given.json) > 0)


if __name__ == "__main__":
    sys.exit(main())
