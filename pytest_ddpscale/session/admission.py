"""Whether nodes may be measured, decided once it is known what they are and before anything is launched on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.notices import Listener, Unfit
from pytest_ddpscale.results.survey_record import Survey, surveys_of
from pytest_ddpscale.settings import MEASURE
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.verdict.checking import unfit_nodes


@dataclass
class Admission:
    """Asked by the supervisor with the surveys of all nodes: checks of severity ``fail`` count.

    The listener hears of unfit nodes at once, hours before the report; `unfit` has why, by host.
    """

    cases: Sequence[AnyCase]
    plan: Plan
    unfit_nodes_are: str
    listener: Listener
    unfit: dict[str, str] = field(default_factory=dict)

    def __call__(self, records: Sequence[Survey]) -> str:
        """Why nothing shall be launched on these nodes; empty if it shall."""
        self.unfit = unfit_nodes(self.cases, self.plan, surveys_of(records))
        if not self.unfit:
            return ""
        self.listener(Unfit(self.unfit))
        return "" if self.unfit_nodes_are == MEASURE else self.in_words

    @property
    def in_words(self) -> str:
        """``n3: ecc: GPU 2: …``, of all of them."""
        return "; ".join(f"{host}: {why}" for host, why in self.unfit.items())
