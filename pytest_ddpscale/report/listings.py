"""Listings on a terminal: the plan of a run, the runs in a folder, and the history of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import BadInput, RunDirectoryError
from pytest_ddpscale.plan.estimate import UNKNOWN, estimate, study_times
from pytest_ddpscale.plan.pairing import first_rounds
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report.causes import headline
from pytest_ddpscale.report.digits import ABSENT, number_text
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.verdicts import read_judgement
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Column, Line, Table, table, text_lines
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line

if TYPE_CHECKING:
    from pytest_ddpscale.history.key_values import KeyValue
    from pytest_ddpscale.history.overview import NodeHistory, ValueComparison

_RUNS = (*map(Column, ("run", "began, UTC", "SKU")), Column("nodes", is_number=True), Column("devices", is_number=True),
         Column("outcome", may_shrink=True))  # fmt: skip
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
    return [head, *text_lines(table(("", "", ""), rows))]


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
    if not folder.is_dir():
        raise RunDirectoryError(str(folder), "does not exist", "a folder of run directories")
    # Without symbolic links such as `latest`, which would list a run twice.
    runs = [RunDirectory(path) for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    found = sorted(_run_row(run) for run in runs if run.run_json.exists())
    if not found:
        raise RunDirectoryError(
            str(folder), "holds no run", "a folder of run directories",
            "Name one, or measure: `pytest --gpu-sku=SKU` makes a run in ddpscale-runs.",
        )  # fmt: skip
    rows = [row for _, row in found]
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
        said = run.read_suite()
        return one_line(f"suite {said.get('suite')}: {said.get('headline') or record.status}")
    judged = run.verdicts_json.exists()
    return headline(read_judgement(run.verdicts_json), record) if judged else f"{record.status}, not judged"


def overview_lines(nodes: Sequence[NodeHistory]) -> Iterator[str]:
    """A line for each node: its last run and its worst drift."""
    rows = [
        (one.host, one.sku, str(len(one.runs)), one.last.started_at, one.last.outcome.replace("_", " "), _worst(one))
        for one in nodes
    ]
    return text_lines(table(("NODE", "SKU", "RUNS", "LAST RUN", "OUTCOME", "WORST DRIFT"), rows))


def node_lines(node: NodeHistory) -> Iterator[str]:
    """One node: its last runs, and every value beside its own past."""
    from pytest_ddpscale.history.prediction import FEWEST_VALUES

    runs = [
        (run.started_at, run.outcome.replace("_", " "), ", ".join(run.failed), str(len(run.worse)), run.path)
        for run in node.runs[: -_RUNS_SHOWN - 1 : -1]
    ]
    changes = f"Software changed since the earlier runs: {'; '.join(node.changes)}." if node.changes else ""
    inorder = sorted(node.drifts, key=lambda drift: (not drift.is_worse, -drift.loss))
    worse = sum(drift.is_worse for drift in inorder)
    told = (
        f"{worse} of {count_text(len(inorder), 'value')} worse than predicted from the node's own past; "
        f"a value is judged after {FEWEST_VALUES} earlier runs."
    )
    rows = [(*_named(one.value), f"{one.value.value:.4g} {one.value.unit}", _beside(one.past)) for one in inorder]
    return text_lines(
        Line(f"{node.host}, {node.sku}: {count_text(len(node.runs), 'run')}"),
        table(("RUN", "OUTCOME", "FAILED", "REGRESSED, NO BASELINE", "PATH"), runs),
        Line(changes), Line(told), table(("VALUE", "PLACE", "NOW", "OWN PAST"), rows),
    )  # fmt: skip


def json_text(nodes: Sequence[NodeHistory]) -> str:
    """One JSON array with an object for each node."""
    found = []
    for node in nodes:
        runs = [{key: value for key, value in asdict(run).items() if key != "values"} for run in node.runs]
        drifts = [asdict(drift) | {"is_worse": drift.is_worse} for drift in node.drifts]
        found.append({"sku": node.sku, "host": node.host, "changes": node.changes, "runs": runs, "drifts": drifts})
    return strict_json(found)


def _worst(node: NodeHistory) -> str:
    worst = node.worst
    if worst is None or worst.past is None:
        return "nothing to compare with"
    what, place = _named(worst.value)
    return f"{what} of {place}: {_change(worst.past)} from its own past{_word(worst.past)}"


def _named(value: KeyValue) -> tuple[str, str]:
    """The measured quantity and its place."""
    return value.what, "node" if value.gpu_uuid is None else one_line(value.place.short)


def _beside(one: ValueComparison | None) -> str:
    if one is None:
        return "none"
    spread = number_text(one.reference.spread, "fraction")
    others = f"{one.reference.median:.4g} ± {spread} of {count_text(one.reference.number, 'run')}"
    return f"{_change(one)} from {others}{_word(one)}"


def _word(one: ValueComparison) -> str:
    return {"usual": "", "unknown": " (too few)"}.get(one.standing, f" {one.standing.upper()}")


def _change(one: ValueComparison) -> str:
    return percent(one.ratio - 1, 1, signed=True)
