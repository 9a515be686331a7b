"""Episodes in a small repository with a fault: read, edit, run its tests; hidden tests decide. Base class."""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.code import passed, tests_of
from gxpo.environments.rewards.docker import Docker
from gxpo.environments.rewards.sandbox import PROGRAM, Limits, Local, Sandbox
from gxpo.models.chat.formats import tags
from gxpo.models.chat.messages import messages_of
from gxpo.parts.protocols import Message, Task, TimeStep, ToolCall

CHARS = 2000  # of one result of a tool
LARGEST = 1 << 16  # characters that a policy may write into one file
MOST_FILES = 64
PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")  # one folder: names that begin with a dot are git's
BARE_EDIT = re.compile(r"(\S{1,64}) ([0-9]{1,6}) (.*)", re.DOTALL)
RUNNER = """import importlib, sys, traceback
failed = 0
for path in {paths!r}:
    module = importlib.import_module(path[:-3])
    for name, test in sorted(vars(module).items()):
        if name.startswith("test_") and callable(test):
            try:
                test()
            except Exception as error:
                failed += 1
                line = traceback.extract_tb(error.__traceback__)[-1].line
                print(f"{{name}} failed: {{type(error).__name__}} {{error}} at: {{line}}")
print("all tests passed" if not failed else f"{{failed}} failed")
"""


def _schema(name: str, description: str, types: Mapping[str, str], required: Sequence[str]) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TEXTS = {"path": "string", "line": "integer", "old": "string", "text": "string"}
READ = _schema("read", "Show a file, its lines numbered.", {"path": "string"}, ["path"])
EDIT = _schema("edit", "Put text in the place of a line, or of old.", TEXTS, ["path", "text"])
RUN = _schema("run", "Run the tests.", {}, [])


@dataclass(frozen=True)
class Repo:
    """A repository with a fault.

    files   name -> text, the visible tests among them; all in one folder, none called main.py
    module  the file that the hidden tests call, and on which no other file of the repository counts
    tests   names of the visible tests: read-only, and as they are here in every run
    hidden  statements that must not raise, as `assert add(2, 2) == 4`; they call functions of `module`
    issue   what is wrong, in words: the first observation
    """

    files: Mapping[str, str]
    module: str
    tests: tuple[str, ...]
    hidden: tuple[str, ...]
    issue: str


class Refused(ValueError):
    """Error of a call that can't be carried out; the message gives the reason."""


