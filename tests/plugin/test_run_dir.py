"""--ddp-run-dir: where everything goes, and that nothing there is ever lost."""

from __future__ import annotations

import pytest

from tests.plugin.site import Site, assert_no_crash, assert_refused, contents, output_of


def test_a_file_in_the_way_is_refused_before_anything_is_measured(site: Site) -> None:
    file = site.write("precious.txt", "in the way")
    result = site.run("--gpu-sku=cpu", "--ddp-world-sizes=1", "--ddp-run-dir=precious.txt/run")
    assert_refused(result, "ERROR: precious.txt/run: cannot be written", "expected a writable directory")
    assert file.read_text(encoding="utf-8") == "in the way"


def test_a_directory_that_holds_a_run_is_refused_before_anything_is_measured(site: Site) -> None:
    run = site.measured()
    before = contents(run.path)
    result = site.run("--gpu-sku=cpu", "--ddp-world-sizes=1", "--ddp-run-dir=measured")
    assert_refused(
        result, "ERROR: measured: already holds a run; expected a new or empty directory", "--ddp-judge=measured"
    )
    assert contents(run.path) == before


class TestJudging:
    def test_verdicts_go_where_they_are_wanted_and_the_run_stays_as_it_is(self, site: Site) -> None:
        run = site.measured()
        before = contents(run.path)
        result = site.judge("--ddp-run-dir=opinions/second")
        assert result.ret == pytest.ExitCode.OK
        assert site.outcome("opinions/second") == "accepted"
        assert "report: opinions/second/report.html" in result.outlines
        assert contents(run.path) == before

    def test_a_directory_that_holds_a_run_is_refused(self, site: Site) -> None:
        run = site.measured()
        before = contents(run.path)
        assert_refused(site.judge("--ddp-run-dir=measured"), "measured: already holds a run")
        assert contents(run.path) == before

    def test_verdicts_are_not_overwritten(self, site: Site) -> None:
        site.measured()
        assert site.judge("--ddp-run-dir=opinion").ret == pytest.ExitCode.OK
        before = contents(site.path / "opinion")
        assert_refused(
            site.judge("--ddp-run-dir=opinion"), "opinion: already holds verdicts", "a new or empty directory"
        )
        assert contents(site.path / "opinion") == before

    def test_a_file_in_the_way_of_one_report_costs_only_that_one(self, site: Site) -> None:
        run = site.measured()
        (run.path / "plots").write_text("in the way", encoding="utf-8")
        result = site.judge()
        assert_no_crash(result)
        assert result.ret == pytest.ExitCode.TESTS_FAILED, "a report that is not there must not go unnoticed"
        assert "plots could not be written: " in output_of(result)
        assert site.outcome() == "accepted"
        assert (run.path / "report.md").is_file()
