"""Plant random mutations one at a time and list those that change no fact of the oracle.

    python benchmarks/mutants.py judge --number 100 --seed 1

A mutation turns a comparison, doubles a number, negates a condition, or exchanges min and max. Run directories are made
once; only chains of runs that execute the mutated statement are judged, the cheapest first, until a fact differs from
that without a mutation. What a session decides while it measures is decided by the mutated code as well. Code that
breaks, or needs more than `LIMIT_S` for a run, is seen.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import mmap
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.machinery import SourceFileLoader
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import oracle
from oracle_differences import Retired, fact_differences

ROOT = Path(__file__).resolve().parents[1]
TURNED = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.Is: ast.IsNot}
TURNED |= {new: old for old, new in TURNED.items()}
OTHER = {"min": "max", "minimum": "maximum", "fmin": "fmax", "argmin": "argmax", "nanmin": "nanmax", "floor": "ceil"}
OTHER |= {new: old for old, new in OTHER.items()}
LIMIT_S = 60  # of CPU, for each command
MOST_LINES = 1000  # of a module
READ = ("verdicts.json", "junit.xml")  # of all reports, by the oracle


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
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
        ):
            return self._offer(node, ast.Constant(2 * node.value or 1))
        elif isinstance(node, ast.Name) and node.id in OTHER:
            return self._offer(node, ast.Name(OTHER[node.id], node.ctx))
        elif isinstance(node, ast.Attribute) and node.attr in OTHER:
            return self._offer(node, ast.Attribute(node.value, OTHER[node.attr], node.ctx))
        return node

    def _offer(self, node: ast.expr, mutated: ast.expr) -> ast.expr:
        self.places.append((self._statements[-1], ast.unparse(node), ast.unparse(mutated)))
        return mutated if len(self.places) == self._number + 1 else node


def plant(path: Path, tree: ast.Module) -> None:
    """Let this process, which has not yet imported a module, import other code in its place."""
    code, own = compile(tree, str(path), "exec", dont_inherit=True), SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        return code if loader.path == str(path) else own(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def copy(run: str, source: Path, target: Path) -> None:
    """Copy a run directory and the files beside it."""
    shutil.copytree(source / run, target / run)
    for file in source.glob(f"{run}.*"):
        shutil.copy2(file, target)


def prepare(folder: Path, made: Path) -> None:
    """Import the package, and let the oracle work in a folder, make runs once and write only reports that it reads."""
    make = oracle.make

    def make_once(run: str, number: int) -> None:
        is_made = (made / run).exists()
        if is_made and not oracle.RUNS[run].startswith("session"):
            copy(run, made, Path())
            return
        make(run, number)
        Path(run, "report.md").touch()
        if not is_made:
            copy(run, Path(), made)

    folder.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    oracle.find_all([], folder, 1)
    files = importlib.import_module("pytest_ddpscale.report.files")
    vars(files)["_attempt"] = lambda what, write: (write() or "") if what in READ else ""
    vars(oracle)["make"] = make_once
    os.chdir(folder)


def judged(chain: int) -> Iterator[tuple[str, Any]]:
    """Names and facts of the runs of a chain."""
    for number, name in enumerate(oracle.CHAINS[chain]):
        yield name, oracle.found(name, number, f"history-{chain}")[0]


def expect(modules: Sequence[Path], folder: Path, chain: int) -> None:
    """Write CPU seconds, executed lines and facts of a chain, and keep the runs that are made."""
    starts = {str(path): at * MOST_LINES for at, path in enumerate(modules)}
    lines = mmap.mmap(-1, len(modules) * MOST_LINES)  # forks share it

    def trace(frame: FrameType, *_: object) -> Any:
        if (start := starts.get(frame.f_code.co_filename)) is None:
            return None
        lines[start + frame.f_lineno] = 1
        return trace

    prepare(folder / "expected" / str(chain), folder / "made")
    sys.settrace(trace)
    facts = dict(judged(chain))
    sys.settrace(None)
    executed = [line for line, is_executed in enumerate(lines[:]) if is_executed]
    (folder / f"{chain}.json").write_text(json.dumps([sum(os.times()[:4]), executed, facts]))


def look(folder: Path, mutation: tuple[Path, int], chains: Sequence[int]) -> None:
    """End with an error as soon as a mutation changes a fact of these chains."""
    plant(mutation[0], Mutator(*mutation).tree)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        prepare(Path(own) / "runs", folder / "made")
        for chain in chains:
            expected = json.loads((folder / f"{chain}.json").read_text())[2]
            for name, facts in judged(chain):
                if fact_differences({name: expected[name]}, {name: facts}, Retired(Path("none"))):
                    raise SystemExit(1)


def in_a_fork(work: Callable[..., None], *given: Any) -> int | None:
    """Exit code of this work."""
    fork = get_context("fork").Process(target=work, args=given)
    fork.start()
    fork.join()
    return fork.exitcode


def main() -> int:
    """Run the script. Returns its exit code: 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="below pytest_ddpscale")
    parser.add_argument("--number", type=int, default=100, metavar="N", help="of mutations; default: 100")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which ones; default: 1")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="processes; default: 2")
    given = parser.parse_args()
    modules = sorted((ROOT / "pytest_ddpscale" / given.package).rglob("*.py"))
    places = [(at, *one) for at, path in enumerate(modules) for one in enumerate(Mutator(path).places)]
    chosen = random.Random(given.seed).sample(places, given.number)
    for name, command in oracle.RUNS.items():
        oracle.RUNS[name] = command.removesuffix(" with texts")
    os.environ |= {"TZ": "UTC", "COLUMNS": "100", "OPENBLAS_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as temporary, ProcessPoolExecutor(given.j, get_context("fork")) as pool:
        folder, chains = Path(temporary), range(len(oracle.CHAINS))
        if any(pool.map(partial(in_a_fork, partial(expect, modules, folder)), chains)):
            return 1
        expected = [json.loads((folder / f"{chain}.json").read_text())[:2] for chain in chains]
        cheapest = sorted(chains, key=lambda chain: expected[chain][0])
        executed = [set(lines) for _, lines in expected]
        of_lines = [{at * MOST_LINES + line for line in lines} for at, _, (lines, *_) in chosen]
        where = [[chain for chain in cheapest if not lines or lines & executed[chain]] for lines in of_lines]
        codes = pool.map(partial(in_a_fork, partial(look, folder)), [(modules[at], n) for at, n, _ in chosen], where)
        survivors = 0
        for code, (at, _, (lines, old, new)), its_chains in zip(codes, chosen, where, strict=True):
            if not code:
                survivors += 1
                runs = sum(len(oracle.CHAINS[chain]) for chain in its_chains)
                print(f"{modules[at].name}:{(*lines, 1)[0]}: {old} → {new} (executed by {runs} runs)", flush=True)
    print(f"{given.number - survivors} of {given.number} mutations of {given.package}/ change a fact")
    return 0


if __name__ == "__main__":
    sys.exit(main())
