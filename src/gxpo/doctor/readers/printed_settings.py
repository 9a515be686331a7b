"""Settings that a console text shows: command lines, the printed arguments of transformers, verl's printed tree."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from gxpo.doctor.readers.found import flat

_COMMAND = re.compile(
    r"verl\.trainer|\btrl grpo\b|openrlhf\.cli|--(?:learning_rate|num_generations|max_completion_length)\b"
)
_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:[= ]+(?!--)('[^']*'|\"[^\"]*\"|[^\s\\]+))?")
_OVERRIDE = re.compile(r"(?<![\w.-])\+{0,2}([a-z_]\w*(?:\.\w+)+)=('[^']*'|\"[^\"]*\"|[^\s\\]+)")
_COMMANDS = ("verl.trainer", "trl grpo", "openrlhf.cli", "--")  # one of them is in every match of _COMMAND
_ARGUMENTS = re.compile(r"\b(?:GRPOConfig|TrainingArguments|UnslothGRPOConfig)\($")
_ARGUMENT = re.compile(r"^\s*(\w+)=(.*)$")
_TREE = re.compile(r"^\s*\{'actor_rollout_ref': \{|^\s*\{'(?:actor|algorithm|data|critic)\w*': \{")
_LARGEST = 400_000  # characters of a printed tree


def value(text: str) -> Any:
    """A number, flag, list or text as it is written on a command line."""
    text = text.strip().strip("'\"")
    low = text.lower()
    if low in ("true", "false"):
        return low == "true"
    if low in ("null", "none"):
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


@dataclass
class PrintedSettings:
    open: str = ""  # "command", "arguments" or "tree" while one goes on
    _found: dict[str, Any] = field(default_factory=dict)
    _tree: list[str] = field(default_factory=list)
    _depth: int = 0
    _size: int = 0

    def settings(self) -> dict[str, Any]:
        return dict(self._found)

    def take(self, line: str) -> bool:
        """Whether the line belongs to settings."""
        if self.open == "tree" or _TREE.match(line):
            return self._branch(line)
        if self.open == "arguments":
            pair = _ARGUMENT.match(line)
            if pair is not None:
                self._found.setdefault(pair[1], value(pair[2].rstrip().removesuffix(",")))
                return True
            self.open = ""
            return line.strip() == ")"
        if line.endswith("(") and _ARGUMENTS.search(line):
            self.open = "arguments"
            return True
        if self.open == "command" or (any(c in line for c in _COMMANDS) and _COMMAND.search(line)):
            pairs = [*_OPTION.findall(line), *_OVERRIDE.findall(line)]
            for name, text in pairs:
                self._found.setdefault(name.replace("-", "_"), value(text) if text else True)
            self.open = "command" if line.rstrip().endswith("\\") else ""
            return bool(pairs)
        return False

    def _branch(self, line: str) -> bool:
        self.open = "tree"
        self._tree.append(line)
        self._size += len(line)
        self._depth += line.count("{") - line.count("}")
        if self._depth <= 0 or self._size > _LARGEST:
            try:
                tree = ast.literal_eval("\n".join(self._tree).strip())
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                tree = None
            for name, setting in flat(tree).items():
                self._found.setdefault(name, setting)
            self.open, self._tree, self._depth, self._size = "", [], 0, 0
        return True
