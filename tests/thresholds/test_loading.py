from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import SkuError, ThresholdsError
from pytest_ddpscale.thresholds.loading import ThresholdsFile, dotted, load_thresholds, nearest_line
from tests.thresholds.conftest import VALID, WEAK_LINE, Refusal, changed, weak_changed


def test_a_valid_file_loads_and_is_recorded_by_its_digest(load: Callable[[str], ThresholdsFile]) -> None:
    loaded = load(VALID)
    assert list(loaded.thresholds.skus) == ["old", "new"]
    assert loaded.sha256 == hashlib.sha256(VALID.encode()).hexdigest()


def test_a_byte_order_mark_does_no_harm(load: Callable[[str], ThresholdsFile]) -> None:
    assert load("\N{BOM}" + VALID).where("skus", "old").endswith(":3")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("skus", "old"), 3),
        (("skus", "old", "detect", "name"), 6),
        (("skus", "new", "requirements", 0), WEAK_LINE),
        (("skus", "new", "requirements", 0, "source", "reference"), WEAK_LINE),
        (("skus", "new", "requirements", 7, "at_least"), 17),
        (("nowhere",), 1),
    ],
)
def test_where_names_the_line_of_the_nearest_known_entry(
    path: tuple[str | int, ...], line: int, load: Callable[[str], ThresholdsFile]
) -> None:
    loaded = load(VALID)
    assert loaded.where(*path) == f"{loaded.path}:{line}"


