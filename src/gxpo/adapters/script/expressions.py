"""Names and expressions of a script: what each is, by its constants and by what was assigned before."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from gxpo.adapters.script.branches import Join, containers
from gxpo.adapters.script.values import (
    ABSENT,
    OPERATORS,
    Function,
    Import,
    PathText,
    Thing,
    Unknown,
    compute,
    truth,
    with_notes,
    without_notes,
)


class Expressions:
    """Names and expressions in frames; `Walk` adds statements, and `Calls` what calls mean."""

    places: Sequence[str]
    state: dict[str, Any]
    stack: list[tuple[int, ...]]
    call: Callable[[ast.Call], Any]
    called: Callable[..., Any]
    function: Callable[[Any], Any]
    bases: Callable[[Any], list[Any]]
    new_frame: Callable[[], int]

    def where(self, node: ast.AST) -> str:
        line = getattr(node, "lineno", 1)
        return self.places[line - 1] if 0 < line <= len(self.places) else f"line {line}"

    def unknown(self, node: ast.AST, reason: str = "") -> Unknown:
        return Unknown(reason or f"`{source_of(node)}` is known when the script runs", self.where(node))

    # ------------------------------------------------------------ names
    def lookup(self, node: ast.Name) -> Any:
        for number in reversed(self.stack[-1]):
            if node.id in self.state["frames"][number]:
                return self.state["frames"][number][node.id]
        return Import(node.id)  # of builtins, or of `from MODULE import *`

    def bind(self, name: str, value: Any) -> None:
        frame = self.state["frames"][self.stack[-1][-1]]
        if name in frame.get("global ", ()):
            frame = self.state["frames"][0]
        frame[name] = value

    def assign(self, target: ast.expr, value: Any, where: str) -> None:
        """Bind a target of an assignment to a value."""
        if isinstance(target, ast.Name):
            self.bind(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items, notes = without_notes(value)
            fits = isinstance(items, (list, tuple)) and len(items) == len(target.elts)
            starred = any(isinstance(x, ast.Starred) for x in target.elts)
            for number, element in enumerate(target.elts):
                if fits and not starred:
                    self.assign(element, with_notes(items[number], notes), where)
                else:
                    unknown = value if isinstance(value, Unknown) else self.unknown(target)
                    self.assign(element.value if isinstance(element, ast.Starred) else element, unknown, where)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value)
            if isinstance(owner, Unknown):  # of which all else stays unknown
                key = f"{owner.where}: {owner.reason}"
                owner = self.state["attributes"].setdefault(key, Thing("attributes", "", owner.where))
            if isinstance(owner, Thing):
                owner.fields[target.attr] = value
                owner.places[target.attr] = where
        elif isinstance(target, ast.Subscript):
            owner, key = without_notes(self.value(target.value))[0], without_notes(self.value(target.slice))[0]
            if isinstance(owner, Import) and owner.path == "os.environ":
                owner = self.state["environ"]
            if isinstance(key, (str, int)) and isinstance(owner, dict):
                owner[key] = value
            elif isinstance(owner, dict):  # any of its keys
                owner.update(dict.fromkeys(owner, self.unknown(target)), **{"**": self.unknown(target)})
            elif isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
                owner[key] = value
            elif isinstance(owner, list):
                owner[:] = [self.unknown(target)]

    # ------------------------------------------------------------ expressions
    def operation(self, name: str, operands: Sequence[Any], node: ast.AST) -> Any:
        if name in ("Is", "IsNot", "Eq", "NotEq") and any(
            isinstance(without_notes(x)[0], (Thing, Function)) for x in operands
        ):
            a, b = (without_notes(x)[0] for x in operands)
            if isinstance(a, Unknown) or isinstance(b, Unknown):
                return self.unknown(node)
            return (a is b) == (name in ("Is", "Eq"))
        if any(isinstance(without_notes(x)[0], (Thing, Function, Import)) for x in operands):
            return self.unknown(node)
        if (
            name in ("In", "NotIn")
            and containers(operands[1])
            and any(
                isinstance(without_notes(x)[0], (Unknown, Import))
                for x in containers(operands[1]).values()
                for x in _items(x)
            )
        ):
            return self.unknown(node)
        return compute(OPERATORS.get(name, len), operands, self.unknown(node))

    def value(self, node: ast.expr) -> Any:
        """Return what an expression is."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.lookup(node)
            case ast.List() | ast.Tuple() | ast.Set():
                return self.sequence(node)
            case ast.Dict():
                return self.mapping(node)
            case ast.BinOp():
                return self.operation(type(node.op).__name__, [self.value(node.left), self.value(node.right)], node)
            case ast.UnaryOp(op=ast.Not()):
                operand = self.value(node.operand)
                is_true = truth(operand)
                return self.unknown(node) if is_true is None else with_notes(not is_true, without_notes(operand)[1])
            case ast.UnaryOp():
                return self.operation(type(node.op).__name__, [self.value(node.operand)], node)
            case ast.Compare():
                return self.comparison(node)
            case ast.BoolOp():
                return self.either(node)
            case ast.IfExp():
                return self.choice(node)
            case ast.JoinedStr():
                return self.text(node)
            case ast.Attribute():
                return self.attribute(self.value(node.value), node.attr, node)
            case ast.Subscript():
                return self.item(self.value(node.value), node.slice, node)
            case ast.Call():
                return self.call(node)
            case ast.Lambda():
                return self.function(node)
            case ast.NamedExpr():
                value = self.value(node.value)
                self.assign(node.target, value, self.where(node))
                return value
            case ast.ListComp() if len(node.generators) == 1:
                return self.comprehension(node)
            case ast.Await() | ast.Starred():
                return self.value(node.value)
        return self.unknown(node)

    def sequence(self, node: Any) -> Any:
        items: list[Any] = []
        for element in node.elts:
            value = self.value(element)
            if isinstance(element, ast.Starred):
                inner = without_notes(value)[0]
                items += inner if isinstance(inner, (list, tuple)) else [self.unknown(element)]
            else:
                items.append(value)
        return tuple(items) if isinstance(node, ast.Tuple) else items

    def mapping(self, node: ast.Dict) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.value(value_node)
            if key_node is None:
                inner, notes = without_notes(value)
                out |= (
                    {k: with_notes(v, notes) for k, v in inner.items()}
                    if isinstance(inner, dict)
                    else {"**": self.unknown(value_node)}
                )
                continue
            key = without_notes(self.value(key_node))[0]
            out[key if isinstance(key, (str, int, float, bool, type(None))) else "**"] = (
                value if isinstance(key, (str, int, float, bool, type(None))) else self.unknown(key_node)
            )
        return out

    def comparison(self, node: ast.Compare) -> Any:
        left, result = self.value(node.left), True
        notes: list[str] = []
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            outcome = self.operation(type(op).__name__, [left, right], node)
            value, why = without_notes(outcome)
            if isinstance(value, Unknown):
                return value
            notes += why
            result, left = result and value, right
        return with_notes(bool(result), notes)

    def either(self, node: ast.BoolOp) -> Any:
        """`a and b`, `a or b`: the first value that decides."""
        notes: list[str] = []
        is_or, undecided, value = isinstance(node.op, ast.Or), None, None
        for operand in node.values:
            value = self.value(operand)
            is_true = truth(value)
            notes += without_notes(value)[1]
            if is_true is None:
                undecided = undecided or (value if isinstance(value, Unknown) else self.unknown(node))
            elif is_true == is_or:
                return with_notes(value, notes) if undecided is None else undecided
        return undecided if undecided is not None else with_notes(value, notes)

    def choice(self, node: ast.IfExp) -> Any:
        condition = self.value(node.test)
        is_true, notes = truth(condition), without_notes(condition)[1]
        if is_true is not None and not notes:
            return self.value(node.body if is_true else node.orelse)
        reason = self.unknown(node, f"it depends on `if {source_of(node.test)}`")
        join = Join(reason, (0 if is_true else 1, notes) if notes and is_true is not None else None)
        return join.value([self.value(node.body), self.value(node.orelse)])

    def text(self, node: ast.JoinedStr) -> Any:
        """An f-string of known values, with plain formats."""
        pieces = []
        for part in node.values:
            if not isinstance(part, ast.FormattedValue):
                pieces.append(self.value(part))
                continue
            value = self.value(part.value)
            if isinstance(without_notes(value)[0], (Thing, Function, Import)):
                return self.unknown(node)
            form = self.value(part.format_spec) if part.format_spec is not None else ""
            if not isinstance(form, str) or len(form) > 5 or any(c.isdigit() for c in form[2:] if "." not in form):
                return self.unknown(node)
            render = repr if part.conversion == ord("r") else str
            pieces.append(compute(lambda x, f=form, r=render: format(x, f) if f else r(x), [value], self.unknown(node)))
        return compute(lambda *x: "".join(x), pieces, self.unknown(node))

    def comprehension(self, node: ast.ListComp) -> Any:
        generator = node.generators[0]
        items, notes = without_notes(self.value(generator.iter))
        if not isinstance(items, (list, tuple, dict)) or len(items) > 50:
            return items if isinstance(items, Unknown) else self.unknown(node)
        out = []
        number = self.new_frame()
        self.stack.append((*self.stack[-1], number))
        for item in items:
            self.assign(generator.target, with_notes(item, notes), self.where(node))
            decisions = [truth(self.value(test)) for test in generator.ifs]
            if any(d is None for d in decisions):
                out = self.unknown(node)
                break
            if all(decisions):
                out.append(self.value(node.elt))
        self.stack.pop()
        return out

    def item(self, owner: Any, index: ast.expr, node: ast.AST) -> Any:
        """`owner[index]`."""
        inner, notes = without_notes(owner)
        if isinstance(inner, Unknown):
            return inner
        if isinstance(index, ast.Slice):
            bounds = [None if b is None else self.value(b) for b in (index.lower, index.upper, index.step)]
            return compute(lambda x, *b: x[slice(*b)], [owner, *bounds], self.unknown(node))
        key = self.value(index)
        key_inner, key_notes = without_notes(key)
        if isinstance(inner, (dict, list, tuple)) and not isinstance(key_inner, (Unknown, dict, list)):
            try:
                member = inner[key_inner]
                return self.unknown(node) if member is ABSENT else with_notes(member, [*notes, *key_notes])
            except (KeyError, IndexError, TypeError):
                return inner["**"] if isinstance(inner, dict) and "**" in inner else self.unknown(node)
        return (
            compute(lambda x, k: x[k], [owner, key], self.unknown(node))
            if isinstance(inner, str)
            else self.unknown(node)
        )

    def attribute(self, owner: Any, name: str, node: ast.AST) -> Any:
        """`owner.name`."""
        inner, notes = without_notes(owner)
        if isinstance(inner, Unknown):
            return inner
        if isinstance(inner, Import):
            return Import(f"{inner.path}.{name}")
        if isinstance(inner, Thing):
            member = self.field(inner, name, node)
            return with_notes(member, notes) if member is not ABSENT else self.unknown(node)
        if isinstance(inner, PathText):
            parts = {"name": lambda p: p.rsplit("/")[-1], "stem": lambda p: p.rsplit("/")[-1].rsplit(".")[0]}
            return compute(parts.get(name, len), [owner], self.unknown(node)) if name in parts else self.unknown(node)
        return self.unknown(node)

    def field(self, thing: Thing, name: str, node: ast.AST) -> Any:
        """Return a field of an object, of its class or of a base; ABSENT if there is none."""
        value = thing.fields.get(name, ABSENT)
        if without_notes(value)[0] is not ABSENT:
            return value
        owners = [] if thing.of is None else self.bases(thing.of) if thing.kind != "class" else self.bases(thing)[1:]
        for owner in owners:
            if not isinstance(owner, Thing):
                return Unknown(
                    f"{name} is of {getattr(owner, 'path', 'another class')}, code of another file", self.where(node)
                )
            if name in owner.fields:
                member = owner.fields[name]
                if isinstance(member, Function) and member.kind == "property" and thing.kind == "instance":
                    return self.called(member, [thing], {}, node)
                return member
        return ABSENT


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, (list, tuple)) else []


def source_of(node: Any) -> str:
    """The first 60 characters of an expression, on one line."""
    try:
        text = " ".join(ast.unparse(node).split())
    except Exception:  # a node of this reader's own
        return "..."
    return text if len(text) <= 60 else f"{text[:57]}..."
