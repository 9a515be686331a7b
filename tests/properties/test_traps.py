"""docs/traps.md names tests that are there, and every trap of losses has one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/traps.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
LOSSES = {3, 4, 5, 9, 10, 16, 17, 18, 19, 20, 21, 22, 23, 24, 29, 30, 31, 32, 33, 41}


@cache
def functions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_named_test_is_there() -> None:
    functions_by_path = {path: functions(path) for path in {path for path, _ in NAMED}}
    assert len(NAMED) > 60
    assert [
        (path, name) for path, name in NAMED if not name.startswith("test_") or name not in functions_by_path[path]
    ] == []


def test_every_trap_of_losses_is_in_the_table_with_a_test() -> None:
    upper = PAGE[: PAGE.index("Beyond that list")]
    rows = {int(number): cells for number, cells in re.findall(r"^\| T(\d+) \|(.*)$", upper, re.M)}
    assert set(rows) == LOSSES


def test_each_trap_has_one_row_and_each_row_a_test() -> None:
    rows = re.findall(r"^\| T(\d+) \|(.*)$", PAGE, re.M)
    assert len(rows) == len({number for number, _ in rows}) > 35
    assert all("`tests/" in cells and "::test_" in cells for _, cells in rows)


def shapes_alone(test: ast.FunctionDef) -> bool:
    """Whether all that a test asserts is a shape."""
    asserts = [node for node in ast.walk(test) if isinstance(node, ast.Assert)]
    lefts = [a.test.left for a in asserts if isinstance(a.test, ast.Compare)]
    shape_lefts = [x for x in lefts if isinstance(x, ast.Attribute) and x.attr in ("shape", "ndim")]
    return bool(asserts) and len(shape_lefts) == len(asserts)


def test_no_test_of_a_loss_looks_at_shapes_alone() -> None:
    folders = ("objectives", "errata", "adapters")
    paths = [p for folder in folders for p in (ROOT / "tests" / folder).glob("test_*.py")]
    actual = [
        f"{path.name}::{name}"
        for path in paths
        for name, test in functions(str(path.relative_to(ROOT))).items()
        if name.startswith("test_") and shapes_alone(test)
    ]
    assert len(paths) > 15 and not actual
    sick = ast.parse("def test_loss(loss):\n    assert loss.shape == ()").body[0]
    assert isinstance(sick, ast.FunctionDef) and shapes_alone(sick)
