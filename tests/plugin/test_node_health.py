"""What a nightly check of a node selects, and what a choice of world sizes leaves of it."""

from __future__ import annotations

import pytest

from tests.plugin.site import REQUIREMENTS, Site, thresholds_text

MADE_UP = "provisional: made up for a test"
UNTRAINED = {
    "test_node_check[gpus]": "{check: gpus, severity: warn}",
    "test_matmul[matmul-fp16]": f"{{matmul_tflops: 1, probe: matmul-fp16, {MADE_UP}}}",
    "test_bus_bandwidth[all-reduce-32mib-4gpu]":
        f"{{busbw_gbps: {{4: 1}}, probe: all-reduce-32mib, {MADE_UP}}}",
    "test_no_regression[node]": f"{{no_regression: 0.9, {MADE_UP}}}",
}  # fmt: skip
UNIFORMITY = "test_rank_uniformity[resnet152-fp16-8gpu]"
RANK_UNIFORMITY = f"{{rank_uniformity: {{8: 1.1}}, of: resnet152-fp16, {MADE_UP}}}"


@pytest.fixture
def items(site: Site) -> Site:
    """A site that asks for everything."""
    lines = [*REQUIREMENTS.values(), *UNTRAINED.values(), RANK_UNIFORMITY]
    site.write("thresholds.yaml", thresholds_text(lines))
    return site


def selected(site: Site, *arguments: str) -> list[str]:
    result = site.run("--gpu-sku=tested", "--collect-only", "-q", *arguments)
    assert result.ret == pytest.ExitCode.OK
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def test_node_health_is_all_that_trains_little(items: Site) -> None:
    assert sorted(selected(items, "-m", "node_health")) == sorted([*UNTRAINED, UNIFORMITY])


def test_a_choice_of_world_sizes_keeps_what_is_found_out_of_nodes(items: Site) -> None:
    of_a_node = ["test_node_check[gpus]", "test_no_regression[node]"]
    of_eight = [name for name in REQUIREMENTS if "-8gpu" in name]
    assert sorted(selected(items, "--ddp-world-sizes=8")) == sorted([*of_a_node, *of_eight, UNIFORMITY])
    assert sorted(selected(items, "--ddp-world-sizes=4")) == sorted(
        [*of_a_node, "test_bus_bandwidth[all-reduce-32mib-4gpu]"]
    )
