"""Which tests run, and what is said of the others."""

from __future__ import annotations

import pytest

SAID = "1 test with the mark lab was left out: pytest tests -m lab"


@pytest.mark.parametrize(
    ("arguments", "passed", "is_left_out"),
    [
        ([], 1, True),
        (["tests"], 1, True),
        (["tests", "-n", "1"], 1, True),
        (["tests", "-m", "lab"], 1, False),
        (["tests/test_it.py"], 2, False),
        (["tests/test_it.py::test_of_the_lab"], 1, False),
        (["tests", "-k", "fast"], 1, False),
    ],
)
def test_the_lab_is_left_out_unless_it_is_asked_for(
    pytester: pytest.Pytester, arguments: list[str], passed: int, is_left_out: bool
) -> None:
    pytester.makeini("[pytest]\nmarkers = lab: left out")
    pytester.mkdir("tests").joinpath("test_it.py").write_text(
        "import pytest\ndef test_fast(): pass\n@pytest.mark.lab\ndef test_of_the_lab(): pass\n", encoding="utf-8"
    )
    result = pytester.runpytest("-p", "tests.lab_mark", "-p", "no:cacheprovider", *arguments)
    assert result.parseoutcomes()["passed"] == passed
    assert result.outlines.count(SAID) == is_left_out
