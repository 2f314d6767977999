"""Each setting is read from the command line, else the environment, else the ini file, and checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.settings import OPTIONS, Option, Settings, refuse_unread_variables, settings_from

BY_NAME = {option.name: option for option in OPTIONS.values()}
# Two values of each option, and the attribute they are read into.
VALUES: dict[str, tuple[str, str, str, Any, Any]] = {
    "gpu_sku": ("gpu_sku", "b200", "v100", "b200", "v100"),
    "thresholds": ("thresholds", "a.yaml", "b.yaml", Path("a.yaml"), Path("b.yaml")),
    "ddp_run_dir": ("run_dir", "runs/a", "runs/b", Path("runs/a"), Path("runs/b")),
    "ddp_judge": ("judge", "runs/a", "runs/b", Path("runs/a"), Path("runs/b")),
    "ddp_resume": ("resume", "runs/a", "runs/b", Path("runs/a"), Path("runs/b")),
    "ddp_launcher": ("launcher", "slurm", "torchrun", "slurm", "torchrun"),
    "ddp_hosts": ("hosts", "n1,n[2-8]", "@b.txt", "n1,n[2-8]", Path("b.txt")),
    "ddp_exec": (
        "exec",
        "docker exec -i {host}",
        "rsh '{host} a'",
        ("docker", "exec", "-i", "{host}"),
        ("rsh", "{host} a"),
    ),
    "ddp_remote_python": ("remote_python", "python3", "/opt/bin/python", "python3", "/opt/bin/python"),
    "ddp_nodes": ("nodes", "2", "16", 2, 16),
    "ddp_slurm_args": ("slurm_args", "-p gpu --mem=0", "--exclusive", ("-p", "gpu", "--mem=0"), ("--exclusive",)),
    "ddp_container": ("container", "a.sif", "pyxis:b", "a.sif", "pyxis:b"),
    "ddp_pass_env": ("pass_env", "MY_SITE,UCX_*", "_X", ("MY_SITE", "UCX_*"), ("_X",)),
    "ddp_gpus_per_node": ("gpus_per_node", "4", "8", 4, 8),
    "ddp_world_sizes": ("world_sizes", "1,2", "4", (1, 2), (4,)),
    "ddp_budget": ("budget_s", "10m", "90s", 600.0, 90.0),
    "ddp_inactivity_limit": ("inactivity_limit_s", "2m", "1h", 120.0, 3600.0),
    "ddp_unfit": ("unfit", "leave-out", "stop", "leave-out", "stop"),
    "ddp_history": ("history", "site/a.sqlite", "b.sqlite", Path("site/a.sqlite"), Path("b.sqlite")),
    "ddp_confidence": ("confidence", "0.9", "0.99", 0.9, 0.99),
    "ddp_rounds": ("rounds", "8", "20", 8, 20),
    "ddp_block": ("block_s", "1.5s", "3", 1.5, 3.0),
    "ddp_warm_up": ("warm_up_s", "0", "2m", 0.0, 120.0),
    "ddp_profile": ("profile_steps", "1", "100", 1, 100),
}
MEASURING = (
    "ddp_launcher", "ddp_nodes", "ddp_gpus_per_node", "ddp_slurm_args", "ddp_container",
    "ddp_pass_env", "ddp_budget", "ddp_inactivity_limit", "ddp_unfit", "ddp_rounds", "ddp_block",
    "ddp_warm_up",
    "ddp_hosts", "ddp_exec", "ddp_remote_python",
    "ddp_profile", "ddp_nvtx",
)  # fmt: skip
SWITCHES = {"ddp_allow_incomplete": "allow_incomplete", "ddp_nvtx": "nvtx"}


def read(
    options: dict[str, Any] | None = None, environ: dict[str, str] | None = None, ini: dict[str, str] | None = None
) -> Settings:
    return settings_from(options or {}, ini or {}, environ or {})


def refusal(name: str, text: str) -> OptionError:
    """The error for a value on the command line."""
    with pytest.raises(OptionError) as raised:
        read({name: text})
    return raised.value


@pytest.mark.parametrize("text", ["gpu --password hunter2", "--comment='token=hunter2", "--export=KEY=hunter2"])
def test_a_refusal_quotes_no_secret(text: str) -> None:
    assert "hunter2" not in str(refusal("ddp_slurm_args", text))


def test_nothing_asked_for() -> None:
    assert read() == Settings(
        gpu_sku="auto", sku_was_given=False, thresholds=None, run_dir=None, judge=None, resume=None,
        launcher="auto", hosts=None, exec=(), remote_python=None,
        nodes=None, slurm_args=(), container=None, pass_env=(),
        gpus_per_node=None, world_sizes=None, budget_s=None, inactivity_limit_s=600.0,
        unfit="measure", history=None,
        confidence=0.95, rounds=None, block_s=None, warm_up_s=None,
        allow_incomplete=False, profile_steps=None, nvtx=False,
    )  # fmt: skip


def test_every_option_is_tested_here() -> None:
    assert set(VALUES) | set(SWITCHES) | {"ddp_note", "ddp_rehearse"} == set(BY_NAME)
    assert {option.name for option in OPTIONS.values() if option.about == "measuring"} == set(MEASURING)


IN_ENVIRONMENT = {option.name for option in OPTIONS.values() if option.in_environment}


@pytest.mark.parametrize(
    ("flag", "name", "variable"),
    [
        ("--gpu-sku", "gpu_sku", "DDPSCALE_GPU_SKU"),
        ("--thresholds", "thresholds", "DDPSCALE_THRESHOLDS"),
        ("--ddp-run-dir", "ddp_run_dir", "DDPSCALE_RUN_DIR"),
    ],
)
def test_the_names_of_an_option(flag: str, name: str, variable: str) -> None:
    option = Option(flag, "X", str, "", "", "judging")
    assert (option.name, option.variable) == (name, variable)


def test_no_two_options_share_a_name() -> None:
    assert len({option.variable for option in OPTIONS.values()}) == len(BY_NAME) == len(OPTIONS)


def test_the_environment_has_what_the_slurm_scripts_take_and_no_more() -> None:
    scripts = [path.read_text("utf-8") for path in (Path(__file__).parents[1] / "slurm").iterdir()]
    taken = set(re.findall(r"DDPSCALE_[A-Z_]+", "".join(scripts)))
    assert {BY_NAME[name].variable for name in IN_ENVIRONMENT} == taken & {one.variable for one in BY_NAME.values()}
    assert {"thresholds", "ddp_history"} == IN_ENVIRONMENT


@pytest.mark.parametrize("name", sorted(VALUES))
def test_the_command_line_wins_over_the_environment_and_that_over_the_ini_file(name: str) -> None:
    attribute, one, other, one_read, other_read = VALUES[name]
    variable = BY_NAME[name].variable
    found = [
        read({name: one}, {variable: other}, {name: other}),
        read({name: None}, {variable: one}, {name: other}),
        read({}, {}, {name: one}),
    ]
    second = one_read if name in IN_ENVIRONMENT else other_read
    assert [getattr(settings, attribute) for settings in found] == [one_read, second, one_read]


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - IN_ENVIRONMENT))
def test_a_variable_that_is_not_read_is_refused_with_what_to_write(name: str) -> None:
    option = BY_NAME[name]
    refuse_unread_variables({option.variable: ""})
    with pytest.raises(OptionError) as raised:
        refuse_unread_variables({option.variable: "0"})
    assert str(raised.value).startswith(
        f"{option.variable}: is set, but not read from the environment; expected {option.flag}"
    )
    assert f"or {name} in the ini file. Unset {option.variable}." in str(raised.value)


@pytest.mark.parametrize("where", [{"options": {"ddp_launches": "3"}}, {"ini": {"ddp_launches": "3"}}])
def test_a_removed_option_is_refused_with_what_to_use_instead(where: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"ddp.launches: was removed; expected instead: runs on several days"):
        read(**where)


def test_a_variable_of_a_former_option_is_refused_too() -> None:
    with pytest.raises(OptionError, match=r"^DDPSCALE_LAUNCHES: .* expected instead: runs on several days"):
        refuse_unread_variables({"DDPSCALE_LAUNCHES": "3"})


def test_other_variables_are_left_alone() -> None:
    others = "THRESHOLDS", "HISTORY", "SKU", "RUNS", "ARGS", "LAB", "HOST", "GANG", "NOBODY"
    refuse_unread_variables({f"DDPSCALE_{name}": "x" for name in others})


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_a_switch_may_be_set_anywhere_and_unset_in_the_ini_file(name: str) -> None:
    attribute = SWITCHES[name]
    found = [read({name: True}), read({name: False}, {}, {name: "On"}), read({name: False}, {}, {name: "off"})]
    assert [getattr(settings, attribute) for settings in found] == [True, True, False]


def test_a_rehearsal_needs_a_run_to_judge() -> None:
    assert read({"ddp_rehearse": True, "ddp_judge": "run"}).rehearse
    assert not read({}, {}, {"ddp_rehearse": "off"}).rehearse
    assert read({"ddp_resume": "run"}, {}, {"ddp_rehearse": "on"}).resume == Path("run")
    with pytest.raises(OptionError, match=r"ddp.rehearse: found without --ddp-judge; expected --ddp-judge=RUN_DIR"):
        read({"ddp_rehearse": True})


@pytest.mark.parametrize("name", sorted(VALUES))
def test_an_empty_variable_or_ini_key_asks_for_nothing(name: str) -> None:
    assert read({}, {BY_NAME[name].variable: ""}, {name: ""}) == read()


@pytest.mark.parametrize("name", sorted(VALUES))
def test_an_empty_value_on_the_command_line_is_refused(name: str) -> None:
    flag, metavar = BY_NAME[name].flag, BY_NAME[name].metavar
    assert str(refusal(name, "")) == f"{flag}: found no value; expected {flag}={metavar}."


@pytest.mark.parametrize("given", [{"gpu_sku": "auto"}, {"gpu_sku": "cpu"}])
def test_whether_a_sku_was_given_counts_auto(given: dict[str, str]) -> None:
    assert read(given).sku_was_given
    assert read({}, {}, given).sku_was_given


def test_a_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert read({"ddp_run_dir": "~/run"}).run_dir == Path("/home/me/run")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("0.5s", 0.5), ("10m", 600.0), ("1.5h", 5400.0)]
)
def test_times_are_seconds_minutes_or_hours(text: str, seconds: float) -> None:
    assert read({"ddp_budget": text}).budget_s == seconds


def test_notes_have_keys_of_the_users_own_and_one_a_line_in_the_ini_file() -> None:
    notes = (("operator", "A. Name"), ("rack-2", "B = 7"))
    assert read({"ddp_note": ["operator=A. Name", "rack-2= B = 7 "]}).note == notes
    assert read({}, {}, {"ddp_note": "\noperator=A. Name\n  \nrack-2=B = 7"}).note == notes
    of_site = "site=Hall 1\noperator=A. Name"
    typed = read({"ddp_note": ["operator=B. Name", "ticket=OPS-7"]}, {}, {"ddp_note": of_site}).note
    assert typed == (("site", "Hall 1"), ("operator", "B. Name"), ("ticket", "OPS-7")), "typed ones win by key"


@pytest.mark.parametrize(
    "text", ["ticket", "=OPS-7", "ticket=", "ticket= ", "2nd=x", "my ticket=OPS-7", "k" * 41 + "=x"]
)
def test_a_note_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        read({"ddp_note": ["site=Hall 1", text]})
    expected = "KEY=VALUE such as ticket=OPS-7, the key a word of letters, digits, _ and -"
    assert str(raised.value) == f"--ddp-note: found {text!r}; expected {expected}."


def test_a_note_is_given_once() -> None:
    with pytest.raises(OptionError, match=r"^--ddp-note: found site twice; expected each key once\.$"):
        read({"ddp_note": ["site=Hall 1", "ticket=OPS-7", "site=Hall 2"]})
    with pytest.raises(OptionError, match=r"^--ddp-note: found no value; expected --ddp-note=KEY=VALUE\.$"):
        read({"ddp_note": ["site=Hall 1", ""]})


def test_world_sizes_are_sorted_and_counted_once() -> None:
    assert read({"ddp_world_sizes": "8, 2,4,2"}).world_sizes == (2, 4, 8)


@pytest.mark.parametrize(
    ("name", "texts", "expected"),
    [
        ("ddp_exec", ["docker 'exec"], "a command, quoted as in a shell (No closing quotation)"),
        ("ddp_unfit", ["leave_out", "Stop", "drain", " "], "one of measure, leave-out, stop"),
        ("ddp_nodes", ["0", "-2", "all", "1.5", "100001", "1" * 99, "\u0663"], "a whole number from 1 to 100000"),
        ("ddp_slurm_args", ["gpu", "partition=gpu", "a -b"], "arguments of srun, such as --partition=gpu --exclusive"),
        (
            "ddp_slurm_args",
            [
                "--nodes=3",
                "--exclusive -N3",
                "-p gpu --ntasks 4",
                "--ntasks-per-node=8",
                "--output=x",
                "-n4",
                "--export=ALL",
                "--job-name=mine",
                "-p gpu -J mine",
                "-Jmine",
            ],
            "none of --nodes (use --ddp-nodes), --ntasks, --export, --input, --output, --error and --job-name (the "
            "plugin finds leftover job steps by a name of its own)",
        ),
        ("ddp_slurm_args", ["--x='a"], "arguments of srun, quoted as in a shell (No closing quotation)"),
        (
            "ddp_pass_env",
            ["A B", "1A", "A=1", "*", "A,B-C", "A*B"],
            "names of environment variables such as MY_SITE,UCX_*",
        ),
        ("ddp_gpus_per_node", ["0", "-1", "2.0", "two", "+2", " ", "4097"], "a whole number from 1 to 4096"),
        ("ddp_rounds", ["0", "-5", "many", "10001"], "a whole number from 1 to 10000"),
        ("ddp_rounds", ["1", "4"], f"at least {FEWEST_ROUNDS} rounds: fewer cannot decide a requirement"),
        (
            "ddp_world_sizes",
            ["0", "1,,2", "1;2", "1,-2", ",", "1,2,", "x", "2,1000000000000"],
            "world sizes such as 1,2,4, from 1 to 1000000",
        ),
        ("ddp_budget", ["721h", "999999999h", "2592001"], "at most 720h"),
        ("ddp_budget", ["9" * 150, "1s\n", "\u0661s"], "a time such as 90s, 10m or 1h"),
        ("ddp_block", ["0.001", "11m"], "a time from 0.01s to 600s"),
        ("ddp_warm_up", ["59s", "11m"], "0, or a time from 60s to 600s"),
        ("ddp_warm_up", ["301s"], "at most half of the 600 s after which inactive ranks are ended"),
        ("ddp_block", ["301s"], "at most half of the 600 s after which inactive ranks are ended"),
        ("thresholds", ["a\0b"], "a path without a null character"),
        ("ddp_budget", ["0", "0s", "-1m", "10 m", "10d", "m", "1e3", "nan", "inf"], "a time such as 90s, 10m or 1h"),
        ("ddp_inactivity_limit", ["0", "soon"], "a time such as 90s, 10m or 1h"),
        ("ddp_block", ["0.0s", "3 s"], "a time such as 90s, 10m or 1h"),
        ("ddp_hosts", ["@"], "hosts such as n1,n[2-4], or a file of hosts such as @FILE"),
        ("ddp_hosts", ["@~nobody-by-this-name/hosts"], "a path of an existing user"),
        ("thresholds", ["~nobody-by-this-name/a.yaml"], "a path of an existing user"),
        ("ddp_confidence", ["high", "95%"], "a number such as 0.95"),
        ("ddp_confidence", ["95", "1", "1.0", "0.49", "0", "-0.95", "nan", "inf"], "a number from 0.5 to 0.9999"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(name: str, texts: list[str], expected: str) -> None:
    for text in texts:
        error = refusal(name, text)
        assert (error.where, error.found, error.expected) == (BY_NAME[name].flag, f"found {text!r}", expected)


def test_arguments_of_srun_are_split_as_a_shell_does() -> None:
    assert read({"ddp_slurm_args": "--comment='before launch' -p gpu"}).slurm_args == (
        "--comment=before launch", "-p", "gpu",
    )  # fmt: skip


def test_names_may_have_blanks_and_commas_around_them() -> None:
    assert read({"ddp_pass_env": " A , ,B_*,"}).pass_env == ("A", "B_*")


@pytest.mark.parametrize(("other", "why"), [("ddp_judge", ", which measures nothing"), ("ddp_run_dir", "")])
def test_a_run_is_resumed_in_its_own_directory_and_not_judged_only(other: str, why: str) -> None:
    with pytest.raises(OptionError) as raised:
        read({"ddp_resume": "runs/a", other: "runs/b"})
    flag = BY_NAME[other].flag
    assert str(raised.value) == (
        f"--ddp-resume: found 'runs/a' together with {flag}=runs/b{why}; expected one of --ddp-resume and {flag}."
    )


@pytest.mark.parametrize(
    ("name", "text"), [(name, VALUES[name][1]) for name in MEASURING if name in VALUES] + [("ddp_nvtx", True)]
)
def test_judging_takes_no_option_that_says_how_to_measure(name: str, text: Any) -> None:
    with pytest.raises(OptionError) as raised:
        read({"ddp_judge": "runs/a", name: text})
    flag = BY_NAME[name].flag
    assert (raised.value.where, raised.value.expected) == (flag, f"one of {flag} and --ddp-judge")
    with pytest.raises(OptionError):
        read({name: text}, {}, {"ddp_judge": "runs/a"})


@pytest.mark.parametrize("name", MEASURING)
def test_what_a_site_sets_for_measuring_does_not_keep_anybody_from_judging(name: str) -> None:
    text = "true" if name in SWITCHES else VALUES[name][1]
    assert read({"ddp_judge": "runs/a"}, {}, {name: text}).judge == Path("runs/a")


def test_a_block_has_to_end_before_its_ranks_are_ended_for_silence() -> None:
    with pytest.raises(OptionError, match="--ddp-block: found '40s'; expected at most half of the 60 s after which"):
        read({"ddp_block": "40s", "ddp_inactivity_limit": "60s"})


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_a_switch_is_neither_true_nor_false(name: str) -> None:
    with pytest.raises(OptionError, match=r"found 'maybe'; expected true or false\."):
        read({}, {}, {name: "maybe"})


def test_a_refusal_says_where_the_value_came_from() -> None:
    with pytest.raises(OptionError, match=rf"^--ddp-rounds: found '4'; expected at least {FEWEST_ROUNDS} rounds"):
        read({"ddp_rounds": "4"})
    with pytest.raises(OptionError, match=r"^DDPSCALE_THRESHOLDS: found '~nobody-by-this-name"):
        read({}, {"DDPSCALE_THRESHOLDS": "~nobody-by-this-name/a.yaml"})
    with pytest.raises(OptionError, match=r"^ini option ddp_rounds: found '4'"):
        read({}, {}, {"ddp_rounds": "4"})


@given(st.sampled_from(sorted(VALUES)), st.text(max_size=8))
def test_any_text_is_read_or_refused_in_words(name: str, text: str) -> None:
    try:
        settings = read({name: text})
    except OptionError:
        assert str(refusal(name, text)).startswith(f"{BY_NAME[name].flag}: found ")
        return
    assert settings.inactivity_limit_s > 0
    assert 0.5 <= settings.confidence < 1
    assert settings.rounds is None or settings.rounds >= FEWEST_ROUNDS
    assert settings.gpus_per_node is None or settings.gpus_per_node >= 1


def test_a_study_that_is_profiled_has_a_gang_of_its_own() -> None:
    """So that no round is timed by a process that a profiler has been in."""
    assert (read().is_isolated, read({"ddp_profile": "3"}).is_isolated) == (False, True)


@pytest.mark.parametrize("text", ["0", "101", "many", "acceptance"])
def test_a_number_of_profiled_steps_that_makes_no_sense_is_refused(text: str) -> None:
    assert "a whole number from 1 to 100" in str(refusal("ddp_profile", text))
