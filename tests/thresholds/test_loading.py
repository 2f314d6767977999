"""Files as they lie on a disk, and what anybody may write into one; what a file says is in refusals.txt, compiled.txt.

In Python, since no line of a table makes a pipe, bytes that are no text, five files, or whatever somebody types.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.reading import dotted
from pytest_ddpscale.thresholds.waiver import today
from pytest_ddpscale.util.packaged import THRESHOLDS, packaged
from tests.rows import rows
from tests.thresholds.edited import BASE, edited


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a site's file that extends base.yaml beside it."""
    return edited(tmp_path, ["site", "description: ours"])[0]


def test_a_file_is_recorded_by_its_digest_and_by_those_of_the_files_it_extends(path: Path) -> None:
    before = load_thresholds(path)
    assert before.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    (path.parent / "base.yaml").write_text(f"{BASE}# changed\n")
    after = load_thresholds(path)
    assert after.sha256 == before.sha256
    assert after.digests != before.digests
    assert after.extended == (
        (str(path.parent / "base.yaml"), hashlib.sha256(f"{BASE}# changed\n".encode()).hexdigest()),
    )


def test_a_file_rests_on_the_packaged_one_or_is_a_whole_of_its_own(path: Path) -> None:
    assert not load_thresholds(path).rests_on_packaged
    path.write_text("schema_version: 2\nextends: packaged\n", encoding="utf-8")
    assert load_thresholds(path).rests_on_packaged
    assert load_thresholds(packaged(THRESHOLDS)).rests_on_packaged


def test_a_copy_of_the_packaged_file_sets_no_bound_of_the_sites_own(path: Path) -> None:
    shutil.copy(packaged(THRESHOLDS), path)
    skus = load_thresholds(path).thresholds.skus.values()
    assert not [requirement.source for sku in skus for requirement in sku.requirements if requirement.source.is_site]


def test_a_waiver_that_has_ended_since_a_run_began_lets_the_run_be_judged_by_its_own_file(path: Path) -> None:
    named = "busbw_gbps: 8, probe: all-reduce-32mib, severity: warn, SIGNED, until: DAY+-1"
    path, _ = edited(path.parent, ["site", f"change: [{{{named}}}]"])
    with pytest.raises(ThresholdsError, match="is over"):
        load_thresholds(path)
    requirements = load_thresholds(path, of_earlier_run=True).thresholds.skus["new"].requirements
    assert [requirement.waiver.until < today() for requirement in requirements if requirement.waiver] == [True]


def test_a_byte_order_mark_does_no_harm(path: Path) -> None:
    path.write_text("\N{BOM}" + BASE, encoding="utf-8")
    assert load_thresholds(path).where("skus", "old").endswith(":14")


@rows(
    ("entry", "place"),
    [
        (("skus", "new"), "site.yaml:4"),
        (("skus", "new", "detect", "name"), "base.yaml:25"),
        (("skus", "new", "requirements", 1, "weak_scaling_efficiency", "8"), "base.yaml:32"),
        (("skus", "new", "requirements", 70, "bound"), "site.yaml:4"),
        (("nowhere",), "site.yaml:1"),
    ],
)
def test_where_names_the_line_of_the_nearest_known_entry(entry: tuple[str | int, ...], place: str, path: Path) -> None:
    assert load_thresholds(path).where(*entry) == str(path.parent / place)


def test_paths_are_written_as_the_reader_would() -> None:
    assert dotted(("skus", "cpu", "requirements", 3, "margin")) == "skus.cpu.requirements[3].margin"
    assert dotted(()) == "the file"


@rows(
    ("content", "where", "found"),
    [
        (BASE.encode() + b"# caf\xe9\n", "40", "byte 0xe9 is not UTF-8"),
        (BASE.encode("utf-16"), "1", "is not UTF-8"),
    ],
)
def test_bytes_that_are_no_text_are_refused(content: bytes, where: str, found: str, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(ThresholdsError, match=rf":{where}: .*{found}"):
        load_thresholds(path)


def test_what_is_no_file_is_refused_and_not_even_opened(path: Path) -> None:
    folder = path.parent
    os.mkfifo(folder / "pipe")
    for name, said in (
        ("pipe", "is a device or a pipe; expected a YAML file"),
        ("/dev/zero", "is a device or a pipe"),
        ("sites.yaml", r"does not exist; did you mean 'site.yaml'\?"),
        ("other.yaml", "does not exist; expected a YAML file"),
        ("\udcff", "does not exist"),
        (".", "cannot be read"),
        ("a\0b", "cannot be read"),
        ("x" * 5000, "cannot be read"),
    ):
        with pytest.raises(ThresholdsError, match=f"{said}.* Check --thresholds"):
            load_thresholds(folder / name)


def test_a_chain_has_an_end(path: Path) -> None:
    below = "base.yaml"
    for name in ("a.yaml", "b.yaml", "c.yaml", "d.yaml", "e.yaml"):
        (path.parent / name).write_text(f"schema_version: 2\nextends: {below}\n")
        below = name
    assert len(load_thresholds(path.parent / "d.yaml").layers) == 5
    with pytest.raises(ThresholdsError, match=r"a.yaml:2: more than 4 files that extend each other; expected fewer"):
        load_thresholds(path.parent / "e.yaml")


@given(st.text() | st.binary())
def test_no_content_gives_anything_but_a_thresholds_error(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "thresholds.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    with pytest.raises(ThresholdsError):
        load_thresholds(path)


@given(
    at=st.integers(0, len(BASE)),
    deleted=st.integers(0, 9),
    typed=st.sampled_from(["", "[]", "{}", "0", "x", " ", "~"]),
)
def test_whatever_somebody_types_is_refused_in_words_or_valid(
    at: int, deleted: int, typed: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("typed") / "thresholds.yaml"
    path.write_text(BASE[:at] + typed + BASE[at + deleted :])
    where = ""
    try:
        load_thresholds(path)
    except ThresholdsError as error:
        where = error.where
    assert not where or re.match(r".*thresholds.yaml:[0-9]+$", where)
