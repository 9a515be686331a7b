"""pytest options of the conformance tests, only for `pytest --pyargs gxpo.conformance`.

An entry point of pytest's, imported by every run of pytest: so nothing but the standard library is imported
here, and no option is added to a run that does not name gxpo.conformance.
"""

from __future__ import annotations

import sys
from typing import Any


def pytest_load_initial_conftests(early_config: Any, parser: Any, args: list[str]) -> None:
    """--impl, --method for advantages; --loss, --objective for losses; --tolerance."""
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
    """Unknown methods and functions that can't be loaded are command line errors."""
    options = ("gxpo_methods", "gxpo_impl", "gxpo_loss", "gxpo_objectives")
    if all(config.getoption(name, None) is None for name in options):
        return
    import pytest

    from gxpo.base.errors import GxpoError
    from gxpo.conformance.checking import load
    from gxpo.conformance.golden import golden
    from gxpo.conformance.losses import losses

    here = str(config.invocation_params.dir)
    if here not in sys.path:
        sys.path.insert(0, here)
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
    losses = any(config.getoption(name, None) is not None for name in ("gxpo_loss", "gxpo_objectives"))
    credit = any(config.getoption(name, None) is not None for name in ("gxpo_impl", "gxpo_methods"))
    if losses == credit:
        return
    unasked = "gxpo.conformance.test_advantages" if losses else "gxpo.conformance.test_losses"
    left = [item for item in items if getattr(getattr(item, "module", None), "__name__", "") == unasked]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
