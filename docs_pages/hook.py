"""What MkDocs calls while it builds the site: adds generated pages, and completes the navigation."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path, from wherever it is started

from docs_pages.generated import generated_pages  # noqa: E402
from docs_pages.navigation import expanded  # noqa: E402


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and name every page of a folder that the navigation lists."""
    for uri, text in generated_pages(ROOT).items():
        files.append(File.generated(config, uri, content=text))
    config.nav = expanded(config.nav or [], [file.src_uri for file in files.documentation_pages()])
    return files
