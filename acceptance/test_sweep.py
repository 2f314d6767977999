"""All collectives over message sizes, beside what is required; only with `-m collectives`: it takes some minutes."""

import pytest

from pytest_ddpscale.plugin.sweep_fixture import CollectiveSweep


@pytest.mark.collectives
def test_collectives(collective_sweep: CollectiveSweep) -> None:
    """Every collective gives right results at every size, and keeps the bounds that are known."""
    collective_sweep.check()
