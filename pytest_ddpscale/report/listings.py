"""Listings on a terminal: the plan of a run, the runs in a folder, and the history of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from pytest_ddpscale.errors import BadInput, RunDirectoryError
from pytest_ddpscale.plan.estimate import UNKNOWN, estimate, study_times
from pytest_ddpscale.plan.pairing import first_rounds
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report.causes import headline
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.verdicts import read_judgement
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Line, Table, text_lines
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line

if TYPE_CHECKING:
    from pytest_ddpscale.history.key_values import KeyValue
    from pytest_ddpscale.history.prediction import Compared
    from pytest_ddpscale.history.regression import NodeHistory

_RUNS = ("run", "began, UTC", "SKU", "nodes", "devices", "outcome")
_RUNS_SHOWN = 5  # of a node


def plan_lines(
    plan: Plan, requirements: int, *, isolate: bool, samples_per_s: Mapping[str, float] = UNKNOWN
) -> list[str]:
    """Studies, arms, estimated minutes and GPU-hours of a plan that decides so many requirements.

    With `isolate`, each study has a gang of its own; `samples_per_s` is the expected throughput per GPU, by workload.
    """
    whole = estimate(plan, isolate=isolate, samples_per_s=samples_per_s)
    device = "GPU" if plan.device_type == "cuda" else "core"
    studies = count_text(len(plan.studies), "study", "studies")
    rounds = {
        study.id: f"at most {study.rounds} rounds of {', '.join(arm.name for arm in study.arms)}"
        for study in plan.studies
    }
    if plan.probes is not None:
        studies += f" and {count_text(len(plan.probes.arms), 'probe')}"
        names = ", ".join(probe.name for probe in plan.probes.arms)
        rounds[plan.probes.id] = f"at most {plan.probes.rounds} rounds of {names}"
    if plan.pairs is not None:
        rounds[plan.pairs.id] = f"at least {count_text(len(first_rounds(plan.nodes)), 'round')} of pairs of nodes"
    times = ((name, time.seconds(time.usual) / 60) for name, time in study_times(plan, samples_per_s).items())
    rows = [(f"  {name}", f"{minutes:4.1f} min", rounds[name]) for name, minutes in times if name in rounds]
    where = f" in {plan.nodes} nodes" if plan.nodes > 1 else ""
    head = (
        f"ddpscale plan for {plan.sku}: {count_text(requirements, 'requirement')}, {studies}, "
        f"about {whole.seconds / 60:.1f} min on {count_text(plan.world_size, device)}{where} = "
        f"{whole.device_hours:.2f} {device}-hours (at most {whole.most_seconds / 60:.1f} min)"
    )
    return [head, *text_lines(Table(("", "", ""), rows))]


def shortened(lines: Sequence[str], most: int = 5) -> list[str]:
    """The first of `plan_lines` and the number of others, so that a run's output fits on a screen."""
    others = len(lines) - most
    return list(lines) if others <= 1 else [*lines[:most], f"  and {others} more (-v, or --collect-only)"]


def run_lines(folder: Path, columns: int) -> list[str]:
    """What the latest run came to, and a table of the run directories directly in a folder; broken runs are marked.

    Lines have at most `columns` characters; outcomes in the table are shortened to that.

    Raises:
        RunDirectoryError: the folder does not exist or holds no run.
    """
    is_there = folder.is_dir()
    # Without symbolic links such as `latest`, which would list a run twice.
    paths = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()] if is_there else []
    by_start = sorted(_run_row(run) for run in map(RunDirectory, paths) if run.run_json.exists())
    if not by_start:
        raise RunDirectoryError(
            str(folder), "holds no run" if is_there else "does not exist", "a folder of run directories",
            "Name one, or measure: `pytest --gpu-sku=SKU` makes a run in ddpscale-runs.",
        )  # fmt: skip
    rows = [row for _, row in by_start]
    page = folder / rows[-1][0] / "report.html"
    answer = text_lines(Line(f"{page.parent}: {rows[-1][-1]}"), width=columns)
    return [*answer, *[f"report: {page}"] * page.is_file(), "", *text_lines(Table(_RUNS, rows), width=columns)]