class Repository(ABC):
    """Mend a repository with the tools `read`, `edit` and `run`; a reply without a call ends the episode.

    style      "chat": calls of tools. "bare", for models of single characters: no instructions, and a reply is one of
               `read NAME`, `edit NAME LINE TEXT`, `run` and `done`
    sandbox    "local" (`rewards.sandbox.Local`) or "docker": where the repository's code runs
    max_turns  replies; after the last one the repository is judged as it is

    The repository is text in this process: nothing that its code does in a run (files, links, other tests) comes back.
    Visible tests can't be edited, and every run has them as they were. The hidden tests are in no file: they run after
    the episode, in a process that the repository's module is not in (`rewards.code.passed`). The episode pays 1 where
    all of them pass, else 0. A sandbox that can't run leaves the attempt unscored.
    """

    provides = ("step_rewards",)

    def __init__(self, style: str = "chat", sandbox: str = "local", max_turns: int = 8, wall: float = 5.0) -> None:
        if style not in ("chat", "bare"):
            raise ConfigError(f"repository: style is 'chat' or 'bare', not {style!r}")
        if sandbox not in ("local", "docker"):
            raise ConfigError(f"repository: sandbox is 'local' or 'docker', not {sandbox!r}")
        self.max_turns, self._bare = max_turns, style == "bare"
        self.tools: tuple[Mapping[str, Any], ...] = () if self._bare else (READ, EDIT, RUN)
        self.instructions = "" if self._bare else "Mend the repository. Reply without a call when it is done."
        self._sandbox: Sandbox = Local() if sandbox == "local" else Docker()
        self._limits = Limits(wall=wall)
        self._repo: Repo | None = None
        self._files: dict[str, str] = {}
        self._turn = 0

    @abstractmethod
    def repository(self, seed: int) -> Repo:
        """Build the repository of a seed."""

    def content(self, seed: int) -> str:
        """Return the text of the faulty module: instances with equal ones are held out together."""
        repo = self.repository(seed)
        return repo.files[repo.module]

    # ------------------------------------------------------------ the protocol
    def reset(self, seed: int) -> TimeStep:
        self._repo = self.repository(seed)
        tests_of(Task("repository", "", info={"tests": list(self._repo.hidden)}))
        self._files, self._turn = dict(self._repo.files), 0
        first = f"{self._repo.issue}\nFiles: {', '.join(self._files)}\n"
        return TimeStep(f"{first}>" if self._bare else first, self._state())

    def step(self, action: str) -> TimeStep:
        step = self.call(action, _bare_calls(action) if self._bare else ())
        text = "\n".join(str(message["content"]) for message in messages_of(step.observation))
        return replace(step, observation=f"\n{text}\n>") if self._bare else step

    def call(self, content: str, calls: Sequence[ToolCall]) -> TimeStep:
        assert self._repo is not None, "reset comes first"
        # calls that come as text, as an expert writes them
        calls = calls or (() if self._bare else tags(content, {}).calls)
        self._turn += 1
        messages, notes, errors = list[Message](), [], set[str]()
        for call in calls:
            text, error = self._carry_out(call)
            messages.append(_message(call, text))
            notes.append({"name": call.name, "arguments": {k: str(x) for k, x in call.arguments.items()}})
            errors.add(error)
        # templates want results of tools right after the calls, before a message of the user's
        messages.sort(key=lambda m: m["role"] != "tool")
        error = next((kind for kind in ("malformed", "illegal") if kind in errors), None)
        if calls and self._turn < self.max_turns:
            return TimeStep(tuple(messages), self._state(), 0.0, action_error=error, info={"calls": notes})
        verdicts = self.judge()
        info = {"patch": self.patch(), "hidden_passed": sum(verdicts) / len(verdicts), "calls": notes}
        success, cut = all(verdicts), bool(calls)
        return TimeStep(tuple(messages), self._state(), float(success), True, success, error, cut, info)

    def judge(self) -> list[bool]:
        """Verdicts of the hidden tests on the module as it is now; raises where the sandbox can't run."""
        assert self._repo is not None, "reset comes first"
        return passed(self._files[self._repo.module], self._repo.hidden, self._sandbox, self._limits)

    def patch(self) -> str:
        """Return the changes of the episode so far as a unified diff."""
        assert self._repo is not None, "reset comes first"
        lines: list[str] = []
        for path in sorted(self._files):
            before, after = (files.get(path, "").splitlines(True) for files in (self._repo.files, self._files))
            lines += difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
        return "".join(lines)

    def _state(self) -> str:
        return "\0".join(f"{path}\0{text}" for path, text in sorted(self._files.items()))

    # ------------------------------------------------------------ tools
    def _carry_out(self, call: ToolCall) -> tuple[str, str]:
        """Result of a call, and "malformed", "illegal" or ""."""
        if call.error is not None:
            return f"Error: {call.error}", "malformed"
        tool = {"read": self._read, "edit": self._edit, "run": self._run}.get(call.name)
        try:
            if tool is None:
                raise Refused(f"there is no tool {call.name!r}; the tools are read, edit, run")
            text = tool(dict(call.arguments))
        except Refused as error:
            return f"Error: {error}", "illegal"
        return text if len(text) <= CHARS else f"{text[:CHARS]}\n[cut]", ""

    def _read(self, arguments: dict[str, Any]) -> str:
        path = _argument(arguments, "path", str)
        if path not in self._files:
            raise Refused(f"there is no file {path!r}; there are {', '.join(self._files)}")
        return "\n".join(f"{n} {line}" for n, line in enumerate(self._files[path].split("\n"), 1))

    def _edit(self, arguments: dict[str, Any]) -> str:
        path, text = _argument(arguments, "path", str), _argument(arguments, "text", str)
        self._check_path(path)
        if ("line" in arguments) == ("old" in arguments):
            raise Refused("edit needs either line or old")
        if "line" in arguments:
            edited = self._with_line(path, _argument(arguments, "line", int), text)
        else:
            edited = self._with_text(path, _argument(arguments, "old", str), text)
        if len(edited) > LARGEST:
            raise Refused(f"{path} would have more than {LARGEST} characters")
        self._files[path] = edited
        return "done"

    def _run(self, arguments: dict[str, Any]) -> str:
        assert self._repo is not None
        # on a copy, with the tests as they were; the runner's name can't be taken by a file of the repository
        tests = {path: self._repo.files[path] for path in self._repo.tests}
        runner = RUNNER.format(paths=list(self._repo.tests))
        result = self._sandbox.run({**self._files, **tests, PROGRAM: runner}, "", self._limits)
        if result.status == "broken":
            raise RuntimeError(f"the sandbox can't run the tests: {result.stderr}")
        output = (result.stdout + result.stderr).strip()
        return output if result.status in ("ok", "failed") and output else f"{output}\n[{result.status}]".strip()

    def _check_path(self, path: str) -> None:
        """Raise Refused for a path outside of the repository, of a visible test, or of one file too many."""
        assert self._repo is not None
        if not PATH.fullmatch(path) or path == PROGRAM:
            raise Refused(f"{path!r} is no name of a file in the repository, which is one folder")
        if path in self._repo.tests:
            raise Refused(f"{path} is a test, which can't be edited")
        if path not in self._files and len(self._files) >= MOST_FILES:
            raise Refused(f"the repository has {MOST_FILES} files already")

    def _with_line(self, path: str, number: int, text: str) -> str:
        lines = self._files.get(path, "").split("\n")
        if not 1 <= number <= len(lines):
            raise Refused(f"{path} has lines 1 to {len(lines)}, not {number}")
        lines[number - 1] = text
        return "\n".join(lines)

    def _with_text(self, path: str, old: str, new: str) -> str:
        text = self._files.get(path, "")
        if not old or text.count(old) != 1:
            raise Refused(f"old stands {text.count(old) if old else 0} times in {path}: it must stand there once")
        return text.replace(old, new)


def _bare_calls(action: str) -> tuple[ToolCall, ...]:
    """The call of a reply in style "bare"; none of `done`."""
    name, _, rest = action.partition(" ")
    if action.strip() == "done":
        return ()
    if name == "edit" and (match := BARE_EDIT.fullmatch(rest)):
        return (ToolCall("edit", {"path": match[1], "line": int(match[2]), "text": match[3]}),)
    if (name == "read" and rest) or action == "run":
        return (ToolCall(name, {"path": rest} if rest else {}),)
    return (ToolCall("", error="a reply is read NAME, edit NAME LINE TEXT, run or done"),)


def _argument(arguments: Mapping[str, Any], name: str, kind: type) -> Any:
    if type(arguments.get(name)) is not kind:
        kind_text = "a text" if kind is str else "a whole number"
        raise Refused(f"{name} is {kind_text}, not {arguments.get(name)!r:.40}")
    return arguments[name]


def _message(call: ToolCall, text: str) -> Message:
    """Message with the result of a call, from the user if the call was unreadable."""
    if call.error is not None:
        return {"role": "user", "content": text}
    call_id = {} if call.id is None else {"tool_call_id": call.id}
    return {"role": "tool", "name": call.name, "content": text, **call_id}
