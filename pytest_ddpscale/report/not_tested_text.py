"""What a run did not test, and what a pass does not cover."""

from __future__ import annotations

from collections import Counter

from pytest_ddpscale.report import text
from pytest_ddpscale.run.counting import counted_groups
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.listing import first_few

NOT_COVERED = (
    "This report covers the day of the measurement and the workloads and world sizes in the table. It does not cover "
    "storage, external networks, software that users install, or wear.",
    "Nodes that appear in no row and in no count were not tested.",
)


def not_tested_lines(judgement: Judgement) -> list[str]:
    """What no bound of the run shows, one line for each reason and each kind of untested device."""
    missing = [[one for one in group if one.outcome == "not_measured"] for group in counted_groups(judgement.verdicts)]
    reasons = Counter(text.reason_text(group[0]) for group in missing if group)
    said = [f"{text.count_text(count, 'requirement')}: {reason}" for reason, count in reasons.most_common(10)]
    coverage = judgement.coverage
    if coverage is not None and coverage.idle_gpus:
        idle = [f"{gpu.name} on {node.host}" for node, gpu in coverage.idle_gpus[:5]]
        said.append(f"GPUs not tested: {first_few(idle, 5, count=len(coverage.idle_gpus))}")
    if coverage is not None and coverage.nodes_absent:
        said.append(f"Nodes not tested: {first_few(coverage.nodes_absent, 5)}")
    return [*filter(None, [judgement.unseen_loss]), *said]
