"""run.json: who measured when, on which machine, with which versions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Literal

from msgspec import field

from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.strict_json import Count, Record

RUN_SCHEMA_VERSION = 3
WATERMARK = "SIMULATED: no machine was measured"  # on every report of a simulated run
Ending = Literal["finished", "interrupted"]
OPERATOR = "operator"  # key of the note that names the person responsible for a session
JUDGED_NOTE = "note_"  # in the basis of verdicts, before the keys of a judging session's notes
_FIRST_YEAR, _LAST_YEAR = 1970, 2200
SIMULATED_DEVICE = "SIM-"  # prefix of simulated devices, instead of GPU-


def now_iso() -> str:
    """Now, in UTC, as ``2026-01-31T12:00:00+00:00``."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def in_utc(moment: str) -> datetime:
    """A time of a run, ISO 8601 with its offset from UTC, in UTC.

    Raises:
        ValueError: it is none, has no offset, or is not in the years 1970 to 2200: a clock that lost its time starts in
            1970.
    """
    parsed = datetime.fromisoformat(moment)
    if parsed.tzinfo is None:
        raise ValueError(f"{moment} has no UTC offset")
    if not _FIRST_YEAR <= parsed.year <= _LAST_YEAR:
        raise ValueError(f"{moment} is outside of the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return parsed.astimezone(timezone.utc)


class ThresholdsUsed(Record):
    """A thresholds file with its digest, and each file that it extends, the nearest first."""

    path: str
    sha256: str
    extends: tuple[ThresholdsUsed, ...] = ()

    @property
    def digests(self) -> str:
        """Digests of all these files, joined."""
        return "+".join([self.sha256, *(file.sha256 for file in self.extends)])


class Simulation(Record):
    """Parameters of a simulation: GPUs, seed of the noise, faults and model."""

    gpus: int
    seed: int
    faults: tuple[str, ...]
    model: dict[str, Any]


class Resumed(Record):
    """A session that resumed the run; `measured_anew` has the earlier ends of studies measured again, by id.

    `noted` as in `RunRecord`: of this session. `thresholds`: the file by which it judged.
    """

    at: str
    argv: tuple[str, ...]
    status_before: str
    measured_anew: dict[str, str]
    noted: dict[str, str] = field(default_factory=dict)
    thresholds: ThresholdsUsed | None = None


class RunRecord(Record, kw_only=True, tag_field="schema_version", tag=RUN_SCHEMA_VERSION):
    """The content of run.json; times are ISO 8601 with their offset from UTC.

    Attributes:
        id: of the run, which its measurements repeat; empty for an imported one.
        status: ``running`` until it has ended.
        argv: the command line, secrets masked.
        again: arguments of the command that repeats the measurement, from any directory; empty if impossible.
        thresholds: the file at the start of the measurement; None for an imported run.
        versions: of the software of the session, or of an imported run; gangs have those of their ranks.
        devices_present: number of usable GPUs, used or not; None if unknown.
        load: load average of this machine before its own ranks started, and its cores; None of other machines.
        left_out: why nothing was launched on a host, by host.
        resumed: the sessions after the first one.
        simulated: whether the run is simulated, by `simulation`.
        notes: for readers of an imported or simulated run.
        source: the tool of an imported run.
        noted: the user's notes by key, such as `OPERATOR`, of the first session; the others' replace all but that one.
    """

    sku: str
    id: str = ""
    status: Ending | Literal["running", "imported", "simulated"]
    started_at: str
    finished_at: str | None = None
    argv: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    thresholds: ThresholdsUsed | None = None
    versions: dict[str, str] = field(default_factory=dict)
    devices_present: Count | None = None
    load: tuple[float, Count] | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    resumed: tuple[Resumed, ...] = ()
    simulated: bool = False
    simulation: Simulation | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    noted: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for moment in filter(
            None, (self.started_at, self.finished_at, *(resumption.at for resumption in self.resumed))
        ):
            in_utc(moment)

    @property
    def command_again(self) -> tuple[str, ...]:
        """`again`, or a guess for a run that did not record it."""
        return self.again or ("pytest", f"--gpu-sku={self.sku}")

    @property
    def began(self) -> datetime:
        """`started_at`, in UTC."""
        return in_utc(self.started_at)

    @property
    def operators(self) -> tuple[str, ...]:
        """Persons responsible for its sessions, in order; empty if not given."""
        named = [noted.get(OPERATOR) for noted in (self.noted, *(resumed.noted for resumed in self.resumed))]
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def is_imported(self) -> bool:
        """Whether the run was measured by another tool."""
        return self.status == "imported"

    @property
    def is_unfinished(self) -> bool:
        """Whether it was interrupted or killed, or still goes on."""
        return self.status in ("running", "interrupted")

    def is_simulated(self, devices: Iterable[str] = ()) -> bool:
        """Whether the run is simulated; any one mark of that is enough.

        Args:
            devices: devices named in the measurements.
        """
        claims = self.simulated or self.status == "simulated" or self.simulation is not None
        return claims or any(device.startswith(SIMULATED_DEVICE) for device in devices)

    def resumption_notes(self, thresholds_digests: str) -> list[Reason]:
        """Notes for readers of a run that was measured in several sessions, judged by thresholds of these digests."""
        if not self.resumed:
            return []
        notes = [because("sessions", tuple(resumption.at for resumption in self.resumed))]
        if anew := [
            f"{study} ({end})" for resumption in self.resumed for study, end in resumption.measured_anew.items()
        ]:
            notes.append(because("measured-again", ", ".join(anew)))
        if self.thresholds is None or thresholds_digests != self.thresholds.digests:
            notes.append(because("other-thresholds"))
        return notes
