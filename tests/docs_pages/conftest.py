"""What tests of the documentation share."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs_pages.generated import generated_pages


@pytest.fixture(scope="session")
def pages() -> dict[str, str]:
    """Markdown of each generated page, by its path from docs/."""
    return generated_pages(Path(__file__).parents[2])
