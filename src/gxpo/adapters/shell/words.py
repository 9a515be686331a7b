"""Words of bash: their expansion to texts that are known, or known in parts; arithmetic and tests."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from gxpo.adapters.shell.arithmetic import Arithmetic
from gxpo.adapters.shell.syntax import Command, Token, end_of, parse
from gxpo.adapters.shell.values import CALLER, State, Text, Unknown, Value, joined_text, possible, same, spaced, to_text

# What bash or every login sets, so that no default of a script is taken for it.
_SYSTEM = ("BASH_SOURCE", "BASH_VERSION", "EUID", "HOME", "HOSTNAME", "LINENO", "LOGNAME", "OLDPWD", "OPTARG", "PATH",
           "PWD", "RANDOM", "SECONDS", "SHELL", "UID", "USER")  # fmt: skip
_PARAMETER = re.compile(r"(!?)(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?", re.ASCII)


class Words:
    """Expansion of words in a state; `Script` adds the commands."""

    defaults: dict[str, None]

    def where(self, line: int) -> str:
        """Describe a line of the script for notes; `Script` implements it."""
        raise NotImplementedError

    def run(self, command: Command, s: State) -> bool | None:
        """Follow a command; `Script` implements it."""
        raise NotImplementedError

    def text(self, raw: str, s: State, line: int, *, tilde: bool = False) -> Text:
        """Expand a word to one text, as in an assignment."""
        if tilde and re.match(r"~(/|\Z)", raw):
            raw = '"$HOME"' + raw[1:]
        pieces = [piece for value, _ in self._pieces(raw, s, line) for piece in (
            [" ".join(map(str, value)) if all(isinstance(x, str) for x in value) else joined_text(spaced(value))]
            if isinstance(value, list) else [value])]  # fmt: skip
        return joined_text(pieces)

    def words(self, raw: str, s: State, line: int) -> list[Text]:
        """Expand a word of a command to the words that it becomes."""
        unquoted = re.sub(r"'[^']*'|\"[^\"]*\"|\\.|\$\{[^}]*\}|\$\W", "", raw)
        if re.search(r"[*?]", unquoted) and "=" not in raw and "$(" not in raw:
            return [Unknown(raw, f"{self.where(line)}: {raw} stands for files")]
        return [word for alternative in _braces(raw) for word in self._fields(alternative, s, line)]

    def _fields(self, raw: str, s: State, line: int) -> list[Text]:
        if re.match(r"~(/|\Z)", raw):
            raw = '"$HOME"' + raw[1:]
        pieces = [
            (piece, is_split)
            for value, is_split in self._pieces(raw, s, line)
            for piece in (value.pieces if is_split and isinstance(value, Unknown) and value.pieces else (value,))
        ]
        # a variable alone that has one of several values: the words of each
        if len(pieces) == 1 and pieces[0][1] and isinstance(value := pieces[0][0], Unknown) and value.options:
            return [possible(word, value.why) for option in value.options for word in option.split()]
        fields: list[list[Text]] = []
        is_open = False  # whether the next piece continues the last field
        for value, is_split in pieces:
            parts: list[Text] = value if isinstance(value, list) else [value]
            if is_split and isinstance(value, str) and "IFS" in s.variables:
                parts = [Unknown(value, f"{self.where(line)}: it is cut where $IFS says")]
            elif is_split and isinstance(value, str):
                parts = list(value.split())
                if value[:1].isspace():
                    is_open = False
            elif is_split:
                parts = [x for part in parts for x in (part.split() if isinstance(part, str) else [part])]
            for i, part in enumerate(parts):
                if is_open and i == 0:
                    fields[-1].append(part)
                else:
                    fields.append([part])
                is_open = True
            if is_split and isinstance(value, str) and value[-1:].isspace():
                is_open = False
        return [joined_text(parts) for parts in fields]

    def _pieces(self, raw: str, s: State, line: int, quoted: bool = False) -> list[tuple[Text | list[Text], bool]]:
        """Cut a word into pieces: (its value, whether it is split at blanks)."""
        out: list[tuple[Text | list[Text], bool]] = []
        i = 0
        while i < len(raw):
            char, two = raw[i], raw[i : i + 2]
            stop = i + 1 if quoted and char in "'\"" else min(end_of(raw, i, line), len(raw))
            inner = raw[i + 1 : stop - 1]
            if char == "\\" and (not quoted or two[1:] in ("$", "`", '"', "\\")):
                out.append((two[1:], False))
            elif char == "'" and not quoted:
                out.append((inner, False))
            elif two == "$'" and not quoted:
                out.append((self._escaped(raw[i + 2 : stop - 1], line), False))
            elif char == '"' and not quoted:
                pieces = self._pieces(inner, s, line, True)
                out += [("", False)] * (not pieces) + pieces
            elif (raw.startswith("$((", i) and raw[stop - 2 : stop] == "))") or two == "$[":
                expression = raw[i + 2 : stop - 1] if two == "$[" else raw[i + 3 : stop - 2]
                number, why = self._number(expression, s), self._why(expression, s, line)
                out.append((Unknown(raw[i:stop], why) if number is None else str(number), not quoted))
            elif two == "$(" or char == "`":
                out.append((self._substitution(raw[i + 2 : stop - 1] if two == "$(" else inner, s, line), not quoted))
            elif two in ("<(", ">("):
                out.append((Unknown(raw[i:stop], f"{self.where(line)}: {two}...) is a program's output"), False))
            elif two == "${":
                out.append((self._parameter(raw[i + 2 : stop - 1], s, line, quoted), not quoted))
            elif char == "$" and (match := re.match(r"\$(\w+|[@*#?$!-])", raw[i:], re.ASCII)):
                name = match[1] if not match[1][0].isdigit() else match[1][0]
                stop = i + 1 + len(name)
                out.append((self._parameter(name, s, line, quoted), not quoted))
            else:
                stop = i + 1
                while stop < len(raw) and raw[stop] not in "\\'\"$`" and raw[stop : stop + 2] not in ("<(", ">("):
                    stop += 1
                out.append((raw[i:stop], False))
            i = stop
        return out

    def _escaped(self, text: str, line: int) -> Text:
        """Text of `$'...'`."""
        if re.search(r"\\[^nt'\"\\]", text):
            return Unknown(text, f"{self.where(line)}: the escapes of $'...' are not all read")
        return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text)

    def _why(self, expression: str, s: State, line: int) -> str:
        """Say why an expression's value is not known: by the first of its names that is not."""
        for name in re.findall(r"[A-Za-z_]\w*", expression):
            value = s.variables.get(name)
            if not isinstance(value, str):
                return value.why if isinstance(value, Unknown) else CALLER.format(f"${name}")
        return f"{self.where(line)}: (({expression.strip()[:60]})) can't be computed"

    # ------------------------------------------------------------ parameters
    def _lookup(self, name: str, s: State) -> Value | None:
        """Value of a variable or of an argument; None if it is not set here."""
        if name in ("@", "*"):
            return [Unknown('"$@"', "arguments of the caller")] if s.arguments is None else list(s.arguments)
        if name == "#" or name.isdigit():
            if name == "0" or s.arguments is None:
                return Unknown(
                    f"${name}", f"${name} is {'the name of the script' if name == '0' else 'an argument of the caller'}"
                )
            if name == "#":
                return str(len(s.arguments))
            return s.arguments[int(name) - 1] if int(name) <= len(s.arguments) else None
        if name in "?$!-":
            return Unknown(f"${name}", f"${name} is known when the script runs")
        if name in _SYSTEM and name not in s.variables:
            return self._unset(name)
        return s.variables.get(name)

    def _parameter(self, text: str, s: State, line: int, quoted: bool) -> Text | list[Text]:
        """Expand `${...}`, given what is between its brackets, or `$NAME`."""
        match = _PARAMETER.match(text) if text != "#" else None
        if match is None or (match[2] and match[3] in "@*" and not match[4]):
            value = self._lookup("#", s) if text in ("#", "#@", "#*") else None
            return value if isinstance(value, (str, Unknown)) else self._open(text, line)
        is_indirect, is_length, name, index = match.groups()
        operation = text[match.end() :]
        value = self._lookup(name, s)
        if is_indirect:
            if not isinstance(value, str) or not re.fullmatch(r"\w+", value):
                return self._open(text, line)
            value = self._lookup(value, s)
        value = self._item(value, index, s, line)
        if isinstance(value, dict):
            value = next(iter(value.values()), None)
        if is_length:
            return self._length(value, index, text, line)
        if (index == "[*]" or name == "*") and "IFS" in s.variables:
            return self._open(text, line)
        if index == "[*]" or (name == "*" and quoted):
            value = value if value is None or isinstance(value, (str, Unknown)) else joined_text(spaced(value))
        elif isinstance(value, list) and index is None and name != "@" and name != "*":
            value = value[0] if value else None
        if (
            operation[:1] in (":", "-", "=", "+", "?")
            and operation.lstrip(":")[:1] in ("-", "=", "+", "?")
            and operation[:2] != "::"
        ):
            return self._default(name, value, operation, s, line)
        if value is None:
            # an empty list is no unknown one
            if name in s.variables and index in ("[@]", "[*]"):
                return []
            if s.is_strict and not name.isdigit():  # so its caller sets it, and no default of a later line counts
                s.put(name, self._unset(name))
            return self._unset(name)
        if not operation:
            return value
        if isinstance(value, list):
            return self._slice(value, operation, s, text, line) if operation[0] == ":" else [
                self._edited(x, operation, s, text, line) for x in value]  # fmt: skip
        return self._edited(value, operation, s, text, line)

    def _open(self, text: str, line: int) -> Unknown:
        return Unknown(f"${{{text}}}", f"{self.where(line)}: ${{{text}}} is known when the script runs")

    def _item(self, value: Value | None, index: str | None, s: State, line: int) -> Value | None:
        """Take an item out of a list, or all."""
        if index is None:
            return value
        if index in ("[@]", "[*]"):
            return (
                list(value.values())
                if isinstance(value, dict)
                else [value]
                if isinstance(value, (str, Unknown))
                else value
            )
        key = self.text(index[1:-1], s, line)
        if isinstance(value, dict):
            return value.get(key) if isinstance(key, str) else self._open(index, line)
        number = self._number(index[1:-1], s)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if number is None or any(isinstance(item, Unknown) for item in items):
            return self._open(index, line)
        return items[number] if -len(items) <= number < len(items) else None

    def _length(self, value: Value | None, index: str | None, text: str, line: int) -> Text:
        if isinstance(value, list) and index is None:
            value = value[0] if value else ""
        if value is None or isinstance(value, Unknown) or (isinstance(value, list) and any(
                isinstance(x, Unknown) for x in value)):  # fmt: skip
            return self._open(text, line)
        return str(len(value))

    def _default(
        self, name: str, value: Text | list[Text] | None, operation: str, s: State, line: int
    ) -> Text | list[Text]:
        """Expand `${X:-text}` and its like; what the environment does not set has its default."""
        operator, is_colon = operation.lstrip(":")[0], operation[0] == ":"
        raw = operation[1 + is_colon :]
        if value is None and not (name.isdigit() or name in s.variables):
            self.defaults[name] = None
        words = self._fields(raw, s, line) if re.match(r"[\"$]", raw) and "[@]" in raw else None
        default = (words[0] if len(words) == 1 else words) if words is not None else self.text(raw, s, line, tilde=True)
        if isinstance(value, Unknown):
            # of an argument that may be missing, the default is what the script has without it
            if (name.isdigit() and s.arguments is None) or operator == "?":
                return Unknown(f"${name}", value.why) if operator == "?" or not isinstance(default, str) else Unknown(
                    f"${name}", f"{value.why}; without it, {default or 'nothing'}")  # fmt: skip
            if value.options and isinstance(default, str) and operator in "-=":
                options = tuple(dict.fromkeys(option or (default if is_colon else "") for option in value.options))
                return options[0] if len(options) == 1 else Unknown(" or ".join(options), value.why, options=options)
            # a text with a certain part is not empty, and so it stands
            if value.start or value.end or not is_colon:
                return default if operator == "+" else value
            return (
                Unknown(to_text(default) if isinstance(default, (str, Unknown)) else f"${name}", value.why)
                if operator == "+"
                else value
            )
        is_set = value is not None and value != [] and not (is_colon and value == "")
        if operator == "+":
            return default if is_set else ([] if isinstance(value, list) or words is not None else "")
        if is_set and value is not None:
            return value
        if operator == "?":  # the script goes on only if its caller sets the name
            s.put(name, self._unset(name))
            return self._unset(name)
        if operator == "=" and isinstance(default, (str, Unknown)):
            s.put(name, default)
        return default

    def _slice(self, value: list[Text], operation: str, s: State, text: str, line: int) -> Text | list[Text]:
        numbers = [self._number(part, s) for part in operation[1:].split(":")]
        if None in numbers or any(isinstance(x, Unknown) for x in value) or len(numbers) > 2:
            return self._open(text, line)
        first = int(numbers[0] or 0) - (text[0] in "@*")  # arguments count from 1
        return value[first:] if len(numbers) == 1 else value[first : first + int(numbers[1] or 0)]

    def _edited(self, value: Text, operation: str, s: State, text: str, line: int) -> Text:
        """Apply `%pattern`, `#pattern`, `/old/new`, `:offset:length`, `^^` or `,,` to a text."""
        if isinstance(value, Unknown) or len(value) > 4096:
            return self._open(text, line) if not isinstance(value, Unknown) else Unknown(f"${{{text}}}", value.why)
        operator = next(
            (o for o in ("%%", "##", "//", "^^", ",,", "%", "#", "/", "^", ",", ":") if operation.startswith(o)), ""
        )
        operand = operation[len(operator) :]
        if operator in ("^^", ",,", "^", ",") and not operand:
            change = str.upper if operator[0] == "^" else str.lower
            return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
        if operator == ":":
            numbers = [self._number(part, s) for part in operand.split(":")]
            if len(numbers) > 2 or any(n is None or n < 0 for n in numbers):
                return self._open(text, line)
            return (
                value[numbers[0] :] if len(numbers) == 1 else value[numbers[0] : (numbers[0] or 0) + (numbers[1] or 0)]
            )
        cut = re.match(r"((?:\\.|[^/\\])*)/?(.*)\Z", operand, re.DOTALL) if operator in ("/", "//") else None
        old, new = (cut[1], cut[2]) if cut else (operand, "")
        pattern, by = self.text(old, s, line), self.text(new, s, line)
        if not isinstance(pattern, str) or not isinstance(by, str) or not operator or len(pattern) > 200:
            return self._open(text, line)
        if operator in ("/", "//"):
            if re.search(r"[*?\[]", pattern) or pattern[:1] in ("#", "%"):
                return self._open(text, line)
            return value.replace(pattern, by, -1 if operator == "//" else 1) if pattern else value
        # the shortest or the longest beginning or end that matches
        cuts = range(len(value) + 1) if operator in ("#", "%%") else range(len(value), -1, -1)
        for cut in cuts:
            if operator[0] == "%" and fnmatchcase(value[cut:], pattern):
                return value[:cut]
            if operator[0] == "#" and fnmatchcase(value[:cut], pattern):
                return value[cut:]
        return value

    def _substitution(self, inner: str, s: State, line: int) -> Text:
        """Expand `$(...)`: a few pure commands are computed, and none is run."""
        text = f"$({' '.join(inner.split())})"
        unknown = Unknown(text, f"{self.where(line)}: {text[:80]} is known when the script runs")
        state = s.copy()
        body = parse(inner, line)
        command = body.parts[0] if len(body.parts) == 1 else None
        if command is None or command.kind != "simple" or command.parts[1]:
            self.run(body, state)
            s.calls = state.calls
            return unknown
        words = [word for token in command.parts[0] for word in self.words(token.text, state, token.line)]
        if words and words[0] in ("basename", "dirname", "echo", "printf", "expr"):
            pure = all(isinstance(word, str) for word in words) and words[0] not in s.functions
            result = _pure([str(word) for word in words]) if pure else None
            return unknown if result is None else result
        self.run(body, state)
        s.calls = state.calls
        return unknown

    # ------------------------------------------------------------ tests
    def _test(self, command: Command, s: State) -> bool | None:
        """Evaluate `[[ ... ]]`."""
        tokens: tuple[Token, ...] = command.parts[0]
        values = [self.text(t.text, s, t.line) if t.is_word else t.text for t in tokens]
        return self._test_words(values, [t.text for t in tokens], s, command.line)

    def _test_words(self, values: list[Text], raws: list[str], s: State, line: int) -> bool | None:
        """Evaluate a test by its words; None if it is not known. `raws`: the words before expansion."""
        if len(values) > 200:
            return None
        for operators, decisive in ((("||", "-o"), True), (("&&", "-a"), False)):
            for i, value in enumerate(values):
                if value in operators and 0 < i < len(values) - 1 and raws[:i].count("(") == raws[:i].count(")"):
                    sides = [self._test_words(values[:i], raws[:i], s, line),
                             self._test_words(values[i + 1 :], raws[i + 1 :], s, line)]  # fmt: skip
                    return decisive if decisive in sides else None if None in sides else not decisive
        if values[:1] == ["!"] and len(values) > 1:
            status = self._test_words(values[1:], raws[1:], s, line)
            return None if status is None else not status
        if values[:1] == ["("] and values[-1:] == [")"]:
            return self._test_words(values[1:-1], raws[1:-1], s, line)
        if len(values) <= 1:
            return self._is_filled(values[0]) if values else False
        if len(values) == 2:
            filled = self._is_filled(values[1])
            if values[0] == "-v" and isinstance(values[1], str):
                self.defaults[values[1]] = None
                return values[1] in s.variables
            return filled if values[0] == "-n" else None if values[0] != "-z" or filled is None else not filled
        if len(values) != 3 or not isinstance(values[1], str):
            return None
        return self._compared(values[0], values[1], values[2], raws[2], s, line)

    def _compared(self, a: Text, operator: str, b: Text, raw: str, s: State, line: int) -> bool | None:
        """Compare two texts or numbers."""
        if operator in ("=", "==", "!="):
            is_same = self._matches(a, raw, s, line) if isinstance(b, str) and raw != b else same(a, b)
            return is_same if operator != "!=" or is_same is None else not is_same
        numbers = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
        if operator in numbers and isinstance(a, str) and isinstance(b, str):
            value = self._number(f"({a or 0}) {numbers[operator]} ({b or 0})", s)
            return None if value is None else value != 0
        return None

    @staticmethod
    def _is_filled(value: Text) -> bool | None:
        if isinstance(value, str):
            return value != ""
        filled = {bool(option) for option in value.options}
        return True if value.start or value.end else filled.pop() if len(filled) == 1 else None

    def _matches(self, value: Text, raw: str, s: State, line: int) -> bool | None:
        """Match a text against a pattern as it is written; what is quoted in it is no wildcard."""
        pattern = self.text(raw, s, line)
        if raw == "*":
            return True
        if not isinstance(pattern, str) or len(pattern) > 200:
            return None
        has_wildcards = re.search(r"[*?\[]", re.sub(r"'[^']*'|\"[^\"]*\"", "", raw)) is not None
        if not has_wildcards or not isinstance(value, str):
            return same(value, pattern) if not has_wildcards else None
        return None if re.search(r"['\"]|\[\^|\(", raw) else fnmatchcase(value, pattern)

    def _unset(self, name: str) -> Unknown:
        return Unknown(f"${name}", CALLER.format(f"${name}"))

    def _number(self, text: str, s: State, depth: int = 0) -> int | None:
        """Evaluate an arithmetic expression; None if it is not known."""

        def value_of(name: str) -> int:
            value = s.variables.get(name)
            number = self._number(value, s, depth + 1) if isinstance(value, str) and depth < 10 else None
            if number is None:
                raise ValueError(name)
            return number

        filled = self.text(text, s, 0)
        try:
            if isinstance(filled, Unknown):
                return None
            return Arithmetic(filled, value_of, lambda name, value: s.put(name, str(value))).result()
        except ValueError:
            # what it would have set is not known either
            for name in re.findall(r"([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))", text):
                s.put(name, Unknown(f"${name}", f"(({text.strip()})) is not known"))
            return None

    def _arithmetic(self, command: Command, s: State) -> bool | None:
        value = self._number(command.parts[0], s)
        return None if value is None else value != 0


