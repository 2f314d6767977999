from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import SkuError, ThresholdsError
from pytest_ddpscale.thresholds.cases import cases_for
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.reading import dotted
from tests.rows import rows
from tests.thresholds.conftest import (
    BATCH_LINE,
    DETECT,
    LINES,
    NEW_LINE,
    OLD_LINE,
    ONE_NODE,
    VALID,
    WEAK_LINE,
    WORKLOAD_LINE,
    Load,
    Refusal,
    changed,
    weak_changed,
    with_row,
)

LAST = len(LINES) + 1


def test_a_valid_file_loads_and_is_recorded_by_its_digest(load: Load) -> None:
    loaded = load(VALID)
    assert list(loaded.thresholds.skus) == ["old", "new"]
    assert loaded.sha256 == hashlib.sha256(VALID.encode()).hexdigest()


def test_a_byte_order_mark_does_no_harm(load: Load) -> None:
    assert load("\N{BOM}" + VALID).where("skus", "old").endswith(f":{OLD_LINE}")


@rows(
    ("path", "line"),
    [
        (("skus", "old"), OLD_LINE),
        (("skus", "old", "detect", "name"), 11),
        (("skus", "new", "requirements", 0), WEAK_LINE),
        (("skus", "new", "requirements", 0, "weak_scaling_efficiency", "8"), WEAK_LINE),
        (("skus", "new", "requirements", 7, "bound"), WEAK_LINE - 1),
        (("nowhere",), 1),
    ],
)
def test_where_names_the_line_of_the_nearest_known_entry(path: tuple[str | int, ...], line: int, load: Load) -> None:
    loaded = load(VALID)
    assert loaded.where(*path) == f"{loaded.path}:{line}"


def test_paths_are_written_as_the_reader_would() -> None:
    assert dotted(("skus", "cpu", "requirements", 3, "margin")) == "skus.cpu.requirements[3].margin"
    assert dotted(()) == "the file"


