"""Tests of golden losses on `--loss module:function`, or on gxpo's own objectives."""

from __future__ import annotations

from typing import Any

import pytest

from gxpo.conformance.checking import load
from gxpo.conformance.losses import BUILTIN, LossFunction, losses, objectives


def _objectives(config: Any) -> tuple[str, ...]:
    return tuple(config.getoption("gxpo_objectives", None) or objectives())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each vector."""
    if "place" in metafunc.fixturenames:
        golden_files = [losses(name) for name in _objectives(metafunc.config)]
        rows = [(entry.objective, i) for entry in golden_files for i in range(len(entry.vectors))]
        ids = [vector.id for entry in golden_files for vector in entry.vectors]
        metafunc.parametrize("objective,place", rows, ids=ids)


@pytest.fixture(scope="module")
def loss_function(request: pytest.FixtureRequest) -> LossFunction:
    """Return the function under test."""
    function: Any = load(request.config.getoption("gxpo_loss", None) or BUILTIN)
    return function


def test_loss(loss_function: LossFunction, request: pytest.FixtureRequest, objective: str, place: int) -> None:
    """Compare value and gradient with the formula's."""
    try:
        losses(objective).vectors[place].check(loss_function, request.config.getoption("gxpo_tolerance", None))
    except NotImplementedError as error:
        pytest.xfail(f"not supported: {error}")


def test_some_loss_is_supported(loss_function: LossFunction, request: pytest.FixtureRequest) -> None:
    """Fail a run without any supported objective, or with an objective of the command line that is not supported."""
    missing = []
    for name in _objectives(request.config):
        supported = 0
        for vector in losses(name).vectors:
            try:
                vector.check(loss_function)
            except NotImplementedError:
                continue
            except AssertionError:
                pass
            supported += 1
        missing += [] if supported else [name]
    if request.config.getoption("gxpo_objectives", None):
        assert not missing, f"no vector of {', '.join(missing)} is supported"
    assert len(missing) < len(_objectives(request.config)), "no objective is supported"
