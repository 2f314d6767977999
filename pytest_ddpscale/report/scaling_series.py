"""The sizes of each study, for the tables of scaling."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.judge.rounds import merged
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.report.scaling_curves import EFFICIENCY, THROUGHPUT, place_notes, scaling_curve, usual_arms
from pytest_ddpscale.report.scaling_facts import MeasuredSize, energy_j_per_sample
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict


@dataclass(frozen=True)
class ScalingSeries:
    """One study and its sizes, ascending.

    Attributes:
        study: ``weak/resnet50-fp16``.
        unit: of the samples, ``img``.
        notes: at which nodes the values were measured.
    """

    study: str
    sizes: tuple[MeasuredSize, ...]
    unit: str
    notes: tuple[str, ...] = ()

    @property
    def has_one_gpu(self) -> bool:
        """Whether one GPU was measured; otherwise efficiency is relative to the smallest size."""
        return bool(self.sizes) and self.sizes[0].gpus == 1


def scaling_series(evidence: Evidence, verdicts: Sequence[Verdict]) -> list[ScalingSeries]:
    """A series for each study with a measured round, in the plan's order, with the numbers of `scaling_curve`."""
    device, found = "GPU" if evidence.plan.device_type == "cuda" else "rank", []
    for study in evidence.plan.of_launch(1).studies:
        throughput = scaling_curve(study, THROUGHPUT, evidence, verdicts)
        efficiency = scaling_curve(study, EFFICIENCY, evidence, verdicts)
        arms = {
            arm.world_size: arm for arm in usual_arms(study) if arm.world_size > 1 or arm.kind == throughput.one_gpu
        }
        sizes = tuple(
            MeasuredSize(gpus, gpus * value, _energy(study, arms.get(gpus), evidence), efficiency.values.get(gpus))
            for gpus, value in throughput.values.items()
        )
        if sizes:
            notes = place_notes([throughput, efficiency], device)
            if {"alone", "ddp"} <= {arm.kind for arm in usual_arms(study) if arm.world_size == 1}:
                notes.append(f"one {device} trained {'alone' if efficiency.one_gpu == 'alone' else 'under DDP'}")
            name, unit = f"{study.scaling}/{study.workload.name}", study.workload.family.unit
            found.append(ScalingSeries(name, sizes, unit, tuple(notes)))
    return found


def _energy(study: Study, arm: Arm | None, evidence: Evidence) -> float | None:
    """Joules per image over all nodes, the mean of the launches that measured the arm; None if unknown."""
    if arm is None:
        return None
    same = [one for one in evidence.plan.studies if (one.scaling, one.workload) == (study.scaling, study.workload)]
    rounds = [merged(evidence.columns, one.id, arm, evidence.plan.layout) for one in same]
    energies = [energy_j_per_sample(one) for one in rounds if len(one)]
    known = [energy for energy in energies if energy is not None]
    return statistics.fmean(known) if known and len(known) == len(energies) else None
