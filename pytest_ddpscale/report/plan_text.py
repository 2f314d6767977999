"""The plan as printed by `--collect-only` and at the start of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_ddpscale.plan.estimate import UNKNOWN, estimate, study_times
from pytest_ddpscale.plan.pairing import first_rounds
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.util.document import table, text_lines
from pytest_ddpscale.util.listing import count_text


def plan_lines(
    plan: Plan, requirements: int, *, isolate: bool, samples_per_s: Mapping[str, float] = UNKNOWN
) -> list[str]:
    """Studies, arms, estimated minutes and GPU-hours of a plan that decides so many requirements.

    With `isolate`, each study has a gang of its own; `samples_per_s` is the expected throughput per GPU, by workload.
    """
    whole = estimate(plan, isolate=isolate, samples_per_s=samples_per_s)
    device = "GPU" if plan.device_type == "cuda" else "core"
    where = f" in {plan.nodes} nodes" if plan.nodes > 1 else ""
    studies = "1 study" if len(plan.studies) == 1 else f"{len(plan.studies)} studies"
    if plan.probes is not None:
        studies += f" and {count_text(len(plan.probes.arms), 'probe')}"
    head = (
        f"ddpscale plan for {plan.sku}: {count_text(requirements, 'requirement')}, {studies}, "
        f"about {whole.seconds / 60:.1f} min on {count_text(plan.world_size, device)}{where} = "
        f"{whole.device_hours:.2f} {device}-hours (at most {whole.most_seconds / 60:.1f} min)"
    )
    rounds = {study.id: f"at most {study.rounds} rounds of {_arms_text(study)}" for study in plan.studies}
    if plan.probes is not None:
        names = ", ".join(probe.name for probe in plan.probes.arms)
        rounds[plan.probes.id] = f"at most {plan.probes.rounds} rounds of {names}"
    if plan.pairs is not None:
        rounds[plan.pairs.id] = f"at least {count_text(len(first_rounds(plan.nodes)), 'round')} of pairs of nodes"
    rows = []
    for name, time in study_times(plan, samples_per_s).items():
        if name in rounds:
            rows.append((f"  {name}", f"{time.seconds(time.usual) / 60:4.1f} min", rounds[name]))
    return [head, *text_lines(table(("", "", ""), rows))]


def shortened(lines: Sequence[str], most: int = 5) -> list[str]:
    """The first of `plan_lines` and the number of others, so that a run's output fits on a screen."""
    others = len(lines) - most
    return list(lines) if others <= 1 else [*lines[:most], f"  and {others} more (-v, or --collect-only)"]


def _arms_text(study: Study) -> str:
    """``alone, ddp@2 (batch 512)``; a batch stands after the last arm that has it."""
    following = [*(arm.batch_size for arm in study.arms[1:]), 0]
    arms = zip(study.arms, following, strict=True)
    return ", ".join(arm.name + f" (batch {arm.batch_size})" * (arm.batch_size != after) for arm, after in arms)
