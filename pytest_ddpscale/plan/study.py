"""Studies and their arms: what the workers are asked to time, as plan.json carries it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pytest_ddpscale.plan.workload import Workload

Scaling = Literal["weak", "strong"]
ArmKind = Literal["alone", "each", "no_sync", "ddp"]
DeviceType = Literal["cuda", "cpu"]

PLAN_SCHEMA_VERSION = 1
# Of each block: it brings caches and queues to where they are in the middle of training. What happens once, such as
# DDP laying its buckets out anew in its second step, has happened in the warm-up.
STEPS_BEFORE_TIMING = 1
FEWEST_STEPS_PER_BLOCK = 3


@dataclass(frozen=True)
class Arm:
    """One setting inside a study.

    Attributes:
        kind: ``alone`` is rank 0 without DDP while all other ranks idle; ``each`` is ranks
            0 … world_size−1 all at once, without DDP; ``no_sync`` is the same ranks under
            DistributedDataParallel that does not communicate; ``ddp`` is with communication.
        world_size: ranks that train at the same time.
        batch_size: per-GPU batch, in images.
    """

    kind: ArmKind
    world_size: int
    batch_size: int

    def __post_init__(self) -> None:
        for field in ("world_size", "batch_size"):
            if type(getattr(self, field)) is not int or getattr(self, field) < 1:
                raise ValueError(f"{field} of an arm is {getattr(self, field)!r}; expected a whole number from 1 up")

    @property
    def name(self) -> str:
        """``alone``, ``each@k``, ``no_sync@k`` or ``ddp@k``."""
        return "alone" if self.kind == "alone" else f"{self.kind}@{self.world_size}"


@dataclass(frozen=True)
class Study:
    """One question asked of one workload: its arms are timed in interleaved rounds.

    Attributes:
        scaling: ``weak`` keeps the per-GPU batch, ``strong`` keeps the global batch.
        rounds: how often every arm is timed.
        block_s: length one timed block aims at, in seconds.
        warmup_s: untimed training before the first round, in seconds.
    """

    scaling: Scaling
    workload: Workload
    arms: tuple[Arm, ...]
    rounds: int
    block_s: float
    warmup_s: float

    def __post_init__(self) -> None:
        if type(self.rounds) is not int or self.rounds < 1:
            raise ValueError(f"rounds of a study is {self.rounds!r}; expected a whole number from 1 up")
        for field in ("block_s", "warmup_s"):
            if type(getattr(self, field)) not in (int, float):
                raise ValueError(f"{field} of a study is {getattr(self, field)!r}; expected seconds")

    @property
    def id(self) -> str:
        """``weak/resnet152-fp16``: unique in a plan."""
        return f"{self.scaling}/{self.workload.name}"

    @property
    def world_size(self) -> int:
        """The most ranks any arm needs."""
        return max((arm.world_size for arm in self.arms), default=0)

    def arm(self, name: str) -> Arm | None:
        """The arm of that name, or None."""
        return next((arm for arm in self.arms if arm.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """The study as JSON types."""
        return asdict(self) | {"id": self.id}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Study:
        """Read what `as_json` wrote. Raises KeyError, TypeError or ValueError if it did not."""
        fields = {key: value for key, value in data.items() if key != "id"}
        fields["workload"] = Workload.from_json(fields["workload"])
        fields["arms"] = tuple(Arm(**arm) for arm in fields["arms"])
        return Study(**fields)


@dataclass(frozen=True)
class Plan:
    """All studies of a run, for one SKU.

    Attributes:
        sku: canonical name, for example ``a100-sxm4-80gb``.
        device_type: ``cuda`` (NCCL) or ``cpu`` (gloo).
        seed: of the random order of the arms in each round.
    """

    sku: str
    device_type: DeviceType
    studies: tuple[Study, ...]
    seed: int = 0

    @property
    def world_size(self) -> int:
        """Ranks one gang needs for all studies; 0 for an empty plan."""
        return max((study.world_size for study in self.studies), default=0)

    def study(self, study_id: str) -> Study | None:
        """The study of that id, or None."""
        return next((study for study in self.studies if study.id == study_id), None)

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON types, for plan.json."""
        return {
            "schema_version": PLAN_SCHEMA_VERSION,
            "sku": self.sku,
            "device_type": self.device_type,
            "seed": self.seed,
            "studies": [study.as_json() for study in self.studies],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Plan:
        """Read what `as_json` wrote. Raises KeyError, TypeError or ValueError if it did not."""
        return Plan(
            sku=data["sku"],
            device_type=data["device_type"],
            studies=tuple(Study.from_json(study) for study in data["studies"]),
            seed=data["seed"],
        )
