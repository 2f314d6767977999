"""Each setting is read from the command line, else the environment, else the ini file, and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import (
    OPTIONS,
    Option,
    Settings,
    refuse_unread_variables,
    settings_from,
)
from tests.approved import assert_approved
from tests.rows import rows

# Each option reads or refuses each of them.
TEXTS = (
    "", "site=Hall 1", "site=Hall 2", "auto", "x", "0", "1", "4", "8", "100", "101", "4096", "4097", "10000", "10001",
    "100000", "100001", "1" * 99, "+2", "\u0663", "-5", "1.5", "nan", "inf", "1e3", "0.49", "0.5", "0.95", "0.9999",
    "1.0", "5%", "0.001", "0.005s", "0.5s", "59s", "60s", "90s", "300s", "301s", "10m", "10 m", "11m", "10d", "1s\n",
    "\u0661s", "1.5h", "720h", "721h", "8, 2,4,2", "1,,2", "1;2", "1,-2", "2,1000000000000", "measure", "leave_out",
    "leave-out", "stop", "Stop", "on", "OFF", "maybe", "~/f", "~nobody-by-this-name/f", "a\0b", "@", "@hosts",
    "n1,n[2-4]", "docker exec -i {host}", "a 'exec", "-p gpu --comment='before launch'", "partition=gpu", "--nodes=3",
    "--exclusive -N3", "-p gpu --ntasks 4", "--ntasks-per-node=8", "--output=x", "-n4", "--export=ALL",
    "-p gpu -J mine", "-Jmine", "--x='a", " A , ,B_*,", "A B", "1A", "*", "A*B", "rack-2= B = 7 ", "=OPS-7",
    "ticket= ", "2nd=x", f"{'k' * 41}=x", "gpu --password hunter2", "--comment='token=hunter2",
    "--mem=0 --export=KEY=hunter2",
)  # fmt: skip
# Of each option two texts that it reads as different values are found among `TEXTS`.
RUN, OTHER = "runs/a", "runs/b"
TOGETHER: list[dict[str, Any]] = [
    {"ddp_resume": RUN, "ddp_judge": OTHER}, {"ddp_resume": RUN, "ddp_run_dir": OTHER}, {"ddp_rehearse": True},
    {"ddp_rehearse": True, "ddp_judge": RUN}, {"ddp_rehearse": True, "ddp_resume": RUN}, {"ddp_block": "301s"},
    {"ddp_block": "40s", "ddp_inactivity_limit": "60s"}, {"ddp_warm_up": "301s"}, {"ddp_note": ["a=1", "b=2", "a=3"]},
    {"ddp_note": ["a=1", ""]},
]  # fmt: skip


def read(
    options: dict[str, Any] | None = None, ini: dict[str, str] | None = None, environ: dict[str, str] | None = None
) -> Settings:
    return settings_from(options or {}, ini or {}, environ or {})


def told(attribute: str, **given: dict[str, Any]) -> str:
    """The value that is read, or the refusal."""
    try:
        return repr(getattr(read(**given), attribute))
    except OptionError as error:
        return f"{error}"


def texts_of(attribute: str) -> list[Any]:
    """Two texts of an option that are read as different values; on the command line a switch is on or off."""
    option, found = OPTIONS[attribute], dict[str, str]()
    if option.metavar is None:
        return ["on", "off"]
    for text in TEXTS:
        try:
            found.setdefault(repr(getattr(read(ini={option.name: text}), attribute)), text)
        except OptionError:
            continue
    return [*found.values()][1:3]


def typed(option: Option, text: str) -> dict[str, Any]:
    return {option.name: [text] if option.repeats else text == "on" if option.metavar is None else text}


def test_each_option_reads_and_refuses_what_was_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")

    def lines() -> Iterator[str]:
        for attribute, option in OPTIONS.items():
            yield f"\n{option.flag} {option.metavar} ({option.about}), alone {option.alone!r}: {option.help}"
            yield f"  not given: {told(attribute)}"
            found: dict[str, list[str]] = {}
            for text in TEXTS:
                said = told(attribute, ini={option.name: text})
                assert not (said.startswith("ini option ") and "hunter2" in said), "no refusal quotes a secret"
                found.setdefault(said.replace(repr(text), "TEXT"), []).append(repr(text))
            yield from (f"  {', '.join(texts)}\n      {said}" for said, texts in found.items())
        for option in OPTIONS.values():
            refuse_unread_variables({option.variable: ""})
            try:
                refuse_unread_variables({option.variable: "0"})
            except OptionError as error:
                yield str(error)

    assert_approved("options.txt", "\n".join(lines()) + "\n")


def test_options_that_exclude_each_other_are_refused_as_approved() -> None:
    measuring = [name for name, option in OPTIONS.items() if option.about == "measuring"]
    cases = TOGETHER + [{"ddp_judge": RUN} | typed(OPTIONS[one], texts_of(one)[0]) for one in measuring]
    printed = ""
    for case in cases:
        # A site's ini file serves measuring and judging runs alike.
        judged = {name: one for name, one in case.items() if name == "ddp_judge"}
        others = {name: one for name, one in case.items() if name not in judged}
        of_site = {name: "\n".join(one) if isinstance(one, list) else str(one) for name, one in others.items()}
        printed += f"{case}\n  typed: {told('judge', options=case)}\n  the other by the site: "
        printed += f"{told('judge', options=judged, ini=of_site)}\n"
        printed += f"  judging by the site: {told('judge', options=others, ini=judged)}\n"
    assert_approved("options-together.txt", printed)


@rows("attribute", OPTIONS)
def test_the_command_line_wins_over_the_environment_and_that_over_the_ini_file(attribute: str) -> None:
    option, (one, other) = OPTIONS[attribute], texts_of(attribute)
    name, variable = option.name, option.variable
    beside = {"ddp_judge": RUN} if attribute == "rehearse" else {}

    def of(options: dict[str, Any], text: str, environ: dict[str, str] | None = None) -> object:
        return getattr(read(beside | options, {name: text}, environ), attribute)

    first, second = of({}, one), of({}, other)
    assert first != second
    found = [of(given, one) for given in ({name: None}, {name: False})]
    found.append(of(typed(option, one), other if option.metavar else one, {variable: other}))
    assert found == [first] * 3
    assert of({}, other, {variable: one}) == (first if option.in_environment else second)
    assert read(beside, {name: ""}, {variable: ""}) == read(beside)
    if option.metavar:
        with pytest.raises(OptionError, match=f"^{option.flag}: found no value; expected {option.flag}="):
            read(typed(option, ""))


def test_the_environment_has_what_the_slurm_scripts_take_and_no_more() -> None:
    scripts = [path.read_text("utf-8") for path in (Path(__file__).parents[1] / "slurm").iterdir()]
    taken = set(re.findall(r"DDPSCALE_[A-Z_]+", "".join(scripts)))
    variables = {option.variable: option.in_environment for option in OPTIONS.values()}
    assert len(variables) == len(OPTIONS), "no two share a name"
    assert {one for one, is_read in variables.items() if is_read} == taken & variables.keys()
    refuse_unread_variables({f"DDPSCALE_{name}": "x" for name in ("SKU", "RUNS", "ARGS", "LAB", "HOST", "GANG")})
    refuse_unread_variables({name: "x" for name, is_read in variables.items() if is_read})
    with pytest.raises(OptionError, match="instead: runs on several days"):
        refuse_unread_variables({"DDPSCALE_LAUNCHES": "3"})
    refused = told("history", environ={"DDPSCALE_HISTORY": "~nobody-by-this-name/f"})
    assert refused.startswith("DDPSCALE_HISTORY: found '~nobody")


def test_a_given_sku_counts_and_notes_of_the_site_stay_beside_typed_ones_with_other_keys() -> None:
    of_site = "\nsite=Hall 1\n  \noperator=A. Name"
    found = read({"ddp_note": ["operator=B. Name", "ticket=OPS-7"]}, {"ddp_note": of_site, "gpu_sku": "auto"})
    assert [found.sku_was_given, read({"gpu_sku": "auto"}).sku_was_given, read().sku_was_given] == [True, True, False]
    assert found.note == (("site", "Hall 1"), ("operator", "B. Name"), ("ticket", "OPS-7"))


@given(st.sampled_from([name for name, option in OPTIONS.items() if option.metavar]), st.text(max_size=8))
def test_any_text_is_read_or_refused_in_words(attribute: str, text: str) -> None:
    option = OPTIONS[attribute]
    refused = found = f"{option.flag}: found "
    try:
        read(typed(option, text))
    except OptionError as error:
        refused = str(error)
    assert refused.startswith(found)
