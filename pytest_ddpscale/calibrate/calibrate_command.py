"""`ddpscale calibrate`. Every command imports this module, so heavy imports are inside functions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import read_value, share_between
from pytest_ddpscale.util.command_parser import Commands
from pytest_ddpscale.util.packaged import usual_thresholds

_LARGEST_RATE = 0.2
_LEAST_SHARE = 1e-6


def add_calibrate(commands: Commands) -> None:
    """Add `ddpscale calibrate`."""
    command = commands.add_parser(
        "calibrate", help="derive a site's own bounds from runs of trusted nodes, for its thresholds overlay"
    )
    add = command.add_argument
    add("directories", type=Path, nargs="+", metavar="RUN_DIR",
        help="runs of trusted nodes: at least 3 nodes, 2 runs of each, one driver, torch and NCCL")  # fmt: skip
    add(
        "--thresholds",
        type=Path,
        metavar="FILE",
        help="default: thresholds.yaml here, else the packaged one",
    )
    add("--false-reject-rate", default="1%", metavar="P",
        help="highest chance that a healthy node fails its whole run; default: 1%%")  # fmt: skip
    add("--max-excluded", default="25%", metavar="P",
        help="largest share of nodes that may be left out as outliers; default: 25%%")  # fmt: skip
    add("--lower", action="store_true", help="also replace published bounds by weaker ones")
    add("--write", type=Path, metavar="NEW.yaml",
        help="show and write a new thresholds file with the bounds, which extends --thresholds; an existing file is "
             "never changed")  # fmt: skip
    add("--json", action="store_true", help="print everything as JSON, with every UUID")
    add("--allow-simulated", action="store_true", help="calibrate from simulated runs: a marked rehearsal")
    command.set_defaults(run=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> None:
    """Print the calibration, and write it with --write. Raises BadInput."""
    from pytest_ddpscale.calibrate.calibration import calibrate
    from pytest_ddpscale.calibrate.site_bounds import calibration_json, calibration_lines, overlay_of, provenance_of
    from pytest_ddpscale.calibrate.trusted_runs import read_trusted_run, refuse_unlike_runs
    from pytest_ddpscale.run.strict_json import strict_json
    from pytest_ddpscale.thresholds.loading import load_thresholds
    from pytest_ddpscale.thresholds.site_file import refuse_unwritable, write_overlay

    rate = read_value("--false-reject-rate", arguments.false_reject_rate, share_between(_LEAST_SHARE, _LARGEST_RATE))
    most_excluded = read_value("--max-excluded", arguments.max_excluded, share_between(_LEAST_SHARE, 0.5))
    file = load_thresholds(arguments.thresholds or usual_thresholds())
    if arguments.write is not None:
        refuse_unwritable(arguments.write, file)
    runs = [read_trusted_run(directory) for directory in arguments.directories]
    refuse_unlike_runs(runs, simulated_too=arguments.allow_simulated)
    sku = file.sku_name(runs[0].record.sku, runs[0].path)
    calibration = calibrate(file, sku, runs, rate, most_excluded, lowers=arguments.lower)
    provenance = provenance_of(calibration, runs)
    overlay = overlay_of(calibration, provenance, file)
    if arguments.json:
        print(strict_json(calibration_json(calibration, provenance, overlay.section["requirements"])))
    else:
        print("\n".join(calibration_lines(calibration, provenance)))
    if not calibration.calibrated and arguments.write is not None:
        raise OptionError("--write", "nothing could be calibrated", "a requirement with a new bound")
    if calibration.calibrated:
        text = overlay.text(Path()) if arguments.write is None else write_overlay(arguments.write, overlay)
        if not arguments.json:
            hint = " (--write NEW.yaml writes it)" if arguments.write is None else ""
            print(f"\nThe new file{hint}:\n\n{text}", end="")
    if arguments.write is not None:
        print(f"Wrote {arguments.write}. Next: ddpscale thresholds check {arguments.write}", file=sys.stderr)
