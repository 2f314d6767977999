"""A YAML file as plain data, with the line of each path, from the events of libyaml.

Plain scalars are those of YAML 1.2, but a number is decimal and begins with no idle zero: `off`, 010, 0x1f and 1:30 are
texts. Refused are repeated keys, whatever stands for another entry (anchors, merge keys), and tags.
"""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import yaml

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.util.nearest import did_you_mean

YamlPath: TypeAlias = tuple[str | int, ...]
# Several times the packaged file; reading that much takes about a second.
LARGEST_FILE_BYTES = 400 * 1024
DEEPEST = 40
_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(([0-9]+\.[0-9]*|0|[1-9][0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|\.(inf|nan))", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True)
class Mark:
    """Where an entry stands.

    Attributes:
        path: the file.
        line: from 1.
        at: keys and indices that lead to it.
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
        return self.refusal(f"{dotted(self.at)}: {sentence}", "", action)

    def refusal(self, found: str, expected: str, action: str = "") -> ThresholdsError:
        """An error at the entry's line."""
        return ThresholdsError(self.where, found, expected, f"{action} {what_next(self.path)}".strip())


@dataclass(frozen=True)
class Document:
    """One file as read.

    Attributes:
        path: the file.
        sha256: digest of its bytes.
        data: its content, unchecked.
        lines: the line of each entry; keys are written as text.
    """

    path: Path
    sha256: str
    data: dict[Any, Any]
    lines: dict[YamlPath, int]

    def place(self, *at: Any, with_last: bool = False) -> Mark:
        """The place of an entry, or of the nearest one above it; parts of the path that are not there are left out.

        Args:
            at: keys and indices.
            with_last: keep the last part, as of a key that is missing.
        """
        known: YamlPath = ()
        for part in at:
            inside = (*known, part) if (*known, part) in self.lines else (*known, str(part))
            known = inside if inside in self.lines else known
        named = (*known, str(at[-1])) if with_last and known[-1:] != (str(at[-1]),) else known
        return Mark(self.path, self.lines.get(known, 1), named)


def dotted(path: YamlPath) -> str:
    """``skus.cpu.requirements[3].margin``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "the file"


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = reprlib.repr(value) if isinstance(value, (list, dict)) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def what_next(path: Path) -> str:
    """What to do after correcting a file."""
    return f"Then run `ddpscale thresholds check {path}`."


def read_document(path: Path, named_by: Mark | None = None) -> Document:
    """Read one file.

    Args:
        path: the file.
        named_by: the `extends` that names it; None for an option.

    Raises:
        ThresholdsError: it cannot be read or is not YAML. The message has file:line, what was found, what was
            expected and what to do.
    """
    raw = _read(path, named_by)
    top = Mark(path, 1)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise Mark(path, 1 + raw[: error.start].count(10)).refusal(found, "a UTF-8 YAML file") from None
    reader = _Reader(path, text)
    try:
        data = reader.document()
    except yaml.reader.ReaderError as error:
        line, found = 1 + raw[: error.position].count(10), f"unprintable character 0x{error.character:02x}"
        raise Mark(path, line).refusal(f"not valid YAML ({found})", "YAML 1.2", "Fix that line.") from None
    except yaml.MarkedYAMLError as error:
        line = min(error.problem_mark.line, text.count("\n")) + 1 if error.problem_mark else 1
        raise Mark(path, line).refusal(f"not valid YAML ({error.problem})", "YAML 1.2", "Fix that line.") from None
    if data is None:
        raise top.refusal("the file is empty", "`schema_version: 2` and `skus:`")
    if not isinstance(data, dict):
        raise top.refusal(f"the file is {shown(data)}", "a mapping with `skus:`")
    return Document(path, hashlib.sha256(raw).hexdigest(), data, reader.lines)


def _read(path: Path, named_by: Mark | None) -> bytes:
    def refusal(found: str, expected: str = "a YAML file") -> ThresholdsError:
        if named_by is None:
            return ThresholdsError(str(path), found, "" if found.endswith("?") else expected, "Check --thresholds.")
        return named_by.refusal(f"extends {path}, which {found}", "`packaged` or the path of a YAML file")

    try:
        if path.is_dir():
            raise refusal("cannot be read (it is a directory)")
        if path.exists() and not path.is_file():  # opening a pipe or a terminal would hang
            raise refusal("is a device or a pipe")
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        others = (file.name for file in path.parent.glob("*.y*ml"))
        raise refusal(f"does not exist{did_you_mean(path.name, others, 0.8)}") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise refusal(f"cannot be read ({error})") from None
    if len(raw) > LARGEST_FILE_BYTES:
        raise Mark(path, 1).refusal(f"is larger than {LARGEST_FILE_BYTES // 1024} KiB", "a thresholds file")
    return raw


class _Reader:
    """Builds plain data from the events of one document.

    Attributes:
        lines: see `Document`.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.lines: dict[YamlPath, int] = {}
        self._path = path
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)

    def document(self) -> Any:
        """Its content; None if the file is empty. Raises yaml.YAMLError or ThresholdsError."""
        next(self._events)  # the stream begins
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        data = self._value(next(self._events), ())
        next(self._events)  # the document ends
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._refuse(event, "a second YAML document", "one")
        return data

    def _refuse(self, event: Any, found: str, expected: str) -> NoReturn:
        raise Mark(self._path, event.start_mark.line + 1).refusal(found, expected)

    def _value(self, event: Any, at: YamlPath) -> Any:
        if len(at) > DEEPEST:
            self._refuse(event, "nested too deeply", f"at most {DEEPEST} levels")
        if getattr(event, "anchor", None) is not None:
            expected = "a name under `reasons`, `sources`, `workloads` or `families` for repeated text"
            self._refuse(event, f"the YAML anchor or alias {event.anchor!r}", expected)
        if event.tag is not None:
            self._refuse(event, f"{dotted(at)} has the YAML tag {event.tag!r}", "the value alone")
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else self._plain(event, event.value)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(at)
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            inside = (*at, len(items))
            self.lines[inside] = event.start_mark.line + 1
            items.append(self._value(event, inside))
        return items

    def _mapping(self, at: YamlPath) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, f"a key of {dotted(at)} is no text", "a name or a number")
            key = self._value(event, at)
            if key == "<<":
                self._refuse(event, f"{dotted(at)} has a YAML merge key, `<<`", "each key written out")
            inside = (*at, str(key))
            if key in mapping or inside in self.lines:  # Python, too, takes 1, 1.0 and true for the same key
                first = (*at, next(str(one) for one in mapping if one == key or str(one) == str(key)))
                also = f" as {first[-1]!s:.40}" if first[-1] != event.value else ""
                before = f"first on line {self.lines[first]}{also}"
                found_twice = f"key {event.value[:40]!r} is given twice in {dotted(at)}, {before}"
                self._refuse(event, found_twice, "each key once")
            self.lines[inside] = line
            mapping[key] = self._value(next(self._events), inside)
        return mapping

    def _plain(self, event: Any, text: str) -> Any:
        """A scalar without quotes."""
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(re.sub(r"\.(?=[in])", "", text.lower()))
        if _DAY.fullmatch(text):
            try:
                return date.fromisoformat(text)
            except ValueError:
                self._refuse(event, f"{text} is no day of the calendar", "a day that there is, or text in quotes")
        return text
