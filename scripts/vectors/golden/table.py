"""The table of formulas and vectors that the modules beside this one fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from golden.arithmetic import Number, exact

METHODS: dict[str, dict[str, Any]] = {}


def method(
    name: str, arxiv: str, formula: str, properties: str, inputs: str = "real", notes: str = "", **constants: Any
) -> Callable[[Callable[..., list[Number]]], Callable[..., list[Number]]]:
    """Register a formula: f(rewards, groups, *, constants, fields) -> advantages, 0 where the reward is None."""

    def register(f: Callable[..., list[Number]]) -> Callable[..., list[Number]]:
        METHODS[name] = {
            "schema": "gxpo.vectors/1",
            "method": name,
            "arxiv": arxiv,
            "formula": formula,
            "notes": notes,
            "constants": constants,
            "inputs": inputs,
            "properties": properties.split(),
            "vectors": [],
            "f": f,
        }
        return f

    return register


def to_exact(value: Any) -> Any:
    """Turn a constant or a field into what the formulas want: numbers exact, everything else as it is."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [to_exact(x) for x in value]
    return value if isinstance(value, int) else exact(value)


def vector(name: str, case: str, rewards: str, groups: str | None = None, **more: Any) -> None:
    """Add one vector. `rewards`: numbers in a row, "-" = unscored; `groups` likewise (None: all are one group); of the
    rest, what the method lists among its constants overrides them, and the others are fields (a list for each row)."""
    entry = METHODS[name]
    words = rewards.split()
    column = [None if w == "-" else exact(w) for w in words]
    ids = [0] * len(words) if groups is None else [int(g) for g in groups.split()]
    overrides = {k: v for k, v in more.items() if k in entry["constants"]}
    fields = {k: v for k, v in more.items() if k not in overrides and k != "note"}
    constants = {**entry["constants"], **overrides}
    arguments = {k: to_exact(v) for k, v in {**constants, **fields}.items()}
    expected = entry["f"](column, ids, **arguments)
    entry["vectors"].append(
        {
            "name": case,
            "rewards": [None if r is None else float(r) for r in column],
            "groups": ids,
            "constants": constants,
            "fields": fields,
            "expected": [0.0 if r is None else float(a) for a, r in zip(expected, column, strict=True)],
            "tolerance": 1e-9,
            **({"note": more["note"]} if "note" in more else {}),
        }
    )


def rules(name: str, one: bool = True, equal: bool = True, **fields: Callable[[int], list[Any]]) -> None:
    """Add vectors of gxpo's rules: a group of one, groups of equal rewards, unscored rows. `fields`: a function of the
    row count."""

    def more(n: int) -> dict[str, Any]:
        return {k: f(n) for k, f in fields.items()}

    if one:
        vector(name, "rule: a group of one is given 0", "1 1 0", "0 1 1", **more(3))
    if equal:
        vector(name, "rule: equal rewards are given 0", "0.7 0.7 0.7 0.7 0.7 0.7 0.7 0.7", **more(8))
        vector(name, "rule: equal rewards beside others", "0.1 1 0.1 0 0.1 1", "3 4 3 4 3 4", **more(6))
    vector(name, "rule: unscored rows are in no statistic", "1 - 0 0 - 1", "0 0 0 0 1 1", **more(6))


ONE_OF_8 = "1 0 0 0 0 0 0 0"
RAGGED = ("1 0 1 0 0", "0 0 1 1 1")
MINGLED = ("0 1 0 0 1 1 0 0 1", "9 4 9 4 9 4 4 9 4")
REAL = ("0.3 1.7 -0.4 0.3 2.5 0.1 0.9", "5 2 5 2 5 2 2")
LOCAL = "order relabel separate unscored"
