"""A node that is not heard of any more is lost, and only that one: others may be slow, or unheard for our own fault."""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch import gang as gang_module
from pytest_ddpscale.launch.gang_owner import GangEnd
from tests.launch.watched_gang import Run


def test_a_node_that_is_not_heard_of_is_lost_and_the_others_are_not(run: Run) -> None:
    end = run("serve(2); beat_until_stop(0)", nodes=2, silence_s=1.0)
    assert end.lost_hosts == ("n2",)
    assert end.why == "n2 was silent for 1 s: the node, its link or its agent is down"
    assert end.interrupted == ""


def test_a_node_that_is_silent_for_moments_is_not_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ago the first moment was."""
    monkeypatch.setattr(gang_module, "COLLECT_S", 1.5)
    beats = "for n in range(60): say('beat'); time.sleep(0.02)"
    source = f"serve(); time.sleep(0.6)\n{beats}\ntime.sleep(0.6); say('exit', code=0, exits=[])"
    assert run(source, silence_s=0.3) == GangEnd(0)


def test_of_nodes_that_fall_silent_all_at_once_none_is_lost(run: Run) -> None:
    """As when it is the supervisor's own link that is down."""
    end = run("serve(3); time.sleep(0.05); say('beat', 1); say('beat', 2); order()", nodes=3, silence_s=0.5)
    assert end.lost_hosts == ()
    assert end.why == "all of n1, n2, n3 fell silent at once: the link of this machine, or theirs, is down"


def test_a_node_that_slurm_gives_up_is_lost_at_once(run: Run) -> None:
    failure = "print('srun: error: Node failure on n2', file=sys.stderr)"
    end = run(f"serve(2); {failure}; beat_until_stop(0, 1)", nodes=2, name="slurm")
    assert end.lost_hosts == ("n2",)
    assert end.why == "n2 was given up by Slurm: the node, its link, its slurmd or its agent is down"


def test_nodes_that_say_a_last_word_are_not_lost(run: Run) -> None:
    """As all do when it was the supervisor that had been stopped."""
    end = run("serve(); order(); say('exit', code=0, exits=[])", silence_s=0.5)
    assert end.lost_hosts == ()
    assert end.why.startswith("n1 was silent for 0.5 s")


PARTNER_LOST = """serve(2); say("beat", 1)
say("failed", 0, local_rank=0, rank=0, phase="timed block", type="RuntimeError", message="Connection reset by peer")
"""
VANISHED = "n2 was silent, and other nodes' ranks lost their partners: the node, its link or "
ENDS_LATE = "import atexit; atexit.register(time.sleep, 60)\n"


def test_a_node_that_vanishes_is_lost_although_ranks_elsewhere_report_first(run: Run) -> None:
    end = run(PARTNER_LOST + "beat_until_stop(0)", nodes=2)
    assert end.lost_hosts == ("n2",)
    assert end.why.startswith(VANISHED)
    end = run(PARTNER_LOST + "say('exit', code=1, exits=[[0, 1, 1, True]]); sys.exit(137)", nodes=2)
    assert (end.exit_code, end.lost_hosts) == (137, ("n2",)), "the launcher ended before the supervisor had"


@pytest.mark.parametrize(("missed_beats", "lost"), [(0, ("n2",)), (1000, ())])
def test_also_while_its_launcher_waits_for_it_once_beats_were_missed(
    run: Run, monkeypatch: pytest.MonkeyPatch, missed_beats: int, lost: tuple[str, ...]
) -> None:
    """As srun does where a node has lost its power."""
    monkeypatch.setattr(gang_module, "FAREWELL_S", 0.3)
    monkeypatch.setattr(gang_module, "MISSED_BEATS", missed_beats)
    end = run(ENDS_LATE + PARTNER_LOST + "beat_until_stop(0)", nodes=2)
    assert end.lost_hosts == lost
    assert end.why.startswith(
        VANISHED if lost else "rank 0 on n1 failed in timed block: RuntimeError: Connection reset"
    )


def test_a_node_that_is_slow_to_end_its_ranks_is_not_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "FAREWELL_S", 0.3)
    source = ENDS_LATE + PARTNER_LOST + "beat_until_stop(0, 1, last_words_of=(0,))"
    end = run(source, nodes=2)
    assert end.lost_hosts == ()
    assert end.why.startswith("rank 0 on n1 failed in timed block: RuntimeError: Connection reset by peer")


def test_an_error_of_a_ranks_own_is_not_the_mute_nodes(run: Run) -> None:
    source = PARTNER_LOST.replace("Connection reset by peer", "no such model") + "beat_until_stop(0)"
    end = run(source, nodes=2)
    assert end.lost_hosts == ()
    assert end.why.startswith("rank 0 on n1 failed in timed block: RuntimeError: no such model")
