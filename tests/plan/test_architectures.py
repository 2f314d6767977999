"""Which GPUs a torch build has code for."""

from __future__ import annotations

from pytest_ddpscale.plan.architectures import has_kernels, parse_capability
from tests.rows import rows


@rows(
    ("architectures", "capability", "expected"),
    [
        (["sm_70", "sm_80"], (7, 0), True),  # V100 on an old build
        (["sm_75", "sm_80", "sm_90"], (7, 0), False),  # V100 on a build that dropped it
        (["sm_80"], (8, 6), True),  # A6000 runs A100's binaries
        (["sm_86"], (8, 0), False),  # not the other way round
        (["sm_90", "compute_90"], (10, 0), True),  # B200 from PTX
        (["sm_90"], (10, 0), False),
        (["sm_90a", "sm_100", "sm_120"], (12, 0), True),
        (["sm_100f", "compute_120"], (10, 0), True),
        (["sm_100f"], (10, 3), True),  # B300 is of B200's family
        (["sm_100a"], (10, 3), False),
        (["sm_90a", "compute_90a"], (9, 0), True),
        (["sm_90a", "compute_90a"], (10, 0), False),  # such PTX is for Hopper alone
        (["compute_100f"], (12, 0), False),
    ],
)
def test_a_build_is_accepted_only_if_it_has_kernels_for_the_gpu(
    architectures: list[str], capability: tuple[int, int], expected: bool
) -> None:
    assert has_kernels(architectures, capability) is expected


def test_an_architecture_that_nobody_knows_counts_for_nothing() -> None:
    assert not has_kernels(["gfx942", "sm_", "", "sm_9x"], (9, 0))
    assert has_kernels(["gfx942", "sm_90"], (9, 0))


@rows(("text", "expected"), [("9.0", (9, 0)), ("12.1", (12, 1)), ("9", None), ("", None)])
def test_a_capability_is_read_from_its_text(text: str, expected: tuple[int, int] | None) -> None:
    assert parse_capability(text) == expected
