"""Every page of the documentation is in the navigation, without an edit for a new one in a listed folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from docs_pages.navigation import expanded, pages_in

ROOT = Path(__file__).parents[2]
PAGES = ["index.md", "how-to/tune.md", "how-to/batch.md", "how-to/deeper/one.md", "evidence/README.md", "evidence/a.md"]


def configuration() -> dict[str, Any]:
    # MkDocs writes some extensions as Python names, which we use none of
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture
def all_pages(pages: dict[str, str]) -> list[str]:
    docs = ROOT / "docs"
    return [str(path.relative_to(docs)) for path in docs.rglob("*.md")] + list(pages)


def test_a_folder_becomes_its_pages_in_order() -> None:
    assert expanded(["index.md", {"How-tos": "how-to/"}], PAGES) == [
        "index.md",
        {"How-tos": ["how-to/batch.md", "how-to/tune.md"]},
    ]


def test_a_readme_is_the_first_page_of_its_folder() -> None:
    assert expanded([{"Evidence": "evidence/"}], PAGES) == [{"Evidence": ["evidence/README.md", "evidence/a.md"]}]


def test_a_folder_may_stand_beside_pages() -> None:
    assert expanded([{"All": ["index.md", "how-to/deeper/"]}], PAGES) == [{"All": ["index.md", "how-to/deeper/one.md"]}]


def test_a_folder_without_pages_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mkdocs.yml: nav: nothing/ has no pages"):
        expanded([{"Nothing": "nothing/"}], PAGES)


def test_no_page_is_outside_the_navigation(all_pages: list[str]) -> None:
    listed = list(pages_in(expanded(configuration()["nav"], all_pages)))
    assert sorted(listed) == sorted(all_pages), "each page once: see nav in mkdocs.yml"


def test_warnings_of_the_build_are_errors_and_no_page_can_be_edited_online() -> None:
    found = configuration()
    assert found["strict"] is True
    assert set(found["validation"]["links"].values()) == set(found["validation"]["nav"].values()) == {"warn"}
    assert not {"repo_url", "edit_uri"} & found.keys()
    assert "search" in found["plugins"]
