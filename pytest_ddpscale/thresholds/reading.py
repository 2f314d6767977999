"""Reads the YAML of one thresholds file: its content, with the line of each entry.

PyYAML reads much that nobody means: keys that replace each other, 010 as 8, 1:30 as 90. Such entries are listed as odd.
Files are limited in size, and anchors, which named entries replace, are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.util.nearest import did_you_mean_path

YamlPath: TypeAlias = tuple[str | int, ...]
SECTIONS = ("sources", "reasons", "margins", "workloads", "families", "skus")
ROW_LISTS = ("requirements", "change")  # of a SKU
# Several times the packaged file; reading that much takes about a second.
LARGEST_FILE_BYTES = 400 * 1024
MOST_NODES = 30_000  # keys and values
LONGEST_TEXT = 4_000
DEEPEST = 40
_TAG = "tag:yaml.org,2002:"
# Matches numbers that YAML 1.1 reads as they look: 0, 0.5, .5, .nan, 1.0e+3; a whole number starting with 0 is octal.
_AS_IT_LOOKS = re.compile(r"[-+]?((0|[1-9][0-9]*)|[0-9]*\.[0-9]*([eE][-+]?[0-9]+)?|\.(inf|nan))", re.IGNORECASE)
# What PyYAML raises on 2026-02-30, which looks like a date, and on `!!bool maybe`, `!!timestamp soon`, `!!int ""`.
_UNREADABLE = (ValueError, LookupError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Mark:
    """Where an entry stands.

    Attributes:
        path: the file.
        line: from 1.
        at: keys and indices that lead to it, as in the file.
    """

    path: Path
    line: int
    at: YamlPath = ()

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.path}:{self.line}"

    def error(self, sentence: str, action: str = "") -> ThresholdsError:
        """An error about the entry."""
        then = f"{action} {what_next(self.path)}".strip()
        return ThresholdsError(self.where, f"{dotted(self.at)}: {sentence}", "", then)


class MarkedMapping(dict[Any, Any]):
    """A mapping that knows where each of its entries stands."""

    marks: dict[Any, Mark]

    def __init__(self, entries: Mapping[Any, Any] | None = None, marks: Mapping[Any, Mark] | None = None) -> None:
        super().__init__(entries or {})
        self.marks = dict(marks or {})

    def put(self, key: Any, value: Any, mark: Mark) -> None:
        """Set an entry and its place."""
        self[key] = value
        self.marks[key] = mark


class MarkedList(list[Any]):
    """A list that knows where each of its items stands."""

    marks: list[Mark]

    def __init__(self, items: Iterable[Any] = (), marks: Iterable[Mark] = ()) -> None:
        super().__init__(items)
        self.marks = list(marks)


_SHORT = reprlib.Repr()
vars(_SHORT).update(repr_MarkedMapping=_SHORT.repr_dict, repr_MarkedList=_SHORT.repr_list)


@dataclass(frozen=True)
class Layer:
    """One file as read.

    Attributes:
        path: the file.
        sha256: digest of its bytes.
        data: its content, unchecked.
        odd: problems that a YAML library accepts silently: duplicate keys, and numbers that it reads differently.
    """

    path: Path
    sha256: str
    data: MarkedMapping
    odd: tuple[tuple[YamlPath, ThresholdsError], ...]

    @property
    def mark(self) -> Mark:
        """The top of the file."""
        return Mark(self.path, 1)

    def section(self, name: str) -> MarkedMapping:
        """The entries of a top-level mapping, by name; empty if it is missing.

        Raises:
            ThresholdsError: it is not a mapping.
        """
        found = self.data.get(name, MarkedMapping())
        if not isinstance(found, MarkedMapping):
            place = self.data.marks[name].where
            raise ThresholdsError(
                place, f"{name} is {shown(found)}", "a mapping", f"Correct it. {what_next(self.path)}"
            )
        marks = {str(key): mark for key, mark in found.marks.items()}
        return MarkedMapping({str(key): value for key, value in found.items()}, marks)


def _key(data: Any, part: Any) -> Any:
    """The key or index of a container that a part of a path names, such as the number 8 for ``8`` as text."""
    if not isinstance(data, MarkedMapping) or part in data:
        return part
    return next((one for one in data if str(one) == str(part)), part)


def has(data: Any, loc: Iterable[Any]) -> bool:
    """Whether there is an entry at a path below another."""
    for part in loc:
        try:
            data = data[_key(data, part)] if isinstance(data, (MarkedMapping, MarkedList)) else None
        except (LookupError, TypeError):
            return False
        if data is None:
            return False
    return True


def placed(data: Any, loc: Iterable[Any], mark: Mark, skips: Callable[[Any, Any], bool] | None = None) -> Mark:
    """The place of an entry, or of the nearest one above it, with the whole path.

    Args:
        data: the entry that the path begins at.
        loc: keys and indices below it.
        mark: the place of `data`.
        skips: tells a part of the path that is not in the file, from the part and the entry that it should be in.
    """
    at = list(mark.at)
    for part in loc:
        if skips is not None and skips(part, data):
            continue
        try:
            key = _key(data, part)
            mark, data = data.marks[key], data[key]
            at = list(mark.at)
        except (LookupError, TypeError, AttributeError):
            at.append(part if isinstance(part, int) and not isinstance(data, MarkedMapping) else str(part))
            data = None
    return Mark(mark.path, mark.line, tuple(at))


def dotted(path: YamlPath) -> str:
    """``skus.cpu.requirements[3].margin``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "the file"


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = _SHORT.repr(value) if isinstance(value, (list, dict)) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def what_next(path: Path) -> str:
    """What to do after correcting a file."""
    return f"Then run `ddpscale thresholds check {path}`."


