"""A value with its interval, in a table and in JSON."""

from __future__ import annotations

import json
import math

from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.suites.found_text import found_cells, found_value
from tests.builders.judged import Found

WIDE = Found(-0.25, (-0.5, math.inf))


def test_cells_have_a_minus_sign_and_a_dash_for_what_there_is_not() -> None:
    assert found_cells(Found(1.0, (0.5, 12345.6))) == ("1", "0.5 … 1.235e+04")
    assert found_cells(WIDE, "{:.0%}") == ("−25 %", "−50 % … inf %")
    assert found_cells(Found(1.0, None)) == ("1", ABSENT)
    assert found_cells(None) == (ABSENT, ABSENT)


def test_json_has_no_word_for_infinity() -> None:
    assert json.loads(strict_json(found_value(WIDE))) == {"value": -0.25, "interval": [-0.5, None]}
    assert found_value(Found(1.0, None)) == {"value": 1.0, "interval": None}
    assert found_value(None) is None
