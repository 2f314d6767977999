"""What a run directory offers to the judge, refused where it contradicts itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pytest_ddpscale.evidence.validate import refuse_contradictions
from pytest_ddpscale.evidence.validate_telemetry import telemetry_of_blocks
from pytest_ddpscale.metrics.rounds import by_host
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.pair_record import PairMeasurement, pairs_of
from pytest_ddpscale.results.probe_record import ProbeMeasurement, probes_of
from pytest_ddpscale.results.records import Measurement, SeededStep, flops_of, seeded_steps_of, timed_arms_of
from pytest_ddpscale.results.run_directory import RunDirectory, broken_file
from pytest_ddpscale.results.run_record import (
    IMPORTED,
    errors_of,
    interruptions_of,
    studies_out_of_time,
    studies_that_ended,
)
from pytest_ddpscale.results.survey_record import Survey, post_mortems_of, surveys_of
from pytest_ddpscale.results.telemetry_record import Telemetry
from pytest_ddpscale.results.transport_record import Transport, transports_of


@dataclass(frozen=True)
class Evidence:
    """What was to be measured, what was, and what broke.

    Attributes:
        plan: the studies that were to be measured.
        measurements: all of them, in any order.
        errors: message of every study that broke, by its id.
        interrupted: what ended a study that did not break and did not get to its end, by its id.
        flops_per_image: floating-point operations of forward and backward pass, by study, where they were counted.
        seeded_steps: one record per rank of the step that it computed by itself, by study.
        timed_arms: names of the arms that a round timed, by study and number of the round: once a requirement is
            decided, arms that only it needed are left out. Empty where all arms were timed in every round.
        pairs: what pairs of nodes reached, if they were measured to find a slow node or link.
        probes: what was probed without training.
        unsupported: why a probe could not be done, by its id, where it could not.
        surveys: what each node was before anything was launched, by host.
        telemetry: what GPUs said of themselves while they were measured.
        transports: how each rank's NCCL talks to the others.
        post_mortems: what GPUs were after ranks had failed, in order; empty if none did.
        out_of_time: ids of the studies that ended because the budget was spent.
        hosts: names of all hosts that ever took part, measured or not, where they are known.
    """

    plan: Plan
    measurements: Sequence[Measurement]
    errors: Mapping[str, str]
    flops_per_image: Mapping[str, float] = field(default_factory=dict)
    seeded_steps: Mapping[str, Sequence[SeededStep]] = field(default_factory=dict)
    timed_arms: Mapping[str, Mapping[int, Collection[str]]] = field(default_factory=dict)
    interrupted: Mapping[str, str] = field(default_factory=dict)
    hosts: Collection[str] = ()
    pairs: Sequence[PairMeasurement] = ()
    probes: Sequence[ProbeMeasurement] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    surveys: Mapping[str, Survey] = field(default_factory=dict)
    telemetry: Sequence[Telemetry] = ()
    transports: Sequence[Transport] = ()
    post_mortems: Sequence[Survey] = ()
    out_of_time: Collection[str] = ()

    @cached_property
    def by_node(self) -> Mapping[str, Mapping[str, Sequence[Measurement]]]:
        """Measurements by study and by name of the host that made them. Made once: many requirements ask for it."""
        studies: dict[str, list[Measurement]] = {}
        for one in self.measurements:
            studies.setdefault(one.study, []).append(one)
        return {study: by_host(theirs) for study, theirs in studies.items()}

    @cached_property
    def by_probe(self) -> Mapping[tuple[str, int], Sequence[ProbeMeasurement]]:
        """What was probed, by the probe's name and world size. Made once, as `by_node`."""
        probes: dict[tuple[str, int], list[ProbeMeasurement]] = {}
        for one in self.probes:
            probes.setdefault((one.probe, one.world_size), []).append(one)
        return probes

    @cached_property
    def rounds_probed(self) -> Collection[int]:
        """Numbers of the rounds in which anything was probed."""
        return frozenset(one.round for one in self.probes)

    def seeded_checksums(self, study_id: str) -> dict[int, str]:
        """Checksum of the seeded step, by rank; empty where none was computed.

        All alike where most ranks could not repeat their own: then the model has an operation without a
        reproducible kernel, and different bits accuse nobody.
        """
        steps = self.seeded_steps.get(study_id, ())
        if 2 * sum(step.repeats for step in steps) <= len(steps):
            return dict.fromkeys((step.rank for step in steps), "not repeatable")
        return {step.rank: step.checksum for step in steps}


def evidence_of(plan: Plan, measurements: Sequence[Measurement], records: Sequence[dict[str, Any]]) -> Evidence:
    """The evidence in records as they lie in measurements.jsonl; studies may still be going on.

    Args:
        plan: what is being measured.
        measurements: those among the records.
        records: all of them.
    """
    return Evidence(
        plan,
        measurements,
        errors_of(records),
        flops_of(records),
        seeded_steps_of(records),
        timed_arms_of(records),
        interruptions_of(records),
        sorted({str(record["host"]) for record in records if record.get("kind") == "startup" and "host" in record}),
        pairs_of(records),
        probes_of(records),
        unsupported_of(records),
        surveys_of(records),
        transports=transports_of(records),
        post_mortems=post_mortems_of(records),
        out_of_time=studies_out_of_time(records),
    )


def unsupported_of(records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Why probes could not be done on some rank, by the probe's id. Raises KeyError if a record lacks a key."""
    found = [record for record in records if record.get("kind") == "probe_unsupported"]
    return {str(record["probe"]): f"{record['host']}: {record['reason']}" for record in found}


DIED = "the run died while measuring this, or before: no end of it was recorded"


def read_evidence(run: RunDirectory, died: str = DIED, *, goes_on: bool = False) -> Evidence:
    """The evidence in a run directory.

    A study whose end was never recorded is an error: what killed it may be what it was to find.

    Args:
        run: the directory.
        died: the message of such a study.
        goes_on: such a study is not measured yet, and no error.

    Raises:
        RunDirectoryError: a file is broken, plan.json and run.json are not of one run, or measurements
            contradict themselves, the plan or each other.
    """
    record, plan, records = run.read_run(), run.read_plan(), run.read_records()
    if plan.sku != record.get("sku"):
        raise broken_file(run.plan_json, f"plans for {plan.sku}, but run.json measured {record.get('sku')}")
    ids = plan.study_ids
    if len(set(ids)) != len(ids):
        raise broken_file(run.plan_json, "has two studies of one id")
    try:
        evidence = evidence_of(plan, run.read_measurements(), records)
    except (KeyError, TypeError, ValueError) as error:
        raise broken_file(run.measurements_jsonl, f"holds a record that is none of its kind ({error})") from None
    is_imported = record.get("status") == IMPORTED
    refuse_contradictions(run, plan, records, evidence.measurements, is_imported=is_imported)
    evidence = replace(evidence, telemetry=telemetry_of_blocks(run, plan, records, run.read_telemetry()))
    if not is_imported:
        ended = studies_that_ended(records)
        unfinished = {study: died for study in ids if study not in ended}
        finish_it = f"--ddp-resume={run.path} finishes it"
        interrupted = {study: f"interrupted: {why}; {finish_it}" for study, why in evidence.interrupted.items()}
        errors = evidence.errors if goes_on else {**evidence.errors, **unfinished}
        interrupted |= unfinished if goes_on else {}
        evidence = replace(evidence, errors=errors, interrupted=interrupted)
    return evidence
