"""Nodes that say of themselves what their SKU promises."""

from __future__ import annotations

import re

import pytest

from pytest_ddpscale.simulate.simulated_nodes import name_of_pattern
from tests.builders.clusters import thresholds


def test_every_packaged_sku_has_a_name_that_fits() -> None:
    for name in [n for n, sku in thresholds().thresholds.skus.items() if sku.detect.name]:
        pattern = thresholds().thresholds.skus[name].detect.name or ""
        assert re.fullmatch(pattern, name_of_pattern(pattern))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"^(?:NVIDIA )?L4\d$", "NVIDIA L40"),
        (r"^A\.1[0-9]$", "A.10"),
        (r"^((Tesla|Quadro) )?T4$", "Tesla T4"),
        (r"^A{2}$", ""),
        ("", ""),
    ],
)
def test_of_each_choice_the_first_is_taken_and_what_is_not_understood_has_no_name(pattern: str, name: str) -> None:
    assert name_of_pattern(pattern) == name
