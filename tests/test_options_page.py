"""docs/options.md matches the declared options, and no text mentions an unknown option.

`python -m tests.test_options_page` writes the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from pytest_ddpscale.settings import OPTIONS, Option

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "options.md"
HEAD = """\
# Options of `pytest`

Each option is also an ini key; the command line wins over it. Three are environment variables too, for the scripts in
slurm/; they win over the ini key. Any other variable of that kind (`DDPSCALE_ROUNDS`) is refused, so that none is
ignored silently. The site has a page for each option. `python -m tests.test_options_page` writes this page from
`pytest_ddpscale/settings.py`.

| option | ini key, environment variable | |
| --- | --- | --- |
"""
READ = ("README.md", "CONTRIBUTING.md", "docs", "slurm", "acceptance", "pytest_ddpscale", "benchmarks")
FLAG = re.compile(r"--(?:ddp-[a-z]+(?:-[a-z]+)*|gpu-sku|thresholds)(?![a-z-])")


def row(option: Option) -> str:
    flag = f"{option.flag} {option.metavar}" if option.metavar else option.flag
    names = f"`{option.name}`, `{option.variable}`" if option.in_environment else f"`{option.name}`"
    cells = [f"`{flag}`", names, option.help]
    return "| " + " | ".join(cell.replace("|", r"\|").replace("<", "&lt;") for cell in cells) + " |\n"


def page() -> str:
    return HEAD + "".join(map(row, OPTIONS.values()))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it: python -m tests.test_options_page"


def test_every_option_that_is_spoken_of_is_there() -> None:
    texts = [path for name in READ for path in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))]
    said = {
        (flag, str(path.relative_to(ROOT)))
        for path in texts
        if path.suffix in (".md", ".py", ".sh", ".sbatch", ".yaml")
        for flag in FLAG.findall(path.read_text(encoding="utf-8"))
    }
    flags = {option.flag for option in OPTIONS.values()}
    assert {flag for flag, _ in said} >= flags, "the texts were read"
    assert {(flag, where) for flag, where in said if flag not in flags} == set()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
