"""Which versions of torch were tried, and which wheel has code for a GPU."""

from __future__ import annotations

from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from pytest_ddpscale.plan.torch_versions import NEWEST_TRIED, OLDEST_TRIED, wheel_for, why_untried
from tests.rows import rows

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "torch-versions.md"


@rows("version", ["2.6.0+cu124", "2.6.1", "2.11.0", "2.15.0+cu132", "2.15.1a0+git12"])
def test_versions_that_were_tried_and_those_between_are_nothing_to_tell(version: str) -> None:
    assert why_untried(version) == ""


@rows("version", ["2.5.1", "2.16.0", "3.0.0+cu140", "1.13.1", "unknown"])
def test_other_versions_are_told_with_those_that_were_tried(version: str) -> None:
    assert why_untried(version) == f"torch {version} has not been tested with this package; 2.6 to 2.15 have"


def test_the_oldest_version_that_can_be_installed_was_tried() -> None:
    (torch,) = [one for one in map(Requirement, requires("pytest-ddpscale") or ()) if one.name == "torch"]
    assert str(torch.specifier) == f">={OLDEST_TRIED[0]}.{OLDEST_TRIED[1]}"


@rows("tried", [OLDEST_TRIED, NEWEST_TRIED])
def test_the_evidence_has_what_was_tried(tried: tuple[int, int]) -> None:
    assert f"| {tried[0]}.{tried[1]}.0+cu" in EVIDENCE.read_text(encoding="utf-8")


@rows(
    ("capability", "words"),
    [
        ((7, 0), "the last wheel with code for it is torch 2.14 of CUDA 12.6 (cu126)"),
        ((8, 0), "wheels from torch 2.6 to torch 2.15 of CUDA 13.2 (cu132) have code for it"),
        ((12, 0), "wheels from torch 2.7 of CUDA 12.8 (cu128) to torch 2.15 of CUDA 13.2 (cu132) have code for it"),
    ],
)
def test_the_last_wheel_of_each_generation_is_named(capability: tuple[int, int], words: str) -> None:
    assert wheel_for(capability) == words
