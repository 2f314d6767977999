"""What a launcher is told, and what a command is put behind, for an image of each runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.launcher import NO_CONTAINER, Container, container_of


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A PATH on which there are programs of these names, and no others."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def pyxis(image: str) -> tuple[str, ...]:
    """Of a launcher that starts Pyxis' images."""
    return (f"--image={image}",)


def no_pyxis(image: str) -> None:
    """Of one that does not."""


def test_without_an_image_commands_stay_as_they_are() -> None:
    assert container_of(None, "cuda", no_pyxis) is NO_CONTAINER
    assert Container() == NO_CONTAINER


@pytest.mark.parametrize("image", ["nvcr.io#nvidia/pytorch:25.01-py3", "image.sqsh", "/images/a.sqsh", "ubuntu:24.04"])
def test_an_image_is_pyxis_own_unless_it_looks_like_apptainers(image: str) -> None:
    expected = Container((f"--image={image}",), (), "python3")
    assert container_of(image, "cuda", pyxis) == expected
    assert container_of(f"pyxis:{image}", "cpu", pyxis) == expected


@pytest.mark.parametrize("arguments", [pyxis, no_pyxis])
@pytest.mark.parametrize("image", ["image.sif", "/images/a.sif", "docker://ubuntu:24.04", "oras://a/b", "library://a"])
def test_apptainers_images_are_known_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, arguments: Any
) -> None:
    on_path(tmp_path / "bin", monkeypatch, "apptainer", "singularity")
    assert container_of(image, "cuda", arguments) == Container((), ("apptainer", "exec", "--nv", image), "python3")


def test_an_unpacked_image_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "bin", monkeypatch, "apptainer")
    assert container_of(str(tmp_path), "cpu", pyxis).command == ("apptainer", "exec", str(tmp_path))


def test_the_user_may_say_whose_image_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "bin", monkeypatch, "apptainer")
    assert container_of("apptainer:image", "cpu", pyxis).command[-1] == "image"
    assert container_of("pyxis:image.sif", "cpu", pyxis).arguments == ("--image=image.sif",)


def test_where_there_is_only_singularity_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "bin", monkeypatch, "singularity")
    assert container_of("image.sif", "cuda", no_pyxis).command == ("singularity", "exec", "--nv", "image.sif")


def test_without_either_runtime_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "bin", monkeypatch)
    with pytest.raises(OptionError, match=r"^--ddp-container: neither apptainer nor singularity is on PATH"):
        container_of("image.sif", "cuda", pyxis)


def test_pyxis_with_a_launcher_that_does_not_know_it_is_refused() -> None:
    with pytest.raises(OptionError, match=r"image\.sqsh is an image for Pyxis.*Use Apptainer"):
        container_of("image.sqsh", "cuda", no_pyxis)


@pytest.mark.parametrize("image", ["apptainer:", "pyxis:"])
def test_a_runtime_without_an_image_is_refused(image: str) -> None:
    with pytest.raises(OptionError, match="found no image"):
        container_of(image, "cuda", pyxis)
