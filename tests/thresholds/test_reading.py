"""libyaml, which is fast, and PyYAML, which says what is wrong, read a file alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.reading import ExactLoader
from pytest_ddpscale.util.packaged import packaged
from tests.thresholds.edited import BASE

if not yaml.__with_libyaml__:
    pytest.skip("PyYAML was built without libyaml", allow_module_level=True)
from pytest_ddpscale.thresholds.reading import FastLoader

PATH = Path("thresholds.yaml")
PACKAGED = packaged("thresholds.yaml").read_text(encoding="utf-8")
ODD = ["", ", ", "&a ", "*a", "- ", "? ", *" \n\t:{}[!#|>'\"\x85é"]


def shape(node: Any) -> Any:
    """What a node is, and on which line."""
    if isinstance(node, yaml.MappingNode):
        return node.tag, node.start_mark.line, [(shape(key), shape(value)) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return node.tag, node.start_mark.line, [shape(child) for child in node.value]
    # On which line nothing stands they may differ: before a comment or a blank line, or after it.
    return node and (node.tag, node.start_mark.line if node.value else None, node.value)


def read(loader: Any, text: str) -> Any:
    """None for what is not YAML."""
    try:
        return shape(loader(PATH, text).get_single_node())
    except ThresholdsError as error:
        return str(error)
    except yaml.YAMLError:
        return None


def test_the_packaged_file() -> None:
    assert read(FastLoader, PACKAGED) == read(ExactLoader, PACKAGED) is not None


@given(st.lists(st.tuples(st.integers(0, len(BASE)), st.integers(0, 5), st.sampled_from(ODD)), max_size=3))
def test_a_file_that_somebody_edited(edits: list[tuple[int, int, str]]) -> None:
    text = BASE
    for at, deleted, typed in edits:
        text = text[:at] + typed + text[at + deleted :]
    fast, exact = read(FastLoader, text), read(ExactLoader, text)
    # What libyaml refuses the other one is asked for. It takes a little more: `{? a: 1}`, which YAML 1.1 allows.
    assert fast == exact or None in (fast, exact)
