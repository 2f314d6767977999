"""`ddpscale compare`, as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.run.verdicts import RunOutcome, Verdict
from tests.approved import assert_approved, masked
from tests.builders.nights import at, conclude, judged_run, verdict

Typed = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Exit code, output and errors, in the folder of the runs."""
    monkeypatch.chdir(tmp_path)
    return lambda words: (main(["compare", *words.split()]), *capsys.readouterr())


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


def test_exit_codes_and_answers(tmp_path: Path, typed: Typed) -> None:
    """Of nights of one node, which reach that pace; some were judged by other requirements."""
    measured, gone = verdict(), verdict(id="throughput_per_gpu[gone]")
    lost, error = (
        verdict(how, value=None, interval=None, id=gone.id, reason="a rank died") for how in ("not_measured", "error")
    )
    runs: Mapping[str, tuple[float, Sequence[Verdict]]] = {
        "first": (100.0, ()), "at-90": (90.0, ()), "at-97": (97.0, ()), "rejected": (99.0, ()), "simulated": (99.0, ()),
        "other": (99.0, [verdict(id="throughput_per_gpu[x]")]), "before": (100.0, [measured, gone]),
        "after": (100.1, [measured]), "unmeasured": (100.2, [measured, lost]), "error": (100.3, [measured, error]),
        "never": (100.4, [measured, lost]),
    }  # fmt: skip
    for night, (name, (pace, verdicts)) in enumerate(runs.items()):
        outcome: RunOutcome = "rejected" if name == "rejected" else "accepted"
        about = {"status": name} if name == "simulated" else {}
        run = judged_run(tmp_path / name, night, {"n1": [pace] * 2}, outcome=outcome, record=about)
        if verdicts:
            conclude(run, "accepted" if all(verdict.passed for verdict in verdicts) else "incomplete", at(0), *verdicts)
    told = list[str]()
    for words in COMMANDS:
        code, said, errors = typed(words)
        told += [f"{words}: {code}", *(f"  {line}" for line in (said.partition("\n\n")[0] + errors).splitlines())]
    assert_approved("compare-answers.txt", masked("\n".join(told), tmp_path))


def test_a_comparison_begins_with_the_answer_and_what_else_changed(tmp_path: Path, typed: Typed) -> None:
    of_nights = (("a", "2.14.0", "580.1", "n1", 100.0), ("b", "2.15.0", "590.2", "n2", 90.0))
    for night, (name, torch, driver, place, value) in enumerate(of_nights):
        run, ends = judged_run(tmp_path / name, night, versions={"torch": torch}, driver=driver), (value - 1, value + 1)
        conclude(
            run, "incomplete", at(0),
            verdict(id="t[better]", value=200 - value, interval=(199 - value, 201 - value)),
            verdict(place=place, value=value, interval=ends),
            verdict(place=place, id="step[alike]"),
            verdict(id="t[places]", metric="probe_uniformity"),  # whose values are compared by themselves
            verdict("not_measured", value=None, interval=None, id="t[neither]", reason="not asked"),
            verdict(id=f"t[of {name}]"),
            verdict("inconclusive", value=90.0, interval=None if name == "b" else ends, id="t[few]", reason="few"),
        )  # fmt: skip
    assert_approved("compare.txt", masked(typed("a b")[1], tmp_path))
    code, said, _ = typed("a b --format=json --fail-below=0.05")
    told = json.loads(said)
    slower = told["requirements"][1]
    assert (code, told["worse"], told["lost"]) == (1, [slower["id"]], ["t[few]", "t[of a]"])
    assert (slower["difference"], slower["change"]["size"]) == ("worse", pytest.approx(-0.1))
