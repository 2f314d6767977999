"""What environment variables make of a run: paths that it does not test, and speeds that are not the hardware's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.coverage import measured_for
from pytest_ddpscale.plan.variables import Variable, is_selected, variable_of
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.table import once
from pytest_ddpscale.run.verdicts import BY_VARIABLE, WRONG_DATA
from pytest_ddpscale.thresholds.cases import AnyCase


class _Seen(NamedTuple):
    """A variable that ranks on some hosts saw, with its own name."""

    variable: Variable
    name: str
    value: str
    hosts: Mapping[str, None]

    def explains(self, culprit: Culprit) -> bool:
        """Whether `transport` finds this only because of it: between nodes, wherever it is set."""
        is_there = self.variable.where == "net" or culprit.host in self.hosts
        return is_there and culprit.because is not None and culprit.because.code in self.variable.explains

    def spares(self, culprit: Culprit, evidence: Evidence, spans_nodes: bool) -> bool:
        """Whether somebody is slow whatever it does: it is set for others alone, or for all pairs of nodes alike."""
        if culprit.slowdown and self.variable.where:
            return True  # a GPU that computes slowly does so whatever its links do
        if culprit.because and culprit.because.code == "slow-pairs":
            return self.variable.effect == "reroutes" and self.hosts.keys() >= {*evidence.hosts}
        return not spans_nodes and culprit.host not in self.hosts

    def concerns(self, case: AnyCase, evidence: Evidence) -> bool:
        """Whether it changes what a requirement on speed measures."""
        definition, where = case.requirement.definition, self.variable.where
        if where == "net":
            return measured_for(case, evidence)[2]
        return not definition.compares_results and (not where or (definition.communicates and case.world_size > 1))


@once
def _variables(evidence: Evidence) -> list[_Seen]:
    """Variables that are set for some rank; those of paths that the run has."""
    found = defaultdict[tuple[Variable, str, str], dict[str, None]](dict)
    told = [(gang.ranks[0].place.host, gang.ranks[0].environment) for gang in evidence.gangs]
    told += [(place.host, one.variables) for place, one in evidence.transports.items()]
    has = {"node": evidence.plan.layout.ranks_per_node > 1, "net": evidence.plan.nodes > 1}
    for host, variables in told:
        for name, value in variables.items():
            one = variable_of(name, value)
            is_whole = name == "NCCL_IB_HCA" and _selects_all(value, evidence.surveys.get(host))
            if one and has.get(one.where, True) and not is_whole:
                found[one, name, value][host] = None
    return [_Seen(*key, hosts) for key, hosts in found.items()]


def _selects_all(value: str, survey: Survey | None) -> bool:
    """Whether NCCL_IB_HCA selects all active ports; of Ethernet only where there are no others."""
    ports = [one for one in survey.infiniband if "ACTIVE" in one.state.upper()] if survey else []
    ports = [one for one in ports if one.link_layer != "Ethernet"] or ports
    return bool(ports) and all(is_selected(one.device, value) for one in ports)


def notes_on_variables(evidence: Evidence, cases: Sequence[AnyCase]) -> Iterator[Reason]:
    """A note on each variable: what is set, where unless everywhere, what it does, and why the site sets it."""
    on_purpose = dict(cases[0].environment) if cases else {}
    for one, name, value, hosts in _variables(evidence):
        where = tuple(hosts) if len(hosts) < len({*evidence.hosts}) else ()
        yield because("variable", f"{name}={value}", where, one.what, one.effect, on_purpose.get(one.name, ""))


def doubt_variables(answer: Answer, case: AnyCase, evidence: Evidence) -> None:
    """Leave what a variable slows undecided, and accuse no hardware of what a variable does."""
    if answer.outcome not in ("passed", "failed") or WRONG_DATA in answer.flags:
        return
    seen, on_purpose, passed = _variables(evidence), dict(case.environment), answer.outcome == "passed"
    if case.requirement.check:
        seen = [one for one in seen if any(map(one.explains, answer.culprits))]
        left = [one for one in answer.culprits if not any(each.explains(one) for each in seen)]
    else:
        seen = [one for one in seen if one.variable.name not in on_purpose and one.concerns(case, evidence)]
        seen = [one for one in seen if one.variable.effect == "slows" or not (passed or one.variable.effect == "noted")]
        spans_nodes = measured_for(case, evidence)[2]
        left = [one for one in answer.culprits if all(each.spares(one, evidence, spans_nodes) for each in seen)]
    if not seen:
        return
    answer.culprits = left
    if not left:
        answer.outcome = "inconclusive" if passed else "failed"
        texts = tuple(f"{one.name}={one.value}" for one in seen)
        answer.reasons.insert(0, because("by-variable", texts, seen[0].variable.what))
        answer.flags.append(BY_VARIABLE)
