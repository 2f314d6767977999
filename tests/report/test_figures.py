"""Figures show the values that verdicts have, and nothing that is not there."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report.figures.of_run import Figure, figures, write_pngs
from pytest_ddpscale.report.figures.step_bars import MOST_BARS
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.verdicts import Judgement
from tests.builders.culprits import gpu, node
from tests.builders.judged import evidence_of_plan
from tests.builders.judgements import (
    ACCEPTED,
    FAILED,
    HOSTILE,
    JUDGEMENT,
    MEASUREMENTS,
    PASSED,
    PLAN,
    RESNET,
    RUN,
    WARNED,
    hostile_judgement,
    judgement_with,
    make_measurements,
    make_plan,
    make_study,
)
from tests.builders.measurements import Measurement
from tests.builders.probes import pair_columns_of, with_columns
from tests.report.drawn import bounds, canvas_of, crosses, description, intervals, points, shaded, texts

EACH = Arm("each", 8, 512)
WEAK = replace(PLAN, studies=tuple(study for study in PLAN.studies if study.scaling == "weak"))


def drawn(
    measurements: list[Measurement], plan: Plan, judgement: Judgement = ACCEPTED, evidence: Evidence | None = None
) -> dict[str, Figure]:
    """By id; all pictures are XML without a number that is none."""
    evidence = evidence or evidence_of_plan(plan, measurements)
    found = {figure.id: figure for figure in figures(evidence, judgement, RUN)}
    for figure in found.values():
        for element in ET.fromstring(figure.svg or "<svg/>").iter():
            assert not re.search(r"nan|inf\b", " ".join(v for k, v in element.items() if k not in ("style", "class")))
    return found


def each_study(hosts: int = 1) -> tuple[Plan, list[Measurement]]:
    """All GPUs at once without DDP; GPU 3 of the last host is slower."""
    study = Study("weak", RESNET, (EACH,), 5, 1.0, 1.0)
    blocks = [
        Measurement(study.id, "each@8", number, 8 * host + i, i, f"n{host:04d}", f"GPU-{host}-{i}", 512, 2,
                    2 * (1.2 if (host, i) == (hosts - 1, 3) else 1.0), 1.7e9, (1.0, 1.0), energy_j=600.0)
        for number in range(2) for host in range(hosts) for i in range(8)
    ]  # fmt: skip
    return replace(make_plan(study), nodes=hosts, ranks_per_node=8), blocks


def pairs_evidence(pairs: list[tuple[int, int, int, float]]) -> Evidence:
    return with_columns(Evidence(make_plan(), Columns(), {}), pair_columns_of(pairs))


@pytest.fixture(scope="module")
def judged() -> dict[str, Figure]:
    return drawn(MEASUREMENTS, PLAN, JUDGEMENT)


def test_each_workload_has_a_panel_with_its_values_at_the_world_sizes() -> None:
    canvas = canvas_of(drawn(MEASUREMENTS, WEAK, judgement_with(PASSED))["weak-efficiency"])
    assert [axes.get_title(loc="left") for axes in canvas.axes] == ["resnet152-fp16", "vit-b16-bf16"]
    for axes in canvas.axes:
        assert [x for x, _ in points(axes)] == [2, 4, 8]
        assert {*axes.get_xticks()} == {2, 4, 8}
    assert points(canvas.axes[0])[-1] == pytest.approx((8, 97.4), abs=0.06)
    assert intervals(canvas.axes[0])[8] == pytest.approx((97.12, 97.71), abs=0.02)


def test_only_a_failure_is_crossed() -> None:
    charts = drawn(MEASUREMENTS, WEAK, judgement_with(PASSED, FAILED))
    assert [points(axes)[-1:] for axes in canvas_of(charts["weak-throughput"]).axes if crosses(axes)] == [
        crosses(axes) for axes in canvas_of(charts["weak-throughput"]).axes if crosses(axes)
    ]
    assert "misses its bound" in description(charts["weak-throughput"])
    assert "misses its bound" not in charts["weak-efficiency"].svg


def test_only_provisional_bounds_are_dotted() -> None:
    charts = drawn(MEASUREMENTS, PLAN, judgement_with(PASSED, WARNED))
    (weak,) = (found for axes in canvas_of(charts["weak-efficiency"]).axes if (found := bounds(axes)))
    assert [(size, dotted) for size, _, dotted in weak] == [(8, False)]
    (strong,) = (found for axes in canvas_of(charts["strong-speedup"]).axes if (found := bounds(axes)))
    assert strong == [(8, 6.5, True)]


def test_a_single_world_size_is_a_sentence() -> None:
    study = make_study("weak", RESNET, (1, 8))
    found = drawn(make_measurements(study, 1000.0, 0.05), make_plan(study))
    assert found["weak-throughput"].svg
    efficiency = found["weak-efficiency"]
    assert (efficiency.svg, efficiency.png) == ("", None)
    assert re.fullmatch(r"Only one world size: resnet152-fp16: [\d.]+ % on 8 GPUs\.", efficiency.caption)


@pytest.mark.parametrize("sizes", [(1,), (1, *(3 * k for k in range(1, 15)))])
def test_few_or_odd_world_sizes_and_a_single_round_are_shown(sizes: tuple[int, ...]) -> None:
    study = make_study("weak", RESNET, sizes)
    found = drawn(make_measurements(study, 1000.0, 0.05, 1), make_plan(study))
    assert ("weak-efficiency" in found, bool(found["weak-throughput"].svg)) == ((len(sizes) > 1,) * 2)


def test_an_endless_interval_and_an_undefined_one_stay_inside() -> None:
    for interval in ((0.0, math.inf), (math.nan, math.nan)):
        drawn(MEASUREMENTS, replace(WEAK, studies=WEAK.studies[:1]), judgement_with(replace(PASSED, interval=interval)))


def test_nothing_measured_draws_nothing(tmp_path: Path) -> None:
    assert drawn([], PLAN, JUDGEMENT) == {}
    assert write_pngs([], tmp_path / "plots") == []
    assert not (tmp_path / "plots").exists()


def test_each_picture_has_a_title_and_a_description_and_its_own_ids(judged: dict[str, Figure]) -> None:
    ids: list[str] = []
    for figure in judged.values():
        if figure.png:
            root = ET.fromstring(figure.svg)
            named = root.get("aria-labelledby", "").split()
            assert [one.get("id") for one in root[:2]] == named
            assert (root.get("role"), root[0].text) == ("img", figure.title)
            assert root[1].text
            ids += [one.get("id", "") for one in root.iter() if one.get("id")]
            assert set(re.findall(r"url\(#([^)]*)\)|href=\"#([^\"]*)\"", figure.svg)) <= {("", i) for i in ids} | {
                (i, "") for i in ids
            }
    assert len(ids) == len(set(ids)) > 12


def test_what_was_simulated_says_so_outside_of_the_axes_of_each_picture(judged: dict[str, Figure]) -> None:
    plan = replace(WEAK, studies=WEAK.studies[:1])
    for name, figure in drawn(MEASUREMENTS, plan, replace(ACCEPTED, simulated=True)).items():
        if figure.png:
            assert texts(figure).count(WATERMARK) == 1, name
            canvas = canvas_of(figure)
            mark = next(one for one in canvas.texts if one.get_text() == WATERMARK)
            lowest = mark.get_window_extent().y0 - 3
            assert all(axes.get_window_extent().y1 <= lowest for axes in canvas.axes), name
    assert not any(WATERMARK in figure.svg for figure in judged.values())


def test_every_picture_is_beside_the_page_and_both_are_the_same_each_time(
    judged: dict[str, Figure], tmp_path: Path
) -> None:
    written = write_pngs([*judged.values()], tmp_path / "new" / "plots")
    assert [path.stem for path in written] == [figure.id for figure in judged.values() if figure.png]
    assert {"weak-throughput", "weak-efficiency", "strong-speedup"} <= {path.stem for path in written}
    weak = drawn(MEASUREMENTS, WEAK, JUDGEMENT)["weak-efficiency"]
    assert weak.svg == judged["weak-efficiency"].svg
    assert weak.png is not None
    assert weak.png() == (tmp_path / "new" / "plots" / "weak-efficiency.png").read_bytes()


def test_a_users_settings_of_matplotlib_change_nothing() -> None:
    plan, blocks = each_study()
    plain = drawn(blocks, plan)["heat-map"].svg
    with matplotlib.rc_context({"font.family": "serif", "font.size": 20, "svg.fonttype": "path", "text.usetex": True}):
        assert drawn(blocks, plan)["heat-map"].svg == plain
    assert "font-family: 'DejaVu Sans'" in plain


def test_hostile_names_stay_text() -> None:
    names = [f"{prefix}{HOSTILE}測試" for prefix in ("", "_", "$x^2$", "\\")]
    studies = [make_study("weak", replace(RESNET, name=name), (1, 2)) for name in names]
    hostile = [
        replace(one, host=HOSTILE, utilization=0.5)
        for study in studies for one in make_measurements(study, 1000.0, 0.05)
    ]  # fmt: skip
    each_plan, blocks = each_study()
    on_hostile = [replace(one, host=HOSTILE) for one in blocks]
    found = {**drawn(hostile, make_plan(*studies), hostile_judgement()), **drawn(on_hostile, each_plan)}
    for figure in found.values():
        tags = {element.tag for element in ET.fromstring(figure.svg or "<svg/>").iter()}
        assert not {tag for tag in tags if "script" in tag}
        assert "\x1b" not in figure.svg
    assert "evil" in found["weak-throughput"].svg + found["activity"].svg
    assert any(text.startswith("$x^2$") for text in texts(found["weak-throughput"]))
    assert all(len(figure.png()) > 5_000 for figure in found.values() if figure.png)


def test_time_is_split_as_far_as_arms_tell() -> None:
    arms = (EACH, Arm("no_sync", 8, 512), Arm("ddp", 8, 512))
    study = Study("weak", RESNET, arms, 5, 1.0, 1.0)
    seconds = {"each@8": 0.5, "no_sync@8": 0.7, "ddp@8": 1.0}
    blocks = [
        Measurement(study.id, arm, 0, i, i, "n", f"GPU-{i}", 512, 1, s * (1.2 if i == 3 and arm == "each@8" else 1.0),
                    1.7e9)
        for arm, s in seconds.items() for i in range(8)
    ]  # fmt: skip
    bars = canvas_of(drawn(blocks, make_plan(study))["where-time-goes"]).axes[0].patches
    whole = sum(bar.get_width() for bar in bars)
    assert [bar.get_width() / whole for bar in bars] == pytest.approx([0.5, 0.1, 0.1, 0.3], abs=0.001)


def test_a_step_without_anything_to_compare_with_is_not_split() -> None:
    study = Study("strong", RESNET, (Arm("alone", 1, 256), Arm("ddp", 8, 32)), 5, 1.0, 1.0)
    assert "where-time-goes" not in drawn(make_measurements(study, 1000.0, 0.05), make_plan(study))


def test_the_slow_gpu_is_dark_and_outlined_if_it_is_at_fault() -> None:
    plan, blocks = each_study()
    figure = drawn(blocks, plan)["heat-map"]
    assert shaded(figure) == [2, 0, 0, 0, 1], "the seven typical ones are to the left and right of it"
    assert texts(figure).count("1.20") == 1
    assert "at fault" not in description(figure)
    culprit = gpu("n0000")
    blamed = judgement_with(replace(FAILED, culprits=(culprit, gpu("elsewhere"))))
    marked = drawn(blocks, plan, blamed)["heat-map"]
    assert "at fault and outlined: GPU 3 on n0000" in description(marked)
    assert sum(patch.get_linewidth() > 1 for patch in canvas_of(marked).axes[0].patches) == 1
    suspected = judgement_with(replace(FAILED, culprits=(replace(culprit, is_certain=False),)))
    assert drawn(blocks, plan, suspected)["heat-map"].svg == figure.svg


def test_nodes_come_by_number() -> None:
    plan, blocks = each_study(hosts=11)
    renamed = [replace(one, host=f"n{int(one.host[1:])}") for one in blocks]
    names = [text for text in texts(drawn(renamed, plan)["heat-map"]) if re.fullmatch(r"n\d+", text)]
    assert names == [f"n{i}" for i in range(11)]


def test_many_nodes_share_rows_and_the_worst_are_listed() -> None:
    plan, blocks = each_study(hosts=130)
    found = drawn(blocks, plan)
    assert shaded(found["heat-map"]) == [45, 0, 0, 0, 1], "44 rows, one of them in two parts"
    assert "n0003 + 2" not in texts(found["heat-map"])
    assert "n0012 + 2" in texts(found["heat-map"])
    assert len(found["heat-map"].svg) < 60_000
    rows = [["".join(cell.itertext()) for cell in row] for row in ET.fromstring(found["slowest-gpus"].svg).iter("tr")]
    assert (rows[1], len(rows)) == (["n0129", "3", "1.20×"], 51)


def test_the_slow_pair_is_dark_both_ways_and_its_node_outlined() -> None:
    pairs = [(0, a, b, 20.0) for a in range(4) for b in range(a)] + [(0, 0, 2, 5.0)] * 3
    figure = drawn([], PLAN, evidence=pairs_evidence(pairs))["pair-matrix"]
    assert shaded(figure)[1:] == [0, 0, 0, 2]
    assert texts(figure).count("5.00") == 2
    slow = replace(FAILED, metric="pair_bandwidth_gbps", culprits=(node("n2"),))
    marked = drawn([], PLAN, judgement_with(slow), pairs_evidence(pairs))["pair-matrix"]
    assert "at fault and outlined: n2" in description(marked)


def test_of_pairs_that_share_a_cell_the_slow_one_shows_and_is_listed_first() -> None:
    pairs = [(0, a, a + 1, gbps) for a, gbps in enumerate([20.0] * 4 + [5.0] + [20.0] * 124)]
    found = drawn([], PLAN, evidence=pairs_evidence(pairs))
    assert shaded(found["pair-matrix"])[4] == 1, "both are nodes of one row"
    rows = [["".join(cell.itertext()) for cell in row] for row in ET.fromstring(found["slowest-pairs"].svg).iter("tr")]
    assert (rows[1][:2], len(rows)) == (["n4", "n5"], 51)


def test_a_device_below_the_line_is_flagged() -> None:
    study = make_study("weak", RESNET, (1, 2))
    blocks = [replace(one, utilization=0.75 if one.rank else 0.95) for one in make_measurements(study, 1000.0, 0.05)]
    canvas = canvas_of(drawn(blocks, make_plan(study))["activity"])
    bold = [one.get_text() for one in canvas.texts if one.get_fontweight() == "bold" and one.get_visible()]
    assert bold[1] == "low: 75.0 %, weak ddp@2"


def test_only_some_devices_have_a_bar_the_least_busy_of_all() -> None:
    study = make_study("weak", RESNET, (1, 40))
    blocks = [
        replace(one, utilization=0.99 - 0.01 * one.rank) for one in make_measurements(study, 1000.0, 0.05)
    ]  # fmt: skip
    shown = texts(drawn(blocks, make_plan(study))["activity"])
    assert f"The {MOST_BARS} least busy of 40" in shown
    assert sum(text.startswith("GPU ") for text in shown) == MOST_BARS
    assert not any(text.startswith("GPU 0 ") for text in shown), "the busiest"


def _modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after running `code`."""
    code += "; import sys; print(*sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_reports_that_draw_nothing_import_no_library() -> None:
    modules = _modules_after("from pytest_ddpscale.report import text, terminal, junit")
    assert not modules & {"matplotlib", "torch", "pydantic", "yaml", "pytest"}


def test_a_page_without_figures_imports_no_matplotlib_and_drawing_leaves_pyplot_alone() -> None:
    imports = (
        "from pytest_ddpscale.report.figures.of_run import figures, write_pngs; "
        "from tests.report.written import page_of; import sys; "
        "assert 'matplotlib' not in sys.modules; from tests.builders.judged import evidence_of_plan; "
        "from tests.builders.judgements import MEASUREMENTS, PLAN, JUDGEMENT, RUN; "
        "page_of(JUDGEMENT, RUN, evidence_of_plan(PLAN, []), goes_on=True); "
        "assert 'matplotlib' not in sys.modules; "
    )
    modules = _modules_after(imports + "figures(evidence_of_plan(PLAN, MEASUREMENTS), JUDGEMENT, RUN)[0].png()")
    assert "matplotlib.figure" in modules
    assert "matplotlib.pyplot" not in modules
