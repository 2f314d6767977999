"""What the documents tell a reader to type or write is taken by the code that reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from docs_pages.declared import causes, commands, keys_page, metrics_page, options_page
from pytest_ddpscale.cli import EXAMPLES
from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report.words.cause_kinds import CAUSES
from pytest_ddpscale.settings import OPTIONS
from pytest_ddpscale.thresholds.form import AnyRow
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.waiver import today
from tests.docs_pages.commands import (
    DOCUMENTS,
    ROOT,
    Command,
    blocks,
    commands_in_blocks,
    commands_in_sentences,
    commands_of,
)
from tests.docs_pages.parsing import Parsers
from tests.since import since

READ = ("README.md", "CONTRIBUTING.md", "docs", "slurm", "acceptance", "pytest_ddpscale", "benchmarks")
FLAG = re.compile(r"--(?:ddp-[a-z]+(?:-[a-z]+)*|gpu-sku|thresholds)(?![a-z-])")
# A metric that a reader adds as the page says.
INVENTED = "p99_step_time"
# Its blocks of YAML are jobs.
CI = ROOT / "docs" / "cluster.md"


@pytest.fixture(scope="module")
def parsers(request: pytest.FixtureRequest) -> Parsers:
    return Parsers(request.config)


def test_every_command_in_a_block_would_be_taken(parsers: Parsers) -> None:
    found = list(commands_in_blocks())
    assert len(found) > 60, "they were found"
    assert [f"{one.where}: {problem}" for one in found if (problem := parsers.problem(one))] == []


def test_every_command_in_a_sentence_exists(parsers: Parsers) -> None:
    found = list(commands_in_sentences())
    assert len(found) > 40, "they were found"
    assert [f"{one.where}: {problem}" for one in found if (problem := parsers.problem_in_part(one))] == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("pytest --gpu-sku=b200 --ddp-roundz=9", "no option or mark --ddp-roundz=9"),
        ("pytest --gpu-sku=b201", "no SKU 'b201'"),
        ("pytest --gpu-sku=b200 --ddp-rounds=3", "a whole number from 8 to 10000"),
        ("pytest -m nodes_health --gpu-sku=cpu", "no option or mark nodes_health"),
        ("ddpscale simulate --gpu-sku a100 --out RUN --gpu 8", "unrecognized arguments: --gpu 8"),
        ("cd x && .venv/bin/ddpscale reports RUN | head", "invalid choice: 'reports'"),
        ("ssh n7 'cd /s && .venv/bin/pytest --gpu-sku=b200 --ddp-run-dirs=x'", "--ddp-run-dirs"),
        ("ddpscale suite collectives … --size 1MiB", "no option --size"),
        ("ddpscale threshold … check", "no subcommand 'threshold'"),
        ("sbatch --nodes=2 slurm/acceptance.sbatch --ddp-unfit=leave", "measure, leave-out, stop"),
    ],
)
def test_a_mistake_in_a_command_is_found(parsers: Parsers, line: str, problem: str) -> None:
    (command,) = commands_of(line, "here")
    assert problem in parsers.problem(command)
    assert parsers.problem(Command("here", "ddpscale", ["…"])) == ""


def test_every_block_of_thresholds_loads(tmp_path: Path) -> None:
    found = [block for path in DOCUMENTS if path != CI for block in blocks(path) if block.language == "yaml"]
    assert len(found) > 5, "they were found"
    wrong = [(block.where, problems_of(block.text, tmp_path)) for block in found if INVENTED not in block.text]
    assert [(where, problems) for where, problems in wrong if problems] == []


def test_jobs_for_ci_call_what_exists_and_keep_what_it_writes(parsers: Parsers) -> None:
    found = [block for block in blocks(CI) if block.language == "yaml"]
    assert len(found) == 2, "GitHub's and GitLab's"
    for block in found:
        job = yaml.safe_load(block.text)
        commands = [one for line in _below(job, ("run", "script")) for one in commands_of(line, block.where)]
        (folder,) = {
            word.partition("=")[2] for command in commands for word in command.arguments if "--ddp-run-dir=" in word
        }
        assert [problem for command in commands if (problem := parsers.problem(command))] == []
        assert _below(job, ("path", "paths")) == [folder], "artifacts"


def _below(job: object, keys: tuple[str, ...]) -> list[str]:
    """Texts that any of the keys has, at any depth."""
    if isinstance(job, list):
        return [text for one in job for text in _below(one, keys)]
    if not isinstance(job, dict):
        return []
    below = [text for one in job.values() for text in _below(one, keys)]
    values = [job[key] for key in keys if key in job]
    return below + [text for value in values for text in (value if isinstance(value, list) else [value])]


@pytest.mark.parametrize(
    "text",
    [
        "- {throughput_per_gpus: {1: 5}, of: resnet50-fp16, provisional: why}",
        "skus: {h200: {requirement: []}}",
    ],
)
def test_a_mistake_in_a_block_is_found(text: str, tmp_path: Path) -> None:
    assert problems_of(text, tmp_path)


def problems_of(text: str, folder: Path) -> list[str]:
    """What is wrong with a file, or with rows alone. A part of a file gets its head."""
    rows = yaml.safe_load(text)
    if not isinstance(rows, list):
        path, text = folder / "site.yaml", re.sub(r"(until: )[0-9-]+", rf"\g<1>{today()}", text)
        path.write_text(("" if "schema_version" in rows else "schema_version: 2\nextends: packaged\n") + text)
        try:
            load_thresholds(path)
        except ThresholdsError as error:
            return list(map(str, (error, *error.others)))
        return []
    found = []
    for row in rows:
        try:
            TypeAdapter[Any](AnyRow).validate_python(row)
        except ValueError as error:
            found.append(str(error))
    return found


def test_the_site_has_each_cause_command_metric_and_option() -> None:
    assert all(f"\n\n**{name}** (" in causes() for name in CAUSES)
    assert all(f"\n| `ddpscale {example}` | " in commands() for example in EXAMPLES.values())
    assert all(f"\n| `{name}` | " in metrics_page() for name in METRICS)
    assert all(f"\n| `{option.flag}" in options_page() for option in OPTIONS.values())


@since("pydantic", "2.9", "the schema names the model of a described key")
def test_the_glossary_is_short() -> None:
    words = re.findall("^[|] [a-zA-Z]", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert 10 < len(words) - 2 <= 30, "two tables"


def test_each_key_of_the_thresholds_says_what_it_is() -> None:
    rows = [line for line in keys_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 70
    assert [row for row in rows if row.endswith("|  |") or "any value" in row] == []


def test_every_option_that_is_spoken_of_is_there() -> None:
    texts = [path for name in READ for path in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))]
    said = {
        (flag, str(path.relative_to(ROOT)))
        for path in texts
        if path.suffix in (".md", ".py", ".sh", ".sbatch", ".yaml") and path.name != "removed.py"
        for flag in FLAG.findall(path.read_text(encoding="utf-8"))
    }
    flags = {option.flag for option in OPTIONS.values()}
    assert {flag for flag, _ in said} >= flags, "the texts were read"
    assert {(flag, where) for flag, where in said if flag not in flags} == set()


def test_links_between_files_lead_to_files() -> None:
    """GitHub's readers follow them, too; the site's build checks only its own pages, with their headings."""
    found = [
        (path, link)
        for path in [*DOCUMENTS, ROOT / "CHANGELOG.md"]
        for link in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
        if "://" not in link
    ]
    assert len(found) > 100
    assert [(str(path), link) for path, link in found if not (path.parent / link).exists()] == []
