"""Abstract reading of bash scripts: which commands they would run, with which arguments. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gxpo.adapters.shell.files import find_file, text_of
from gxpo.adapters.shell.syntax import Command, Token, parse, tokens_of
from gxpo.adapters.shell.values import Call, State, Text, Unknown, Value, joined_text, merged, merged_calls, to_text
from gxpo.adapters.shell.words import Words
from gxpo.base.errors import ConfigError

MOST_COMMANDS = 5_000  # that are read before a script counts as one without end
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)\Z", re.DOTALL | re.ASCII)
_DECLARATIONS = ("export", "declare", "typeset", "local", "readonly")
SCRIPTS = (".sh", ".bash", ".env")
_SUCCEED = ("echo", "printf", "true", ":", "set", "export", "shopt", "trap", "ulimit")


class _Endless(ConfigError):
    """A loop that never ends."""


class Script(Words):
    """Abstract run of a script: `calls` are the commands for which `is_call` is true, as far as they can be known.

    arguments    of the script; None if its caller gives them
    environment  variables that its caller sets
    defaults     variables of the environment that have a default in the script, which is taken
    notes        (place, what could not be read)
    """

    def __init__(self, path: Path, is_call: Callable[[Sequence[Text]], bool], arguments: Sequence[str] | None = None,
                 environment: Mapping[str, str] | None = None) -> None:  # fmt: skip
        self.path, self.is_call, self.steps, self.depth, self.file, self.end = path, is_call, 0, 0, "", ""
        self.notes: list[tuple[str, str]] = []
        self.defaults: dict[str, None] = {}
        script_arguments: list[Text] | None = None if arguments is None else list(arguments)
        state = State(dict(environment or {}), script_arguments, set(environment or ()))
        try:
            self.run(parse(text_of(path)), state)
        except _Endless as error:
            raise ConfigError(f"{path}: {error}") from None
        except RecursionError:
            raise ConfigError(f"{path}: commands are nested too deeply to be read") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        self.calls = state.calls

    def where(self, line: int) -> str:
        return f"{self.file}line {line}"

    # ------------------------------------------------------------ commands
    def run(self, command: Command, s: State) -> bool | None:
        """Follow a command: True if it succeeds, False if it fails, None if that is not known."""
        return getattr(self, f"_{command.kind}")(command, s)

    def _list(self, command: Command, s: State) -> bool | None:
        status: bool | None = True
        for part in command.parts:
            status = self.run(part, s)
            if s.flow:
                break
        return status

    def _and(self, command: Command, s: State) -> bool | None:
        condition, body = command.parts
        status, go_on = self.run(condition, s), command.kind == "and"
        if s.flow or status is (not go_on):
            return status
        if status is go_on:
            return self._follow_branch(condition, body, s)
        self._undecided(s, [lambda t: self.run(body, t), lambda t: None], self._depends(condition))
        return None

    _or = _and

    def _follow_branch(self, condition: Command | None, body: Command, s: State) -> bool | None:
        """Follow a branch that is taken. One that ends the script with an error asks its caller for what is missing."""
        inner = s.copy()
        status = self.run(body, inner)
        empty = [n for n in _names_in(condition) if s.variables.get(n) in (None, "")]
        if inner.flow == "fail" and empty:
            s.variables |= {name: self._unset(name) for name in empty}
            return None
        s.__dict__.update(inner.__dict__)
        return status

    def _not(self, command: Command, s: State) -> bool | None:
        status = self.run(command.parts[0], s)
        return None if status is None else not status

    def _group(self, command: Command, s: State) -> bool | None:
        return self.run(command.parts[0], s)

    def _subshell(self, command: Command, s: State) -> bool | None:
        """Commands whose variables are lost afterwards."""
        inner = s.copy()
        status: bool | None = None
        for part in command.parts:
            status = self.run(part, inner)
        s.calls = inner.calls
        return status if command.kind == "subshell" else None

    _pipe = _subshell

    def _background(self, command: Command, s: State) -> bool | None:
        with suppress(_Endless):  # one may watch over a training
            self._subshell(command, s)
        return True

    def _function(self, command: Command, s: State) -> bool:
        s.functions[command.parts[0]] = command.parts[1]
        return True

    def _if(self, command: Command, s: State) -> bool | None:
        for i, (condition, body) in enumerate(command.parts):
            status = True if condition is None else self.run(condition, s)
            if s.flow:
                return status
            if status is True:
                return self._follow_branch(condition, body, s)
            if status is None:
                later_branches = replace(command, parts=command.parts[i + 1 :])
                self._undecided(s, [lambda t, b=body: self.run(b, t), lambda t, r=later_branches: self.run(r, t)],
                                self._depends(condition))  # fmt: skip
                return None
        return True

    def _case(self, command: Command, s: State) -> bool | None:
        word, branches = command.parts
        value = self.text(word.text, s, word.line)
        for i, (patterns, body) in enumerate(branches):
            matches = [self._matches(value, pattern.text, s, pattern.line) for pattern in patterns]
            if True in matches:
                return self.run(body, s)
            if None in matches:
                later_branches = replace(command, parts=(word, branches[i + 1 :]))
                why = f"{self.where(command.line)}: depends on {word.text}"
                self._undecided(s, [lambda t, b=body: self.run(b, t), lambda t, r=later_branches: self.run(r, t)], why)
                return None
        return True

    def _depends(self, condition: Command | None) -> str:
        """Say on what a branch depends, by the words of its condition."""
        while condition is not None and condition.kind not in ("simple", "test", "arithmetic"):
            condition = condition.parts[0] if isinstance(condition.parts[0], Command) else None
        if condition is None:
            return f"{self.file}a condition"
        words = condition.parts[0]
        text = words if isinstance(words, str) else " ".join(token.text for token in words)
        return f"{self.where(condition.line)}: depends on {text.removeprefix('[ ').removesuffix(' ]')[:80]}"

    def _undecided(self, s: State, branches: Iterable[Callable[[State], Any]], why: str) -> None:
        """Follow branches of which one is taken, and keep what they agree on."""
        results, before = [], len(s.calls)
        for branch in branches:
            result = s.copy()
            branch(result)
            results.append(result)
        # a branch that ends the script leaves nothing behind but its calls
        live_results = [result for result in results if result.flow not in ("exit", "fail")] or results
        first = live_results[0]
        for other in live_results[1:]:
            for name in {**first.variables, **other.variables}:
                a, b = first.variables.get(name), other.variables.get(name)
                first.variables[name] = a if a == b and a is not None else merged(a, b, why)
            first.functions |= other.functions
            first.exported |= other.exported
            first.arguments = first.arguments if first.arguments == other.arguments else None
            if first.directory != other.directory:
                first.directory = Unknown("the directory", why)
            if first.flow != other.flow or other.hazy:
                first.flow, first.hazy = "", first.hazy or other.hazy or why
        new_calls = [result.calls[before:] for result in results]
        s.calls += merged_calls(new_calls, why)
        first.calls = s.calls
        s.__dict__.update(first.__dict__)

    def _for(self, command: Command, s: State) -> bool | None:
        name, words, body = command.parts
        items = [x for word in words for x in self.words(word.text, s, word.line)] if words is not None else s.arguments
        if command.kind == "select" or items is None or any(isinstance(item, Unknown) for item in items):
            return self._summarise(s, None, body, name, f"{self.where(command.line)}: set in a loop")
        for item in items:
            s.put(name, item)
            self.run(body, s)
            if self._leaves(s):
                break
        return True

    _select = _for

    def _leaves(self, s: State) -> bool:
        """True if a loop ends here; `continue` and `break` end with it."""
        flow = s.flow
        if flow in ("break", "continue"):
            s.flow = ""
        return flow not in ("", "continue")

    def _cfor(self, command: Command, s: State) -> bool | None:
        first, condition, step, body = command.parts
        self._number(first, s)
        loop = Command("list", command.line, (body,))
        test = Command("arithmetic", command.line, (condition or "1",))
        return self._loop(command.line, test, loop, s, lambda: self._number(step, s))

    def _while(self, command: Command, s: State) -> bool | None:
        condition, body = command.parts
        if command.kind == "until":
            condition = Command("not", condition.line, (condition,))
        return self._loop(command.line, condition, body, s, lambda: None)

    _until = _while

    def _loop(self, line: int, condition: Command, body: Command, s: State, step: Callable[[], Any]) -> bool | None:
        """Follow a loop turn by turn while its condition is known, else what it may change."""
        hazy = s.hazy
        while (status := self.run(condition, s)) is not False and not s.flow:
            before = dict(s.variables), s.arguments
            if status is None:
                return self._summarise(s, condition, body, "", f"{self.where(line)}: set in a loop")
            self.run(body, s)
            if self._leaves(s):
                break
            if s.hazy != hazy:
                self._summarise(s, condition, body, "", f"{self.where(line)}: set in a loop")
                break
            step()
            if (s.variables, s.arguments) == before:
                raise _Endless(f"{self.where(line)}: a loop without end")
        s.hazy = hazy
        return True

    def _summarise(self, s: State, condition: Command | None, body: Command, name: str, why: str) -> None:
        """Follow a loop that may run any number of times: what it sets is not known afterwards."""
        changed_names = {name} - {""}
        for _ in range(3):
            turn = s.copy()
            turn.variables |= {n: Unknown(f"${n}", why) for n in changed_names}
            if condition is not None:
                self.run(condition, turn)
            turn.flow = ""
            self.run(body, turn)
            new_names = {n for n, value in turn.variables.items() if value != s.variables.get(n)}
            if new_names <= changed_names:
                break
            changed_names |= new_names
        s.calls += [replace(call, why=call.why or why) for call in turn.calls[len(s.calls) :]]
        s.variables |= {n: Unknown(f"${n}", why) for n in changed_names}
        s.arguments = s.arguments if turn.arguments == s.arguments else None

    # ------------------------------------------------------------ simple commands
    def _simple(self, command: Command, s: State) -> bool | None:
        """Follow a simple command: assignments, a builtin, a function, another script, or a program."""
        self.steps += 1
        if self.steps > MOST_COMMANDS:
            raise ConfigError(f"{self.where(command.line)}: more than {MOST_COMMANDS:,} commands: a loop without end?")
        tokens: list[Token] = list(command.parts[0])
        assignments = []
        while tokens and (match := _ASSIGNMENT.match(tokens[0].text)):
            assignments.append((match, tokens.pop(0).line))
        if not tokens:
            for match, line in assignments:
                self._assign(match, s, line)
            return None if any("$(" in match[4] or "`" in match[4] for match, _ in assignments) else True
        if tokens[0].text in _DECLARATIONS:
            return self._declare(tokens, s)
        words = [word for token in tokens for word in self.words(token.text, s, token.line)]
        if not words:
            return True
        for operator, target in command.parts[1]:
            if operator.endswith("<") or operator.endswith("<-"):
                self.words(target.text, s, target.line)
        return self._program(words, assignments, s, command.line)

    def _program(self, words: list[Text], assignments: list[Any], s: State, line: int) -> bool | None:
        """Follow a command by its name; None for one that is no concern here."""
        name, arguments = words[0], words[1:]
        if isinstance(name, str) and name in s.functions:
            before = {match[1]: s.variables.get(match[1]) for match, _ in assignments}
            for match, place in assignments:
                self._assign(match, s, place)
            status = self._call_function(name, arguments, s, line)
            s.variables = {n: v for n, v in (s.variables | before).items() if v is not None}
            return status
        if isinstance(name, str) and hasattr(self, f"_do_{name}"):
            return getattr(self, f"_do_{name}")(arguments, s, line)
        if name in ("[", "test", "source", "."):
            return self._source(arguments, s, line) if name in ("source", ".") else self._test_words(
                [x for x in arguments if x != "]" or name == "test"],
                [to_text(x) for x in arguments if x != "]" or name == "test"],
                s, line)  # fmt: skip
        # another script, or commands in a text
        for i, word in enumerate(words[:-1]):
            option = words[i + 1]
            if word in ("bash", "sh") and isinstance(option, str):
                if re.fullmatch(r"-\w*c", option) and len(words) > i + 2 and isinstance(text := words[i + 2], str):
                    return self._inner(text, s, line, words[i + 4 :], assignments, self.file)
                if option.endswith((".sh", ".bash")):
                    if path := find_file(self.path, option, SCRIPTS, s.directory):
                        return self._inner(text_of(path), s, 1, words[i + 2 :], assignments, f"{path.name} ")
                    self.notes.append(
                        (self.where(line), f"{option}: not beside the script, so what it runs is not known")
                    )
                    return None
        if self.is_call(words):
            s.calls.append(Call(self.where(line), tuple(words), s.hazy, s.directory))
            return None
        return True if name in _SUCCEED else None

    def _inner(self, text: str, s: State, line: int, arguments: Sequence[Text], assignments: list[Any],
               file: str) -> None:  # fmt: skip
        """Follow a script that this one starts: it gets the exported variables and its arguments."""
        inner = s.copy()
        for match, place in assignments:
            self._assign(match, inner, place)
        names = s.exported | {match[1] for match, _ in assignments}
        inner.variables = {n: v for n, v in inner.variables.items() if n in names}
        inner.arguments, inner.functions, inner.local = list(arguments), {}, {}
        self._nested(text, inner, line, file)
        s.calls = inner.calls

    def _nested(self, text: str, s: State, line: int, file: str) -> bool | None:
        self.depth += 1
        if self.depth > 10:
            raise ConfigError(f"{self.where(line)}: scripts and functions that call one another more than 10 deep")
        file, self.file = self.file, file
        status = self.run(parse(text, line), s)
        self.file, self.depth = file, self.depth - 1
        return status

    def _call_function(self, name: str, arguments: list[Text], s: State, line: int) -> bool | None:
        self.depth += 1
        if self.depth > 10:
            raise ConfigError(f"{self.where(line)}: scripts and functions that call one another more than 10 deep")
        before = s.arguments, s.local, s.hazy
        s.arguments, s.local = arguments, {}
        status = self.run(s.functions[name], s)
        for variable, value in s.local.items():
            s.variables.pop(variable, None)
            if value is not None:
                s.variables[variable] = value
        s.arguments, s.local, s.hazy = before
        s.flow = "" if s.flow == "return" else s.flow
        self.depth -= 1
        return status

    def _source(self, words: list[Text], s: State, line: int) -> bool | None:
        path = find_file(self.path, words[0], SCRIPTS, s.directory) if words else None
        if path is None:
            name = to_text(words[0] if words else "")
            self.notes.append((self.where(line), f"source {name}: not beside the script, so what it sets is not known"))
            return None
        return self._nested(text_of(path), s, 1, f"{path.name} ")

    # ------------------------------------------------------------ builtins
    def _do_exit(self, words: list[Text], s: State, line: int) -> None:
        s.flow, self.end = "fail" if words and words[0] != "0" else "exit", self.where(line)

    def _do_return(self, words: list[Text], s: State, line: int) -> bool | None:
        s.flow = "return"
        return {"0": True, "1": False}.get(str(words[0])) if words else None

    def _do_break(self, words: list[Text], s: State, line: int) -> None:
        s.flow = "break"

    def _do_continue(self, words: list[Text], s: State, line: int) -> None:
        s.flow = "continue"

    def _do_cd(self, words: list[Text], s: State, line: int) -> bool:
        names = [word for word in words if isinstance(word, Unknown) or not word.startswith("-")]
        s.go_to(names[0] if names else Unknown("cd", f"{self.where(line)}: a directory that the script has not named"))
        return True

    _do_pushd = _do_popd = _do_cd

    def _do_false(self, words: list[Text], s: State, line: int) -> bool:
        return False

    def _do_set(self, words: list[Text], s: State, line: int) -> bool:
        if words[:1] == ["--"]:
            s.arguments = words[1:]
        s.is_strict |= "nounset" in words or any(re.match(r"-[a-z]*u", to_text(word)) for word in words)
        return True

    def _do_shift(self, words: list[Text], s: State, line: int) -> bool:
        count = int(str(words[0])) if words and str(words[0]).isdigit() else 1
        s.arguments = None if s.arguments is None else s.arguments[count:]
        return True

    def _do_unset(self, words: list[Text], s: State, line: int) -> bool:
        for name in (to_text(word).partition("[")[0] for word in words):
            s.put(name, Unknown(f"${name}", f"{self.where(line)}: unset"))
        return True

    def _do_read(self, words: list[Text], s: State, line: int) -> None:
        for name in words:
            if re.fullmatch(r"[A-Za-z_]\w*", to_text(name)):
                s.put(to_text(name), Unknown(f"${to_text(name)}", f"{self.where(line)}: read when the script runs"))

    _do_mapfile = _do_readarray = _do_getopts = _do_read

    def _do_printf(self, words: list[Text], s: State, line: int) -> bool:
        if words[:1] == ["-v"]:
            self._do_read(words[1:2], s, line)
        return True

    def _do_let(self, words: list[Text], s: State, line: int) -> bool | None:
        values = [self._number(to_text(word), s) for word in words]
        return None if not values or values[-1] is None else values[-1] != 0

    def _do_eval(self, words: list[Text], s: State, line: int) -> bool | None:
        if all(isinstance(word, str) for word in words):
            return self._nested(" ".join(map(str, words)), s, line, self.file)
        self.notes.append((self.where(line), f"eval {to_text(words[0])[:80]}: what it sets is not known"))
        if self.is_call(words):
            s.calls.append(Call(self.where(line), tuple(words), s.hazy, s.directory))
        return None

    # ------------------------------------------------------------ variables
    def _declare(self, tokens: list[Token], s: State) -> bool:
        kind = tokens[0].text
        changes = next((t.text for t in tokens[1:] if re.match(r"-[a-zA-Z]*[ilnu]", t.text)), "")
        for token in tokens[1:]:
            match = _ASSIGNMENT.match(token.text)
            name = match[1] if match else token.text
            if kind == "local" and name not in s.local and not name.startswith("-"):
                s.local[name] = s.variables.get(name)
            if match:
                self._assign(match, s, token.line)
                if changes and not re.fullmatch(r"\d+", to_text(s.variables[name])):
                    s.put(name, Unknown(f"${name}", f"{self.where(token.line)}: declare {changes} changes it"))
            if kind == "export" and not name.startswith("-"):
                s.exported.add(name)
        return True

    def _assign(self, match: re.Match[str], s: State, line: int) -> None:
        """Follow NAME=VALUE, NAME+=VALUE, NAME=(...) and NAME[KEY]=VALUE."""
        name, index, plus, raw = match.groups()
        old = s.variables.get(name)
        value: Value
        if raw.startswith("(") and index is None:
            value = self._array(raw[1:-1], s, line)
            if plus and isinstance(old, list) and isinstance(value, list):
                value = [*old, *value]
            elif plus and old is not None:
                value = Unknown(f"${name}", f"{self.where(line)}: ${name} is not a list whose items are known")
        elif index is not None:
            key, text = self.text(index[1:-1], s, line), self.text(raw, s, line)
            items = dict(old) if isinstance(old, dict) else {str(i): x for i, x in enumerate(old)} if isinstance(
                old, list) else {}  # fmt: skip
            value = {**items, key: text} if isinstance(key, str) else Unknown(f"${name}", self.where(line))
        else:
            value = self.text(raw, s, line, tilde=True)
            if plus and old is not None:
                value = [*old[:-1], joined_text([old[-1], value])] if isinstance(old, list) and old else joined_text(
                    [old, value]) if isinstance(old, (str, Unknown)) else value  # fmt: skip
            elif plus:
                value = joined_text([self._unset(name), value])
        s.put(name, value)

    def _array(self, raw: str, s: State, line: int) -> Value:
        keys: dict[str, Text] = {}
        out: list[Text] = []
        for token in tokens_of(raw, line):
            if not token.is_word:
                continue
            if entry := re.match(r"\[([^\]]+)\]=(.*)\Z", token.text, re.DOTALL):
                keys[to_text(self.text(entry[1], s, token.line))] = self.text(entry[2], s, token.line)
            else:
                out += self.words(token.text, s, token.line)
        return keys or out


def _names_in(command: Command | None) -> list[str]:
    """Names of the variables that a condition reads."""
    if command is None:
        return []
    texts = [p.text if isinstance(p, Token) else p if isinstance(p, str) else "" for p in _flat(command.parts)]
    return [name for text in texts for name in re.findall(r"\$\{?([A-Za-z_]\w*)", text)]


def _flat(parts: Iterable[Any]) -> list[Any]:
    nested = [x.parts if isinstance(x, Command) else x if isinstance(x, tuple) else [x] for x in parts]
    return [y for x in nested for y in (_flat(x) if any(isinstance(z, (Command, tuple)) for z in x) else x)]
