"""Plant random mutations one at a time and list those that nothing sees.

    python benchmarks/mutants.py judge --number 100 --seed 1
    python benchmarks/mutants.py judge/peers.py judge/slow.py --tests tests/judge

A mutation turns a comparison, doubles a number, negates a condition, or exchanges min and max. It is seen if a fact of
the oracle changes, or, with ``--tests``, if a test fails: then all test files that see it are listed, too.
"""

from __future__ import annotations

import argparse
import ast
import random
import resource
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.machinery import SourceFileLoader
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from mutants_seen import LIMIT_S, MOST_LINES, ROOT, Case, Oracle, Tests, in_a_fork

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


def try_mutation(judge: Oracle | Tests, mutation: tuple[Path, int, Sequence[Case]], said: Path) -> None:
    """Write who sees a mutation."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    path, number, cases = mutation
    plant(path, Mutator(path, number).tree)
    said.write_text(" ".join(judge.who_sees(cases)))


def who_sees(judge: Oracle | Tests, folder: Path, mutation: tuple[Path, int, Sequence[Case]]) -> str:
    """Who sees a mutation, in words; empty for nobody."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        said = Path(name) / "seen"
        code = in_a_fork(try_mutation, judge, mutation, said)
        return said.read_text() if said.exists() else f"(ended with {code})"


def main() -> int:
    """Run the script. Returns its exit code: 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", nargs="+", help="modules and packages below pytest_ddpscale")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="of test files; default: the oracle")
    parser.add_argument("--number", type=int, default=100, metavar="N", help="of mutations; default: 100")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which ones; default: 1")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="processes; default: 2")
    given = parser.parse_args()
    paths = [ROOT / "pytest_ddpscale" / one for one in given.code]
    modules = sorted(file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))
    places = [(at, *one) for at, path in enumerate(modules) for one in enumerate(Mutator(path).places)]
    chosen = random.Random(given.seed).sample(places, min(given.number, len(places)))
    sys.path.insert(0, str(ROOT))
    survivors = 0
    with tempfile.TemporaryDirectory() as name:
        judge = Tests(Path(name), given.tests) if given.tests else Oracle(Path(name))
        cases = sorted(judge.cases(modules, given.j), key=lambda case: case.cpu_s)
        mutations = []
        for at, number, (lines, *_) in chosen:
            own = {at * MOST_LINES + line for line in lines}
            mutations.append((modules[at], number, [case for case in cases if not own or own & case.lines]))
        with ProcessPoolExecutor(given.j, get_context("fork")) as pool:
            seen = pool.map(partial(who_sees, judge, Path(name)), mutations)
            for who, (path, _, executed), (_, _, (lines, old, new)) in zip(seen, mutations, chosen, strict=True):
                survivors += not who
                place = f"{path.name}:{(*lines, 1)[0]}: {old} → {new}"
                print(f"{place}: {who or f'not seen, executed by {len(executed)} of {len(cases)}'}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations of {' '.join(given.code)} are seen")
    return 0


if __name__ == "__main__":
    sys.exit(main())
