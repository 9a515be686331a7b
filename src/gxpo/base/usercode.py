"""User code: load a function or class from a file or module, with one-line errors.

On the standard library alone: worker processes import it.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

LONGEST = 300  # characters of a message
_NOT_USERS = (os.path.dirname(os.path.dirname(__file__)) + os.sep, sysconfig.get_path("stdlib") + os.sep)


class Unusable(Exception):
    """A user's function or class can't be loaded or used; the message is one line."""


class OverLimit(Exception):
    """A check would exceed its limits, so the answer counts as wrong; the message is one line."""


class NotRun(Exception):
    """An object of a user's file was requested inside `unexecuted`."""


_RUNS = ContextVar("runs", default=True)


@contextlib.contextmanager
def unexecuted() -> Iterator[None]:
    """Context manager: `object_at` runs no file, only checks that it defines the name, then raises `NotRun`."""
    token = _RUNS.set(False)
    try:
        yield
    finally:
        _RUNS.reset(token)


def one_line(text: str) -> str:
    """`text` without line breaks and not longer than `LONGEST`."""
    words = " ".join(str(text).split())
    return words if len(words) <= LONGEST else words[: LONGEST - 3] + "..."


def described(error: BaseException, doing: str = "") -> str:
    """An exception in one line: what, while `doing` what, and where if not in the file that caught it."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = frames and frames[-1].filename != frames[0].filename
    frame = (place(error) or frames[-1]) if foreign else None
    where = f" ({os.path.basename(frame.filename)} line {frame.lineno})" if frame else ""
    return one_line(f"{type(error).__name__}{doing and f' while {doing}'}: {error}{where}")


def place(error: BaseException) -> traceback.FrameSummary | None:
    """Location of the user's code in a traceback: the innermost line outside gxpo, Python and installed packages; None
    if there is none."""
    return next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if is_users(f.filename)), None)


def is_users(filename: str) -> bool:
    """True of a file outside gxpo, Python and installed packages."""
    installed = any(f"{os.sep}{name}{os.sep}" in filename for name in ("site-packages", "dist-packages"))
    return not (installed or filename.startswith(("<", *_NOT_USERS)))


def hint(word: str, candidates: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest of `known`, or `""`; without the fuzzy matching that workers lack."""
    close = difflib.get_close_matches(word, list(candidates), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def split(text: str) -> tuple[str, str]:
    """(file or module, what is named in it) of `FILE.py:NAME`, `MODULE:NAME` or `FILE.py:make(scale=2.0)`.

    >>> split("a/r.py:make(path='x:y')"), split("package.module:name"), split("name")
    (('a/r.py', "make(path='x:y')"), ('package.module', 'name'), ('', 'name'))
    """
    where, colon, name = text.partition(".py:")
    if colon:
        return f"{where}.py", name
    where, _, name = text.rpartition(":")
    return where, name


def root_of(expression: str) -> str | None:
    """The name that an expression of `evaluated` begins with; None where it is no such expression.

    >>> root_of("make(scale=2.0)"), root_of("scorer.score"), root_of("a + b"), root_of("make(other)")
    ('make', 'scorer', None, None)
    """
    try:
        # from the outside in: calls and attributes until the name at the root
        node = ast.parse(expression, mode="eval").body
        while not isinstance(node, ast.Name):
            if isinstance(node, ast.Call):
                # arguments must be literals: an expression of a configuration calls what it names and nothing else
                for argument in (*node.args, *(k.value for k in node.keywords)):
                    ast.literal_eval(argument)
                node = node.func
            elif isinstance(node, ast.Attribute):
                node = node.value
            else:
                return None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return node.id


def evaluated(expression: str, root: Any) -> Any:
    """The value of an expression of names, attributes and calls with literal arguments; `root` is that of its name."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Attribute):
            return getattr(value(node.value), node.attr)
        if isinstance(node, ast.Call):
            arguments = [ast.literal_eval(x) for x in node.args]
            return value(node.func)(*arguments, **{str(k.arg): ast.literal_eval(k.value) for k in node.keywords})
        return root

    return value(ast.parse(expression, mode="eval").body)


def from_file(source: Mapping[str, Any], kind: type, module: str) -> Any:
    """Load a function or class from a user's file, with its source, so that other processes load the same.

    source  {"file", "folder", "code", "name"}; the folder, unless None, comes last on the path, and its files are
            imported as `neighbours` says
    kind    `types.FunctionType` (anything callable) or `type`
    module  name under which the file is imported

    Raises `Unusable` if it has no such thing, and any exception of the file.
    """
    path, name, word = source["file"], source["name"], "class" if kind is type else "function"
    # last on the path: files beside the user's must not hide libraries
    if source["folder"] not in (None, *sys.path):
        sys.path.append(source["folder"])
    # from the given source and not from the disk: all processes of a run use the code that it began with
    user_module = types.ModuleType(module)
    user_module.__file__ = path
    if source["folder"] is not None:
        from gxpo.base import neighbours

        neighbours.prepare(user_module, source["folder"])
    sys.modules[module] = user_module
    exec(compile(source["code"], path, "exec"), vars(user_module))
    # suggestions name what the file itself defines, not what it imports
    root = root_of(name)
    user_object = getattr(user_module, root or name, None)
    if user_object is None:
        own_names = [
            n for n, x in vars(user_module).items() if _is(x, kind) and getattr(x, "__module__", None) == module
        ]
        alternatives = f"; it has {', '.join(own_names) or 'none'}"
        raise Unusable(f"{path} has no {word} {root or name!r}{hint(root or name, own_names) or alternatives}")
    # a call in the expression runs only once the root is known to exist
    user_object = user_object if root == name else evaluated(name, user_object)
    if not _is(user_object, kind):
        raise Unusable(f"{name!r} in {path} is a {type(user_object).__name__}, not a {word}")
    return user_object


def check_defined(path: str) -> None:
    """Raise `Unusable` unless the file of `file.py:name` parses and defines the name; it is not executed."""
    where, name = split(path)
    name = root_of(name) or name
    if not os.path.isfile(where):
        raise Unusable(f"no such file {where}")
    try:
        # read as bytes, since Python decides the encoding by the file's first lines
        with open(where, "rb") as file:
            tree = ast.parse(file.read(), where)
    except Exception as error:  # not Python, null bytes, nested too deeply
        raise unusable(error, "reading it") from error
    # a name may be defined by import, definition or assignment, anywhere in the file
    names = {alias.asname or alias.name.split(".")[0] for x in ast.walk(tree) for alias in getattr(x, "names", ())
             if isinstance(alias, ast.alias)}  # fmt: skip
    names |= {x.name for x in ast.walk(tree) if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    names |= {x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    # a star import or `__getattr__` may define anything
    if name not in names and "*" not in names and "__getattr__" not in names:
        raise Unusable(f"{where} has no {name!r}{hint(name, names)}")


def object_at(path: str, *, always: bool = False) -> Any:
    """Import `file.py:name` or `package.module:name` in this process (`always`: inside `unexecuted`, too).

    Raises `Unusable`.
    """
    where, name = split(path)
    if not where or not name:
        raise Unusable("write FILE.py:NAME or MODULE:NAME")
    if where.endswith(".py") and not os.path.isfile(where):
        raise Unusable(f"no such file {where}")
    # a dry run reads names from the syntax tree: importing a stranger's file would run it
    if not (always or _RUNS.get()):
        if where.endswith(".py"):
            check_defined(path)
        raise NotRun(path)
    from gxpo.base import neighbours

    try:
        module = neighbours.load(where) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:
        raise Unusable(one_line(f"can't import {where}: {unusable(error)}")) from error
    root = root_of(name) or name
    if not hasattr(module, root):
        raise Unusable(f"{where} has no {root!r}{hint(root, vars(module))}")
    root_object = getattr(module, root)
    try:
        return root_object if root == name else evaluated(name, root_object)
    except Exception as error:
        raise unusable(error, f"making {name}") from error


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, type) if kind is type else callable(value)


def unusable(error: BaseException, doing: str = "loading") -> Unusable:
    """The error to raise in place of an exception from loading a user's code."""
    if isinstance(error, Unusable):
        return error
    if isinstance(error, SyntaxError):
        return Unusable(f"{error.filename} line {error.lineno}: {one_line(error.msg)}")
    return Unusable(described(error, doing))
