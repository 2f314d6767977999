"""Values of the same nodes in other launches, from a site's history: how one node differs between runs.

The history has medians of each place, not rounds. So it does not give a requirement's value, only how it varies: the
deviations of a node from its own mean. It has throughput and probes, but no efficiencies and times. Only runs count
that used the same software, were not rejected, and are not among the runs of the calibration.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_ddpscale.calibrate.trusted_runs import SOFTWARE, TrustedRun
from pytest_ddpscale.history.database import reading
from pytest_ddpscale.history.key_values import KeyValue, key_values_of
from pytest_ddpscale.history.reading import HostRun, host_runs
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.thresholds.cases import AnyCase, Case

# Metric, workload or probe, ranks, arm, and the digest of everything else that a value depends on.
_Thing = tuple[str, str, int, str, str]


def past_values(
    history_file: Path, sku: str, runs: Sequence[TrustedRun], cases: Iterable[AnyCase]
) -> dict[str, dict[str, list[float]]]:
    """Values in earlier and later launches, by the name of each requirement in the history, then by host.

    Args:
        history_file: the site's history.
        sku: canonical name.
        runs: of the calibration.
        cases: the requirements.

    Raises:
        HistoryError: the history does not exist or cannot be used.
    """
    things = {_thing(value) for run in runs for value in key_values_of(run.evidence)}
    wanted = {thing: case.id for case in cases for thing in things if thing[:4] == _asked(case)}
    versions = {host: said for run in runs for host, said in run.versions.items()}
    given = {run.began for run in runs}
    kept_as = f"simulated {sku}" if any(run.is_simulated for run in runs) else sku
    found: dict[str, dict[str, list[float]]] = {}
    with reading(history_file) as connection:
        for host in sorted({host for run in runs for host in run.hosts}):
            nights = [
                night
                for night in host_runs(connection, kept_as, host)
                if night.started_at not in given and _is_on(night.versions, versions.get(host, {}))
            ]
            for name, values in _of_host(nights, wanted).items():
                found.setdefault(name, {})[host] = values
    return found


def _asked(case: AnyCase) -> tuple[str, str, int, str] | None:
    """Key of a requirement's values in the history; None if the history has none."""
    requirement = case.requirement
    if not isinstance(case, Case):
        return (requirement.metric, requirement.subject, case.world_size, "probe")
    if requirement.definition is not THROUGHPUT_PER_GPU or requirement.placement != "packed":
        return None
    return (requirement.metric, case.workload.name, case.world_size, case.question.measured.kind)


def _thing(value: KeyValue) -> _Thing:
    return (value.metric, value.subject, value.world_size, value.arm, value.definition)


def _is_on(versions: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    return all(versions.get(name) == expected.get(name) for name in SOFTWARE)


def _of_host(nights: Iterable[HostRun], wanted: Mapping[_Thing, str]) -> dict[str, list[float]]:
    """A value of the node for each run: its own, or that of its slowest GPU, as in judging."""
    found: dict[str, list[float]] = {}
    for night in nights:
        of_night: dict[_Thing, list[float]] = {}
        for value in night.norm:
            if _thing(value) in wanted:
                of_night.setdefault(_thing(value), []).append(value.value)
        for thing, values in of_night.items():
            # In the arm `alone`, GPUs take turns and their mean is judged.
            of_node = statistics.geometric_mean(values) if thing[3] == "alone" else min(values)
            found.setdefault(wanted[thing], []).append(of_node)
    return found
