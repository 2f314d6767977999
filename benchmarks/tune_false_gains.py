"""How often `ddpscale tune` recommends a setting without effect, and finds one that gains.

    python benchmarks/tune_false_gains.py --runs 100

Each run is simulated: the settings tried by default on two ranks, blocks with 1 % of noise, and a deviation of each arm
in each launch that all its rounds share, such as one from memory placement. By that deviation the script prints how
many runs recommend a setting without effect, how many would by the first launch alone, and how many recommend a
setting that gains 5 or 10 %.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pytest_ddpscale.suites.tune import promising, tried_settings
from tests.suites.played_tune import PlayedTune

GAINING = "static_graph=True"


def main() -> None:
    """Print a line for each deviation between launches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    for launch_sd in (0.0, 0.01, 0.03):
        nothing = [PlayedTune(gains={}, seed=seed, launch_sd=launch_sd).measured() for seed in range(runs)]
        wrong = sum(any(row["is_recommended"] for row in tried_settings(run)) for run in nothing)
        at_first = sum(bool(promising(run)) for run in nothing)
        found = [_found(gain, launch_sd, runs) for gain in (1.05, 1.10)]
        print(
            f"launches {launch_sd:.0%} apart: {wrong} of {runs} runs recommend a setting without effect "
            f"({at_first} after one launch); 5 % gain found in {found[0]}, 10 % in {found[1]}",
            flush=True,
        )


def _found(gain: float, launch_sd: float, runs: int) -> int:
    played = (PlayedTune(gains={GAINING: gain}, seed=seed, launch_sd=launch_sd) for seed in range(runs))
    return sum(
        any(row["setting"] == GAINING and row["is_recommended"] for row in tried_settings(run.measured()))
        for run in played
    )


if __name__ == "__main__":
    main()
