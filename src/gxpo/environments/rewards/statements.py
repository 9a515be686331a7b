"""Free names in test statements: those of the program, and modules used without an import."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

ALIASES = {"np": "numpy", "pd": "pandas"}  # as data sets name them without an import
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


class Names(NamedTuple):
    """Free names: `program`, those of the tested program; `modules`, modules that tests use without an import."""

    program: list[str]
    modules: dict[str, str]


@lru_cache(maxsize=256)
def names_of(statements: tuple[str, ...]) -> Names:
    """Names that the statements use and do not define.

    What they define or import themselves is theirs, and so are Python's own functions and, where only attributes of it
    are used, a module of the standard library: a program decides nothing by defining `abs` or `math`. If nothing else
    is left, as in `assert sum(10, 15) == 25`, the one function that is called is the program's.

    ValueError where they only define things, so that any program would pass.
    """
    trees = [tree for text in statements if (tree := _parsed(text)) is not None]
    if trees and all(isinstance(x, DEFINITIONS) or _is_text(x) for tree in trees for x in tree.body):
        raise ValueError("its tests define functions and call none: any program would pass")
    nodes = [node for tree in trees for node in ast.walk(tree)]
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    plain = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in bases}
    used, own = set[str](), set[str]()
    for text in statements:
        for table in _tables(text):
            for symbol in table.get_symbols():
                at_top = table.get_type() == "module" or symbol.is_declared_global()
                if at_top and (symbol.is_assigned() or symbol.is_imported()):
                    own.add(symbol.get_name())
                elif symbol.is_global() or table.get_type() == "module":
                    used.add(symbol.get_name())
    free = used - own
    modules = {name: ALIASES.get(name, name) for name in free - plain if _is_module(name)}
    program = {name for name in free if not hasattr(builtins, name)} - modules.keys()
    if not program:
        called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        program = called & free if len(called & free) == 1 else set()
    return Names(sorted(program), modules)


def _parsed(text: str) -> ast.Module | None:
    """None where this Python can't read it: the sandbox's may."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _tables(text: str) -> Iterator[symtable.SymbolTable]:
    try:
        pending = [symtable.symtable(text, "tests", "exec")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    while pending:
        yield (table := pending.pop())
        pending += table.get_children()


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_module(name: str) -> bool:
    return name in ALIASES or name in sys.stdlib_module_names
