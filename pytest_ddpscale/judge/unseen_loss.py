"""A loss of training speed that all devices share and no bound rejects.

Peers see no common loss. A bound on training speed does, from the smallest fault of its row on
(`Requirement.smallest_fault`), if it rejects. Whether it lies close to what a sound GPU reaches is known from the
thresholds file alone, whatever was measured.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_ddpscale.plan.metric_catalogue import GENERATION_RATIO, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.verdicts import CALIBRATE
from pytest_ddpscale.thresholds.cases import AnyCase, Case, training_cases
from pytest_ddpscale.util.digits import percent

LARGEST_UNREMARKED = 0.1
# Newer software makes a GPU faster than it was published, but hardly by more.
_LARGEST_OVER_PUBLISHED = 1.25


def remark_on_unseen_loss(device_type: DeviceType, required: Iterable[AnyCase], selected: Iterable[AnyCase]) -> str:
    """The remark, in a sentence without a full stop.

    Args:
        device_type: of the SKU; the bounds of a CPU, which no site opens for training, need no remark.
        required: all requirements of the SKU on these nodes.
        selected: those that the run judges.

    Returns:
        Empty if a published bound that rejects, packaged or the site's own, sees a common loss of `LARGEST_UNREMARKED`
        of the speed, and for a run that judges no training.
    """
    if device_type == "cpu" or not any(map(_judges_training, training_cases(selected))):
        return ""
    speeds = [case for case in training_cases(required) if _is_rejecting_speed(case)]
    published = [case for case in speeds if not case.requirement.provisional]
    found = [case.requirement.smallest_fault for case in published]
    if any(fault is not None and round(fault, 6) <= LARGEST_UNREMARKED for fault in found):
        return ""
    faults = [one for case in speeds if (one := case.requirement.smallest_fault) is not None]
    if faults:
        unseen = f"a loss of all devices alike up to {percent(min(faults))} is not seen in training"
    elif speeds:
        unseen = "how large a loss of all devices alike has to be to be seen in training is not known"
    else:
        unseen = "a loss of all devices alike is not rejected in training, whatever its size"
    # Where a sound GPU is far faster than published, as another model was, this is not the GPU's own speed.
    is_its_own = any(_over_published(case) <= _LARGEST_OVER_PUBLISHED for case in published)
    lead = "no bound close to the published" if is_its_own else "no published"
    return f"{lead} training speed of this GPU: {unseen}; {CALIBRATE}"


def _over_published(case: Case) -> float:
    sound, measured = case.requirement.sound_value, case.requirement.source.measured
    return sound / measured if sound is not None and measured else 1.0


def _judges_training(case: Case) -> bool:
    """Whether it judges how a workload trains: more than that ranks are alike, as a nightly check does."""
    definition = case.requirement.definition
    return not (definition.compares_results or definition.reads_own_pace or definition.measured == "infer")


def _is_rejecting_speed(case: Case) -> bool:
    requirement = case.requirement
    is_speed = requirement.definition in (THROUGHPUT_PER_GPU, GENERATION_RATIO)
    return is_speed and requirement.severity == "fail" and not case.missing