@pytest.mark.parametrize(
    ("content", "line", "complaint"),
    [
        (changed("aliases: [older]", "alias: [older]"), 5, "unknown key skus.old.alias; expected a key of the schema"),
        (weak_changed("at_least", "at_lest"), WEAK_LINE, "at_lest"),
        (changed("batch_size: 16", "batch_sizes: 16"), 16, "skus.new.workloads.r.batch_size"),
        (changed("    description: the generation", "    description: x\n    description: the generation"), 14,
         "key 'description' is given twice in skus.new, first on line 13"),
        (VALID + "skus: {}\n", 20, "key 'skus' is given twice in the file, first on line 2"),
        (weak_changed("at_least: 0.95", "at_least: 0.95, at_least: 0.1"), WEAK_LINE, "key 'at_least' is given twice"),
        (changed("batch_size: 16", "batch_size: many"), 16, "r.batch_size is 'many'; expected integer"),
        (changed("batch_size: 16", "batch_size: yes"), 15, "r.batch_size is True; expected a whole number"),
        (changed("batch_size: 16", "batch_size: 16, compile: 1"), 15, "r.compile is 1; expected true or false"),
        (changed("batch_size: 16", "batch_size: 16, name: s"), 15, "r calls itself 's'"),
        (changed("batch_size: 16", "batch_size: 0"), 16, "batch_size is 0; expected at least 1"),
        (changed("precision: fp16, batch_size: 16", "precision: fp8, batch_size: 16"), 16,
         "is 'fp8'; expected 'fp32', 'fp16' or 'bf16'"),
        (weak_changed("world_size: 8", "world_size: eight"), WEAK_LINE, "requirements[0].world_size is 'eight'"),
        (weak_changed("at_least: 0.95", "at_least: 95"), WEAK_LINE, "expected a fraction, for example 0.95"),
        (weak_changed("measured: 0.97", "measured: .nan"), WEAK_LINE, "measured is nan; expected a finite number"),
        (weak_changed("reference: a paper", "margin_pct: 9, reference: a paper"), WEAK_LINE, "contradicts its source"),
        (changed("source: {reasoning: twice the units}", "source: {}"), 19, "a provisional bound needs"),
        (changed("'^New$'", "'New'"), 14, "name 'New' is not anchored"),
        (changed("    detect: {name: '^New$'}\n", ""), 12, "skus.new.detect is missing; expected a value. Add it."),
        (changed("schema_version: 1", "schema_version: 2"), 1, "schema_version is 2; expected 1"),
        ("", 1, "the file is empty; expected `schema_version: 1` and `skus:`"),
        ("# only a comment\n", 1, "the file is empty"),
        ("just a sentence\n", 1, "the file is 'just a sentence'"),
        (changed("skus:", "skus: ["), 4, "not valid YAML"),
        (changed("  old:", "\told:"), 3, "not valid YAML"),
        (changed("description: the reference generation", "description: *nothing"), 4, "undefined alias"),
        (VALID + "---\n", 20, "not valid YAML"),
        (changed("description: the reference generation", "description: &a [*a]"), 4, "a YAML anchor contains itself"),
        (changed("  old:", "  old: &old\n    sku: {again: *old}"), 4, "a YAML anchor contains itself"),
        (VALID + "# bell \a\n", 20, "unprintable character 0x07"),
        (changed("description: the reference generation", "description: 2026-02-30"), 4, "value that cannot be"),
        ("[" * 5000, 1, "nested too deeply"),
        (VALID.encode() + b"# caf\xe9\n", 20, "byte 0xe9 is not UTF-8"),
        (VALID.encode("utf-16"), 1, "is not UTF-8"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_line(
    content: str | bytes, line: int | None, complaint: str, refusal: Refusal
) -> None:
    named, message = refusal(content)
    assert complaint in message
    assert named == line
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("010", "8"), ("-010", "-8"), ("0_7", "7"), ("0b11", "3"), ("0x1f", "31"),
        ("1:30", "90"), ("12:30:45", "45045"), ("1:30.5", "90.5"), ("190:20:30", "685230"),
        ("1_000", "1000"), ("0.9_5", "0.95"), ("1_0.5", "10.5"), ('!!int "010"', "8"), ("!!float 1:30", "90.0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["world_size: 8", "at_least: 0.95"])
def test_a_number_that_yaml_reads_as_another_is_refused(key: str, written: str, read: str, refusal: Refusal) -> None:
    name = key.partition(":")[0]
    line, message = refusal(weak_changed(key, f"{name}: {written}"))
    found = written.rpartition(" ")[2].strip('"')
    assert line == WEAK_LINE
    assert f"skus.new.requirements[0].{name} has {found!r}, which YAML 1.1 " in message
    assert f"reads as {read}; expected a plain decimal number. Write it out, or in quotes if it is text." in message


def test_such_a_number_is_refused_where_text_or_a_name_belongs(refusal: Refusal) -> None:
    line, message = refusal(changed("aliases: [older]", "aliases: [12:30]"))
    assert (line, "skus.old.aliases[0] has '12:30', which YAML 1.1 reads as 750" in message) == (5, True)
    line, message = refusal(changed("  new:", "  010:"))
    assert (line, "skus has '010', which YAML 1.1 reads as 8" in message) == (12, True)


def test_such_text_in_quotes_is_text(load: Callable[[str], ThresholdsFile]) -> None:
    text = changed("aliases: [older]", "aliases: [\"010\", '1_000']").replace("the reference generation", "'12:30'")
    sku = load(text).thresholds.skus["old"]
    assert (sku.aliases, sku.description) == (["010", "1_000"], "12:30")


@pytest.mark.parametrize("written", ["0.95", ".95", "+0.95", "00.95", "9.5e-1", "95.0e-2", "0.95E+0"])
def test_a_decimal_number_is_what_it_looks_like(written: str, load: Callable[[str], ThresholdsFile]) -> None:
    requirement = load(weak_changed("at_least: 0.95", f"at_least: {written}")).thresholds.skus["new"].requirements[0]
    assert requirement.bound == 0.95


@pytest.mark.parametrize("written", ["1e3", "1.5e3", "95e-2", "08", '"95"'])
@pytest.mark.parametrize("key", ["world_size: 8", "at_least: 0.95"])
def test_a_number_that_yaml_reads_as_text_is_refused(key: str, written: str, refusal: Refusal) -> None:
    name = key.partition(":")[0]
    found = written.strip('"')
    line, message = refusal(weak_changed(key, f"{name}: {written}"))
    assert line == WEAK_LINE
    assert f"requirements[0].{name} is the text '{found}'; expected a number. Write it as a plain decimal" in message


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("!!int ''", "has '', which YAML 1.1 cannot read; expected a plain decimal number"),
        ("!!int x", "has 'x', which YAML 1.1 cannot read"),
        ("1" + 300 * ":10" + ".5", ".5', which YAML 1.1 cannot read"),
        ("0x_", "has '0x_', which YAML 1.1 cannot read"),
        ("!!bool maybe", "a value that cannot be read"),
        ("!!timestamp soon", "a value that cannot be read"),
    ],
)
def test_a_value_that_nothing_can_be_made_of_is_refused(written: str, complaint: str, refusal: Refusal) -> None:
    _, message = refusal(weak_changed("at_least: 0.95", f"at_least: {written}"))
    assert complaint in message


def test_an_anchor_used_twice_is_not_taken_for_an_endless_one(load: Callable[[str], ThresholdsFile]) -> None:
    text = changed("detect: {name: '^Old$',", "detect: &d {name: '^Old$',").replace("{name: '^New$'}", "*d")
    skus = load(text).thresholds.skus
    assert skus["old"].detect == skus["new"].detect


def test_several_violations_are_counted(refusal: Refusal) -> None:
    _, message = refusal(weak_changed("world_size: 8", "world_size: eight, colour: red"))
    assert "(1 more like this)" in message


def test_the_message_says_how_to_check_the_file(refusal: Refusal) -> None:
    _, message = refusal(weak_changed("at_least", "at_lest"))
    assert message.endswith("thresholds.yaml`.")
    assert "Then run `ddpscale thresholds check " in message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ThresholdsError, match=r"cannot be read .*Check --thresholds"):
        load_thresholds(tmp_path / "absent.yaml")
    with pytest.raises(ThresholdsError, match="cannot be read"):
        load_thresholds(tmp_path)


@given(st.text() | st.binary())
def test_no_content_gives_anything_but_a_thresholds_error(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "thresholds.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    with pytest.raises(ThresholdsError):
        load_thresholds(path)


def test_an_unknown_sku_is_refused_with_the_nearest_name(load: Callable[[str], ThresholdsFile]) -> None:
    loaded = load(VALID)
    assert loaded.sku_name("older") == "old"
    with pytest.raises(SkuError) as raised:
        loaded.sku_name("Oldr")
    assert "has no SKU 'Oldr'; expected one of new, old, older. Did you mean --gpu-sku=old" in str(raised.value)
    with pytest.raises(SkuError) as raised:
        loaded.sku_name("xyz")
    assert "Did you mean" not in str(raised.value)


def test_paths_are_written_as_the_reader_would() -> None:
    assert dotted(("skus", "cpu", "requirements", 3, "at_least")) == "skus.cpu.requirements[3].at_least"
    assert dotted(()) == "the file"
    assert nearest_line({("a",): 4}, ("a", "b", 0)) == 4
    assert nearest_line({}, ("a",)) == 1