def _run_row(run: RunDirectory) -> tuple[str, Sequence[str]]:
    """Start time, by which rows are sorted, and cells of a run."""
    try:
        record = run.read_run()
        hosts = ranks_by_host(run.read_gangs()).values()
        counts = str(len(hosts) or ABSENT), str(sum(map(len, hosts)) or ABSENT)
        began, sku = f"{record.began:%Y-%m-%d %H:%M}", one_line(record.sku)
        return record.began.isoformat(), (run.path.name, began, sku, *counts, _came_to(run, record))
    except BadInput as error:
        return "", (run.path.name, ABSENT, ABSENT, ABSENT, ABSENT, f"broken: {one_line(str(error))}")


def _came_to(run: RunDirectory, record: RunRecord) -> str:
    if run.suite_json.exists():
        suite = run.read_suite()
        return one_line(f"suite {suite.get('suite')}: {suite.get('headline') or record.status}")
    judged = run.verdicts_json.exists()
    return headline(read_judgement(run.verdicts_json), record) if judged else f"{record.status}, not judged"


def overview_lines(nodes: Iterable[NodeHistory]) -> Iterator[str]:
    """A line for each node: its last run, how many failed, and its most certain drift."""
    rows = [
        (
            node.host,
            node.sku,
            node.runs[-1].started_at,
            node.runs[-1].outcome.replace("_", " "),
            _failed(node),
            _worst(node),
        )
        for node in nodes
    ]
    return text_lines(Table(("NODE", "SKU", "LAST RUN", "OUTCOME", "NIGHTS", "WORST DRIFT"), rows))


def node_lines(node: NodeHistory) -> Iterator[str]:
    """One node: its last runs, and every value beside its own past."""
    from pytest_ddpscale.history.prediction import FEWEST_VALUES

    runs = [
        (run.started_at, run.outcome.replace("_", " "), ", ".join(run.failed), str(len(run.worse)), run.path)
        for run in node.runs[: -_RUNS_SHOWN - 1 : -1]
    ]
    changes = f"Software changed since the earlier runs: {'; '.join(node.changes)}." if node.changes else ""
    facts = (
        f"{sum(one.high < 1 for one in node.drifts)} of {count_text(len(node.drifts) + len(node.young), 'value')} "
        f"worse than predicted from the node's own past; a value is judged after {FEWEST_VALUES} earlier runs."
    )
    beside = {
        one.value: f"{_change(one)} from {one.past.mean:.4g} ± {percent(one.past.log_sd, 1)} of "
        f"{count_text(one.past.number, 'run')}{_word(one)}"
        for one in node.drifts
    } | dict.fromkeys(node.young, "too few runs")
    rows = [
        (key_value.what, _place(key_value), f"{key_value.value:.4g} {key_value.unit}", past)
        for key_value, past in beside.items()
    ]
    return text_lines(
        Line(f"{node.host}, {node.sku}: {_failed(node)}"),
        Table(("RUN", "OUTCOME", "FAILED", "REGRESSED, NO BASELINE", "PATH"), runs),
        Line(changes), Line(facts), Table(("VALUE", "PLACE", "NOW", "OWN PAST"), rows),
    )  # fmt: skip


def json_text(nodes: Iterable[NodeHistory]) -> str:
    """One JSON array with an object for each node."""
    data = []
    for node in nodes:
        runs = [{name: value for name, value in asdict(run).items() if name != "values"} for run in node.runs]
        drifts = [
            drift._asdict()
            | asdict(drift.value)
            | {"series": drift.value.series._asdict(), "past": drift.past._asdict()}
            | {"is_worse": drift.high < 1}
            for drift in node.drifts
        ]
        data.append({"sku": node.sku, "host": node.host, "changes": node.changes, "runs": runs, "drifts": drifts})
    return strict_json(data)


def _failed(node: NodeHistory) -> str:
    failed = sum(run.outcome == "rejected" for run in node.runs)
    return f"failed {failed} of the last {count_text(len(node.runs), 'night')}"


def _worst(node: NodeHistory) -> str:
    if not node.drifts:
        return "nothing to compare with"
    worst = node.drifts[0]
    return f"{worst.value.what} of {_place(worst.value)}: {_change(worst)} from its own past{_word(worst)}"


def _place(value: KeyValue) -> str:
    return "node" if not value.series.gpu else one_line(value.place.short)


def _word(comparison: Compared) -> str:
    return " WORSE" if comparison.high < 1 else " BETTER" if comparison.low > 1 else ""


def _change(comparison: Compared) -> str:
    return percent(comparison.ratio - 1, 1, signed=True)
