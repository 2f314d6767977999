"""Writes a site's files: its first thresholds.yaml, from a template, the JSON schema for editors, and overlays.

An overlay extends another file and changes one SKU of it. No existing file is ever changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import OptionError, ThresholdsError
from pytest_ddpscale.thresholds.form import ROW_LISTS, SCHEMA_VERSION, SECTIONS, FileForm
from pytest_ddpscale.thresholds.loading import DEEPEST_EXTENSION, PACKAGED, ThresholdsFile, load_thresholds
from pytest_ddpscale.util.packaged import packaged

_SOURCE = "site: 'who measured it, when, on which nodes, with which driver, NCCL and torch'"
_TEMPLATE = f"""\
# yaml-language-server: $schema=thresholds.schema.json
# Only what this site changes: `ddpscale thresholds check thresholds.yaml` lists it.
# Uncomment an example, and name a row that `ddpscale thresholds show --gpu-sku SKU` prints.
schema_version: 2
extends: packaged

sources:
  # {_SOURCE}

skus:
  # SKU:
  #   requirements:  # a row replaces the one below of the same metric, name and number of GPUs
  #     - {{weak_scaling_efficiency: {{node: 0.98}}, of: resnet152-fp16, published: site, margin: 2 %}}
  #   change:  # rows with another severity or bound; `off`: not required here
  #     - {{device_utilization: any, of: resnet152-fp16, severity: warn, who: NAME, why: 'why at this site'}}
  #     # a waiver: the row fails, and the run is accepted with waivers until that day
  #     - {{matmul_tflops: any, probe: matmul-bf16, severity: warn, until: 2027-03-01, who: NAME, why: 'ticket 4711'}}
"""
_WIDTH = 120  # of overlays


def site_file(sku: str) -> str:
    """The text of a thresholds.yaml that extends the packaged one and changes nothing yet.

    Args:
        sku: name of the SKU in the examples; empty for none.
    """
    return _TEMPLATE.replace("SKU", sku) if sku else _TEMPLATE


def json_schema_text() -> str:
    """The JSON schema of thresholds.yaml, for completion and checks in editors."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FileForm.model_json_schema(),
        "title": "pytest-ddpscale thresholds",
    }
    of_sku = schema["$defs"]["SkuForm"]
    sections = [schema["properties"][name] for name in SECTIONS] + [of_sku["properties"][name] for name in ROW_LISTS]
    for section in (*sections, of_sku):  # may have only comments, as in a file that extends another
        section["type"] = [section["type"], "null"]
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Overlay:
    """What a file changes in the file that it extends.

    Attributes:
        command: that writes it, such as ``calibrate``.
        below: the file that it extends.
        sku: canonical name of the SKU that it changes.
        section: the SKU's `batch`, `requirements` and `change`, as in a thresholds file.
        sources: text of each source that its rows name.
    """

    command: str
    below: ThresholdsFile
    sku: str
    section: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)

    def text(self, folder: Path) -> str:
        """The whole file, for a folder."""
        path = os.path.relpath(self.below.path.resolve(), folder.resolve())
        extends = f"./{path}" if path == PACKAGED else path
        if self.below.path.samefile(packaged("thresholds.yaml")):
            extends = PACKAGED
        content: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "extends": extends}
        if self.sources:
            content["sources"] = dict(self.sources)
        content["skus"] = {self.sku: dict(self.section)}
        # Leaves such as `{per_gpu: 40}` are written on one line.
        dumped = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None)
        return f"# Written by ddpscale {__version__} {self.command}.\n{dumped}"


def refuse_unwritable(file: Path, below: ThresholdsFile) -> None:
    """Refuse a file that exists or cannot be written, or would be one too many that extend each other.

    Raises:
        OptionError: the message names --write.
    """
    if os.path.lexists(file):
        hint = f"A new file may extend it: --thresholds={file} --write NEW.yaml."
        raise OptionError("--write", f"found {file}, which exists", "a new file", hint)
    if not os.access(file.parent, os.W_OK):
        raise OptionError("--write", f"found {file}, whose folder cannot be written", "a writable folder")
    if len(below.layers) > DEEPEST_EXTENSION:
        found = f"{below.path} already extends {DEEPEST_EXTENSION} files"
        raise OptionError("--write", found, "fewer", "Name an earlier one of them with --thresholds.")


def write_overlay(file: Path, overlay: Overlay) -> str:
    """Write an overlay into a new file, at once and only if it is valid. Returns its text.

    Raises:
        ThresholdsError: the SKU would be invalid.
        OSError: the file exists, or cannot be written.
    """
    text = overlay.text(file.parent)
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8", newline="")
    try:
        load_thresholds(new)
        file.open("x").close()  # fails if the file exists by now
        new.replace(file)
    except ThresholdsError as error:
        place, found = (one.replace(str(new), str(file)) for one in (error.where, error.found))
        raise ThresholdsError(place, f"{found}; the file was not written", error.expected) from None
    finally:
        new.unlink(missing_ok=True)
    return text
