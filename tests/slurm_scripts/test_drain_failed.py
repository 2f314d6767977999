"""Who is drained and who is not, for all that Slurm and `ddpscale culprits` may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm_scripts.stage import Stage

DRAINED_AT = 1_770_000_000
LATER = DRAINED_AT + 60
REASON = "ddpscale: GPU 3 is slow; run(1) & more [runs/job-17]"
HEADER = "use\thost\tstarted_unix_s\trun\treason"


def finding(use: str, host: str, started_unix_s: int = LATER, reason: str = REASON) -> str:
    return f"{use}\t{host}\t{started_unix_s}\truns/job-17\t{reason}"


class Cluster:
    """Nodes as the stand-in for sinfo shows them, and findings as that for ddpscale does."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.provide("scontrol")
        self.nodes()
        self.findings()

    def nodes(
        self,
        state: str = "idle",
        reason: str = "none",
        since: str = "Unknown",
        host: str = "n2",
        address: str = "10.0.0.2",
        first: str = "n1 n1 10.0.0.1",
    ) -> None:
        """One node n2, whose machine calls itself `host` and is found at `address`, beside a healthy n1."""
        self.stage.provide(
            "sinfo",
            f"""
            case "$*" in
                *--format=%T*) printf '%s\\n' '{state}' '{state}' ;;
                *--format=%E*) printf '%s\\n' '{reason}' ;;
                *--format=%H*) printf '%s\\n' '{since}' ;;
                *'--format=%N %n %o'*) printf '%s\\n' '{first}' 'n2 {host} {address}' 'n2 {host} {address}' ;;
            esac""",
        )

    def findings(self, *lines: str, exit_code: int = 0) -> None:
        """What `ddpscale culprits --format=tsv` prints."""
        (self.stage.path / "findings.tsv").write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
        self.stage.provide("ddpscale", f"cat findings.tsv; exit {exit_code}")

    def run(self, *arguments: str | Path) -> str:
        """drain_failed.sh, which has to end well; its output."""
        result = self.stage.run("drain_failed.sh", *arguments, "runs/job-17")
        assert result.returncode == 0, result.stderr
        return result.stdout

    @property
    def changes(self) -> list[list[str]]:
        """Every call of scontrol."""
        return self.stage.calls("scontrol")


@pytest.fixture
def cluster(stage: Stage) -> Cluster:
    return Cluster(stage)


def test_without_apply_it_only_says_what_it_would_do(cluster: Cluster) -> None:
    cluster.findings(finding("drain", "n2"))
    assert f"would drain n2: {REASON}" in cluster.run()
    assert cluster.changes == []


def test_a_rehearsal_asks_slurm_nothing_and_changes_nothing(cluster: Cluster) -> None:
    cluster.findings(finding("drain", "simulated-3"))
    told = cluster.run("--rehearse")
    assert "rehearsal: simulated nodes, Slurm was not asked" in told
    assert f"would drain simulated-3: {REASON}" in told
    assert cluster.changes == cluster.stage.calls("sinfo") == []
    assert "--rehearse" in cluster.stage.calls("ddpscale")[0]
    refused = cluster.stage.run("drain_failed.sh", "--rehearse", "--apply", "runs/job-17")
    assert refused.returncode == 4
    assert "--rehearse changes nothing and cannot be combined with --apply" in refused.stderr


@pytest.mark.parametrize(
    "state", ["idle", "allocated", "mixed", "completing", "reserved", "planned", "idle-", "mixed-", "idle~"]
)
def test_a_node_in_service_is_drained_for_the_reason_as_it_is(cluster: Cluster, state: str) -> None:
    cluster.nodes(state=state)
    cluster.findings(finding("drain", "n2"))
    assert f"drain n2: {REASON}: done" in cluster.run("--apply")
    assert cluster.changes == [["update", "nodename=n2", "state=drain", f"reason={REASON}"]]


@pytest.mark.parametrize(
    "state",
    ["drained", "draining", "drained*", "down", "down*", "fail", "failing", "maint", "idle*", "idle$", "idle@",
     "allocated^", "unknown", "inval", "future", "blocked", "perfctrs", ""],
)  # fmt: skip
def test_a_node_that_is_out_of_service_or_about_to_be_is_left_alone(cluster: Cluster, state: str) -> None:
    cluster.nodes(state=state, reason="bad fan")
    cluster.findings(finding("drain", "n2"))
    assert "leave n2: it is" in cluster.run("--apply")
    assert cluster.changes == []


def test_a_node_that_carries_somebodys_reason_is_left_alone(cluster: Cluster) -> None:
    cluster.nodes(reason="new firmware on trial")
    cluster.findings(finding("drain", "n2"))
    assert 'leave n2: it already has the reason "new firmware on trial"' in cluster.run("--apply")
    assert cluster.changes == []


def test_a_reason_of_ours_that_was_left_behind_does_not_protect_a_node(cluster: Cluster) -> None:
    cluster.nodes(reason="ddpscale: of long ago")
    cluster.findings(finding("drain", "n2"))
    cluster.run("--apply")
    assert len(cluster.changes) == 1


