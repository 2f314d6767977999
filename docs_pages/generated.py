"""All pages that have no file in docs/."""

from __future__ import annotations

import re
from pathlib import Path

from docs_pages.metric_pages import metric_pages
from docs_pages.option_pages import option_pages
from docs_pages.thresholds_pages import thresholds_pages

# Files beside docs/, and what they are called on the site.
BESIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def generated_pages(root: Path) -> dict[str, str]:
    """Markdown of each page, by its path from docs/."""
    beside = {page: _seen_from_docs((root / name).read_text(encoding="utf-8")) for name, page in BESIDE.items()}
    return {**beside, **metric_pages(root / "thresholds.yaml"), **option_pages(), **thresholds_pages(root)}


def _seen_from_docs(text: str) -> str:
    """Rewrite the links of a file beside docs/ for a page inside docs/."""
    text = re.sub(r"\]\(docs/", "](", text)
    for name, page in BESIDE.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text
