"""pytest plugin with the options of `pytest --pyargs gxpo.conformance`.

Every run of pytest imports it as an entry point, so it imports nothing but the standard library, and adds no option to
a run that does not name gxpo.conformance.
"""

from __future__ import annotations

import sys
from typing import Any


def pytest_load_initial_conftests(early_config: Any, parser: Any, args: list[str]) -> None:
    """Add --impl, --method for advantages; --loss, --objective for losses; --tolerance."""
    if not any("gxpo.conformance" in str(a) or "gxpo/conformance" in str(a).replace("\\", "/") for a in args):
        return
    group = parser.getgroup("gxpo conformance")
    group.addoption("--impl", dest="gxpo_impl", metavar="MODULE:FUNCTION", help="what to test (default: gxpo's own)")
    group.addoption(
        "--method", dest="gxpo_methods", action="append", metavar="NAME", help="only this method; may be repeated"
    )
    group.addoption("--loss", dest="gxpo_loss", metavar="MODULE:FUNCTION", help="what to test of losses (gxpo's own)")
    group.addoption(
        "--objective", dest="gxpo_objectives", action="append", metavar="NAME", help="only this loss; may be repeated"
    )
    group.addoption(
        "--tolerance",
        dest="gxpo_tolerance",
        type=float,
        metavar="X",
        help="in place of the vectors' 1e-9 (float32: 1e-5)",
    )


def pytest_configure(config: Any) -> None:
    """Turn unknown methods and functions that can't be loaded into errors of the command line."""
    options = ("gxpo_methods", "gxpo_impl", "gxpo_loss", "gxpo_objectives")
    if all(config.getoption(name, None) is None for name in options):
        return
    import pytest

    from gxpo.base.errors import GxpoError
    from gxpo.conformance.checking import load
    from gxpo.conformance.golden import golden
    from gxpo.conformance.losses import losses

    invocation_folder = str(config.invocation_params.dir)
    # a user's module is found from where pytest was called, as with `python -m`
    if invocation_folder not in sys.path:
        sys.path.insert(0, invocation_folder)
    try:
        load(config.getoption("gxpo_impl", None))
        for method in config.getoption("gxpo_methods", None) or ():
            golden(method)
        load(config.getoption("gxpo_loss", None))
        for name in config.getoption("gxpo_objectives", None) or ():
            losses(name)
    except GxpoError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Deselect the advantage tests if only losses are tested, and the other way round."""
    has_losses = any(config.getoption(name, None) is not None for name in ("gxpo_loss", "gxpo_objectives"))
    has_advantages = any(config.getoption(name, None) is not None for name in ("gxpo_impl", "gxpo_methods"))
    # options of neither or of both kinds: all tests run
    if has_losses == has_advantages:
        return
    module = "gxpo.conformance.test_advantages" if has_losses else "gxpo.conformance.test_losses"
    deselected = [item for item in items if getattr(getattr(item, "module", None), "__name__", "") == module]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]
