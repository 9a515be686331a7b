"""Texts that make a regular expression slow, derived from the expression, and a limit of processor time that kills."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import pickle
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

try:
    from re import _parser as parser
except ImportError:  # Python 3.10
    import sre_parse as parser

import gxpo

SOURCE = Path(gxpo.__file__).parent
SIZE = 32_000
SECONDS = 0.5
CALLS = ("compile", "search", "findall", "sub", "match", "split", "fullmatch", "finditer", "subn")
CLASSES = {"CATEGORY_SPACE": " ", "CATEGORY_DIGIT": "7", "CATEGORY_WORD": "a"}
FILLERS = (" ", "\n", "a", "7")


# ---------------------------------------------------------------- texts
def _letter(op: str, value: Any) -> str:
    """A character that a class matches."""
    if op == "LITERAL":
        return chr(value)
    if op == "IN":
        kinds = [(str(o), v) for o, v in value]
        if kinds[0][0] == "NEGATE":
            barred = {chr(v) for o, v in kinds if o == "LITERAL"}
            return next(c for c in "a 7x!" if c not in barred)
        o, v = kinds[0]
        return chr(v) if o == "LITERAL" else chr(v[0]) if o == "RANGE" else CLASSES.get(str(v), "!")
    return {"ANY": "a", "NOT_LITERAL": "a" if value != ord("a") else "b"}.get(op, "")


def _prefixes(parts: Iterable[Any], groups: dict[int, str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(what the expression has matched so far, one character of what comes next) at each of its elements."""
    for op, value in parts:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, _, inner = value
            once = ""
            for before, letter in _prefixes(inner, groups, prefix):
                yield before, letter
                once = before[len(prefix) :] + letter
            yield prefix + once, once[:1]
            prefix += once * max(1, min(int(least), 3))
        elif name in ("SUBPATTERN", "ATOMIC_GROUP"):
            number, inner = (value[0], value[3]) if name == "SUBPATTERN" else (None, value)
            last = prefix
            for before, letter in _prefixes(inner, groups, prefix):
                yield before, letter
                last = before + letter
            if number is not None:
                groups[number] = last[len(prefix) :]
            prefix = last
        elif name == "BRANCH":
            last = prefix
            for branch in value[1]:
                for before, letter in _prefixes(branch, groups, prefix):
                    yield before, letter
                    last = before + letter
            prefix = last
        elif name == "GROUPREF":
            prefix += groups.get(value, "")
        elif name in ("AT", "ASSERT", "ASSERT_NOT"):
            continue
        else:
            letter = _letter(name, value)
            yield prefix, letter
            prefix += letter


