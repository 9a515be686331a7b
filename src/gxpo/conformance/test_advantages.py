"""Tests of golden vectors and properties on `--impl module:function`, or on gxpo's own methods."""

from __future__ import annotations

from typing import Any

import pytest

from gxpo.conformance.checking import Implementation, load
from gxpo.conformance.golden import golden, names


def _methods(config: Any) -> tuple[str, ...]:
    return tuple(config.getoption("gxpo_methods", None) or names())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each vector, each property and each method."""
    golden_files = [golden(name) for name in _methods(metafunc.config)]
    if "index" in metafunc.fixturenames:
        rows = [(g.method, i) for g in golden_files for i in range(len(g.vectors))]
        metafunc.parametrize("method,index", rows, ids=[v.id for g in golden_files for v in g.vectors])
    elif "property_" in metafunc.fixturenames:
        rows = [(g.method, p) for g in golden_files for p in g.properties]
        metafunc.parametrize("method,property_", rows, ids=[f"{m}: {p}" for m, p in rows])
    elif "method" in metafunc.fixturenames:
        metafunc.parametrize("method", [g.method for g in golden_files])


@pytest.fixture(scope="module")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """Return the implementation under test."""
    config = request.config
    return Implementation(load(config.getoption("gxpo_impl", None)), config.getoption("gxpo_tolerance", None))


def test_vector(implementation: Implementation, method: str, index: int) -> None:
    """Compare with the numbers of the formula."""
    try:
        implementation.vector(method, index)
    except NotImplementedError as error:
        pytest.xfail(f"not supported: {error}")


def test_property(implementation: Implementation, method: str, property_: str) -> None:
    """Test a property of the formula."""
    try:
        implementation.property(method, property_)
    except NotImplementedError as error:
        pytest.xfail(f"not supported: {error}")


def test_method_is_supported(implementation: Implementation, request: pytest.FixtureRequest, method: str) -> None:
    """Fail for a method of the command line that is not supported; xfail, and so list, other missing methods."""
    if not implementation.supports(method):
        if request.config.getoption("gxpo_methods", None):
            pytest.fail(f"{method}: no vector of it is supported")
        pytest.xfail(f"not supported: {method}")


def test_some_method_is_supported(implementation: Implementation, request: pytest.FixtureRequest) -> None:
    """Fail a run without any supported method: it would have tested nothing."""
    methods = _methods(request.config)
    assert any(implementation.supports(m) for m in methods), f"none of {', '.join(methods)} is supported"
