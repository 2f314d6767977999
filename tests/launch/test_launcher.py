"""Which launcher is meant."""

from __future__ import annotations

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.launcher import launcher_for, launchers
from tests.builders.launches import settings


def test_all_that_are_there_are_known_by_name() -> None:
    assert list(launchers()) == ["torchrun", "exec", "ssh", "slurm"]
    assert all(name == found.name for name, found in launchers().items())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "torchrun"),
        ({"hosts": "n1"}, "ssh"),
        ({"hosts": "@hosts"}, "ssh"),
        ({"hosts": "n1", "exec": "docker exec -i {host}"}, "exec"),
        ({"nodes": "2"}, "slurm"),
        ({"slurm_args": "-p gpu"}, "slurm"),
        ({"hosts": "n1,n2", "nodes": "2"}, "ssh"),
        ({"launcher": "slurm"}, "slurm"),
    ],
)
def test_which_one_is_meant_follows_from_the_options(options: dict[str, str], name: str) -> None:
    assert launcher_for(settings(**options), {}).name == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"launcher": "torchrun", "slurm_args": "-pgpu"},
            "found torchrun together with --ddp-slurm-args; expected slurm with",
        ),
        ({"launcher": "ssh", "exec": "x {host}"}, "found ssh together with --ddp-exec; expected exec with it"),
        ({"launcher": "slurm", "hosts": "n1"}, "found slurm together with --ddp-hosts; expected"),
        ({"hosts": "n1", "slurm_args": "-pgpu"}, "found ssh together with --ddp-slurm-args; expected slurm with it"),
        ({"launcher": "Slurm"}, "found 'Slurm'; expected one of auto, torchrun, exec, ssh, slurm"),
    ],
)
def test_options_of_another_one_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=f"^--ddp-launcher: {message}"):
        launcher_for(settings(**options), {})