def attacks(pattern: str, flags: int = 0) -> list[str]:
    """Texts of `SIZE` characters: beginnings of a match over and over, and long runs after them that end in nothing."""
    steps = list(_prefixes(parser.parse(pattern, flags), {}))
    full_text = "".join(dict.fromkeys(x[-1][0] + x[-1][1] for x in [steps] if x))
    actual: dict[str, None] = {}
    starts = [p for p in dict.fromkeys([*(p for p, _ in steps), full_text]) if len(p) < 200]
    if len(starts) > 12:  # of a long one every so many, and the ends of literals
        starts = [*starts[:: len(starts) // 12 + 1], full_text]
    letters = list(dict.fromkeys([*FILLERS[:2], *(c for _, c in steps if not c.isalnum())]))[:5]
    for start in starts:
        if start:
            actual[start * (SIZE // len(start))] = None
        for letter in (*letters, next((c for p, c in steps if p == start), "a")):
            if letter:
                actual[start + letter * SIZE + "\x01"] = None
                actual[(start + letter * 3) * (SIZE // (len(start) + 3))] = None
    return list(actual)


# ---------------------------------------------------------------- patterns of the source
def _constant(node: ast.AST, known: dict[str, Any]) -> str | bytes | None:
    try:
        value = eval(compile(ast.Expression(node), "pattern", "eval"), {"re": re}, dict(known))  # of gxpo's own source
    except Exception:
        return None
    return value if isinstance(value, (str, bytes)) else None


def _uses(trees: dict[str, ast.Module]) -> dict[tuple[str, str], set[str]]:
    """Methods that are called on each name, by the file that defines the name, where others import it from."""
    actual: dict[tuple[str, str], set[str]] = {}
    for file, tree in trees.items():
        origin = {
            alias.asname or alias.name: (node.module or "").replace("gxpo.", "", 1).replace(".", "/") + ".py"
            for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in CALLS:
                actual.setdefault((origin.get(node.value.id, file), node.value.id), set()).add(node.attr)
    return actual


@dataclass(frozen=True)
class Use:
    """A use of `re`: file, the pattern's argument as written, pattern (None: made at run time), flags, methods."""

    file: str
    argument: str
    pattern: str | bytes | None
    flags: int
    methods: frozenset[str]

    def functions(self, pattern: str) -> list[Callable[[str], Any]]:
        """How it is run over a text."""
        pattern_object = re.compile(pattern, self.flags)
        every = {"search", "findall", "finditer", "sub", "split", "subn"} & self.methods
        once = [getattr(pattern_object, name) for name in ("match", "fullmatch") if name in self.methods]
        return [*once, *([lambda text: sum(1 for _ in pattern_object.finditer(text))] if every or not once else [])]


@cache
def uses() -> list[Use]:
    """Every use of `re` in the source."""
    return list(_all_uses())


def _all_uses() -> Iterator[Use]:
    methods = f"(?:{'|'.join(CALLS)})"
    texts = {f.relative_to(SOURCE).as_posix(): f.read_text(encoding="utf-8") for f in sorted(SOURCE.rglob("*.py"))}
    defining = {name: ast.parse(text) for name, text in texts.items() if re.search(rf"\bre\.{methods}\(", text)}
    assigned = {
        name: {
            id(node.value): node.targets[0].id for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for name, tree in defining.items()
    }  # fmt: skip
    # Parsing takes most of the time: of the other files, those alone that call a method on such a name.
    names = {n for of_file in assigned.values() for n in of_file.values()}
    callers = {name for name, text in texts.items() if not names.isdisjoint(re.findall(rf"\b(\w+)\.{methods}\b", text))}
    others = {name: ast.parse(texts[name]) for name in callers - set(defining)}
    called = _uses(defining | others)
    for name, tree in defining.items():
        calls = [
            n for n in ast.walk(tree)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in CALLS
            and isinstance(n.func.value, ast.Name) and n.func.value.id == "re" and n.args
        ]  # fmt: skip
        if not calls:
            continue
        module = ".".join(("gxpo", *name.removesuffix(".py").split("/")))
        known_vars = vars(importlib.import_module(module.removesuffix(".__init__")))
        for call in calls:
            flags = 0
            for argument in [*call.args[1:], *(k.value for k in call.keywords)]:
                for part in ast.walk(argument):
                    value = getattr(re, part.attr, None) if isinstance(part, ast.Attribute) else None
                    flags |= int(value) if isinstance(value, re.RegexFlag) else 0
            method = {call.func.attr} - {"compile"} if isinstance(call.func, ast.Attribute) else set()
            method = method or called.get((name, assigned[name].get(id(call), "")), set())
            pattern = _constant(call.args[0], known_vars)
            yield Use(name, ast.unparse(call.args[0]), pattern, flags, frozenset(method))


# ---------------------------------------------------------------- the limit
def over_limit(jobs: list[tuple[str, Callable[[str], Any], list[str]]]) -> list[str]:
    """Names of jobs, (name, function, texts), of which one text takes more than `SECONDS` of processor time.

    They run in a forked process, which the kernel kills at its limit; the rest goes on in another.
    """
    late, at = [], 0
    while at < len(jobs):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                signal.signal(signal.SIGPROF, signal.SIG_DFL)
                for number, (_, function, texts) in enumerate(jobs[at:], at):
                    for place, text in enumerate(texts):
                        os.write(writer, pickle.dumps((number, place)).ljust(64, b"\0"))
                        signal.setitimer(signal.ITIMER_PROF, SECONDS)
                        with contextlib.suppress(Exception):  # what it says of nonsense is for other tests
                            function(text)
                os.write(writer, pickle.dumps((len(jobs), 0)).ljust(64, b"\0"))
            finally:
                os._exit(0)
        os.close(writer)
        last = (at, 0)
        with os.fdopen(reader, "rb") as lines:
            while record := lines.read(64):
                last = pickle.loads(record)
        os.waitpid(pid, 0)
        if last[0] < len(jobs):
            name, _, texts = jobs[last[0]]
            text = texts[last[1]]
            late.append(f"{name}: {text[:50]!r} ... {text[-10:]!r}")
        at = last[0] + 1
    return late