def _pure(words: list[str]) -> str | None:
    """Compute a command that has no effect and reads nothing; None if it is not among these."""
    name, arguments = words[0], words[1:]
    if name == "basename" and len(arguments) in (1, 2) and arguments[0].strip("/"):
        base = arguments[0].rstrip("/").rpartition("/")[2]
        return base.removesuffix(arguments[1]) if len(arguments) == 2 and base != arguments[1] else base
    if name == "dirname" and len(arguments) == 1 and "/" in arguments[0].rstrip("/"):
        return arguments[0].rstrip("/").rpartition("/")[0].rstrip("/") or "/"
    if name == "echo" and not (arguments and arguments[0].startswith("-")):
        return " ".join(arguments).strip("\n")
    if name == "printf" and len(arguments) == 2 and arguments[0] in ("%s", "%s\\n"):
        return arguments[1].strip("\n")
    return None


def _braces(raw: str) -> list[str]:
    """Expand `{a,b}` and `{1..3}` of a word, as bash does before anything else."""
    i = 0
    while i < len(raw):
        stop = min(end_of(raw, i), len(raw))
        if raw[i] == "{" and (inner := re.match(r"\{([^{}\"'`$\\]*)\}", raw[i:])):
            numbers = re.fullmatch(r"(-?\d{1,4})\.\.(-?\d{1,4})", inner[1])
            texts = inner[1].split(",")
            if numbers:
                first, last = int(numbers[1]), int(numbers[2])
                texts = [str(n) for n in range(first, last + (1 if first <= last else -1), 1 if first <= last else -1)]
            if len(texts) > 1 or numbers:
                tails = _braces(raw[i + inner.end() :])
                if len(texts) * len(tails) > 1000:
                    return [raw]
                return [raw[:i] + text + tail for text in texts for tail in tails]
        i = stop
    return [raw]
