"""`ddpscale forecast` and `ddpscale scaling`.

Every command imports this module, so heavy imports are inside functions.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import read_value, world_sizes

if TYPE_CHECKING:
    from pytest_ddpscale.forecast.measured_sizes import ScalingSeries
    from pytest_ddpscale.forecast.scaling_facts import ScalingFact, SweetSpots, TrainingJob
    from pytest_ddpscale.forecast.scaling_model import Forecast

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


_MOST = 1e15


def add_forecast(commands: Commands) -> None:
    """Add `ddpscale forecast`."""
    command = _add(commands, "forecast", _forecast, "forecast throughput at GPU counts that were not measured")
    command.add_argument("--gpus", required=True, metavar="64,512", help="GPU counts to forecast")


def add_scaling(commands: Commands) -> None:
    """Add `ddpscale scaling`."""
    command = _add(commands, "scaling", _scaling, "speed-up, time, cost and the sweet spot of measured GPU counts")
    add = command.add_argument
    add("--images", type=float, default=1.28e6, metavar="N", help="to train; default: one epoch of ImageNet, 1.28e6")
    add("--fixed-s", type=float, default=0.0, metavar="S", help="seconds that more GPUs do not shorten; default: 0")
    add("--deadline", type=float, metavar="S", help="seconds within which the images have to be trained")
    add("--gpu-hour-price", type=float, metavar="PRICE", help="price of one GPU for an hour")
    add("--kwh-price", type=float, metavar="PRICE", help="price of a kWh, for the GPUs' energy if it was measured")


def _add(commands: Commands, name: str, run: Callable[[argparse.Namespace], None], says: str) -> Any:
    command = commands.add_parser(name, help=says)
    command.add_argument("directory", type=Path, metavar="RUN_DIR")
    command.add_argument("--format", choices=("text", "json"), default="text", help="default: %(default)s")
    command.set_defaults(run=run)
    return command


def _series(directory: Path) -> tuple[list[ScalingSeries], bool]:
    """The measured sizes of a run, and whether it was simulated. Raises BadInput."""
    from pytest_ddpscale.evidence.evidence import read_evidence
    from pytest_ddpscale.forecast.measured_sizes import scaling_series
    from pytest_ddpscale.results.run_directory import RunDirectory

    run = RunDirectory.open(directory)
    evidence = read_evidence(run)
    found = scaling_series(evidence)
    if not found:
        raise OptionError("RUN_DIR", f"{directory} has no complete round of training", "a run with training")
    return found, run.read_run().is_simulated(evidence.columns.devices)


def _print(said: Sequence[dict[str, Any]], lines: Iterable[str], form: str, *, is_simulated: bool) -> None:
    """Print all studies as JSON or as lines, with a mark if they were simulated."""
    from pytest_ddpscale.results.run_json import WATERMARK
    from pytest_ddpscale.results.strict_json import strict_json

    if form == "json":
        print(strict_json([{"simulated": is_simulated, **one} for one in said]))
        return
    for line in (*([WATERMARK] if is_simulated else []), *lines):
        print(line)


def _forecast(arguments: argparse.Namespace) -> None:
    """Print the forecasts. Raises BadInput if there is none."""
    from dataclasses import asdict

    asked = read_value("--gpus", arguments.gpus, world_sizes)
    series, is_simulated = _series(arguments.directory)
    found = [(one, *_forecasts(one, asked)) for one in series]
    if not any(forecasts for _, forecasts, _ in found):
        raise next(refusal for *_, refusal in found if refusal is not None)
    said = [
        {**asdict(one), "forecasts": [asdict(f) for f in forecasts], "refused": refusal and str(refusal)}
        for one, forecasts, refusal in found
    ]
    lines = [line for one in found for line in _forecast_lines(*one)]
    _print(said, lines, arguments.format, is_simulated=is_simulated)


def _forecasts(series: ScalingSeries, asked: Sequence[int]) -> tuple[list[Forecast], OptionError | None]:
    """Forecasts of ascending sizes up to the first that is refused, as larger ones would be too, and the refusal."""
    from pytest_ddpscale.forecast.scaling_model import ScalingModel

    forecasts: list[Forecast] = []
    try:
        model = ScalingModel(series)
        for gpus in asked:
            forecasts.append(model.forecast(gpus))  # noqa: PERF401 - keep those before a refusal
    except OptionError as refusal:
        return forecasts, refusal
    return forecasts, None


def _forecast_lines(series: ScalingSeries, forecasts: Sequence[Forecast], refusal: OptionError | None) -> list[str]:
    of = "one GPU" if series.has_one_gpu else f"{series.sizes[0].gpus} GPUs, the fewest measured"
    largest = series.sizes[-1].gpus
    sizes = ", ".join(str(one.gpus) for one in series.sizes)
    lines = [f"{series.scaling}/{series.workload}: measured at {sizes} {_gpus(largest)}; efficiency relative to {of}"]
    rows = [("GPUs", "img/s", "95 % interval", "efficiency", "95 % interval", "")]
    for one in forecasts:
        rates = "" if one.interval is None else "{:.0f} to {:.0f}".format(*one.interval)
        shares = "" if one.efficiency_interval is None else "{:.1%} to {:.1%}".format(*one.efficiency_interval)
        rows.append(
            (str(one.gpus), f"{one.img_per_s:.0f}", rates, f"{one.efficiency:.1%}", shares, _reach(one, largest))
        )
    if forecasts:
        lines += _table(rows)
    return lines if refusal is None else [*lines, f"  no forecast: {refusal}"]


def _reach(forecast: Forecast, largest: int) -> str:
    if forecast.interval is None:
        return "measured"
    if forecast.gpus <= largest:
        return "interpolated"
    return f"{forecast.times_largest:g}x the largest measured"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, with columns as wide as their widest cell, including the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]


def _gpus(number: int) -> str:
    return "GPU" if number == 1 else "GPUs"


def _scaling(arguments: argparse.Namespace) -> None:
    """Print scaling facts of the measured sizes. Raises BadInput."""
    from dataclasses import asdict

    from pytest_ddpscale.forecast.scaling_facts import TrainingJob, scaling_facts, sweet_spots

    for option in ("images", "fixed_s", "deadline", "gpu_hour_price", "kwh_price"):
        _refuse_nonsense(option, getattr(arguments, option))
    job = TrainingJob(arguments.images, arguments.fixed_s, arguments.gpu_hour_price, arguments.kwh_price)
    series, is_simulated = _series(arguments.directory)
    said: list[dict[str, Any]] = []
    lines: list[str] = []
    for one in series:
        facts = scaling_facts(one.sizes, job)
        spots = sweet_spots(facts, arguments.deadline)
        said.append(
            {"study": f"{one.scaling}/{one.workload}", "job": asdict(job), "sizes": [asdict(fact) for fact in facts],
             "sweet_spots": asdict(spots)}
        )  # fmt: skip
        lines += _scaling_lines(one, facts, spots, job)
        if arguments.deadline is not None and spots.deadline is None:
            lines.append(f"  deadline of {arguments.deadline:g} s: met by no measured number of GPUs")
    _print(said, lines, arguments.format, is_simulated=is_simulated)


def _refuse_nonsense(option: str, number: float | None) -> None:
    if number is None:
        return
    # There must be some images; above the maximum, results would not fit into tables or JSON.
    if not (math.isfinite(number) and 0 <= number <= _MOST and (number > 0 or option != "images")):
        expected = f"a number {'above 0' if option == 'images' else 'from 0 up'}, at most {_MOST:g}"
        raise OptionError(f"--{option.replace('_', '-')}", f"found {number:g}", expected)


def _scaling_lines(
    series: ScalingSeries, facts: Sequence[ScalingFact], spots: SweetSpots, job: TrainingJob
) -> list[str]:
    from pytest_ddpscale.forecast.scaling_facts import SATURATED_GAIN

    lines = [f"{series.scaling}/{series.workload}: {job.images:.4g} images and {job.fixed_s:g} s fixed"]
    if not series.has_one_gpu:
        lines.append(f"  one GPU was not measured: relative to {series.sizes[0].gpus} GPUs")
    heads = ("GPUs", "img/s", "speed-up", "efficiency", "serial", "more img/s", "gain", "time", "saved", "GPU cost",
             "energy cost")  # fmt: skip
    rows = [heads]
    rows += [
        (
            str(one.gpus), f"{one.img_per_s:.0f}", f"{one.speedup:.2f}x", f"{one.efficiency:.1%}",
            _share(one.serial_share), _more(one.more_img_per_s), _share(one.gain), f"{one.train_s:.0f} s",
            _share(one.saved_share), _price(one.gpu_cost), _price(one.energy_cost),
        ) for one in facts
    ]  # fmt: skip
    lines += _table(rows)
    named = (("deadline", spots.deadline), ("efficiency of 90 %", spots.efficiency), ("GPU-hours", spots.gpu_cost),
             ("energy", spots.energy_cost))  # fmt: skip
    lines += [f"  sweet spot for {aim}: {gpus} {_gpus(gpus)}" for aim, gpus in named if gpus is not None]
    if (last := spots.saturation) is not None:
        lines.append(
            f"  saturated at {last} {_gpus(last)}: a doubling saves less than {SATURATED_GAIN:.0%} of the time"
        )
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _more(img_per_s: float | None) -> str:
    return "-" if img_per_s is None else f"{img_per_s:+.0f}"


def _price(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
