"""Reading of a script's statements in order, without running them: what each name is, and which branch is undecided."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gxpo.adapters.script.branches import Join, containers
from gxpo.adapters.script.expressions import Expressions, source_of
from gxpo.adapters.script.values import Function, Import, Noted, Thing, Unknown, truth, with_notes, without_notes
from gxpo.base.errors import ConfigError

MATTERS = re.compile(
    r"GRPO|RLOO|load_dataset|from_pretrained|get_peft_model|LoraConfig|add_argument|parse_args|reward_funcs"
)
SHORT = 12  # statements of a function that is followed, although it calls nothing that matters
MOST_STEPS = 100_000  # statements and calls that are followed, with objects copied for a branch
DEEPEST = 24  # calls within one another
Signal = (
    tuple[str, Any] | None
)  # how a block ends: ("return", value), ("break", None), ("continue", None), ("exit", None)


class Walk(Expressions):
    """Reading of one script: frames of names, and the objects that its statements make.

    `Calls` adds what calls mean; this class knows statements, expressions, functions and classes.
    """

    def __init__(self, tree: ast.Module, places: Sequence[str]) -> None:
        self.places, self.steps, self.frame_count = places, 0, 0
        # frames and records are one structure, so that one copy of it is a whole state
        self.state: dict[str, Any] = {"frames": {0: {"__name__": "__main__"}}, "records": {}, "environ": {},
                                      "attributes": {}}  # fmt: skip
        self.stack: list[tuple[int, ...]] = [(0,)]
        self.results: list[list[Any]] = []
        self.entered: set[ast.AST] = set()
        self.mattering = _mattering(tree)

    def count(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise ConfigError("the script is too long to follow: write its settings into a YAML file and convert that")

    # ------------------------------------------------------------ statements
    def block(self, statements: Sequence[ast.stmt]) -> Signal:
        """Follow statements; return how they end, None at their last line."""
        for number, statement in enumerate(statements):
            self.count()
            bodies, condition = self.alternatives(statement)
            if bodies is None:
                signal = self.statement(statement)
            elif condition is not None and not isinstance(condition, Noted):
                signal = self.block(bodies[0 if condition else 1])
            else:
                # a branch that may leave the block is followed by the rest of it, which the other one alone reaches
                remaining = statements[number + 1 :] if any(map(_leaves, bodies)) else ()
                signal = self.branch(statement, [[*body, *remaining] for body in bodies], condition)
                if remaining:
                    return signal
            if signal is not None:
                return signal
        return None

    def alternatives(self, statement: ast.stmt) -> tuple[list[Sequence[ast.stmt]] | None, Any]:
        """Return the bodies of which one is run, and the condition: True for the first, None if it is undecided."""
        if isinstance(statement, ast.If):
            condition = self.value(statement.test)
            is_true, notes = truth(condition), without_notes(condition)[1]
            return [statement.body, statement.orelse], Noted(is_true, notes) if notes else is_true
        if isinstance(statement, ast.Try):
            body = [*statement.body, *statement.orelse, *statement.finalbody]
            # imports are taken to succeed; a handler that ends the script changes nothing
            if all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in statement.body) or not statement.handlers:
                return [body], True
            return [body, *([*h.body, *statement.finalbody] for h in statement.handlers)], None
        if isinstance(statement, ast.Match):
            self.value(statement.subject)
            return [[], *(case.body for case in statement.cases)], None
        if isinstance(statement, ast.While):
            is_true = truth(self.value(statement.test))
            return ([[]], True) if is_true is False else ([_loop(statement), []], None)
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            items, notes = without_notes(self.value(statement.iter))
            if isinstance(items, dict):
                items = list(items)
            if isinstance(items, (list, tuple)) and len(items) <= 50:
                return [self.unrolled(statement, [with_notes(x, notes) for x in items])], True
            return [_loop(statement), []], None
        return None, None

    def unrolled(self, statement: Any, items: Sequence[Any]) -> Sequence[ast.stmt]:
        """Follow a loop over known items, and return the statements that come after: none, or those of its `else`."""
        for item in items:
            self.assign(statement.target, item, self.where(statement))
            signal = self.block(statement.body)
            if signal is not None and signal[0] in ("break", "return", "exit"):
                return [ast.Expr(_Signal(signal))] if signal[0] != "break" else []
        return statement.orelse

    def branch(self, statement: ast.stmt, bodies: Sequence[Sequence[ast.stmt]], condition: Any) -> Signal:
        """Follow each body from the same state, and join what they leave."""
        base = self.state
        originals = containers(base)
        self.count(len(originals) // 2)
        outcomes = []
        for body in bodies:
            memo: dict[int, Any] = {}
            self.state = copy.deepcopy(base, memo)
            signal = self.block(body)
            outcomes.append((self.state, memo, signal))
        self.state = base
        # a branch that ends the script is not the one that trains
        live_outcomes = [o for o in outcomes if o[2] is None or o[2][0] != "exit"]
        if not live_outcomes:
            return ("exit", None)
        preferred = None
        if isinstance(condition, Noted) and len(live_outcomes) == len(outcomes):
            preferred = (0 if condition.value else 1, condition.notes)
        test = getattr(statement, "test", None)
        kind = type(statement).__name__.lower()
        description = f"`{kind} {source_of(test)}`" if test is not None else f"`{kind}`"
        join = Join(
            Unknown(f"it depends on {description} in {self.where(statement)}", self.where(statement)), preferred
        )
        # names of frames, records and environment are those that are set on the way that was taken
        names = {id(frame) for frame in base["frames"].values()} | {id(base["records"]), id(base["frames"])}
        join.into(originals, [memo for _, memo, _ in live_outcomes], names)
        return self._joined_signal(join, [signal for _, _, signal in live_outcomes])

    def _joined_signal(self, join: Join, signals: Sequence[Signal]) -> Signal:
        kinds = {None if s is None else s[0] for s in signals}
        values = [join.value([s[1]]) if s is not None else None for s in signals]
        if kinds == {"return"}:
            both = [s[1] for s in signals if s is not None]
            return ("return", values[0] if len(values) == 1 else join.value(both))
        if len(kinds) == 1:
            return signals[0]
        # the ends differ: what a function returns early is joined to what it returns at its end
        if "return" in kinds and self.results:
            self.results[-1] += [v for v, s in zip(values, signals, strict=True) if s is not None and s[0] == "return"]
        return None

    def statement(self, node: ast.stmt) -> Signal:
        """Follow a statement without alternatives."""
        match node:
            case ast.Expr(value=_Signal() as signal):
                return signal.signal
            case ast.Expr():
                if isinstance(self.value(node.value), Exit):
                    return ("exit", None)
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self.assign(target, value, self.where(node))
            case ast.AnnAssign() if node.value is not None:
                self.assign(node.target, self.value(node.value), self.where(node))
            case ast.AugAssign():
                old = self.value(_as_read(node.target))
                value = self.operation(type(node.op).__name__, [old, self.value(node.value)], node)
                self.assign(node.target, value, self.where(node))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.bind(node.name, self.function(node))
            case ast.ClassDef():
                self.bind(node.name, self.class_of(node))
            case ast.Import():
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self.bind(name, Import(alias.name if alias.asname else name))
            case ast.ImportFrom():
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    self.bind(alias.asname or alias.name, self.imported(f"{module}.{alias.name}"))
            case ast.Return():
                return ("return", None if node.value is None else self.value(node.value))
            case ast.Raise():
                return ("exit", None)
            case ast.Break():
                return ("break", None)
            case ast.Continue():
                return ("continue", None)
            case ast.Global() | ast.Nonlocal():
                self.state["frames"][self.stack[-1][-1]]["global "] = list(node.names)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.value(item.context_expr)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, value, self.where(node))
                return self.block(node.body)
            case ast.Delete():
                for target in node.targets:
                    self.assign(target, self.unknown(target), self.where(node))
            case _Forget():
                for name in node.names:
                    self.bind(name, self.unknown(node.of, f"the loop in {self.where(node.of)} changes `{name}`"))
            case _Next():
                self.assign(node.of.target, self.unknown(node.of.iter), self.where(node.of))
        return None

    # ------------------------------------------------------------ functions and classes
    def imported(self, path: str) -> Any:
        """Return what a name of another module is."""
        return Import(path)

    def function(self, node: Any) -> Any:
        """Return the function of a definition."""
        names = [source_of(d.func if isinstance(d, ast.Call) else d) for d in getattr(node, "decorator_list", ())]
        kind = next((n for n in names if n in ("property", "classmethod", "staticmethod")), "function")
        decorators = tuple(
            f"@{n}" for n in names if n not in ("property", "classmethod", "staticmethod", "torch.no_grad")
        )
        return Function(node, self.stack[-1], kind, decorators)

    def class_of(self, node: ast.ClassDef) -> Thing:
        """Follow the body of a class, and return it with its attributes."""
        thing = Thing("class", node.name, self.where(node), of=[self.value(base) for base in node.bases])
        number = self.new_frame()
        self.stack.append((*self.stack[-1], number))
        self.block(node.body)
        self.stack.pop()
        thing.fields = {k: v for k, v in self.state["frames"][number].items() if k != "global "}
        # methods see the frames around the class, and not its own
        for name, value in thing.fields.items():
            if isinstance(value, Function):
                thing.fields[name] = Function(value.node, self.stack[-1], value.kind, value.notes)
        annotated = {s.target.id: self.where(s) for s in node.body
                     if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}  # fmt: skip
        thing.places = {**{n: self.where(s) for s in node.body if isinstance(s, ast.Assign)
                           for t in s.targets if isinstance(t, ast.Name) for n in [t.id]}, **annotated}  # fmt: skip
        thing.fields["annotated "] = list(annotated)
        return thing

    def new_frame(self) -> int:
        self.frame_count += 1
        self.state["frames"][self.frame_count] = {}
        return self.frame_count

    def bases(self, thing: Any) -> list[Any]:
        """Return a class and all its bases, in the order in which an attribute is looked for."""
        out: list[Any] = [thing]
        if not isinstance(thing, Thing):
            return out
        for base in thing.of or ():
            out += self.bases(base) if isinstance(base, Thing) and base.kind == "class" else [base]
        return out

    def called(self, function: Function, arguments: Sequence[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        """Follow a call of a function of the script; return what it returns."""
        self.count()
        definition = function.node
        is_long = getattr(definition, "name", "lambda") not in self.mattering and _length(definition) > SHORT
        if len(self.stack) > DEEPEST or is_long:
            self.warn(getattr(definition, "name", ""), [*arguments], keywords, node)
            return self.unknown(node)
        self.entered.add(definition)
        number = self.new_frame()
        frame = self.state["frames"][number]
        self._bind_arguments(function, list(arguments), dict(keywords), frame, node)
        self.stack.append((*function.frames, number))
        self.results.append([])
        if isinstance(definition, ast.Lambda):
            signal: Signal = ("return", self.value(definition.body))
        else:
            signal = self.block(definition.body)
        self.stack.pop()
        early = self.results.pop()
        if not any(isinstance(n, (ast.FunctionDef, ast.Lambda)) for n in ast.walk(definition) if n is not definition):
            self.state["frames"].pop(number, None)  # nothing that was made in it can look at it
        if signal is not None and signal[0] == "exit":
            return Exit()
        value = signal[1] if signal is not None else None
        if early and any(x is not value and not (isinstance(x, (str, int, float)) and x == value) for x in early):
            return self.unknown(node)
        return value

    def _bind_arguments(self, function: Function, values: list[Any], keywords: dict[str, Any], frame: dict[str, Any],
                        node: ast.AST) -> None:  # fmt: skip
        definition, spec = function.node, function.node.args
        name = getattr(definition, "name", "lambda")
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        defaults = dict(zip(names[::-1], spec.defaults[::-1], strict=False))
        defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        unknown_keywords = keywords.pop("**", None)
        for argument in (*names, *(a.arg for a in spec.kwonlyargs)):
            if argument in names and values:
                frame[argument] = values.pop(0)
            elif argument in keywords:
                frame[argument] = keywords.pop(argument)
            elif isinstance(unknown_keywords, Unknown):
                frame[argument] = unknown_keywords
            elif argument in defaults:
                default = self.value(defaults[argument])
                notes = [f"{argument} of {name}()"] if self.is_guess else function.notes
                frame[argument] = with_notes(default, notes)
            else:
                frame[argument] = Unknown(f"{argument} is an argument of {name}()", self.where(node))
        if spec.vararg:
            frame[spec.vararg.arg] = tuple(values)
        if spec.kwarg:
            frame[spec.kwarg.arg] = keywords | (
                {"**": unknown_keywords} if isinstance(unknown_keywords, Unknown) else {}
            )
            if self.is_guess:
                frame[spec.kwarg.arg] = {
                    "**": Unknown(f"**{spec.kwarg.arg} is an argument of {name}()", self.where(node))
                }

    is_guess = False  # True while a function is followed that nothing in the file calls

    warn: Callable[[str, Sequence[Any], Mapping[str, Any], Any], None]


def _mattering(tree: ast.AST) -> set[str]:
    """Return the names of functions in which something that matters is called, by themselves or by one another."""
    names: dict[str, set[str]] = {}
    changing: set[str] = set()  # what sets an attribute may set one of the configuration
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) for n in ast.walk(node)):
                changing.add(node.name)
            inner = {
                x for n in ast.walk(node) for x in (getattr(n, "id", ""), getattr(n, "attr", ""), getattr(n, "arg", ""))
            }
            names.setdefault(node.name, set()).update(x for x in inner if isinstance(x, str))
    out = changing | {name for name, inner in names.items() if any(map(MATTERS.search, inner))}
    while more := {name for name, inner in names.items() if inner & out} - out:
        out |= more
    return out


def _length(node: ast.AST) -> int:
    return sum(isinstance(n, ast.stmt) for n in ast.walk(node))


class Exit:
    """The result of a call that ends the script, as `sys.exit()` does."""


class _Signal(ast.expr):
    """The end of a block as an expression, where a loop has been followed already."""

    def __init__(self, signal: Signal) -> None:
        super().__init__()
        self.signal = signal


class _Forget(ast.stmt):
    """A statement before the body of an undecided loop: the names that it sets are not known."""

    def __init__(self, of: ast.stmt, names: Sequence[str]) -> None:
        super().__init__()
        self.of, self.names = of, names


class _Next(ast.stmt):
    """A statement before the body of an undecided `for`: its target is not known."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of


def _loop(statement: Any) -> list[ast.stmt]:
    """Return the body of an undecided loop, after statements that make unknown what earlier rounds may have changed."""
    names = {
        n.id for s in statement.body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    first = [_Next(statement)] if isinstance(statement, (ast.For, ast.AsyncFor)) else []
    return [_Forget(statement, sorted(names)), *first, *statement.body]


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Return True if statements may leave the block that they are in, before its end."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            stack += ast.iter_child_nodes(node)
    return False


def _as_read(target: ast.expr) -> ast.expr:
    """Return the target of `x += 1` as an expression that is read."""
    expression = copy.copy(target)
    expression.ctx = ast.Load()  # type: ignore[attr-defined]  # of names, attributes and items alike
    return expression
