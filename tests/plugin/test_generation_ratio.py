"""A ratio to another generation: both throughputs are shown."""

from __future__ import annotations

from tests.plugin.site import Site, output_of


def test_both_throughputs_and_their_sources_are_shown(site: Site) -> None:
    site.measured()
    result = site.judge("-k", "generation_ratio", "-v")
    result.assert_outcomes(passed=1)
    assert "1190 img/s per device here, 500 of reference-gpu" in " ".join(output_of(result).split())
    report = (site.path / "measured" / "report.html").read_text(encoding="utf-8")
    assert "500 of reference-gpu (a paper, table 1)" in report
