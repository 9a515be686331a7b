"""Published methods, one short file each: a composition, its mathematics, citation, defaults."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from gxpo.keys import Definition


def _discover() -> dict[str, Definition]:
    """Every `methods/NAME.py` holds a Definition called NAME."""
    found: dict[str, Definition] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        definition = getattr(importlib.import_module(f"{__name__}.{module}"), module)
        if definition.name != module or definition.name in found:
            raise ValueError(f"methods/{module}.py defines {definition.name!r}: the file and the method share one name")
        found[module] = definition
    return found


METHODS: dict[str, Definition] = _discover()

# system -> method -> the keys in which that system's default differs from ours
COMPAT: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # TRL 1.16: eps 1e-4 added to the sample std; loss_type defaults to "dapo" (token mean); beta 0; group of one: 0
    "trl": {"grpo": {"credit.eps": 1e-4, "objective.aggregate": "token_mean"}},
}
