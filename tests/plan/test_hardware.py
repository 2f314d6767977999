"""Patterns for names of devices end; torch builds with code for a GPU, and the versions that were tried."""

from __future__ import annotations

import time
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from pytest_ddpscale.plan.hardware import (
    LONGEST_NAME,
    NEWEST_TRIED,
    OLDEST_TRIED,
    has_kernels,
    is_named,
    wheel_for,
    why_no_name_pattern,
    why_untried,
)
from tests.rows import rows


@rows(
    ("pattern", "complaint"),
    [
        ("A100", "is not anchored"),
        ("^" + "A" * 200 + "$", "has 202 characters; expected at most 120"),
        ("^(a+)+$", "repeats a group"),
        ("^(a|aa)*$", "repeats a group"),
        ("^(?:a*)*$", "repeats a group"),
        ("^((a)*){9}$", "repeats a group"),
        ("^.*.*.*.*.*.*x$", "may take for ever to match; expected at most 2 of *, + and {}"),
        ("^a{0,9}a{0,9}a{0,9}$", "may take for ever to match"),
        ("^" + "a?" * 40 + "$", "expected at most 10 of ? and |"),
        ("^" + "(a|a)" * 20 + "$", "expected at most 10 of ? and |"),
        ("^(?=a)a$", "has a group that begins with (?"),
        ("^(?P<n>a)$", "has a group that begins with (?"),
        ("^x{99999999999999}$", "is not a regular expression: the repetition number is too large"),
        ("^[[a]$", "is not a regular expression: Possible nested set"),
        ("^(A100$", "is not a regular expression: missing )"),
        ("^\\1$", "is not a regular expression: invalid group reference"),
        ("^a**$", "is not a regular expression: multiple repeat"),
    ],
)
def test_a_pattern_that_might_never_end_or_is_none_is_refused(pattern: str, complaint: str) -> None:
    assert complaint in why_no_name_pattern(pattern)


@rows(
    ("pattern", "name", "expected"),
    [
        ("^(NVIDIA )?A100(-PCIE-80GB| 80GB PCIe)$", "NVIDIA A100 80GB PCIe", True),
        ("^(NVIDIA )?A100(-PCIE-80GB| 80GB PCIe)$", "NVIDIA A100 80GB PCIe2", False),
        ("^(?:NVIDIA )?A[A-Z0-9?*+|]+.*$", "NVIDIA A100", True),
        (r"^A\(1\)\?\|\+\*$", "A(1)?|+*", True),
        ("^A.*$", "A" * LONGEST_NAME, True),
        ("^A.*$", "A" * (LONGEST_NAME + 1), False),
        ("^A100$", "A100\n", False),
    ],
)
def test_a_usual_pattern_matches_whole_names(pattern: str, name: str, expected: bool) -> None:
    assert why_no_name_pattern(pattern) == ""
    assert is_named(name, pattern) is expected


@rows(
    "pattern",
    [
        "^.*.*" + "a?" * 10 + "b$",
        "^a*a*(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)b$",
        "^a{0,96}a{0,96}(((((((((a?)?)?)?)?)?)?)?)?)?b$",
        "^(a|a)?(a|a)?(a|a)?(a|a)?(a|a)?.*.*b$",
    ],
)
def test_the_slowest_patterns_that_are_allowed_end(pattern: str) -> None:
    assert why_no_name_pattern(pattern) == ""
    began = time.process_time()
    assert not is_named("a" * LONGEST_NAME, pattern)
    assert time.process_time() - began < 2


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


EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "slurm-lab.md"


@rows("version", ["2.9.0+cu128", "2.9.1", "2.11.0", "2.15.0+cu132", "2.15.1a0+git12"])
def test_versions_that_were_tried_and_those_between_are_nothing_to_tell(version: str) -> None:
    assert why_untried(version) == ""


@rows("version", ["2.8.1", "2.16.0", "3.0.0+cu140", "1.13.1", "unknown"])
def test_other_versions_are_told_with_those_that_were_tried(version: str) -> None:
    assert why_untried(version) == f"torch {version} has not been tested with this package; 2.9 to 2.15 have"


def test_the_oldest_version_that_can_be_installed_was_tried() -> None:
    (torch,) = [one for one in map(Requirement, requires("pytest-ddpscale") or ()) if one.name == "torch"]
    assert str(torch.specifier) == f">={OLDEST_TRIED[0]}.{OLDEST_TRIED[1]}"


@rows("tried", [OLDEST_TRIED, NEWEST_TRIED])
def test_the_evidence_has_what_was_tried(tried: tuple[int, int]) -> None:
    assert f"| {tried[0]}.{tried[1]}.0+cu" in EVIDENCE.read_text(encoding="utf-8")


@rows(
    ("capability", "words"),
    [
        ((7, 0), "wheels of CUDA 12.6 (cu126) from torch 2.9 to torch 2.14 have code for it"),
        ((8, 0), "wheels from torch 2.9 to torch 2.15 of CUDA 13.2 (cu132) have code for it"),
        ((12, 0), "wheels from torch 2.9 of CUDA 12.8 (cu128) to torch 2.15 of CUDA 13.2 (cu132) have code for it"),
    ],
)
def test_the_wheels_of_each_generation_are_named(capability: tuple[int, int], words: str) -> None:
    assert wheel_for(capability) == words
