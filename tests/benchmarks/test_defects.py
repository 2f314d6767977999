"""Written-down defects: each rule has one that is seen; twenty that the oracle misses fail the test that watches."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripts import BENCHMARKS, benchmark

TABLE: Any = benchmark("defects")
DEFECTS = {defect.id: defect for defect in TABLE.DEFECTS}
ROOT = BENCHMARKS.parent
REFUSED = "run/test_consistent.py::test_what_accidents_make_of_a_run_is_refused"
ARMS = "worker/test_arms.py"
GPU_CLOCK = "worker/test_device.py::test_a_gpu_starts_its_clock_when_it_is_idle_and_stops_it_when_it_is_done"
GANG_ENDS = "launch/test_gang.py::test_a_gang_ends_as_its_agents_say"
# The test that has to fail, below tests/.
WATCHED_BY = {
    "exit-code-swallowed": GANG_ENDS,
    "kill-not-sent": "node/test_processes.py::test_who_ignores_sigterm_is_gone",
    "environment-leaked": "launch/test_environment.py::test_what_would_change_torchrun_or_srun_in_silence_is_scrubbed",
    "node-order": "plan/test_layout.py::test_groups_are_of_the_arms_size_share_no_rank_and_lie_where_they_should",
    "hang-not-ended": GANG_ENDS,
    "torn-line": "run/test_run_directory.py::TestRecords::test_of_a_killed_run_keep_every_finished_one",
    "duplicates": REFUSED,
    "nan": "run/test_run_directory.py::test_what_no_run_is_read_from_is_refused",
    "half-written": "run/test_run_directory.py::test_a_line_that_does_not_fit_leaves_no_part",
    "shared-gpu": REFUSED,
    "steps-contradict": REFUSED,
    "no-sync": GPU_CLOCK,
    "steps-off-by-one": "worker/test_device.py::"
    "test_a_cpu_times_steps_by_the_wall_clock_and_in_them_all_passes_of_the_model",
    "cold-start": f"{ARMS}::test_a_block_times_each_step_of_a_warm_arm",
    "no-checksum": f"{ARMS}::test_a_block_times_each_step_of_a_warm_arm",
    "event-order": GPU_CLOCK,
    "synced-no-sync": f"{ARMS}::test_replicas_agree_in_every_round_and_one_wrong_bit_shows",
    "same-images": f"{ARMS}::test_replicas_agree_in_every_round_and_one_wrong_bit_shows",
}


@pytest.mark.lab
def test_each_defect_fails_the_test_that_watches_it(tmp_path: Path) -> None:
    for folder in ("pytest_ddpscale", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("pyproject.toml", "thresholds.yaml"):
        shutil.copy2(ROOT / file, tmp_path)
    watched = {name: f"tests/{test}" for name, test in WATCHED_BY.items()}
    assert TABLE.first_failure(tmp_path, sorted(set(watched.values()))) == "", "without a defect"
    failed = {name: TABLE.caught_by(tmp_path, DEFECTS[name], [test]) for name, test in watched.items()}
    assert {name: test.partition("[")[0] for name, test in failed.items()} == watched


def test_each_rule_of_the_docs_has_its_defect() -> None:
    testing = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8").partition("| rule | says | defect |")[2]
    listed = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([a-z][a-z-]+) \|$", testing, re.MULTILINE)
    assert {defect.rule: defect.id for defect in TABLE.DEFECTS if defect.rule} == dict(listed)


@pytest.mark.parametrize("defect", [pytest.param(one, id=one.id) for one in TABLE.DEFECTS if one.rule])
def test_what_sees_the_defect_of_a_rule_is_there(defect: Any) -> None:
    if not defect.seen_by.startswith("oracle: "):
        file, _, name = defect.seen_by.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
        return
    _, run, *fact, field = defect.seen_by.split()
    lines = (BENCHMARKS / "oracle" / "facts" / f"{run}.jsonl").read_text(encoding="utf-8").splitlines()
    assert field in dict(map(json.loads, lines))[" ".join(fact)]
