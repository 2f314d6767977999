"""How often `ddpscale tune` recommends a setting without effect, and finds one that gains: docs/evidence/README.md.

    python benchmarks/tune_false_gains.py --runs 100

Each run is simulated: the settings tried by default on two ranks, blocks with 1 % of noise, and a deviation of each arm
in each launch that all its rounds share, such as one from memory placement. By that deviation the script prints how
many runs recommend a setting without effect, how many would by the first launch alone, and how many recommend a
setting that gains 5 or 10 %.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reporting import arguments, row, table

sys.path.insert(0, str(Path(__file__).parents[1]))

from pytest_ddpscale.suites.tune import promising, tried_settings
from tests.suites.played_tune import PlayedTune

GAINING = "static_graph=True"


def main() -> None:
    """Print a line for each deviation between launches."""
    seeds = range(arguments(__doc__, runs=(100, "of each kind")).runs)
    print(table(("launches differ by", "recommend nothing's gain", "after one launch", "find 5 %", "find 10 %"), ()))
    for launch_sd in (0.0, 0.01, 0.03):
        nothing = [PlayedTune(gains={}, seed=seed, launch_sd=launch_sd).measured() for seed in seeds]
        counts = [sum(any(one["is_recommended"] for one in tried_settings(run)) for run in nothing)]
        counts.append(sum(bool(promising(run)) for run in nothing))
        for gain in (1.05, 1.10):
            runs = (PlayedTune(gains={GAINING: gain}, seed=seed, launch_sd=launch_sd).measured() for seed in seeds)
            found = ([one["setting"] for one in tried_settings(run) if one["is_recommended"]] for run in runs)
            counts.append(sum(GAINING in names for names in found))
        print(row(f"{launch_sd:.0%}", *counts), flush=True)


if __name__ == "__main__":
    main()