def read_layer(path: Path, named_by: Mark | None = None) -> Layer:
    """Read one file.

    Args:
        path: the file.
        named_by: the `extends` that names it; None for an option.

    Raises:
        ThresholdsError: it cannot be read or is not YAML. The message has file:line, what was found, what was
            expected and what to do.
    """
    return _parsed(path, *_read(path, named_by))


def _read(path: Path, named_by: Mark | None) -> tuple[bytes, str]:
    def refusal(found: str) -> ThresholdsError:
        if named_by is None:
            expected = "" if found.endswith("?") else "a YAML file"
            return ThresholdsError(str(path), found, expected, "Check --thresholds.")
        expected = "`packaged` or the path of a YAML file"
        return ThresholdsError(named_by.where, f"extends {path}, which {found}", expected, what_next(named_by.path))

    try:
        if path.is_dir():
            raise refusal("cannot be read (it is a directory)")
        if path.exists() and not path.is_file():  # opening a pipe or a terminal would hang
            raise refusal("is a device or a pipe")
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise refusal(f"does not exist{did_you_mean_path(path, path.parent.glob('*.y*ml'))}") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise refusal(f"cannot be read ({error})") from None
    if len(raw) > LARGEST_FILE_BYTES:
        found, expected = f"is larger than {LARGEST_FILE_BYTES // 1024} KiB", "a thresholds file, which is smaller"
        raise ThresholdsError(f"{path}:1", found, expected, "Check --thresholds.")
    try:
        return raw, raw.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{path}:{1 + raw[: error.start].count(10)}"
        found = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise ThresholdsError(where, found, "a UTF-8 YAML file", "Save the file as UTF-8.") from None


@lru_cache(maxsize=8)  # one process reads a site's file and those that it extends several times
def _parsed(path: Path, raw: bytes, text: str) -> Layer:
    try:
        node, loader = _composed(path, text)
        if node is None:
            found, expected = "the file is empty", "`schema_version: 2` and `skus:`"
            raise ThresholdsError(f"{path}:1", found, expected, what_next(path))
        builder = _Builder(path, loader)
        data = builder.built(node, ())
    except yaml.reader.ReaderError as error:
        where = f"{path}:{text.count(chr(10), 0, error.position) + 1}"
        found = f"not valid YAML (unprintable character 0x{error.character:02x})"
        raise ThresholdsError(where, found, "YAML 1.1", f"Fix that line. {what_next(path)}") from None
    except yaml.YAMLError as error:
        raise _not_yaml(path, error) from None
    if not isinstance(data, MarkedMapping):
        raise ThresholdsError(f"{path}:1", f"the file is {shown(data)}", "a mapping with `skus:`", what_next(path))
    if "extends" in data:
        _fill_empty(data)
    return Layer(path, hashlib.sha256(raw).hexdigest(), data, tuple(builder.odd))


def _fill_empty(data: MarkedMapping) -> None:
    """Fill sections and lists that have only comments, which a file that extends another may have."""
    data.update({key: MarkedMapping() for key in SECTIONS if key in data and data[key] is None})
    skus = data.get("skus")
    if not isinstance(skus, MarkedMapping):
        return
    for name, sku in skus.items():
        if sku is None:
            skus[name] = MarkedMapping()
        elif isinstance(sku, MarkedMapping):
            sku.update({key: MarkedList() for key in ROW_LISTS if key in sku and sku[key] is None})


def _not_yaml(path: Path, error: yaml.YAMLError) -> ThresholdsError:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return ThresholdsError(where, f"not valid YAML ({problem})", "YAML 1.1", f"Fix that line. {what_next(path)}")


