"""Convert stored runs that an earlier version recorded to today's form, in place.

    python benchmarks/oracle/convert.py benchmarks/oracle/runs/recorded-rtx-lost-gpu.tar.xz

Facts stay the same. Only the mean of the messages between nodes was recorded: each of them takes that long.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import name_with_size
from pytest_ddpscale.run.record_lines import RecordReader, line_of

Line = dict[str, Any]
READINGS = ("utilization", "energy_j", "peak_memory_bytes", "step_stdev_s", "skipped_steps")
OF_IMAGES = (
    "model", "image_size", "memory_format", "num_classes", "cudnn_benchmark", "classifier_hidden", "feature_weights",
)  # fmt: skip
ROUND = ("study", "round", "gang")


def each(said: Any, count: int) -> list[Any]:
    """A value for each rank."""
    return said if isinstance(said, list) else [said] * count


def column(values: Sequence[Any]) -> Any:
    """One value if all ranks share it."""
    return values[0] if all(value == values[0] for value in values) else list(values)


class Run:
    """The gang and the surveys that further lines of a run refer to."""

    def __init__(self) -> None:
        self.gpus: dict[tuple[str, str], Line] = {}
        self.hosts: dict[int, list[str]] = {}

    def lines(self, line: Line) -> Iterator[Line]:
        """Today's lines for one of a former version."""
        make: dict[str, Callable[[Line], Any]] = {
            "block": self._block, "probe": self._probe, "pair": self._pairs, "gang": self._gang,
        }  # fmt: skip
        if line["kind"] == "survey":
            self.gpus |= {(line["host"], gpu["uuid"]): gpu for gpu in line.get("gpus", ())}
        if line["kind"] == "workload_flops":
            yield {"kind": "flops", "flops_per_sample": line.pop("flops_per_image")} | {"study": line["study"],
                   "counter": line["counter"]}  # fmt: skip
        elif line["kind"] in make:
            yield from make[line["kind"]](line)
        else:
            yield line

    def _gang(self, line: Line) -> Iterator[Line]:
        self.hosts[line["gang"]] = line["hosts"]
        gpus = [self.gpus.get(place) for place in zip(line["hosts"], line["devices"], strict=True)]
        if None in gpus:  # of a CPU
            yield line
        else:
            yield line | {name: column([gpu[of] for gpu in gpus if gpu])
                          for name, of in (("gpu_indices", "index"), ("pci_bus_ids", "pci_bus_id"))}  # fmt: skip

    def _groups(self, line: Line, size: int) -> Any:
        hosts = self.hosts[line["gang"]]
        nodes = list(dict.fromkeys(hosts))
        return 0 if len(line["ranks"]) <= size else [nodes.index(hosts[rank]) for rank in line["ranks"]]

    def _block(self, line: Line) -> Iterator[Line]:
        found = {"kind": "timed", "arm": line["arm"], "ranks": line["ranks"], "work": line["batch_size"]}
        found |= {name: line[name] for name in ROUND} | {"count": line["steps"], "seconds": line["block_s"]}
        found |= {"began_unix_s": line["started_unix_s"], "series": {"step_s": line["step_s"]}}
        found |= {"groups": self._groups(line, int(line["arm"].partition("@")[2] or 1))}
        found |= {"readings": {"skipped_steps": 0} | {name: line[name] for name in READINGS if name in line}}
        yield found | ({"digests": line["parameters_checksum"]} if "parameters_checksum" in line else {})

    def _probe(self, line: Line) -> Iterator[Line]:
        probe, ranks = Arm(line["probe"], line.get("world_size", 1)), line["ranks"]
        columns = {"work": "work", "seconds": "seconds", "began_unix_s": "started_unix_s", "is_correct": "is_correct"}
        cells = {name: each(line[of], len(ranks)) for name, of in columns.items()}
        turns, groups = [0] * len(ranks), self._groups(line, probe.world_size)
        if line.get("peers") is not None:
            turns, groups = self._turns(cells["began_unix_s"], ranks, each(line["peers"], len(ranks)))
        groups = each(groups, len(ranks))
        for turn in range(max(turns) + 1):
            at = [i for i, one in enumerate(turns) if one == turn]
            found = {name: column([of_all[i] for i in at]) for name, of_all in cells.items()}
            found |= {name: line[name] for name in ROUND} | {"kind": "timed", "arm": probe.name, "turn": turn}
            found |= {"ranks": [ranks[i] for i in at], "groups": column([groups[i] for i in at])}
            yield found | {"count": line["iterations"], "readings": {"is_correct": found.pop("is_correct")}}

    def _turns(self, began: Sequence[float], ranks: Sequence[int], peers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Turn and group of each entry: pairs begin in the order of their time, as soon as both ranks are free."""
        ends = [tuple(sorted(pair)) for pair in zip(ranks, peers, strict=True)]
        first = {pair: when for when, pair in sorted(zip(began, ends, strict=True), reverse=True)}
        last, of_pair, groups = dict[int, int](), dict[Any, tuple[int, int]](), dict[int, int]()
        for pair in sorted(first, key=lambda one: (first[one], one)):
            turn = max(last.get(end, -1) for end in pair) + 1
            last |= dict.fromkeys(pair, turn)
            of_pair[pair] = turn, groups.get(turn, 0)
            groups[turn] = groups.get(turn, 0) + 1
        return [of_pair[pair][0] for pair in ends], [of_pair[pair][1] for pair in ends]

    def _pairs(self, line: Line) -> Iterator[Line]:
        size, count, pairs = line["message_bytes"], line["iterations"], line["ranks"]
        message_s = np.repeat([size / (gbps * 1e9) for gbps in each(line["busbw_gbps"], len(pairs))], 2)
        steps = np.repeat(message_s, count).astype("<f4").tobytes()
        found = {"kind": "timed", "arm": Arm(name_with_size("all-reduce", size), 2).name, "count": count, "work": size}
        found |= {name: line[name] for name in ROUND} | {"began_unix_s": 0.0, "seconds": (count * message_s).tolist()}
        found |= {"ranks": [rank for pair in pairs for rank in pair], "groups": [i // 2 for i in range(2 * len(pairs))]}
        yield found | {"series": {"step_s": base64.b64encode(steps).decode()}}

    def hosts_of_run(self, hosts: Sequence[Line]) -> None:
        """Give devices in the content of run.json NVML's numbers beside their local ranks."""
        for host in hosts:
            for device in host["devices"]:
                gpu = self.gpus.get((host["host"], device["uuid"]), {"index": device["index"], "pci_bus_id": ""})
                device |= {"local_rank": device["index"], "index": gpu["index"], "pci_bus_id": gpu["pci_bus_id"]}


def converted_plan(plan: Line) -> Line:
    """plan.json of version 5 as one of version 6."""
    if plan["schema_version"] != 5:
        raise SystemExit(f"plan.json has schema_version {plan['schema_version']}; expected 5, which is converted")
    plan = {name: said for name, said in plan.items() if name != "precision"} | {"schema_version": 6}
    for one in (*plan["studies"], *plan["training_runs"]):
        flat = one["workload"]
        flat["family"] = {name: flat.pop(name) for name in OF_IMAGES if name in flat} | {"kind": "image"}
    usual = json.loads(json.dumps(vars(Arm("memory-copy")), default=vars))
    if probes := plan["probes"]:
        arms = [{("kind" if name == "name" else name): said for name, said in one.items()} for one in probes["probes"]]
        plan["probes"] = {name: said for name, said in probes.items() if name != "probes"}
        plan["probes"]["arms"] = [usual | arm for arm in arms]
    if pairs := plan["pairs"]:
        arm = {"kind": name_with_size("all-reduce", pairs.pop("message_bytes")), "world_size": 2}
        plan["pairs"] = pairs | {"arms": [usual | arm]}
    return plan


def convert(path: Path) -> None:
    """Convert a packed run in place."""
    with tarfile.open(path) as packed:
        files = {one.name: packed.extractfile(one).read().decode() for one in packed.getmembers()}  # type: ignore[union-attr]
    of, reader, lines = Run(), RecordReader(), list[bytes]()
    for line in files["measurements.jsonl"].splitlines():
        lines += [line_of(reader.read(json.dumps(one).encode())) for one in of.lines(json.loads(line))]
    run = json.loads(files["run.json"])
    of.hosts_of_run(run["hosts"])
    files["measurements.jsonl"] = b"".join(lines).decode()
    files |= {"run.json": json.dumps(run), "plan.json": json.dumps(converted_plan(json.loads(files["plan.json"])))}
    with tarfile.open(path, "w:xz", preset=9) as packed:
        for name, text in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(text.encode())
            packed.addfile(about, io.BytesIO(text.encode()))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        convert(Path(argument))
