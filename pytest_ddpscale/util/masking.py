"""Replaces secrets in command lines, environments and messages by ``***`` before anything is recorded.

Masking prefers too much to too little: it covers the rest of the word in which a secret begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

MASK = "***"
# Endings of secrets' names. An InfiniBand partition key (NCCL_IB_PKEY) is an index, not a secret.
_SECRET = r"(?:token|secret|pass(?:word|wd|phrase)?|(?<![a-z])(?:pw|pat|auth)|(?<!_ib_p)key|credential)s?"  # noqa: S105
_SECRET_NAME = re.compile(rf".*{_SECRET}", re.IGNORECASE | re.DOTALL)
_SECRET_OPTION = re.compile(rf"-[\w-]*{_SECRET}|authorization:", re.IGNORECASE)
_SCHEME = re.compile("authorization: (bearer|basic)", re.IGNORECASE)
# `token=…` and `Authorization: …` anywhere in a word, `--password …` in a word that is itself a command line, curl's
# `--user=NAME:…`.
_SECRET_WITHIN = re.compile(
    rf"(?:{_SECRET}=|authorization:\s*|(?<![\w-])-(?:[\w-]*{_SECRET}\s+|(?:u|-user=)[^\s:]+:(?!\d+$)))(?=.)",
    re.IGNORECASE | re.DOTALL,
)
# curl's; not the numbers of a user and a group.
_USER = re.compile(r"[^\s:]+:(?!\d+$).+", re.DOTALL)
_LOGIN = re.compile(r"(?<=://)[^\s/]*@")
_WORD = re.compile(r"""(-[\w-]+=)?(["']?)(.*)\2""", re.DOTALL)
# Words as a shell splits them, and the whitespace between them.
_TOKEN = re.compile(r"""\s+|(?:"(?:[^"\\]|\\.)*"?|'[^']*'?|\\.?|[^\s"'\\])+""", re.DOTALL)


def masked_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of variables whose name ends like a secret's, and secrets within other values."""
    return {name: MASK if _SECRET_NAME.fullmatch(name) else masked_text(value) for name, value in environ.items()}


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """Mask ``--password VALUE``, ``token=VALUE`` and ``user:password@`` of URLs in a command line."""
    return list(_masked(arguments))


def masked_text(text: str) -> str:
    """Mask the same in a message or log line."""
    return "".join(_masked(_TOKEN.findall(text)))


def _masked(words: Iterable[str]) -> Iterator[str]:
    before, is_value, is_of_sshpass = "", False, False
    for word in words:
        if word.isspace():
            yield word
            continue
        is_password = is_of_sshpass and word.startswith("-p")
        is_value |= (is_password and word != "-p") or (before in ("-u", "--user") and bool(_USER.fullmatch(word)))
        yield MASK if is_value else _masked_word(word)
        is_value = (is_password and word == "-p") or bool(
            _SECRET_OPTION.fullmatch(word) or _SCHEME.fullmatch(f"{before} {word}")
        )
        is_of_sshpass = word.endswith("sshpass") or (is_of_sshpass and word.startswith("-"))
        before = word


def _masked_word(word: str) -> str:
    parts = _WORD.fullmatch(word)
    option, quote, inside = parts.groups("") if parts is not None else ("", "", word)
    tokens = _TOKEN.findall(inside)  # of an argument that is a command line: ="--exclusive --comment=token=…"
    if len(tokens) > 1 and not _SECRET_WITHIN.search(option + quote + tokens[0]):
        return f"{option}{quote}{''.join(_masked(tokens))}{quote}"
    word = _LOGIN.sub(f"{MASK}@", word)
    begin = _SECRET_WITHIN.search(word)
    if begin is None:
        return word
    kept = word[: begin.end()]
    return kept + MASK + "".join(quote for quote in "'\"" if kept.count(quote) % 2)
