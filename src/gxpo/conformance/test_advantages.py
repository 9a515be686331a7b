"""Test golden vectors and properties against `--impl module:function` or gxpo's own methods."""

from __future__ import annotations

from typing import Any

import pytest

from gxpo.conformance.checking import Implementation, load
from gxpo.conformance.golden import golden, names


def _methods(config: Any) -> tuple[str, ...]:
    return tuple(config.getoption("gxpo_methods", None) or names())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each vector, each property and each method."""
    chosen = [golden(name) for name in _methods(metafunc.config)]
    if "index" in metafunc.fixturenames:
        rows = [(g.method, i) for g in chosen for i in range(len(g.vectors))]
        metafunc.parametrize("method,index", rows, ids=[v.id for g in chosen for v in g.vectors])
    elif "property_" in metafunc.fixturenames:
        rows = [(g.method, p) for g in chosen for p in g.properties]
        metafunc.parametrize("method,property_", rows, ids=[f"{m}: {p}" for m, p in rows])
    elif "method" in metafunc.fixturenames:
        metafunc.parametrize("method", [g.method for g in chosen])


@pytest.fixture(scope="module")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """The implementation under test."""
    config = request.config
    return Implementation(load(config.getoption("gxpo_impl", None)), config.getoption("gxpo_tolerance", None))


def test_vector(implementation: Implementation, method: str, index: int) -> None:
    """The numbers of the formula."""
    try:
        implementation.vector(method, index)
    except NotImplementedError as error:
        pytest.xfail(f"not supported: {error}")


def test_property(implementation: Implementation, method: str, property_: str) -> None:
    """The properties of the formula."""
    try:
        implementation.property(method, property_)
    except NotImplementedError as error:
        pytest.xfail(f"not supported: {error}")


def test_method_is_supported(implementation: Implementation, request: pytest.FixtureRequest, method: str) -> None:
    """A method named on the command line must be supported; others may be missing, and are listed."""
    if not implementation.supports(method):
        if request.config.getoption("gxpo_methods", None):
            pytest.fail(f"{method}: no vector of it is supported")
        pytest.xfail(f"not supported: {method}")


def test_some_method_is_supported(implementation: Implementation, request: pytest.FixtureRequest) -> None:
    """A run without any supported method fails."""
    methods = _methods(request.config)
    assert any(implementation.supports(m) for m in methods), f"none of {', '.join(methods)} is supported"
