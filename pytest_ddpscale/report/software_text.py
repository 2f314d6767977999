"""Software versions of a run, from its ranks and node surveys, and where nodes differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from pytest_ddpscale.report.text import count_text
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.survey_record import Survey

# Packages on the first page, with their titles there.
_FOREMOST = {
    "driver": "driver", "cuda": "CUDA", "nccl": "NCCL", "torch": "torch", "pytest_ddpscale": "pytest-ddpscale",
}  # fmt: skip


def software_versions(run: RunRecord, surveys: Collection[Survey]) -> dict[str, str]:
    """Version by name, ``570.1``; where nodes differ, ``570.1 (14 nodes), 565.3 (2 nodes)``.

    Versions come from the ranks; from the surveys if the ranks did not report one, or if nodes differ.
    """
    found = dict(run.versions)
    names = dict.fromkeys(name for survey in surveys for name, version in survey.versions.items() if version)
    for name in names:
        of_nodes = Counter(version for survey in surveys if (version := survey.versions.get(name)))
        if len(of_nodes) > 1:
            counted = (f"{version} ({count_text(count, 'node')})" for version, count in of_nodes.most_common())
            found[name] = ", ".join(counted)
        else:
            found.setdefault(name, next(iter(of_nodes)))
    return found


def software_line(versions: dict[str, str]) -> str:
    """``driver 570.1, CUDA 13.2, torch 2.15.0``; empty if the run recorded none."""
    return ", ".join(f"{title} {versions[name]}" for name, title in _FOREMOST.items() if name in versions)
