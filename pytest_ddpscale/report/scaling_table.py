"""How training scales with GPUs, as a table: `ddpscale scaling`, and a section of report.html.

Every command imports this module, so heavy imports are inside functions.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Table, table, text_lines

if TYPE_CHECKING:
    from pytest_ddpscale.report.scaling_curves import ScalingSeries
    from pytest_ddpscale.report.scaling_facts import ScalingFact, SweetSpots, TrainingJob
    from pytest_ddpscale.run.evidence import Evidence
    from pytest_ddpscale.run.verdicts import Verdict

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

IMAGENET = 1.28e6  # images of one epoch
_MOST = 1e15
_ABSENT = "-"


def _headings(series: ScalingSeries) -> tuple[str, ...]:
    unit = f"{series.unit}/s"
    return unit, "speed-up", "efficiency", "serial", f"more {unit}", "gain", "time", "saved"


def scaling_tables(evidence: Evidence, verdicts: Sequence[Verdict]) -> list[tuple[str, Table, list[str]]]:
    """Each study with at least two sizes: a table for one epoch of ImageNet, and what follows for choosing a size."""
    from pytest_ddpscale.report.scaling_curves import scaling_series
    from pytest_ddpscale.report.scaling_facts import TrainingJob, scaling_facts, sweet_spots

    # A price of 1 makes the costs GPU-hours and kWh.
    job = TrainingJob(IMAGENET, gpu_hour_price=1.0, kwh_price=1.0)
    device = "GPU" if evidence.plan.device_type == "cuda" else "rank"
    found = []
    for series in scaling_series(evidence, verdicts):
        if len(series.sizes) > 1:
            facts = scaling_facts(series.sizes, job)
            remarks = [*_relative_to(series, device), *series.notes, *_spot_lines(sweet_spots(facts, None), device)]
            titles = (f"{device}s", *_headings(series), f"{device}-hours", "kWh")
            found.append((series.study, table(titles, map(_cells, facts), of_numbers=True), remarks))
    return found


def add_scaling(commands: Commands) -> None:
    """Add `ddpscale scaling`."""
    command = commands.add_parser("scaling", help="speed-up, time, cost and the sweet spot of measured GPU counts")
    command.set_defaults(run=_scaling)
    add = command.add_argument
    add("directory", type=Path, metavar="RUN_DIR")
    add("--format", choices=("text", "json"), default="text", help="default: %(default)s")
    add("--images", type=float, default=IMAGENET, metavar="N",
        help="to train; default: one epoch of ImageNet, 1.28e6")  # fmt: skip
    add("--fixed-s", type=float, default=0.0, metavar="S", help="seconds that more GPUs do not shorten; default: 0")
    add("--deadline", type=float, metavar="S", help="seconds within which the images have to be trained")
    add("--gpu-hour-price", type=float, metavar="PRICE", help="price of one GPU for an hour")
    add("--kwh-price", type=float, metavar="PRICE", help="price of a kWh, for the GPUs' energy if it was measured")


def _scaling(arguments: argparse.Namespace) -> None:
    """Print scaling facts of the measured sizes. Raises BadInput."""
    from dataclasses import asdict

    from pytest_ddpscale.report.scaling_facts import TrainingJob, scaling_facts, sweet_spots
    from pytest_ddpscale.run.run_json import WATERMARK
    from pytest_ddpscale.run.strict_json import strict_json

    for option in ("images", "fixed_s", "deadline", "gpu_hour_price", "kwh_price"):
        _refuse_nonsense(option, getattr(arguments, option))
    job = TrainingJob(arguments.images, arguments.fixed_s, arguments.gpu_hour_price, arguments.kwh_price)
    found, is_simulated = _series(arguments.directory)
    said: list[dict[str, Any]] = []
    lines = [WATERMARK] if is_simulated else []
    for series in found:
        facts = scaling_facts(series.sizes, job)
        spots = sweet_spots(facts, arguments.deadline)
        said.append(
            {"simulated": is_simulated, "study": series.study, "job": asdict(job), "notes": series.notes,
             "sizes": [asdict(fact) for fact in facts], "sweet_spots": asdict(spots)}
        )  # fmt: skip
        lines += _scaling_lines(series, facts, spots, job)
        if arguments.deadline is not None and spots.deadline is None:
            lines.append(f"  deadline of {arguments.deadline:g} s: met by no measured number of GPUs")
    print(strict_json(said) if arguments.format == "json" else "\n".join(lines))


def _refuse_nonsense(option: str, number: float | None) -> None:
    if number is None:
        return
    # There must be some images; above the maximum, results would not fit into tables or JSON.
    if not (math.isfinite(number) and 0 <= number <= _MOST and (number > 0 or option != "images")):
        expected = f"a number {'above 0' if option == 'images' else 'from 0 up'}, at most {_MOST:g}"
        raise OptionError(f"--{option.replace('_', '-')}", f"found {number:g}", expected)


def _series(directory: Path) -> tuple[list[ScalingSeries], bool]:
    """The measured sizes of a run, and whether it was simulated. Raises BadInput."""
    from pytest_ddpscale.report.scaling_curves import scaling_series
    from pytest_ddpscale.run.evidence import read_evidence
    from pytest_ddpscale.run.run_directory import RunDirectory
    from pytest_ddpscale.run.verdicts import read_judged

    run = RunDirectory.open(directory)
    evidence = read_evidence(run)
    verdicts = read_judged(run, run).verdicts if run.verdicts_json.exists() else ()
    found = scaling_series(evidence, verdicts)
    if not found:
        raise OptionError("RUN_DIR", f"{directory} has no complete round of training", "a run with training")
    return found, run.read_run().is_simulated(evidence.columns.devices)


def _scaling_lines(
    series: ScalingSeries, facts: Sequence[ScalingFact], spots: SweetSpots, job: TrainingJob
) -> Iterator[str]:
    yield f"{series.study}: {job.images:.4g} images and {job.fixed_s:g} s fixed"
    titles = "GPUs", *_headings(series), "GPU cost", "energy cost"
    sizes = text_lines(table(titles, map(_cells, facts), of_numbers=True, names=0))
    said = *_relative_to(series, "GPU"), *sizes, *series.notes, *_spot_lines(spots, "GPU")
    yield from (f"  {line}" for line in said)


def _cells(fact: ScalingFact) -> tuple[str, ...]:
    return (
        str(fact.gpus), f"{fact.samples_per_s:.0f}", f"{fact.speedup:.2f}x", percent(fact.efficiency, 1),
        _share(fact.serial_share), _ABSENT if fact.more_samples_per_s is None else f"{fact.more_samples_per_s:+.0f}",
        _share(fact.gain), f"{fact.train_s:.0f} s", _share(fact.saved_share), _cost(fact.gpu_cost),
        _cost(fact.energy_cost),
    )  # fmt: skip


def _share(value: float | None) -> str:
    return _ABSENT if value is None else percent(value, 1)


def _cost(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.2f}"


def _relative_to(series: ScalingSeries, device: str) -> Iterator[str]:
    if not series.has_one_gpu:
        yield f"one {device} was not measured: relative to {_counted(series.sizes[0].gpus, device)}"


def _spot_lines(spots: SweetSpots, device: str) -> Iterator[str]:
    from pytest_ddpscale.report.scaling_facts import SATURATED_GAIN

    named = (("deadline", spots.deadline), ("efficiency of 90 %", spots.efficiency),
             (f"{device}-hours", spots.gpu_cost), ("energy", spots.energy_cost))  # fmt: skip
    yield from (f"sweet spot for {aim}: {_counted(number, device)}" for aim, number in named if number is not None)
    if spots.saturation is not None:
        saves = f"a doubling saves less than {percent(SATURATED_GAIN)} of the time"
        yield f"saturated at {_counted(spots.saturation, device)}: {saves}"


def _counted(number: int, device: str) -> str:
    return f"{number} {device}{'' if number == 1 else 's'}"
