"""A page for each option of pytest, from its declaration."""

from __future__ import annotations

from pytest_ddpscale.settings import OPTIONS, Option

# `Option.about` in words.
_ABOUT = {
    "one run": "Applies to this run only. A rerun command for one requirement omits it.",
    "measuring": "Controls how the run is measured. It cannot be combined with `--ddp-judge`, which measures nothing.",
    "judging": "Controls how values are judged. `--ddp-judge` can change it after the run was measured.",
}
_MORE = (
    "[All options](../options.md) · [How a run is measured](../measuring.md) · "
    "[From rounds to verdicts](../judging.md) · [Slurm](../slurm.md)"
)


def option_pages() -> dict[str, str]:
    """Markdown of each page, by its path from docs/."""
    return {f"options/{option.flag.removeprefix('--')}.md": _page(option) for option in OPTIONS.values()}


def _page(option: Option) -> str:
    flag = f"{option.flag} {option.metavar}" if option.metavar else option.flag
    typed = f"{option.flag}={option.metavar}" if option.metavar else option.flag
    rows = [
        ("command line", f"`{flag}`"),
        ("ini key", f"`{option.name}`"),
        ("default", f"`{option.default}`" if option.default else "none" if option.metavar else "off"),
    ]
    if option.in_environment:
        rows.insert(2, ("environment variable", f"`{option.variable}`, which wins over the ini key"))
    if option.alone:
        rows.append(("without a value", f"`{option.alone}`"))
    table = "".join(f"| {name} | {text.replace('|', chr(92) + '|')} |\n" for name, text in rows)
    explanation = option.explanation.replace("<", "&lt;")
    parts = [
        f"# `{option.flag}`",
        f"{explanation[0].upper()}{explanation[1:]}.",
        f"| | |\n| --- | --- |\n{table.rstrip()}",
        _ABOUT[option.about],
        "The command line wins over the ini key:",
        f"```ini\n[pytest]\n{option.name} = {_in_a_file(option)}\n```",
        f"On the command line: `pytest {typed}`",
        _MORE,
    ]
    return "\n\n".join(parts) + "\n"


def _in_a_file(option: Option) -> str:
    return "true" if option.metavar is None else option.default or str(option.metavar).strip('"')
