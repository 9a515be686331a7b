"""Reader of TRL scripts and notebooks without running them: the arguments of their calls, with lines."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError


@dataclass(frozen=True)
class Value:
    """Value of a setting and its place ("line 12", "cell 3 line 2", "line 4 of CONFIG.yaml")."""

    value: Any
    where: str


@dataclass
class SourceSettings:
    """Settings that a source states.

    settings  fields of GRPOConfig, and further fields of YAML files
    parts     arguments of the trainer: "model", "dataset", "split", "dataset_config", "peft" (a mapping)
    rewards   of the trainer, in order: ("function", name) of the source, ("trl", name), ("model", name)
    open      (where, what) for values that can't be read without running the source
    guarded   True if importing the source runs no training;   unsloth: True if that library is imported
    """

    settings: dict[str, Value] = field(default_factory=dict)
    parts: dict[str, Value] = field(default_factory=dict)
    rewards: list[tuple[str, Value]] = field(default_factory=list)
    open: list[tuple[str, str]] = field(default_factory=list)
    guarded: bool = True
    unsloth: bool = False


class _Open(Exception):
    """Raised for an expression whose value is only known when the script runs."""


OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow, ast.Mod: operator.mod,
}  # fmt: skip
TRAINER = ("model", "reward_funcs", "args", "train_dataset")  # GRPOTrainer's arguments by position
PARSERS = ("TrlParser", "HfArgumentParser")


def read(path: Path) -> SourceSettings:
    """Read the settings of a script (.py) or notebook (.ipynb); ConfigError if it is not Python."""
    text = path.read_text(encoding="utf-8")
    lines = _cells(path, text) if path.suffix == ".ipynb" else [(f"line {i}", x) for i, x in _numbered(text)]
    code = "\n".join(_without_magic(line) for _, line in lines)
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        where = lines[error.lineno - 1][0] if error.lineno and error.lineno <= len(lines) else "somewhere"
        raise ConfigError(f"{path}: {where}: not Python: {error.msg}") from None
    return _Reader(tree, [where for where, _ in lines]).source


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    yield from enumerate(text.splitlines(), 1)


def _cells(path: Path, text: str) -> list[tuple[str, str]]:
    """Return the lines of a notebook's code cells, each with its place."""
    try:
        cells = json.loads(text)["cells"]
        code = [(n, "".join(c["source"])) for n, c in enumerate(cells, 1) if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a notebook: {error}") from None
    return [(f"cell {n} line {i}", x) for n, source in code for i, x in _numbered(source)]


def _without_magic(line: str) -> str:
    """Replace a notebook's magic or shell line by `pass`, so that line numbers stay."""
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass" if line.lstrip().startswith(("%", "!", "?")) else line


class _Reader:
    """Reader of one syntax tree into `source`."""

    def __init__(self, tree: ast.Module, places: list[str]) -> None:
        self._places, self.source = places, SourceSettings()
        self._assigned: dict[str, list[ast.expr]] = {}
        # names that are bound anywhere: assignments, functions, imports
        self._functions = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
        self._imported = {
            (a.asname or a.name): n.module or ""
            for n in ast.walk(tree)
            if isinstance(n, ast.ImportFrom)
            for a in n.names
        }
        self._configs: set[str] = set()
        for node in sorted(ast.walk(tree), key=lambda n: getattr(n, "lineno", 0)):  # as a notebook is run
            self._note(node)
        self.source.unsloth = any(
            isinstance(n, ast.ImportFrom) and (n.module or "").startswith("unsloth") for n in ast.walk(tree)
        )
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
        self._calls(calls)
        self._later_assignments(tree)
        # a trainer that is made at the top level trains on import: such a file can't be imported for its rewards
        self.source.guarded = not any(
            isinstance(n, ast.Call) and _last(n.func).endswith("GRPOTrainer")
            for top in tree.body
            if not isinstance(top, (ast.FunctionDef, ast.ClassDef)) and not _is_main(top)
            for n in ast.walk(top)
        )

    def _note(self, node: ast.AST) -> None:
        """Note an assignment: name -> expression. A name that changes by a loop or `+=` gets one that has no value."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._assigned.setdefault(target.id, []).append(node.value)
                elif isinstance(target, ast.Tuple):
                    pieces = node.value.elts if isinstance(node.value, ast.Tuple) else [target] * len(target.elts)
                    for name, value in zip(target.elts, pieces, strict=False):
                        if isinstance(name, ast.Name):
                            self._assigned.setdefault(name.id, []).append(value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            self._assigned.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, (ast.AugAssign, ast.For)) and isinstance(node.target, ast.Name):
            self._assigned.setdefault(node.target.id, []).append(node.target)

    def _where(self, node: ast.AST) -> str:
        return self._places[getattr(node, "lineno", 1) - 1]

    # ------------------------------------------------------------ values
    def _value(self, node: ast.expr, depth: int = 0) -> Any:
        """Evaluate an expression of constants, and of names bound to such; `_Open` for any other.

        Only literals and OPERATORS are evaluated, so that nothing of the script runs.
        """
        # names may be bound in a circle
        if depth > 20:
            raise _Open
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)) and isinstance(getattr(node, "ctx", None), ast.Load):
            return [self._value(x, depth + 1) for x in node.elts]
        if isinstance(node, ast.Dict):
            return {self._value(k, depth + 1): self._value(v, depth + 1) for k, v in self._items(node)}
        # a name has the value of its last binding above the line, as in a script that runs top down
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            assigned_values = self._assigned.get(node.id, [])
            earlier_values = [x for x in assigned_values if getattr(x, "lineno", 0) <= node.lineno] or assigned_values[
                :1
            ]
            if not earlier_values:
                raise _Open
            return self._value(earlier_values[-1], depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return node.attr
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            value = self._value(node.operand, depth + 1)
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            try:
                return OPERATORS[type(node.op)](self._value(node.left, depth + 1), self._value(node.right, depth + 1))
            except (TypeError, ValueError, ZeroDivisionError, OverflowError):
                raise _Open from None
        if isinstance(node, ast.JoinedStr):
            pieces = [x.value if isinstance(x, ast.FormattedValue) else x for x in node.values]
            return "".join(str(self._value(x, depth + 1)) for x in pieces)
        if isinstance(node, ast.Call) and _last(node.func) == "dict" and not node.args:
            return {k.arg: self._value(k.value, depth + 1) for k in node.keywords if k.arg}
        raise _Open

    @staticmethod
    def _items(node: ast.Dict) -> Iterator[tuple[ast.expr, ast.expr]]:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise _Open
            yield key, value

    def _keywords(self, call: ast.Call, settings: dict[str, Value], what: str, names: Sequence[str] = ()) -> None:
        """Collect a call's constant arguments into `settings`; others are noted as open. `names`: of these alone."""
        for keyword in call.keywords:
            if names and keyword.arg not in names:
                continue
            try:
                value = self._value(keyword.value)
            except _Open:
                name = keyword.arg or "**" + ast.unparse(keyword.value)
                self.source.open.append((self._where(keyword.value), f"{what}: {name} is known when the script runs"))
                continue
            if keyword.arg is not None:
                settings[keyword.arg] = Value(value, self._where(keyword.value))
            else:
                settings.update({str(k): Value(v, self._where(keyword.value)) for k, v in dict(value).items()})

    # ------------------------------------------------------------ calls
    def _calls(self, calls: list[ast.Call]) -> None:
        """Read the calls that a training is made of: GRPOConfig, load_dataset, from_pretrained, LoraConfig, trainer."""
        by_name = {name: [c for c in calls if _last(c.func) == name] for name in {_last(c.func) for c in calls}}
        configs = [c for n, name_calls in by_name.items() if n.endswith("GRPOConfig") for c in name_calls]
        trainers = [c for n, name_calls in by_name.items() if n.endswith("GRPOTrainer") for c in name_calls]
        # a script may have several configurations, as of two trainings: the first one is taken, with a note
        for more in configs[1:]:
            self.source.open.append((self._where(more), "a second GRPOConfig: the first one is taken"))
        for call in configs[:1]:
            self._keywords(call, self.source.settings, "GRPOConfig")
            self._configs |= {
                n for n, assigned_values in self._assigned.items() if any(x is call for x in assigned_values)
            }
        for name in PARSERS:
            for call in by_name.get(name, []):
                self.source.open.append((
                    self._where(call),
                    f"{name}: settings come from a file or the command line: convert that YAML",
                ))  # fmt: skip
        loads = by_name.get("load_dataset", [])
        if training_data := self._training_data(trainers) or (loads[0] if loads else None):
            self._dataset(training_data)
        # backwards, so that the first model of several stays
        for call in [*by_name.get("from_pretrained", [])][::-1]:
            self._pretrained(call)
        for call in (*by_name.get("get_peft_model", []), *by_name.get("LoraConfig", [])):
            peft_options: dict[str, Value] = {}
            self._keywords(call, peft_options, _last(call.func), PEFT)
            self.source.parts["peft"] = Value({k: v.value for k, v in peft_options.items()}, self._where(call))
        for call in trainers[:1]:
            self._trainer(call)
        if not configs and not trainers:
            raise ConfigError("there is neither a GRPOConfig nor a GRPOTrainer in it")

    def _training_data(self, trainers: list[ast.Call]) -> ast.Call | None:
        """Find the `load_dataset` that a trainer's `train_dataset` comes from, by the names in between."""
        trainer_arguments = {k.arg: k.value for call in trainers[:1] for k in call.keywords}
        node, line = trainer_arguments.get("train_dataset"), trainers[0].lineno if trainers else 0
        for _ in range(20):
            if node is None:
                return None
            load_calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and _last(n.func) == "load_dataset"]
            if load_calls:
                return load_calls[0]
            names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in self._assigned]
            earlier_values = [x for name in names[:1] for x in self._assigned[name] if x.lineno < line]
            node, line = (earlier_values[-1], earlier_values[-1].lineno) if earlier_values else (None, 0)
        return None

    def _dataset(self, call: ast.Call) -> None:
        arguments: dict[str, Value] = {}
        self._keywords(call, arguments, "load_dataset", ("path", "name", "split", "data_files"))
        for name, node in zip(("path", "name"), call.args, strict=False):
            try:
                arguments[name] = Value(self._value(node), self._where(node))
            except _Open:
                self.source.open.append((self._where(node), f"load_dataset: its {name} is known when the script runs"))
        for theirs, ours in (("path", "dataset"), ("name", "dataset_config"), ("split", "split"),
                             ("data_files", "data_files")):  # fmt: skip
            if theirs in arguments:
                self.source.parts[ours] = arguments[theirs]

    def _pretrained(self, call: ast.Call) -> None:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        name_node = next(
            (k.value for k in call.keywords if k.arg in ("model_name", "pretrained_model_name_or_path")), None
        )
        node = call.args[0] if call.args else name_node
        if "Model" not in _last(owner) or node is None:  # a tokenizer's or a processor's
            return
        try:
            self.source.parts["model"] = Value(self._value(node), self._where(node))
        except _Open:
            self.source.open.append((self._where(node), "model: its name is known when the script runs"))
        for keyword in call.keywords:
            if keyword.arg in ("torch_dtype", "dtype", "load_in_4bit", "max_seq_length", "use_gradient_checkpointing"):
                try:
                    self.source.parts[str(keyword.arg)] = Value(self._value(keyword.value), self._where(keyword.value))
                except _Open:
                    continue

    def _trainer(self, call: ast.Call) -> None:
        arguments = dict(zip(TRAINER, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
        # the model by its name in place; an object was read from its `from_pretrained` already
        if (model := arguments.get("model")) is not None:
            try:
                value = self._value(model)
                if isinstance(value, str):
                    self.source.parts["model"] = Value(value, self._where(model))
            except _Open:
                if "model" not in self.source.parts:
                    self.source.open.append((self._where(model), "model: an object; say which one"))
        self._rewards(arguments.get("reward_funcs"))
        if (method := arguments.get("method")) is not None:  # of gxpo.adapters.trl
            try:
                self.source.parts["method"] = Value(self._value(method), self._where(method))
            except _Open:
                self.source.open.append((self._where(method), "method: it is made when the script runs; set method"))
        for name in ("overrides", "success_at", "answers", "callbacks"):
            if name in arguments:
                self.source.open.append(
                    (self._where(arguments[name]), f"GRPOTrainer({name}=...): state it in gxpo's keys")
                )
        for name in ("tools", "rollout_func", "environment_factory", "reward_processing_classes"):
            if name in arguments:
                self.source.open.append(
                    (self._where(arguments[name]), f"GRPOTrainer({name}=...): an environment of gxpo")
                )

    def _rewards(self, node: ast.expr | None) -> None:
        if node is None:
            return
        if (
            isinstance(node, ast.Name)
            and (values := self._assigned.get(node.id, []))
            and node.id not in self._functions
        ):
            node = values[-1]
        for one in node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]:
            where = self._where(one)
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                self.source.rewards.append(("model", Value(one.value, where)))
            elif isinstance(one, ast.Name) and one.id in self._functions:
                self.source.rewards.append(("function", Value(one.id, where)))
            elif isinstance(one, ast.Name) and self._imported.get(one.id, "").startswith("trl"):
                self.source.rewards.append(("trl", Value(one.id, where)))
            else:
                self.source.rewards.append(("other", Value(ast.unparse(one), where)))

    def _later_assignments(self, tree: ast.Module) -> None:
        """`training_args.beta = 0.04`, after the configuration was made."""
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign):
                continue
            for target in node.targets:
                is_field = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
                if is_field and target.value.id in self._configs:  # type: ignore[union-attr]  # narrowed by `is_field`
                    try:
                        value = Value(self._value(node.value), self._where(node))
                        self.source.settings[target.attr] = value  # type: ignore[union-attr]
                    except _Open:
                        note = f"{ast.unparse(target)} is known when the script runs"
                        self.source.open.append((self._where(node), note))


PEFT = ("r", "lora_alpha", "target_modules", "lora_dropout", "use_rslora", "use_dora", "modules_to_save")


def _last(node: ast.expr) -> str:
    """The last name of a dotted one."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and bool(re.search(r"__name__.*__main__", ast.unparse(node.test)))
