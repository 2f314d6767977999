"""Ctrl-C while tests are collected, pytest without its terminal, and a past that is broken."""

from __future__ import annotations

import json

import pytest

from tests.plugin.site import Site, assert_refused, contents, output_of

INTERRUPTING = """
import pytest

def pytest_{hook}:
    if isinstance(collector, pytest.Module):
        raise {what}
"""


@pytest.mark.parametrize(
    ("what", "hook"),
    [
        ("KeyboardInterrupt", "collectstart(collector)"),
        ("KeyboardInterrupt", "pycollect_makeitem(collector, name, obj)"),
        ("pytest.exit.Exception('enough', 2)", "collectstart(collector)"),
    ],
)
def test_ctrl_c_during_collection_is_exit_2_and_leaves_no_run(site: Site, what: str, hook: str) -> None:
    site.write("acceptance/conftest.py", INTERRUPTING.format(what=what, hook=hook))
    result = site.run("--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-run-dir=run")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "ERROR" not in output_of(result)
    assert not (site.path / "run").exists()


def test_without_a_terminal_a_run_is_judged_all_the_same(site: Site) -> None:
    site.measured()
    result = site.judge("-p", "no:terminal")
    assert result.ret == pytest.ExitCode.OK
    assert site.outcome("measured") == "accepted"
    assert "INTERNALERROR" not in output_of(result)


def test_a_broken_baseline_is_refused_before_anything_is_judged(site: Site) -> None:
    run = site.measured()
    run.baseline_json.write_text("[" * 100_000, encoding="utf-8")
    before = contents(run.path)
    assert_refused(site.judge(), "measured/baseline.json: ")
    assert contents(run.path) == before


def test_a_sound_baseline_is_no_obstacle(site: Site) -> None:
    sound = {"schema_version": 1, "sku": "tested-gpu", "before": "", "past": [], "versions": {}, "places": []}
    site.measured().baseline_json.write_text(json.dumps(sound), encoding="utf-8")
    assert site.judge().ret == pytest.ExitCode.OK
