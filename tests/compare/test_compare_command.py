"""`ddpscale compare`, as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import RunOutcome, Verdict
from tests.approved import assert_approved, masked
from tests.builders.json_types import run_record
from tests.builders.nights import at, conclude, judged_run, run_json, verdict

Typed = Callable[[str], tuple[int, str, str]]
GONE = "throughput_per_gpu[gone]"


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Exit code, output and errors, in the folder of the runs."""
    monkeypatch.chdir(tmp_path)
    return lambda words: (main(["compare", *words.split()]), *capsys.readouterr())


def write_verdicts(path: Path, *verdicts: Verdict) -> None:
    outcome: RunOutcome = "accepted" if all(one.passed for one in verdicts) else "incomplete"
    conclude(RunDirectory.open(path), outcome, at(0), *verdicts)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Nights of one node, which reach that pace; the last ones were judged by another requirement, too."""
    paces = {"first": 100.0, "at-90": 90.0, "at-97": 97.0, "rejected": 99.0, "simulated": 99.0, "other": 99.0}
    paces |= {"before": 100.0, "after": 100.1, "unmeasured": 100.2, "error": 100.3, "never": 100.4}
    for night, (name, pace) in enumerate(paces.items()):
        outcome: RunOutcome = "rejected" if name == "rejected" else "accepted"
        run = judged_run(tmp_path / name, night, {"n1": [pace] * 2}, outcome=outcome)
        if name == "simulated":
            run.write_json(run.run_json, run_record(run_json(night), simulated=True))
            conclude(run, outcome, at(night))
    write_verdicts(tmp_path / "other", verdict(id="throughput_per_gpu[x]"))
    write_verdicts(tmp_path / "after", verdict())
    write_verdicts(tmp_path / "before", verdict(), verdict(id=GONE))
    for name, how in (("unmeasured", "not_measured"), ("error", "error"), ("never", "not_measured")):
        write_verdicts(
            tmp_path / name, verdict(), verdict(how, value=None, interval=None, id=GONE, reason="a rank died")
        )
    return tmp_path


COMMANDS = (
    *(f"first {other} --fail-below=5%" for other in ("at-90", "at-97", "rejected", "simulated")),
    *(f"first at-90 --fail-below={share}" for share in ("5percent", "-1%", "100%", "nan")),
    "first at-90 --allow-missing",
    "first",
    "first at-90 at-97",
    "first other",
    # A requirement that vanished, or could not be measured now, fails the gate, if there is one, unless it is allowed.
    "before after --fail-below=5%",
    "before after --fail-below=5% --allow-missing",
    "before after",
    "after before --fail-below=5%",
    "before unmeasured --fail-below=5%",
    "before error --fail-below=5%",
    "never unmeasured --fail-below=5%",
)


def test_exit_codes_and_answers(runs: Path, typed: Typed) -> None:
    def lines() -> Iterator[str]:
        for words in COMMANDS:
            code, said, errors = typed(words)
            yield f"{words}: {code}"
            yield from (f"  {line}" for line in (said.partition("\n\n")[0] + errors).splitlines())

    assert_approved("compare-answers.txt", masked("\n".join(lines()), runs))


def test_a_comparison_begins_with_the_answer_and_what_else_changed(tmp_path: Path, typed: Typed) -> None:
    of_nights = (("a", "2.14.0", "580.1", "n1", 100.0), ("b", "2.15.0", "590.2", "n2", 90.0))
    for night, (name, torch, driver, place, value) in enumerate(of_nights):
        judged_run(tmp_path / name, night, versions={"torch": torch}, driver=driver)
        ends = value - 1, value + 1
        slower, alike = (verdict(place=place, value=value, interval=ends), verdict(place=place, id="step[alike]"))
        faster = verdict(id="t[better]", value=200 - value, interval=(199 - value, 201 - value))
        of_places = verdict(id="t[places]", metric="probe_uniformity")  # whose values are compared by themselves
        unmeasured = verdict("not_measured", value=None, interval=None, id="t[neither]", reason="not asked")
        one_sided = verdict(id=f"t[of {name}]")
        open_ = verdict("inconclusive", value=90.0, interval=None if name == "b" else ends, id="t[few]", reason="few")
        write_verdicts(tmp_path / name, faster, slower, alike, of_places, unmeasured, one_sided, open_)
    assert_approved("compare.txt", masked(typed("a b")[1], tmp_path))
    code, said, _ = typed("a b --format=json --fail-below=0.05")
    told = json.loads(said)
    slower_ = told["requirements"][1]
    assert (code, told["worse"], told["lost"]) == (1, [slower_["id"]], ["t[few]", "t[of a]"])
    assert (slower_["difference"], slower_["change"]["size"]) == ("worse", pytest.approx(-0.1))
