"""Functions and classes of a script or notebook as the text of a module, so that another process finds them again."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LONGEST = 20_000  # characters of a value that is written out
_INSTALLED = tuple(sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib"))


class _Unwritable(Exception):
    """Raised for a value that can't be written as source."""


def file_name(value: Any) -> str | None:
    """`file.py:NAME` of a function or class that stands at the top of a module of the user's other than the script
    itself; None for any other."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    path, name = getattr(module, "__file__", None), getattr(value, "__qualname__", "")
    if module is None or path is None or module.__name__ == "__main__" or not name.isidentifier():
        return None
    if not isinstance(value, (types.FunctionType, type)) or getattr(module, name, None) is not value:
        return None
    is_packaged = "." in module.__name__ or hasattr(module, "__path__") or str(path).startswith(_INSTALLED)
    return None if is_packaged else f"{path}:{name}"


def module_text(values: Iterable[Any]) -> str | None:
    """Source of a module that defines these functions and classes under their names, with what they read of their own
    script: other functions and classes, imports, plain values, compiled patterns. None where that can't be written: a
    closure, a lambda, a bound method, an object."""
    writer = _Writer()
    try:
        for value in values:
            if not isinstance(value, (types.FunctionType, type)):
                raise _Unwritable
            writer.bind(value.__name__, value)
        text = writer.text()
        module = sys.modules["gxpo_captured"] = types.ModuleType("gxpo_captured")  # where dataclasses look for it
        # Tried at once: what fails here would fail in another process, where nobody can tell why.
        exec(compile(text, "rewards.py", "exec"), vars(module))
    except Exception:  # whatever it is, the caller has to do without
        return None
    finally:
        sys.modules.pop("gxpo_captured", None)
    return text


class _Writer:
    """Collector of statements, each after those that it needs."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.statements: list[str] = []
        self._bound: dict[str, Any] = {}

    def text(self) -> str:
        """Join the statements to the text of a module."""
        head = ["from __future__ import annotations", *dict.fromkeys(self.imports)]
        return "\n".join(head) + "\n\n\n" + "\n\n\n".join(self.statements) + "\n"

    def bind(self, name: str, value: Any) -> None:
        """Add the statement that gives `name` this value."""
        if name in self._bound:
            # One module can't hold two values under one name.
            if self._bound[name] is not value:
                raise _Unwritable
            return
        self._bound[name] = value
        if isinstance(value, types.ModuleType):
            alias = "" if value.__name__ == name else f" as {name}"
            self._import(value, f"import {value.__name__}{alias}")
        elif isinstance(value, (types.FunctionType, type)) and self._is_unimportable(value):
            self._define(name, value)
        elif self._import_from(name, value):
            return
        elif isinstance(value, re.Pattern):
            self.imports.append("import re")
            self.statements.append(f"{name} = re.compile({value.pattern!r}, {int(value.flags)})")
        else:
            literal = repr(value)
            # Only values that their own text gives back.
            if len(literal) > LONGEST or ast.literal_eval(literal) != value:
                raise _Unwritable
            self.statements.append(f"{name} = {literal}")

    @staticmethod
    def _is_unimportable(value: Any) -> bool:
        """Return True if it can't be imported: it is of the script, or of a module that does not lead to it by name."""
        module = sys.modules.get(value.__module__)
        return value.__module__ == "__main__" or getattr(module, value.__qualname__.split(".")[0], None) is None

    def _import_from(self, name: str, value: Any) -> bool:
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        own_name = getattr(value, "__name__", None)
        # A module may have another object under that name, such as the decorated function.
        if (
            module is None
            or own_name is None
            or module.__name__ == "__main__"
            or getattr(module, own_name, None) is not value
        ):
            return False
        alias = "" if own_name == name else f" as {name}"
        self._import(module, f"from {module.__name__} import {own_name}{alias}")
        return True

    def _import(self, module: types.ModuleType, statement: str) -> None:
        if module.__name__ == "__main__":
            raise _Unwritable
        path = getattr(module, "__file__", None)
        if path is not None and not str(path).startswith(_INSTALLED):
            up = module.__name__.count(".") + (Path(path).name == "__init__.py")
            self.imports += ["import sys", f"sys.path.append({str(Path(path).resolve().parents[up])!r})"]
        self.imports.append(statement)

    def _define(self, name: str, value: Any) -> None:
        if getattr(value, "__closure__", None) or value.__qualname__ != value.__name__ or value.__name__ != name:
            raise _Unwritable
        source = textwrap.dedent(inspect.getsource(value))
        scope = value.__globals__ if isinstance(value, types.FunctionType) else vars(sys.modules[value.__module__])
        for read in _names_read(ast.parse(source)):
            if read != name and read in scope and not (read not in self._bound and hasattr(builtins, read)
                                                       and scope[read] is getattr(builtins, read)):  # fmt: skip
                self.bind(read, scope[read])
        self.statements.append(source.rstrip())


def _names_read(tree: ast.AST) -> list[str]:
    """Names that a definition reads, without annotations and names that it binds itself."""
    bound = {x.arg for x in ast.walk(tree) if isinstance(x, ast.arg)}
    bound |= {x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load)}
    outer_names = {n for x in ast.walk(tree) if isinstance(x, (ast.Global, ast.Nonlocal)) for n in x.names}
    notes: set[int] = set()
    for x in ast.walk(tree):
        for part in (getattr(x, "annotation", None), getattr(x, "returns", None)):
            notes |= {id(y) for y in ast.walk(part)} if part is not None else set()
    names_read = (
        x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load) and id(x) not in notes
    )
    return [name for name in dict.fromkeys(names_read) if name not in bound - outer_names] + sorted(outer_names)
