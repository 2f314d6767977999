"""Hosts by name: pdsh-style lists, and host files of OpenMPI, MPICH and LSF."""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import MOST_NODES
from pytest_ddpscale.util.regular_file import read_regular

_LOGIN = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?"  # no leading hyphen, which would look like an option
_NAME = re.compile(rf"{_LOGIN}[A-Za-z0-9_][A-Za-z0-9_.-]*")
_IPV6 = re.compile(rf"({_LOGIN})(\[)?([0-9A-Fa-f.]*(?::[0-9A-Fa-f.]*){{2,}}(?:%[\w.-]+)?)(?(2)\])")
_BETWEEN_HOSTS = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NESTED = re.compile(r"\[[^\]]*\[")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MPICH = re.compile(r"(\[.*\]|[^:]*):(\d+)")
_SLOTS = re.compile(r"(?:(?:slots|count)=)?(\d+)")
MOST_HOSTFILE_BYTES = 2**22  # 500 bytes for each of the most nodes


def read_hostfile(path: Path) -> tuple[tuple[str, ...], int | None]:
    """Hosts in the order of a host file, and the slots of each; None if it does not give slots.

    A line has a name or a list of names, and its slots as ``slots=4``, ``count=4`` (OpenMPI), ``:4`` (MPICH) or ``4``
    (LSF). A repeated name without slots counts as one slot each time, as in OpenMPI and LSF's $LSB_DJOB_HOSTFILE. Other
    words, such as ``max_slots=8``, are ignored.

    Raises:
        OptionError: the file cannot be read, a line has no valid host or 0 slots, or hosts have different slots.
    """
    try:
        lines = read_regular(path, MOST_HOSTFILE_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError("--ddp-hosts", f"{path} cannot be read ({reason})", "a file with one host per line") from None
    slots, first = dict[str, int | None](), dict[str, str]()
    for number, line in enumerate(lines, start=1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if not words:
            continue
        name, counted = (match[1], match[2]) if (match := _MPICH.fullmatch(words[0])) else (words[0], None)
        stated = next((of_word[1] for word in words[1:] if (of_word := _SLOTS.fullmatch(word))), counted)
        if stated and not int(stated):
            raise OptionError(f"{path}, line {number}", f"found 0 slots for {name}", "at least one, or no such line")
        for host in expanded(f"{path}, line {number}", name):
            host = first.setdefault(identity(host), host)
            own = int(stated) if stated else None
            slots[host] = (slots[host] or 1) + (own or 1) if host in slots else own
    if not slots:
        raise OptionError("--ddp-hosts", f"found no host in {path}", "one host per line")
    (one, of_first), *others = slots.items()
    for host, count in others:
        if (count or 1) != (of_first or 1):
            raise OptionError(
                str(path), f"{one} has {of_first or 1} slots, {host} has {count or 1}",
                "the same number on every host",
                "Every node runs the same number of ranks; test hosts with different numbers in separate runs.",
            )  # fmt: skip
    return tuple(slots), of_first


def identity(host: str) -> str:
    """What is equal for all ways to write a host's name."""
    return host.rpartition("@")[2].rstrip(".").lower()


def expanded(where: str, text: str) -> tuple[str, ...]:
    """The hosts of a list: ``n1,n[2-4,7],r[01-12]n1``, addresses without brackets, users as they are given.

    Raises:
        OptionError: it is not a valid list.
    """
    hosts: list[str] = []
    for part in _BETWEEN_HOSTS.split(text):
        if part.strip():
            hosts += _expanded(where, part.strip())
    if len(hosts) > MOST_NODES:
        raise OptionError(where, f"found {len(hosts)} hosts", f"at most {MOST_NODES}")
    return tuple(hosts)


def _expanded(where: str, part: str) -> list[str]:
    if address_match := _IPV6.fullmatch(part):
        with suppress(ValueError):
            address = IPv6Address(address_match[3])
            if address.is_link_local and not address.scope_id:
                raise OptionError(where, f"found {part!r}", f"its interface too, such as {address}%eth0")
            return [f"{address_match[1]}{address}"]
    brackets = _BRACKETS.search(part)
    if brackets is None or _NESTED.search(part):
        if not _NAME.fullmatch(part):
            hint = "Ranks are given by --ddp-gpus-per-node or a host file." if ":" in part else ""
            raise OptionError(where, f"found {part!r}", "names of hosts such as n1,n2 or n[1-8]", hint)
        return [part]
    names: list[str] = []
    for piece in brackets[1].split(","):
        match = _RANGE.fullmatch(piece.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST_NODES:
            raise OptionError(where, f"found {part!r}", "names of hosts such as n1,n2 or n[1-8]")
        for number in range(int(first), int(last) + 1):
            names += _expanded(where, part[: brackets.start()] + str(number).zfill(len(first)) + part[brackets.end() :])
            if len(names) > MOST_NODES:
                return names  # already too many; the caller reports it
    return names
