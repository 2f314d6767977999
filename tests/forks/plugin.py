"""A plugin of pytest for sessions whose gangs are to be forked."""

import pytest

from tests.forks.launcher import register

register(pytest.MonkeyPatch())
