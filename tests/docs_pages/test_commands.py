"""Every command in the documents can be typed: its subcommand, options and choices exist. YAML blocks are as read."""

from __future__ import annotations

import pytest

from tests.docs_pages.commands import Command, commands_in_blocks, commands_of, documents, spans
from tests.docs_pages.parsing import Parsers

IN_BLOCKS = list(commands_in_blocks(documents()))
IN_SENTENCES = [one for path in documents() for one in spans(path)]


@pytest.fixture(scope="module")
def parsers(request: pytest.FixtureRequest) -> Parsers:
    return Parsers(request.config)


def test_every_command_in_a_block_would_be_taken(parsers: Parsers) -> None:
    assert len(IN_BLOCKS) > 60, "they were found"
    wrong = [f"{one.where}: {problem}" for one in IN_BLOCKS if (problem := parsers.problem(one))]
    assert not wrong, "\n".join(wrong)


def test_every_command_in_a_sentence_exists(parsers: Parsers) -> None:
    assert len(IN_SENTENCES) > 60, "they were found"
    wrong = [f"{one.where}: {problem}" for one in IN_SENTENCES if (problem := parsers.problem_in_part(one))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("pytest --gpu-sku=b200 --ddp-roundz=9", "no option --ddp-roundz=9"),
        ("pytest --gpu-sku=b201", "no SKU 'b201'"),
        ("pytest --gpu-sku=b200 --ddp-rounds=3", "at least 8 rounds"),
        ("pytest --ddp-judge=RUN --ddp-rounds=9", "one of --ddp-rounds and --ddp-judge"),
        ("pytest -m nodes_health --gpu-sku=cpu", "no mark nodes_health"),
        ("ddpscale simulat --out RUN", "invalid choice: 'simulat'"),
        ("ddpscale simulate --gpu-sku a100 --out RUN --gpu 8", "unrecognized arguments: --gpu 8"),
        ("ddpscale culprits RUN --format xml", "invalid choice: 'xml'"),
        ("ddpscale suite collectives --gpu-sku=h100 --ddp-block=fast", "--ddp-block"),
        ("cd x && .venv/bin/ddpscale reports RUN | head", "invalid choice: 'reports'"),
        ("ssh n7 'cd /s && .venv/bin/pytest --gpu-sku=b200 --ddp-run-dirs=x'", "--ddp-run-dirs"),
        ("ddpscale suite collectives … --size 1MiB", "no option --size"),
        ("sbatch --nodes=2 slurm/acceptance.sbatch --ddp-unfit=leave", "measure, leave-out, stop"),
    ],
)
def test_a_mistake_is_found(parsers: Parsers, line: str, problem: str) -> None:
    (command,) = commands_of(line, "here")
    assert problem in parsers.problem(command)


@pytest.mark.parametrize(
    ("program", "arguments", "problem"),
    [
        ("ddpscale", ["threshold", "check"], "no subcommand 'threshold'"),
        ("ddpscale", ["thresholds", "check", "FILE", "--fault", "x"], "no option --fault"),
        ("pytest", ["--ddp-lunches", "3"], "no option --ddp-lunches"),
        ("ddpscale", ["…"], ""),
        ("ddpscale", ["compare", "A", "B"], ""),
    ],
)
def test_a_mistake_in_a_sentence_is_found(parsers: Parsers, program: str, arguments: list[str], problem: str) -> None:
    found = parsers.problem_in_part(Command("here", program, arguments))
    assert problem in found
    assert bool(found) == bool(problem)
