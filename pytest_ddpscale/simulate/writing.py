"""A simulated run as a run directory, marked as what it is."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import strict_json
from pytest_ddpscale.results.run_directory import RUN_SCHEMA_VERSION, RunDirectory
from pytest_ddpscale.results.run_record import SIMULATED, SIMULATED_NOTE, now_iso
from pytest_ddpscale.simulate.faults import Faults
from pytest_ddpscale.simulate.measuring import SimulatedRun, device_id, host_name
from pytest_ddpscale.simulate.simulated_cluster import SimulatedCluster
from pytest_ddpscale.util.masking import masked_arguments


def write_simulated_run(
    run: RunDirectory, cluster: SimulatedCluster, plan: Plan, faults: Faults, seed: int, argv: Sequence[str] = ()
) -> None:
    """Write plan.json, measurements.jsonl and, last, run.json.

    Records are written as they are made: memory does not grow with the number of GPUs' measurements.

    Args:
        run: a new run directory.
        cluster: what is simulated.
        plan: what it is asked.
        faults: what is wrong with it.
        seed: of the noise.
        argv: the command line, for the record.

    Raises:
        RunDirectoryError: the directory cannot be written.
    """
    started_at = now_iso()
    simulated = SimulatedRun(plan, cluster.performance, faults, seed)
    try:
        run.write_json(run.plan_json, plan.as_json())
        with run.measurements_jsonl.open("w", encoding="utf-8") as file:
            file.writelines(strict_json(record) + "\n" for record in simulated.records())
        # Last, because it is what makes a directory a run.
        record = _run(cluster, plan, faults, seed)
        run.write_json(
            run.run_json, record | {"started_at": started_at, "finished_at": now_iso(), "argv": masked_arguments(argv)}
        )
    except OSError as error:
        raise RunDirectoryError(
            str(run.path), f"cannot be written ({error.strerror or error})", "a writable directory with space left",
            f"Remove {run.path}, and simulate into another directory.",
        ) from None  # fmt: skip


def _run(cluster: SimulatedCluster, plan: Plan, faults: Faults, seed: int) -> dict[str, Any]:
    """The content of run.json, without its times."""
    said = ", ".join(map(str, faults.faults)) or "none"
    return {
        "schema_version": RUN_SCHEMA_VERSION,
        "sku": cluster.sku,
        "status": SIMULATED,
        SIMULATED: True,
        "simulation": {
            "gpus": cluster.gpus,
            "seed": seed,
            "faults": [str(fault) for fault in faults.faults],
            "model": cluster.performance.as_json(),
        },
        "thresholds": {"path": str(cluster.thresholds.path), "sha256": cluster.thresholds.sha256},
        "versions": {"python": platform.python_version(), "pytest_ddpscale": __version__},
        "hosts": _hosts(cluster, plan),
        "notes": [SIMULATED_NOTE, f"simulated faults: {said}"],
    }


def _hosts(cluster: SimulatedCluster, plan: Plan) -> list[dict[str, Any]]:
    per_node, world_size = cluster.topology.gpus_per_node, plan.world_size
    return [
        {
            "host": host_name(node),
            "devices": [
                {"index": rank - first, "uuid": device_id(rank, plan.device_type), "name": cluster.device_name}
                for rank in range(first, min(first + per_node, world_size))
            ],
        }
        for node, first in enumerate(range(0, world_size, per_node))
    ]
