"""What MkDocs calls while it builds the site: adds pages that have no file in docs/, and completes the navigation."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path, from wherever it is started

from docs_pages.declared import causes, commands, keys_page, metrics_page, options_page  # noqa: E402

# Files beside docs/, and what they are called on the site.
BESIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

# Pages in docs/ that end with what is declared.
ENDS = {"how-to/rejected.md": causes, "commands.md": commands}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add those pages, and name every page of a folder that the navigation lists."""
    pages = {page: _seen_from_docs((ROOT / name).read_text(encoding="utf-8")) for name, page in BESIDE.items()}
    declared = {"metrics.md": metrics_page(), "options.md": options_page(), "thresholds-keys.md": keys_page()}
    for uri, text in {**pages, **declared}.items():
        files.append(File.generated(config, uri, content=text))
    config.nav = _expanded(config.nav or [], [file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Add the declared end of a page."""
    return markdown + ENDS[page.file.src_uri]() if page.file.src_uri in ENDS else markdown


def _seen_from_docs(text: str) -> str:
    """Rewrite the links of a file beside docs/ for a page inside docs/."""
    text = re.sub(r'(\]\(|src=")docs/', r"\1", text)
    for name, page in BESIDE.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text


def _expanded(nav: Sequence[Any], pages: Sequence[str]) -> list[Any]:
    """The navigation with the pages of a folder, its README first, in place of ``folder/``."""
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            ((title, inner),) = entry.items()
            is_list = isinstance(inner, list) or inner.endswith("/")
            listed = [inner] if isinstance(inner, str) else inner
            found.append({title: _expanded(listed, pages) if is_list else inner})
        elif entry.endswith("/"):
            inside = [page for page in pages if page.startswith(entry) and "/" not in page.removeprefix(entry)]
            found += sorted(inside, key=lambda page: (not page.endswith("/README.md"), page))
        else:
            found.append(entry)
    return found