@pytest.mark.parametrize("use", ["look", "none", "accepted"])
def test_only_findings_that_reject_a_node_drain_it(cluster: Cluster, use: str) -> None:
    cluster.findings(finding(use, "n2"))
    cluster.run("--apply")
    assert cluster.changes == []


def test_links_and_warnings_are_told_to_a_person(cluster: Cluster) -> None:
    cluster.findings(finding("look", "n2"))
    assert "inspect n2: GPU 3 is slow" in cluster.run()


@pytest.mark.parametrize(
    "host", ["elsewhere", "ALL", "n[1-2]", "n1,n2", "-", "n2 state=resume", "N2", "n2.other-cluster", "n2."]
)
def test_what_is_no_node_of_slurm_is_told_and_skipped(cluster: Cluster, host: str) -> None:
    cluster.findings(finding("drain", host), finding("drain", "n1"))
    assert f"skip {host}: Slurm has no such node" in cluster.run("--apply")
    assert [change[1] for change in cluster.changes] == ["nodename=n1"]


@pytest.mark.parametrize(
    ("host", "address", "recorded"),
    [
        ("n2", "n2", "n2"),
        ("gpu-02", "n2", "gpu-02"),
        ("gpu-02.site", "n2", "gpu-02.site"),
        ("n2", "n2.site", "n2.site"),
        ("n2", "10.0.0.2", "10.0.0.2"),
    ],
)
def test_a_node_is_found_by_the_names_that_slurm_has_for_it(
    cluster: Cluster, host: str, address: str, recorded: str
) -> None:
    cluster.nodes(host=host, address=address)
    cluster.findings(finding("drain", recorded))
    cluster.run("--apply")
    assert [change[1] for change in cluster.changes] == ["nodename=n2"]


def test_a_name_of_two_nodes_is_no_ones(cluster: Cluster) -> None:
    cluster.nodes(host="machine", first="n1 machine 10.0.0.1")
    cluster.findings(finding("drain", "machine"))
    assert "skip machine: Slurm has no such node" in cluster.run("--apply")
    assert cluster.changes == []


def test_a_nodes_own_name_goes_before_another_ones_address(cluster: Cluster) -> None:
    cluster.nodes(first="n1 n1 n2")
    cluster.findings(finding("drain", "n2"))
    cluster.run("--apply")
    assert [change[1] for change in cluster.changes] == ["nodename=n2"]


def test_one_node_alone_is_acted_on_where_one_is_named(cluster: Cluster) -> None:
    cluster.findings(finding("drain", "n1"), finding("drain", "n2"), finding("look", "n1"))
    assert "n1" not in cluster.run("--apply", "--node", "n2")
    assert [change[1] for change in cluster.changes] == ["nodename=n2"]


def test_a_node_of_several_findings_is_drained_once(cluster: Cluster) -> None:
    cluster.findings(finding("drain", "n2"), finding("drain", "n2", reason="ddpscale: again"))
    cluster.run("--apply")
    assert len(cluster.changes) == 1


def test_what_slurm_refuses_does_not_keep_it_from_the_next_node(cluster: Cluster) -> None:
    cluster.stage.provide("scontrol", 'case "$*" in *nodename=n1*) exit 1 ;; esac')
    cluster.findings(finding("drain", "n1"), finding("drain", "n2"))
    result = cluster.stage.run("drain_failed.sh", "--apply", "runs/job-17")
    assert result.returncode == 1
    assert "drain n1" in result.stderr
    assert f"drain n2: {REASON}: done" in result.stdout


def test_a_run_that_cannot_be_read_does_not_protect_another_ones_culprits(cluster: Cluster) -> None:
    cluster.findings(finding("drain", "n2"), exit_code=4)
    result = cluster.stage.run("drain_failed.sh", "--apply", "runs/job-17")
    assert result.returncode == 4
    assert len(cluster.changes) == 1


def test_without_an_answer_of_slurm_nothing_is_done(cluster: Cluster) -> None:
    cluster.stage.provide("sinfo", "exit 1")
    cluster.findings(finding("drain", "n2"))
    assert cluster.stage.run("drain_failed.sh", "--apply", "runs/job-17").returncode == 1
    assert cluster.changes == []


def test_a_node_that_was_accepted_after_ddpscale_drained_it_is_resumed(cluster: Cluster) -> None:
    cluster.nodes(state="drained", reason="ddpscale: slow", since=str(DRAINED_AT))
    cluster.findings(finding("accepted", "n2"))
    assert "would resume n2: accepted by runs/job-17" in cluster.run("--resume")
    assert cluster.changes == []
    cluster.run("--resume", "--apply")
    assert cluster.changes == [["update", "nodename=n2", "state=resume"]]


