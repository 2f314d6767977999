"""All collectives over message sizes, beyond what is required; only with `-m collectives`, as it takes minutes."""

import pytest

from pytest_ddpscale.plugin.sweep_fixture import CollectiveSweep


@pytest.mark.collectives
def test_collectives(collective_sweep: CollectiveSweep) -> None:
    """Every collective gives correct results at every size and meets its bounds, where known."""
    collective_sweep.check()
