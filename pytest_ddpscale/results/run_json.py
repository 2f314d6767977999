"""run.json: who measured, when, on what, with which versions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Literal

from msgspec import field

from pytest_ddpscale.results.strict_json import Count, Record

RUN_SCHEMA_VERSION = 2
WATERMARK = "SIMULATED: no machine was measured"  # that no report can be taken for a machine's
Ending = Literal["finished", "interrupted"]
SIMULATED_DEVICE = "SIM-"  # what simulated devices are called, in place of GPU-


class RunDevice(Record, frozen=True):
    """A device of a host."""

    index: int
    uuid: str
    name: str


class RunHost(Record, frozen=True):
    """A host that took part."""

    host: str
    devices: tuple[RunDevice, ...]


class ThresholdsUsed(Record, frozen=True):
    """A thresholds file and its digest, and the same of each file that it extends, the nearest first."""

    path: str
    sha256: str
    extends: tuple[ThresholdsUsed, ...] = ()

    @property
    def digests(self) -> str:
        """Of all of them."""
        return "+".join([self.sha256, *(one.sha256 for one in self.extends)])


class Startup(Record, frozen=True, kw_only=True):
    """Seconds of the slowest rank of any gang, and of the first step, kept apart from what is judged."""

    import_s: float
    rendezvous_s: float
    first_step_s: float | None = None


class Simulation(Record, frozen=True, kw_only=True):
    """What was simulated: GPUs, seed of the noise, what was wrong, and the parameters of the model."""

    gpus: int
    seed: int
    faults: tuple[str, ...]
    model: dict[str, Any]


class Resumed(Record, frozen=True, kw_only=True):
    """A session that went on with the run, and how each study that was measured again had ended, by its id.

    `operator` as in `RunRecord`: who answers for this session.
    """

    at: str
    argv: tuple[str, ...]
    status_before: str
    thresholds_digests: str
    measured_anew: dict[str, str]
    operator: str = ""


class RunRecord(Record, frozen=True, kw_only=True, tag_field="schema_version", tag=RUN_SCHEMA_VERSION):
    """The content of run.json; times are ISO 8601 with their offset from UTC.

    Attributes:
        status: ``running`` until it has ended.
        argv: the command line, secrets masked.
        again: words of the command that measures all of it again, from anywhere; empty where nobody can.
        thresholds: the file that measuring began with; None of an imported run.
        versions: of the software, as the ranks say.
        devices_present: GPUs that may be used, whether they are or not; None if unknown.
        hosts: that took part, once the run has ended.
        left_out: host → why nothing was launched on it.
        resumed: the sessions after the first one.
        environment: variables that change how fast ranks train or talk, secrets masked.
        startup: how long that took; None of what was not launched here.
        simulated: whether no machine was measured, but `simulation` instead.
        notes: what a reader has to know of a run that was imported or simulated.
        source: the tool that an imported run is of; `imported_from` is its directory's name.
        nccl_topology: as that tool describes it.
        operator: who answers for the run, as he was named; `site` and `ticket` likewise; empty where nobody said it.
    """

    sku: str
    status: Ending | Literal["running", "imported", "simulated"]
    started_at: str
    finished_at: str | None = None
    argv: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    thresholds: ThresholdsUsed | None = None
    versions: dict[str, str] = field(default_factory=dict)
    devices_present: Count | None = None
    hosts: tuple[RunHost, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    resumed: tuple[Resumed, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    startup: Startup | None = None
    simulated: bool = False
    simulation: Simulation | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    imported_from: str = ""
    nccl_topology: str | None = None
    operator: str = ""
    site: str = ""
    ticket: str = ""

    def __post_init__(self) -> None:
        for moment in filter(None, (self.started_at, self.finished_at)):
            if datetime.fromisoformat(moment).tzinfo is None:
                raise ValueError(f"{moment} does not say how far from UTC it is")

    @property
    def command_again(self) -> tuple[str, ...]:
        """`again`, or what is known of a run that did not record it."""
        return self.again or ("pytest", f"--gpu-sku={self.sku}")

    @property
    def began(self) -> datetime:
        """`started_at`, in UTC."""
        return datetime.fromisoformat(self.started_at).astimezone(timezone.utc)

    @property
    def operators(self) -> tuple[str, ...]:
        """Who answers for its sessions, the first one's first; empty where nobody said it."""
        named = (self.operator, *(one.operator for one in self.resumed))
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def is_imported(self) -> bool:
        """Whether another tool measured it, elsewhere."""
        return self.status == "imported"

    def is_simulated(self, devices: Iterable[str] = ()) -> bool:
        """Whether no machine was measured: any one mark of that is enough.

        Args:
            devices: on which measurements say they were made.
        """
        named = (*devices, *(device.uuid for host in self.hosts for device in host.devices))
        said = self.simulated or self.status == "simulated" or self.simulation is not None
        return said or any(device.startswith(SIMULATED_DEVICE) for device in named)

    def resumption_notes(self) -> list[str]:
        """What a reader has to know of a run that was measured in several sessions."""
        if not self.resumed:
            return []
        first = self.thresholds.digests if self.thresholds else ""
        notes = [f"measured in {len(self.resumed) + 1} sessions: resumed {', '.join(one.at for one in self.resumed)}"]
        anew = [f"{study} ({end})" for one in self.resumed for study, end in one.measured_anew.items()]
        if anew:
            earlier = "measured again when resumed, the earlier attempts are in superseded.jsonl"
            notes.append(f"{earlier}: {', '.join(anew)}")
        others = [one.thresholds_digests for one in self.resumed if one.thresholds_digests != first]
        if others:
            notes.append(
                f"resumed with another thresholds file (sha256 {others[-1][:12]}) than measuring began with "
                f"(sha256 {first[:12]}): studies that were kept ended by that one's bounds"
            )
        return notes