@pytest.mark.parametrize(
    ("state", "reason", "since"),
    [
        ("drained", "bad fan", DRAINED_AT),  # another's
        ("drained", "not ddpscale: bad fan", DRAINED_AT),
        ("drained", "ddpscale: slow", LATER),  # in the very second that the run began
        ("drained", "ddpscale: slow", LATER + 1),  # the run is the older one
        ("drained", "ddpscale: slow", "Unknown"),
        ("down", "ddpscale: slow", DRAINED_AT),
        ("down*", "ddpscale: slow", DRAINED_AT),
        ("idle", "ddpscale: slow", DRAINED_AT),
    ],
)
def test_nothing_else_is_resumed(cluster: Cluster, state: str, reason: str, since: int | str) -> None:
    cluster.nodes(state=state, reason=reason, since=str(since))
    cluster.findings(finding("accepted", "n2"))
    assert "leave n2" in cluster.run("--resume", "--apply")
    assert cluster.changes == []


@pytest.mark.parametrize("use", ["drain", "look", "none"])
def test_what_is_not_accepted_is_neither_resumed_nor_drained_by_resume(cluster: Cluster, use: str) -> None:
    cluster.nodes(state="drained", reason="ddpscale: slow", since=str(DRAINED_AT))
    cluster.findings(finding(use, "n2"))
    cluster.run("--resume", "--apply")
    assert cluster.changes == []


def test_of_nightly_runs_the_latest_night_is_taken(cluster: Cluster) -> None:
    for name in ("2026-01-30/n1", "2026-01-31/n1", "2026-01-31/n2"):
        (cluster.stage.path / "nightly" / name).mkdir(parents=True)
        (cluster.stage.path / "nightly" / name / "run.json").touch()
    assert cluster.stage.run("drain_failed.sh", "--nightly", "nightly").returncode == 0
    assert cluster.stage.run("drain_failed.sh", "--nightly", "nightly/2026-01-30").returncode == 0
    assert [call[2:] for call in cluster.stage.calls("ddpscale")] == [
        ["nightly/2026-01-31/n1", "nightly/2026-01-31/n2"],
        ["nightly/2026-01-30/n1"],
    ]


def test_a_node_whose_nightly_check_measured_nothing_is_to_be_inspected(cluster: Cluster) -> None:
    night = cluster.stage.path / "nightly" / "2026-01-31"
    (night / "n1").mkdir(parents=True)
    (night / "n1" / "run.json").touch()
    (night / "n1.log").write_text("REJECTED: GPU 3 is slow\n", encoding="utf-8")
    refused = "--gpu-sku=auto: no NVIDIA GPU is visible here"
    (night / "n2.log").write_text(f"collecting ...\nERROR: {refused}\n\n", encoding="utf-8")
    said = cluster.stage.run("drain_failed.sh", "--apply", "--nightly", "nightly")
    assert f"inspect n2: its check measured nothing: {refused} [nightly/2026-01-31/n2.log]" in said.stdout.splitlines()
    assert "inspect n1" not in said.stdout
    assert cluster.changes == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "found no run directory"),
        (["--appply", "runs/job-17"], "unknown option --appply"),
        (["--nightly", "nowhere"], "nowhere is not a directory"),
        (["runs/job-17", "--node"], "--node needs a name"),
    ],
)
def test_a_wrong_command_line_is_refused(cluster: Cluster, arguments: list[str], problem: str) -> None:
    result = cluster.stage.run("drain_failed.sh", *arguments)
    assert result.returncode == 4
    assert problem in result.stderr
    assert cluster.stage.calls("ddpscale") == []


def test_ddpscale_is_found_on_path_or_in_python_and_else_it_says_where_it_looked(cluster: Cluster) -> None:
    cluster.findings(finding("drain", "n2"))
    usual = {"DDPSCALE_VENV": ""}  # as if it were not set
    on_path = cluster.stage.run("drain_failed.sh", "runs/job-17", settings=usual)
    assert f"would drain n2: {REASON}" in on_path.stdout
    (cluster.stage.path / "venv" / "bin" / "ddpscale").unlink()
    named = cluster.stage.run("drain_failed.sh", "runs/job-17")
    assert named.returncode == 4
    assert f"DDPSCALE_VENV is {cluster.stage.path}/venv, which has no bin/ddpscale" in named.stderr
    cluster.stage.provide("python3", 'if [[ "$1" == -m ]]; then cat findings.tsv; fi')
    system = {**usual, "PATH": f"{cluster.stage.path}/venv/bin:/usr/bin:/bin"}
    assert f"would drain n2: {REASON}" in cluster.stage.run("drain_failed.sh", "runs/job-17", settings=system).stdout
    assert cluster.stage.calls("python3")[-1][:3] == ["-m", "pytest_ddpscale.cli", "culprits"]
    cluster.stage.provide("python3", "exit 1")
    nowhere = cluster.stage.run("drain_failed.sh", "runs/job-17", settings=system)
    assert nowhere.returncode == 4
    assert "found no ddpscale in .venv, on PATH or in python3" in nowhere.stderr
