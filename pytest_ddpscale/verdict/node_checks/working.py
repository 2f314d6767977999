"""Going through what GPUs said while they worked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.telemetry_record import Telemetry
from pytest_ddpscale.verdict.node_checks.finding import Finding, GpuPlace, NodeEvidence, fault, gpu_label, unknown
from pytest_ddpscale.verdict.node_checks.surveyed import Findings

JudgeWindows = Callable[[NodeExpectation, Sequence[Telemetry], GpuPlace], Finding]
# Whether something was so in a window; None if that cannot be told.
WasSo = Callable[[Telemetry], bool | None]
# What a GPU is at all through no more than a fluke lies in fewer of its windows.
SHARE_OF_WINDOWS = 0.5


def each_working_gpu(evidence: NodeEvidence, judge: JudgeWindows) -> Findings:
    """Judge each GPU by all its windows; a GPU of a planned rank that has none is not known."""
    windows: dict[str, dict[str, list[Telemetry]]] = {}
    for window in evidence.telemetry:
        windows.setdefault(window.host, {}).setdefault(window.device, []).append(window)
    return {host: _node(evidence.expectation, of_host, judge) for host, of_host in windows.items()}


def in_most_windows(windows: Sequence[Telemetry], was_so: WasSo, text: str, what: str, place: GpuPlace) -> Finding:
    """A fault if something was so in at least half of the windows, whatever the unreadable ones would say.

    Windows of a GPU that answers, which were over before it was asked once, do not count, if there are others: a
    probe's may be shorter than the time between two polls.

    Args:
        windows: of one GPU.
        was_so: asked of each.
        text: says what was so.
        what: that would have to be read.
        place: the GPU.
    """
    windows = [window for window in windows if window.polls or "device" in window.unreadable] or windows
    answers = [was_so(window) for window in windows]
    yes, untold = answers.count(True), answers.count(None)
    least = SHARE_OF_WINDOWS * len(windows)
    if yes >= least:
        return fault(f"{text} in {yes} of {len(windows)} windows under load", place)
    if yes + untold >= least:
        return unknown(f"{gpu_label(place)}: {what} cannot be read in {untold} of {len(windows)} windows")
    return Finding()


def _node(expectation: NodeExpectation, devices: dict[str, list[Telemetry]], judge: JudgeWindows) -> Finding:
    found = Finding(gpus=len(devices))
    for uuid, windows in devices.items():
        found += judge(expectation, windows, GpuPlace(windows[0].local_rank, uuid))
    asked = expectation.gpus_per_node or 1
    if len(devices) < asked:
        found += unknown(f"{len(devices)} of {asked} GPUs were watched while they worked")
    return found
