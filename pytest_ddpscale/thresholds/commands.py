"""`ddpscale init` and `ddpscale thresholds show`, `check`, `schema`. Every command imports this module, see `cli`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError, SkuError, ThresholdsError
from pytest_ddpscale.util.command_parser import Commands
from pytest_ddpscale.util.packaged import SCHEMA, SITE_FOLDERS, THRESHOLDS, packaged, usual_thresholds

if TYPE_CHECKING:
    from pytest_ddpscale.thresholds.loading import ThresholdsFile
    from pytest_ddpscale.util.document import Block


def add_init(commands: Commands) -> None:
    """`ddpscale init`."""
    command = commands.add_parser(
        "init", help="create a site's directory: acceptance tests, job scripts and own thresholds"
    )
    command.add_argument("directory", type=Path, metavar="DIR")
    command.add_argument("--gpu-sku", metavar="SKU", help="GPU model for the examples in thresholds.yaml")
    command.set_defaults(run=_init)


def add_show(actions: Commands, usual: str | None) -> None:
    """`ddpscale thresholds show`; `usual` is the file named by the environment."""
    command = actions.add_parser("show", help="show a SKU's requirements, their sources, and how a site changes them")
    add = command.add_argument
    add("--gpu-sku", metavar="SKU", help="name or alias in the thresholds file; default: list all SKUs")
    add("--thresholds", type=Path, metavar="FILE", default=usual and Path(usual),
        help=f"thresholds file; default: {THRESHOLDS} here, else the packaged one")  # fmt: skip
    add("--metric", metavar="NAME", help="only metrics whose names contain this, such as weak_scaling; default: all")
    add(
        "--smallest",
        action="store_true",
        help="text: only what rejects: of each metric the row that sees the smallest loss",
    )
    add("--format", choices=("text", "json"), default="text", help="default: %(default)s")
    add("-v", "--verbose", action="store_true", help="text: add each row's line in its file and its full source")
    command.set_defaults(run=_show)


def add_check(actions: Commands) -> None:
    """`ddpscale thresholds check` and `schema`."""
    check = actions.add_parser("check", help="report errors of FILE with their lines, or what it requires and changes")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(run=_check)
    actions.add_parser("schema", help="print the JSON schema, for editors").set_defaults(run=_print_schema)


def _init(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.thresholds.loading import load_thresholds
    from pytest_ddpscale.thresholds.site_file import json_schema_text, site_file

    directory: Path = arguments.directory
    name = ""
    if arguments.gpu_sku is not None:
        thresholds = load_thresholds(packaged(THRESHOLDS))
        name = thresholds.sku_name(arguments.gpu_sku)
        if thresholds.thresholds.skus[name].detect.device == "none":
            raise SkuError(f"--gpu-sku={name}", "is a published reference, not something to measure", "another SKU")
    present = [name for name in (*SITE_FOLDERS, THRESHOLDS, SCHEMA) if (directory / name).exists()]
    if present:
        raise OptionError(
            str(directory), f"already has {', '.join(present)}", "a directory without them", "Nothing was copied."
        )
    directory.mkdir(parents=True, exist_ok=True)
    for folder in SITE_FOLDERS:
        shutil.copytree(packaged(folder), directory / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / SCHEMA).write_text(json_schema_text(), encoding="utf-8")
    (directory / THRESHOLDS).write_text(site_file(name), encoding="utf-8")
    print(f"Copied {', '.join((*SITE_FOLDERS, SCHEMA))} to {directory}.")
    print(f"Wrote {directory / THRESHOLDS}, which extends {packaged(THRESHOLDS)}: edit it for your site.")
    option = f" --gpu-sku {name}" if name else ""
    print(f"Next: cd {directory} && ddpscale thresholds show{option}; pytest --gpu-sku={name or 'cpu'}")


def _show(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.thresholds import showing
    from pytest_ddpscale.thresholds.loading import load_thresholds

    file = load_thresholds(arguments.thresholds or usual_thresholds())
    sku, metric, smallest = arguments.gpu_sku, arguments.metric, arguments.smallest
    if sku is None and (smallest or metric is not None):
        raise OptionError("--smallest" if smallest else "--metric", "found no --gpu-sku", "the SKU to show")
    if sku is None:
        data, blocks = showing.listed_json(file), showing.listed_blocks(file)
    else:
        selection = showing.selection_of(file, sku, metric)
        data = showing.selection_json(selection)
        blocks = (
            showing.smallest_blocks(selection) if smallest else showing.selection_blocks(selection, arguments.verbose)
        )
    if arguments.format == "json":
        print(showing.json_text(data))
    else:
        showing.tell(*blocks)


def _check(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.thresholds import showing
    from pytest_ddpscale.thresholds.loading import load_thresholds

    try:
        file = load_thresholds(arguments.file)
    except ThresholdsError as error:
        for other in error.others:
            print(other, file=sys.stderr)
        raise
    for text in dict.fromkeys(text for sku in file.thresholds.skus for text in file.remarks(sku)):
        print(f"ddpscale: remark: {text}.", file=sys.stderr)
    showing.tell(*showing.file_blocks(file), showing.counted(file, file.layers[-1].form.skus or file.thresholds.skus))
    showing.tell(*_changed(file), width=None)
    print(f"{arguments.file}: valid, {len(file.thresholds.skus)} SKUs")


def _changed(file: ThresholdsFile) -> Iterator[Block]:
    """What a file changes in those that it extends; empty if it extends none."""
    from pytest_ddpscale.thresholds.changes import all_changes
    from pytest_ddpscale.util.document import Line, bullets

    changes = all_changes(file)
    for change in changes:
        yield Line(str(change))
        yield bullets(
            f"{change.either.where if change.now else 'removed'}: {change}{' (weaker)' if change.is_weaker else ''}"
            for change in change.bounds
        )
    if file.extended:
        others = len(file.thresholds.skus) - len(changes)
        yield Line(f"{others} SKUs as in the file below" if changes else "changes nothing")


def _print_schema(_: argparse.Namespace) -> None:
    from pytest_ddpscale.thresholds.site_file import json_schema_text

    print(json_schema_text(), end="")
