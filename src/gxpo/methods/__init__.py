"""Published methods, one short file each: a composition, its mathematics, citation, defaults."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

from gxpo.keys import Definition


class Catalogue(Mapping[str, Definition]):
    """The methods by name: `methods/NAME.py` holds a Definition called NAME, and is imported when it is asked for."""

    def __init__(self) -> None:
        self._names = sorted(m.name for m in pkgutil.iter_modules(__path__))
        self._found: dict[str, Definition] = {}

    def __getitem__(self, name: str) -> Definition:
        if name not in self._found:
            if name not in self._names:
                raise KeyError(name)
            definition = getattr(importlib.import_module(f"{__name__}.{name}"), name)
            if definition.name != name:
                raise ValueError(f"methods/{name}.py defines {definition.name!r}: file and method share one name")
            self._found[name] = definition
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


METHODS = Catalogue()

# system -> method -> the keys in which that system's default differs from ours
COMPAT: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # TRL 1.16: eps 1e-4 added to the sample std; loss_type defaults to "dapo" (token mean); beta 0; group of one: 0
    "trl": {"grpo": {"credit.eps": 1e-4, "objective.aggregate": "token_mean"}},
}
