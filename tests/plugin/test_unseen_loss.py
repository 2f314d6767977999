"""The remark on a common loss that no bound sees: once in each report, and it decides nothing."""

from __future__ import annotations

import re

import pytest

from tests.plugin.site import REQUIREMENTS, Site, outcome_line, output_of, thresholds_text

ROW = "{throughput_per_gpu: {1: 1130}, of: resnet152-fp16, published: paper, margin: 0 %, sound: 2000}"
LEAD = "no bound close to a published training speed of this GPU: a loss of all devices alike "
UP_TO_44 = f"{LEAD}up to 44 % is not seen in training; "
WHATEVER = f"{LEAD}is not rejected in training, whatever its size; "
HEADING = "Not tested"


def asked(site: Site, row: str) -> None:
    rows = [line for item, line in REQUIREMENTS.items() if "throughput" not in item and "generation" not in item]
    site.write("thresholds.yaml", thresholds_text([*rows, row]))
    site.measured()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ROW, UP_TO_44),
        ("{throughput_per_gpu: {1: 1130}, of: resnet152-fp16, provisional: an estimate}", WHATEVER),
    ],
    ids=["another GPU's speed", "an estimate"],
)
def test_it_is_said_once_in_each_report_and_decides_nothing(site: Site, row: str, said: str) -> None:
    asked(site, row)
    result = site.judge("-v")
    assert outcome_line(result).startswith("ACCEPTED: 7 of 7 requirements passed")
    said += "calibrate (`ddpscale calibrate`)"
    assert " ".join(output_of(result).split()).count(f"note: {said}") == 1
    assert site.verdicts()["notes"].count(said) == 1
    run = site.path / "measured"
    html = re.sub("</?code>", "`", (run / "report.html").read_text("utf-8"))
    pages = (html, (run / "report.md").read_text("utf-8").replace("\\`", "`"))
    for page in pages:
        _, _, after = page.partition(HEADING)
        assert page.count(said) == after.count(said) == 1, "where it stands what a pass does not cover"
    first_page = pages[0].partition("</section>")[0]
    assert said in first_page
    brief = output_of(site.judge(run="measured"))
    assert " ".join(brief.split()).count(f"note: {said}") == 1
    assert "All devices alike slow" not in brief


SOUND = ROW.replace(", sound: 2000", "")
OWN = "{throughput_per_gpu: {1: 1180}, of: resnet152-fp16, published: our-runs, margin: 4 %}"
OVERLAY = f"""\
schema_version: 2
extends: thresholds.yaml
sources: {{our-runs: our 40 nodes}}
skus:
  tested-gpu:
    requirements: [{OWN}]
"""


@pytest.mark.parametrize(("row", "own"), [(SOUND, ""), (ROW, OVERLAY)], ids=["the GPU's own speed", "the site's bound"])
def test_it_is_not_said_where_a_bound_would_see_the_loss(site: Site, row: str, own: str) -> None:
    asked(site, row)
    site.write("own.yaml", own or "schema_version: 2\nextends: thresholds.yaml\n")
    assert outcome_line(site.judge("--thresholds=own.yaml")).startswith("ACCEPTED: ")
    assert not any("calibrate" in note for note in site.verdicts()["notes"])
