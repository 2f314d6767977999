"""Code blocks and spans of the documents, and the commands in them that are this project's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`((?:ddpscale|pytest) [^`\n]*)`")
_SBATCH = re.compile(r"sbatch .*?slurm/\w+\.sbatch(.*)")
_NOT_STARTING = ("grep", "docker", "pip")  # they only speak of us
_ENDS = {";", "&&", "||", "|", "&", ">", ">>", "2>", "<", "(", ")"}


class Block(NamedTuple):
    """A fenced block of a document: where it begins, its language, its text moved to the left edge."""

    where: str
    language: str
    text: str


class Command(NamedTuple):
    """One command: where it stands, ``ddpscale`` or ``pytest``, and its arguments."""

    where: str
    program: str
    arguments: list[str]


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for match in _FENCED.finditer(text):
        inner = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        yield Block(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}", match[2], inner)


def typed_lines(block: Block) -> list[str]:
    """What is typed into a shell, a command a line: all of a ``bash`` block, what follows ``$`` in others."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language in ("bash", "sh"):
        return [line for line in lines if line.strip()]
    return [line[2:] for line in lines if line.startswith("$ ")]


def commands_in_blocks() -> Iterator[Command]:
    for path in DOCUMENTS:
        for block in blocks(path):
            for line in typed_lines(block):
                yield from commands_of(line, block.where)


def commands_in_sentences() -> Iterator[Command]:
    """Those in the midst of a sentence may have no arguments yet, or dots for some."""
    for path in DOCUMENTS:
        for match in _SPAN.finditer(_FENCED.sub("", path.read_text(encoding="utf-8"))):
            program, *arguments = match[1].split()
            yield Command(f"{path.relative_to(ROOT)}: `{match[1]}`", program, arguments)


def commands_of(line: str, where: str) -> Iterator[Command]:
    """Ours among those of a line of shell; what Slurm's scripts pass on to pytest counts as pytest's."""
    script = _SBATCH.search(line)
    if script:
        yield Command(where, "pytest", _words(script[1])[0])
        return
    for words in _words(re.sub(r"\$\{?\w+\}?", "1", line)):
        if words and words[0] in _NOT_STARTING:
            continue
        place = next((i for i, word in enumerate(words) if Path(word).name in ("ddpscale", "pytest")), None)
        if place is not None:
            yield Command(where, Path(words[place]).name, words[place + 1 :])
        for quoted in words if place is None else ():
            if " " in quoted:  # a line for another shell, such as ssh's
                yield from commands_of(quoted, where)


def _words(line: str) -> list[list[str]]:
    """The words of each simple command of a line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word in _ENDS:
            found.append([])
        else:
            found[-1].append(word)
    return found
