"""What srun is told, and what a command is put behind, for an image of each runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.container import NO_CONTAINER, Container, container_of


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A PATH on which there are programs of these names, and no others."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def test_without_an_image_commands_stay_as_they_are(run: Path) -> None:
    assert container_of(None, run, "cuda", has_srun=False) is NO_CONTAINER
    assert Container((), (), sys.executable) == NO_CONTAINER


@pytest.mark.parametrize("image", ["nvcr.io#nvidia/pytorch:25.01-py3", "image.sqsh", "/images/a.sqsh", "ubuntu:24.04"])
def test_an_image_is_pyxis_own_unless_it_looks_like_apptainers(run: Path, image: str) -> None:
    expected = Container((f"--container-image={image}", f"--container-mounts={run}:{run}"), (), "python3")
    assert container_of(image, run, "cuda", has_srun=True) == expected
    assert container_of(f"pyxis:{image}", run, "cpu", has_srun=True) == expected


@pytest.mark.parametrize("has_srun", [True, False])
@pytest.mark.parametrize("image", ["image.sif", "/images/a.sif", "docker://ubuntu:24.04", "oras://a/b", "library://a"])
def test_apptainers_images_are_known_by_their_names(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, has_srun: bool
) -> None:
    on_path(tmp_path / "bin", monkeypatch, "apptainer", "singularity")
    command = ("apptainer", "exec", "--nv", "--bind", str(run), image)
    assert container_of(image, run, "cuda", has_srun=has_srun) == Container((), command, "python3")


def test_an_unpacked_image_is_a_directory(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "bin", monkeypatch, "apptainer")
    command = ("apptainer", "exec", "--bind", str(run), str(tmp_path))
    assert container_of(str(tmp_path), run, "cpu", has_srun=True).command == command


def test_the_user_may_say_whose_image_it_is(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "bin", monkeypatch, "apptainer")
    assert container_of("apptainer:image", run, "cpu", has_srun=True).command[-1] == "image"
    assert container_of("pyxis:image.sif", run, "cpu", has_srun=True).srun_arguments[0] == "--container-image=image.sif"


def test_where_there_is_only_singularity_it_is_used(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "bin", monkeypatch, "singularity")
    command = ("singularity", "exec", "--nv", "--bind", str(run), "image.sif")
    assert container_of("image.sif", run, "cuda", has_srun=False).command == command


def test_a_relative_run_directory_is_mounted_where_it_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(tmp_path / "bin", monkeypatch, "apptainer")
    monkeypatch.chdir(tmp_path)
    assert str(run) in container_of("image.sif", Path("run"), "cpu", has_srun=True).command
    assert container_of("image", Path("run"), "cpu", has_srun=True).srun_arguments[1].endswith(f"={run}:{run}")


def test_without_either_runtime_it_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path / "bin", monkeypatch)
    with pytest.raises(OptionError, match=r"^--ddp-container: neither apptainer nor singularity is on PATH"):
        container_of("image.sif", run, "cuda", has_srun=True)


def test_pyxis_without_srun_is_refused(run: Path) -> None:
    with pytest.raises(OptionError, match=r"image\.sqsh is an image for Pyxis.*use Apptainer"):
        container_of("image.sqsh", run, "cuda", has_srun=False)


@pytest.mark.parametrize("name", ["runs, old", "a:b"])
def test_a_path_that_no_mount_can_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match="has a comma or colon"):
        container_of("image.sqsh", tmp_path / name, "cuda", has_srun=True)


@pytest.mark.parametrize("image", ["apptainer:", "pyxis:"])
def test_a_runtime_without_an_image_is_refused(run: Path, image: str) -> None:
    with pytest.raises(OptionError, match="found no image"):
        container_of(image, run, "cuda", has_srun=True)