class _Builder:
    """Turns the nodes of a document into values.

    Attributes:
        odd: see `Layer`.
    """

    def __init__(self, path: Path, loader: SafeConstructor) -> None:
        self._path = path
        self._loader = loader
        self.odd: list[tuple[YamlPath, ThresholdsError]] = []

    def built(self, node: yaml.Node, at: YamlPath) -> Any:
        """The value of a node."""
        if isinstance(node, yaml.ScalarNode):
            self._note_odd_number(node, at)
            return self._constructed(node)
        if node.tag not in (f"{_TAG}seq", f"{_TAG}map"):
            raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag!r}", node.start_mark)
        if isinstance(node, yaml.SequenceNode):
            marks = [Mark(self._path, one.start_mark.line + 1, (*at, i)) for i, one in enumerate(node.value)]
            return MarkedList([self.built(one, mark.at) for one, mark in zip(node.value, marks, strict=True)], marks)
        found = MarkedMapping()
        for key, value in node.value:
            self._put(found, key, value, at)
        return found

    def _put(self, found: MarkedMapping, key: yaml.Node, value: yaml.Node, at: YamlPath) -> None:
        line = key.start_mark.line + 1
        where = f"{self._path}:{line}"
        if not isinstance(key, yaml.ScalarNode):
            what = f"a key of {dotted(at)} is a list or a mapping"
            raise ThresholdsError(where, what, "text", f"Correct that key. {what_next(self._path)}")
        if key.tag == f"{_TAG}merge":
            what = f"{dotted(at)} has a YAML merge key, `<<`"
            raise ThresholdsError(where, what, "each key written out", what_next(self._path))
        written = str(key.value)
        mark = Mark(self._path, line, (*at, written))
        self._note_odd_number(key, at)
        name = self._constructed(key)
        first = found.marks.get(name)  # Python, too, takes 1, 1.0 and true for the same key
        if first is not None:
            also = "" if first.at[-1] == written else f", there as {first.at[-1]!r}"
            what = f"key {written!r} is given twice in {dotted(at)}, first on line {first.line}{also}"
            self.odd.append((mark.at, ThresholdsError(where, what, "each key once", "Remove one of them.")))
        found.put(name, self.built(value, mark.at), mark)

    def _constructed(self, node: yaml.ScalarNode) -> Any:
        try:
            return self._loader.construct_object(node)
        except _UNREADABLE as error:
            found = f"not valid YAML (a value that cannot be read: {error})"
            where = f"{self._path}:{node.start_mark.line + 1}"
            raise ThresholdsError(where, found, "YAML 1.1, text in quotes", what_next(self._path)) from None

    def _note_odd_number(self, node: yaml.ScalarNode, at: YamlPath) -> None:
        """Note a number that YAML 1.1 reads differently than a person: 010 is 8, 1:30 is 90, 1_000 is 1000."""
        if node.tag not in (f"{_TAG}int", f"{_TAG}float") or _AS_IT_LOOKS.fullmatch(node.value):
            return
        try:
            reading = f"reads as {SafeConstructor().construct_object(node)!s:.40}"
        except _UNREADABLE:
            reading = "cannot read"
            node.tag = f"{_TAG}str"  # lets the rest of the file be read
        found = f"{dotted(at)} has {reprlib.repr(node.value)}, which YAML 1.1 {reading}"
        action = f"Write it as a plain number, or in quotes if it is text. {what_next(self._path)}"
        where = f"{self._path}:{node.start_mark.line + 1}"
        self.odd.append((at, ThresholdsError(where, found, "a plain decimal number", action)))


class _Limits(Composer, SafeConstructor, Resolver):
    """Refuses a document that is too large or has anchors, and names the line.

    Args:
        path: of the file, for messages.
    """

    peek_event: Any  # of the parser

    def __init__(self, path: Path) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._path = path
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node as in the base class, and count it."""
        event = self.peek_event()
        where = f"{self._path}:{event.start_mark.line + 1}"
        if getattr(event, "anchor", None) is not None:
            expected = "a name under `reasons`, `sources`, `workloads` or `families` for repeated text"
            self._refuse(where, f"the YAML anchor or alias {event.anchor!r}", expected)
        self._depth += 1
        if self._depth > DEEPEST:
            self._refuse(where, "nested too deeply", f"at most {DEEPEST} levels")
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST_TEXT:
            self._refuse(where, f"a text of {len(node.value)} characters", f"at most {LONGEST_TEXT}")
        self._nodes += 1
        if self._nodes > MOST_NODES:
            self._refuse(where, f"more than {MOST_NODES} keys and values", "a smaller file")
        return node

    def _refuse(self, where: str, found: str, expected: str) -> None:
        raise ThresholdsError(where, found, expected, what_next(self._path))


class ExactLoader(_Limits, Reader, Scanner, Parser):
    """A loader in Python, with precise error messages."""

    def __init__(self, path: Path, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        super().__init__(path)


if yaml.__with_libyaml__:
    from yaml._yaml import CParser

    class FastLoader(_Limits, CParser):
        """The same on libyaml, which takes a tenth of the time but gives less precise errors."""

        def __init__(self, path: Path, text: str) -> None:
            CParser.__init__(self, text)
            super().__init__(path)


def _composed(path: Path, text: str) -> tuple[yaml.Node | None, SafeConstructor]:
    """The document of a text, None if empty, and its constructor of Python values. Raises as `read_layer`."""
    loader: Any = ExactLoader(path, text)  # finds unprintable characters
    if yaml.__with_libyaml__:
        fast: Any = FastLoader(path, text)
        with contextlib.suppress(yaml.YAMLError):
            return fast.get_single_node(), fast
    return loader.get_single_node(), loader