@rows(
    ("content", "line", "complaint"),
    [
        (changed("model: resnet18", "model: resnet18, image: 9"), WORKLOAD_LINE,
         "unknown key workloads.r.image; did you mean 'image_size'? Remove it, or correct its spelling"),
        (changed("    description: the gen", "    description: x\n    description: the gen"), NEW_LINE + 2,
         f"key 'description' is given twice in skus.new, first on line {NEW_LINE + 1}"),
        (VALID + "skus: {}\n", LAST, "key 'skus' is given twice in the file, first on line 7"),
        (weak_changed("bound: 0.95", "bound: 0.95, bound: 0.1"), WEAK_LINE, "key 'bound' is given twice"),
        (weak_changed("8: 0.97", "8: 0.97, 8: 0.1"), WEAK_LINE, "'8' is given twice in skus.new.requirements[0].weak"),
        (changed("per_gpu: 16", "per_gpu: many"), BATCH_LINE, "skus.new.batch.r.per_gpu is 'many'; expected integer"),
        (changed("per_gpu: 16", "per_gpu: 0"), BATCH_LINE, "batch.r.per_gpu is 0; expected greater than or equal to 1"),
        (changed("{per_gpu: 16, global: 8}", "yes"), BATCH_LINE, "skus.new.batch.r is True; expected"),
        (changed("{per_gpu: 16, global: 8}", "16.5"), BATCH_LINE, "skus.new.batch.r is 16.5; expected integer"),
        (changed("precision: fp16", "precision: fp16, compile: 1"), WORKLOAD_LINE, "r.compile is 1; expected boolean"),
        (changed("precision: fp16", "precision: fp8"), WORKLOAD_LINE, "is 'fp8'; expected 'fp32', 'fp16' or 'bf16'"),
        *((weak_changed("8: 0.97", f"{size}: 0.97"), WEAK_LINE, f"weak_scaling_efficiency.{size.strip(chr(39))} is ")
          for size in ("eight", "8.0", "0", "1 nodes", "2 node", "2nodes", "'8'", "every", "08", "1e1")),
        (weak_changed("8: 0.97", "eight: 0.97"), WEAK_LINE,
         "'eight'; expected a whole number from 1 to 1000000, `node`, `all`, or a number of nodes: `2 nodes`"),
        (weak_changed("{8: 0.97}", "0.97"), WEAK_LINE, "weak_scaling_efficiency is 0.97; expected values by world siz"),
        (weak_changed("{8: 0.97}", "[0.97]"), WEAK_LINE, "weak_scaling_efficiency is [0.97]; expected values by world"),
        (weak_changed("8: 0.97", "8: .nan"), WEAK_LINE, "weak_scaling_efficiency.8 is nan; expected a finite number"),
        (weak_changed("bound: 0.95", "bound: .inf"), WEAK_LINE, "requirements[0].bound is inf; expected a finite num"),
        (weak_changed("bound: 0.95", "bound: 95"), WEAK_LINE, "expected a fraction, for example 0.95"),
        (changed("'^New$'", "'New'"), NEW_LINE + 2, "name 'New' is not anchored"),
        (changed(DETECT, ""), NEW_LINE, "skus.new.detect is missing; expected a value. Add it."),
        (changed("schema_version: 2", "schema_version: 1"), 1, "schema_version is 1; expected 2. Use the current form"),
        (changed("schema_version: 2\n", ""), 1, "schema_version is missing; expected 2"),
        (changed("schema_version: 2", "schema_version: true"), 1, "schema_version is True; expected 2"),
        (changed("skus:\n", "skuss:\n"), 7, "unknown key skuss; did you mean 'skus'?"),
        (changed("sources: {paper: a paper}", "sources: [a paper]"), 2, "sources is ['a paper']; expected a mapping"),
        ("schema_version: 2\nskus: {}\n", 2, "0 SKUs under `skus`; expected 1 to 200"),
        ("schema_version: 2\nskus: {cpu: 1}\n", 2, "skus.cpu: it is not a mapping; expected the keys of a SKU"),
        ("", 1, "the file is empty; expected `schema_version: 2` and `skus:`"),
        ("# only a comment\n", 1, "the file is empty"),
        ("just a sentence\n", 1, "the file is 'just a sentence'"),
        (changed("skus:", "skus: ["), 9, "not valid YAML"),
        (changed("  old:", "\told:"), 8, "not valid YAML"),
        (VALID + "---\n", LAST, "not valid YAML"),
        (VALID + "# bell \a\n", LAST, "unprintable character 0x07"),
        (changed("description: the reference generation", "description: 2026-02-30"), 9, "value that cannot be"),
        ("[" * 5000, 1, "nested too deeply"),
        (VALID.encode() + b"# caf\xe9\n", LAST, "byte 0xe9 is not UTF-8"),
        (VALID.encode("utf-16"), 1, "is not UTF-8"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_line(
    content: str | bytes, line: int | None, complaint: str, refusal: Refusal
) -> None:
    named, message = refusal(content)
    assert complaint in message
    assert named == line
    assert not any(word in message for word in ("[whole]", "[parts]", ".metrics"))


@rows(
    ("written", "line"),
    [
        (changed("description: the reference generation", "description: &a text"), 9),
        (changed("description: the reference generation", "description: *a"), 9),
        (changed("description: the reference generation", "description: &a [*a]"), 9),
        (changed("  old:", "  old: &old\n    <<: *old"), 8),
        (changed("reasons: {few:", "reasons: {few: &few"), 3),
    ],
)
def test_anchors_are_refused_with_what_takes_their_place(written: str, line: int, refusal: Refusal) -> None:
    named, message = refusal(written)
    assert "the YAML anchor or alias " in message
    assert "expected a name under `reasons`, `sources`, `workloads` or `families` for repeated text" in message
    assert named == line


PLACES = {"bound: 0.95": "bound: {}", "{8: 0.97}": "{{8: {}}}"}
WHERE = {"bound: 0.95": "skus.new.requirements[0].bound", "{8: 0.97}": "requirements[0].weak_scaling_efficiency.8"}


@rows(
    ("written", "read"),
    [
        ("010", "8"), ("-010", "-8"), ("0_7", "7"), ("0b11", "3"), ("0x1f", "31"),
        ("1:30", "90"), ("12:30:45", "45045"), ("1:30.5", "90.5"), ("190:20:30", "685230"),
        ("1_000", "1000"), ("0.9_5", "0.95"), ("1_0.5", "10.5"), ('!!int "010"', "8"), ("!!float 1:30", "90.0"),
    ],
)  # fmt: skip
@rows("place", PLACES)
def test_a_number_that_yaml_reads_as_another_is_refused(place: str, written: str, read: str, refusal: Refusal) -> None:
    line, message = refusal(weak_changed(place, PLACES[place].format(written)))
    found = written.rpartition(" ")[2].strip('"')
    assert line == WEAK_LINE
    assert f"{WHERE[place]} has {found!r}, which YAML 1.1 reads as {read}; expected a plain decimal number. " in message
    assert "Write it as a plain number, or in quotes if it is text." in message


def test_such_a_number_is_refused_where_text_a_name_or_a_world_size_belongs(refusal: Refusal) -> None:
    for text, line, complaint in (
        (changed("aliases: [older]", "aliases: [12:30]"), 10, "aliases[0] has '12:30', which YAML 1.1 reads as 750"),
        (changed("  new:", "  010:"), NEW_LINE, "skus has '010', which YAML 1.1 reads as 8"),
        (weak_changed("8: 0.97", "010: 0.97"), WEAK_LINE, "weak_scaling_efficiency has '010', which YAML 1.1 reads as"),
    ):
        named, message = refusal(text)
        assert complaint in message
        assert named == line


def test_such_text_in_quotes_is_text(load: Load) -> None:
    text = changed("aliases: [older]", "aliases: [\"010\", '1_000']").replace("the reference generation", "'12:30'")
    sku = load(text).thresholds.skus["old"]
    assert (sku.aliases, sku.description) == (("010", "1_000"), "12:30")


@rows("written", ["0.95", ".95", "+0.95", "00.95", "9.5e-1", "95.0e-2", "0.95E+0"])
def test_a_decimal_number_is_what_it_looks_like(written: str, load: Load) -> None:
    requirement = load(weak_changed("bound: 0.95", f"bound: {written}")).thresholds.skus["new"].requirements[0]
    assert requirement.bound == 0.95


@rows("written", ["1e3", "1.5e3", "95e-2", "08", '"95"'])
@rows("place", PLACES)
def test_a_number_that_yaml_reads_as_text_is_refused(place: str, written: str, refusal: Refusal) -> None:
    found = written.strip('"')
    line, message = refusal(weak_changed(place, PLACES[place].format(written)))
    assert line == WEAK_LINE
    assert f"{WHERE[place]} is the text '{found}'; expected a number. Write it as a plain decimal" in message


@rows(
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
    _, message = refusal(weak_changed("bound: 0.95", f"bound: {written}"))
    assert complaint in message


BAD_NEW = changed("'^New$'", "'New'", with_row("colour: red"))


def test_a_mistake_in_one_sku_leaves_the_others_and_is_told_to_who_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(BAD_NEW)
    loaded = load_thresholds(path)
    assert (list(loaded.thresholds.skus), list(loaded.broken)) == (["old"], ["new"])
    assert loaded.sku_name("older") == "old"
    for asked in ("new", "NEW"):
        with pytest.raises(ThresholdsError, match=rf":{NEW_LINE + 2}: skus.new.detect: name 'New' is not anchored"):
            loaded.sku_name(asked)


@pytest.mark.parametrize(
    ("text", "usable"),
    [
        (changed("description: the generation", "description: x\n    description: the generation"), ["old"]),
        (weak_changed("0.95", "0_95"), ["old"]),
        (with_row("busbw_gbps: {8: 1}, probe: [all-reduce-1mib], published: papers"), ["old"]),
        (changed("paper: a paper}", "paper: a paper, other: b, other: c}"), ["old", "new"]),
        (changed("paper: a paper}", "paper: a paper, paper: b}"), []),
        (changed("throughput_per_gpu: 5 %", "throughput_per_gpu: 5 %, throughput_per_gpu: 9 %"), ["new"]),
        (changed("few: too few to say more", "few: 1_0").replace("rounded down", "few"), ["old"]),
        (changed("  r: {", "  q: {model: none, precision: fp16}\n  r: {"), ["old", "new"]),
        (changed("workloads:\n", "families:\n  f: [{colour: red}]\nworkloads:\n"), ["old", "new"]),
    ],
)
def test_what_is_wrong_breaks_only_those_who_use_it_and_is_told_in_any_case(
    text: str, usable: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(text)
    loaded = load_thresholds(path)
    assert list(loaded.thresholds.skus) == usable
    assert loaded.problems
    assert len({str(problem) for problem in loaded.problems}) == len(loaded.problems), "each is told once"


def test_of_several_mistakes_the_first_says_how_many_more_there_are(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(
        weak_changed("weak_scaling_efficiency: {8", "weak_scaling_efficiency: {x: 1, y").replace("{1: 2}", "2")
    )
    with pytest.raises(ThresholdsError, match=r"\(2 more like this\).*Then run `ddpscale thresholds check \S+yaml`\.$"):
        load_thresholds(path).sku_name("new")


def test_a_ratio_to_a_sku_that_is_not_valid_cannot_be_measured(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(changed("description: the reference generation", "descripton: the reference generation"))
    file = load_thresholds(path)
    (ratio,) = [one for one in file.thresholds.skus["new"].requirements if one.versus]
    assert ratio.missing == f"its reference old is not valid: {file.broken['old'][0].where}"
    [case] = [one for one in cases_for(file, "new", ONE_NODE) if one.requirement == ratio]
    assert case.missing == ratio.missing


def test_a_chain_of_references_breaks_at_its_first_link_only(tmp_path: Path) -> None:
    ratio = "throughput_per_gpu: {1: 200}, of: r, published: paper"
    newest = VALID[VALID.index("  new:") :].replace("  new:", "  newest:").replace("versus: old", "versus: new")
    text = with_row(ratio) + newest.replace("'^New$'", "'^Newest$'")
    path = tmp_path / "thresholds.yaml"
    path.write_text("\n".join(line for line in text.splitlines() if not line.startswith("  old:")).replace(
        "    description: the reference", "  elder:\n    description: the reference") + "\n")  # fmt: skip
    file = load_thresholds(path)
    thresholds = file.thresholds
    assert list(thresholds.skus) == ["elder", "new", "newest"]
    [warning] = file.warnings["new"]
    assert "is skipped for new: its reference old is not in this file" in str(warning)
    assert not [one for one in thresholds.skus["new"].requirements if one.versus]
    assert thresholds.reference_throughput(thresholds.skus["newest"].requirements[-1])[0] == 200


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "present.yaml").touch()
    for name, said in (("other.yaml", "does not exist; expected"), ("presnt.yaml", "did you mean '.*/present.yaml'"),
                       (".", "cannot be read")):  # fmt: skip
        path = tmp_path / name
        with pytest.raises(ThresholdsError, match=f"{said}.*Check --thresholds"):
            load_thresholds(path)


@given(st.text() | st.binary())
def test_no_content_gives_anything_but_a_thresholds_error(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "thresholds.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    with pytest.raises(ThresholdsError):
        load_thresholds(path)


@given(
    at=st.integers(0, len(VALID)),
    deleted=st.integers(0, 9),
    typed=st.sampled_from(["", "[]", "{}", "0", "x", " ", "~"]),
)
def test_whatever_somebody_types_is_refused_in_words_or_valid(
    at: int, deleted: int, typed: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("typed") / "thresholds.yaml"
    path.write_text(VALID[:at] + typed + VALID[at + deleted :])
    try:
        loaded = load_thresholds(path)
    except ThresholdsError:
        return
    assert set(loaded.thresholds.skus).isdisjoint(loaded.broken)
    assert not set(loaded.broken) or loaded.problems


def test_an_unknown_sku_is_refused_with_the_nearest_name(load: Load) -> None:
    loaded = load(VALID)
    assert loaded.sku_name("older") == "old"
    with pytest.raises(SkuError) as raised:
        loaded.sku_name("Oldr")
    assert "has no SKU 'Oldr'; expected one of new, old, older. Did you mean --gpu-sku=old" in str(raised.value)
    with pytest.raises(SkuError) as raised:
        loaded.sku_name("xyz")
    assert "Did you mean" not in str(raised.value)


@pytest.mark.parametrize("asked", ["old", "OLD", "older"])
def test_a_sku_that_is_not_valid_says_why_by_any_of_its_names(asked: str, tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(changed("description: the reference generation", "descripton: the reference generation"))
    with pytest.raises(ThresholdsError, match="descripton; did you mean 'description'"):
        load_thresholds(path).sku_name(asked)


def test_names_that_differ_in_case_alone_name_nothing(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.yaml"
    twin = VALID[VALID.index("  new:\n") :].replace("  new:\n", "  NEW:\n")
    file.write_text(VALID + twin, encoding="utf-8")
    loaded = load_thresholds(file)
    assert set(loaded.broken) == {"new", "NEW"}
    for asked in ("new", "NEW"):
        with pytest.raises(ThresholdsError, match="differs from NEW only in case"):
            loaded.sku_name(asked)


def test_a_sku_that_is_broken_is_not_another_one_that_has_its_name_as_alias(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.yaml"
    text = weak_changed("bound: 0.95", "bound: oops").replace("aliases: [older]", "aliases: [new]")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ThresholdsError, match="new is an alias of old"):
        load_thresholds(file).sku_name("new")


def test_a_merge_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.yaml"
    file.write_text(changed("  old:", "  old:\n    <<: {aliases: [010]}"), encoding="utf-8")
    with pytest.raises(ThresholdsError, match=r"thresholds.yaml:9: skus.old has a YAML merge key"):
        load_thresholds(file)
