"""Syntax of bash scripts: text to commands, whose words stay as they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gxpo.base.errors import ConfigError

DEEPEST = 40  # commands, quotes and substitutions within one another
LONGEST = 1_000_000  # characters of a script
_OPERATORS = re.compile(r"&&|\|\||;;&|;;|;&|\|&|&>>|&>|[0-9]*(?:<<<|<<-|<<|>>|>&|<&|<>|>\||>|<)|[;&|()\n]")
_ARRAY = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=\Z")
_COMPOUND = {"if": "branch", "while": "loop", "until": "loop", "for": "iteration", "select": "iteration",
             "case": "case", "{": "group"}  # fmt: skip
_INNER = ("then", "elif", "else", "do", ")", ";;", "fi", "done", "esac", "}")


@dataclass(frozen=True)
class Token:
    """A word or an operator of a script; `body` is the text of a here-document."""

    text: str
    line: int
    is_word: bool = True
    body: str = ""


@dataclass(frozen=True)
class Command:
    """A command: `kind` says what `parts` are.

    simple    words [Token], redirections [(operator, Token)]    arithmetic, test    an expression's text, words
    list, pipe, group, subshell, not    commands                 and, or, while, until    two commands
    if        (condition, body) ..., of which the last condition may be None
    for, select    name, words or None, body                     cfor    its three expressions, body
    case      word, [(patterns, body)]                           function    name, body
    """

    kind: str
    line: int
    parts: tuple[Any, ...]


def end_of(text: str, start: int, line: int = 0, depth: int = 0) -> int:
    """Index after a quotation, an expansion or a substitution that begins at `start`, else after one character."""
    if depth > DEEPEST:
        raise ConfigError(f"line {line}: quotes and substitutions are nested more than {DEEPEST} deep")
    two = text[start : start + 2]
    if two[:1] == "\\":
        return start + 2
    if two[:1] == "'" or two == "$'":
        i = start + len(two.rstrip("'")) + 1 if two == "$'" else start + 1
        while i < len(text) and text[i] != "'":
            i += 2 if two == "$'" and text[i] == "\\" else 1
        if i >= len(text):
            raise ConfigError(f"line {line}: a quotation has no end")
        return i + 1
    closers = {'"': '"', "`": "`", "$(": ")", "${": "}", "$[": "]", "<(": ")", ">(": ")"}
    closer = closers.get(two if two[1:] in "({[" else two[:1])
    if two[:1] in ('"', "`"):
        closer = two[:1]
    if closer is None:
        return start + 1
    # a bracket opens another level; within double quotes only expansions count
    i, opener = start + (1 if closer in '"`' else 2), {")": "(", "}": "{", "]": "["}.get(closer, "")
    while i < len(text) and text[i] != closer:
        if text[i] == opener:
            i = _closed(text, i + 1, opener, closer, line, depth + 1)
        elif closer == ")" and _is_comment(text, i):
            i = len(text) if (stop := text.find("\n", i)) < 0 else stop
        elif closer == "`" or (closer == '"' and text[i] not in "\\$`"):
            i += 2 if text[i] == "\\" else 1
        elif closer == '"' and text[i : i + 2] not in ("$(", "${", "$[") and text[i] not in "\\`":
            i += 1
        else:
            i = end_of(text, i, line, depth + 1)
    if i >= len(text):
        raise ConfigError(f"line {line}: {two.strip()} has no end")
    return i + 1


def _is_comment(text: str, i: int) -> bool:
    return text[i] == "#" and text[i - 1] in " \t\n"


def _closed(text: str, i: int, opener: str, closer: str, line: int, depth: int) -> int:
    """Index after the bracket that closes one opened before `i`."""
    level = 1
    while i < len(text):
        if text[i] == opener:
            level += 1
        elif text[i] == closer:
            level -= 1
            if not level:
                return i + 1
        if _is_comment(text, i) and closer == ")":
            i = len(text) if (stop := text.find("\n", i)) < 0 else stop
        else:
            i = i + 1 if text[i] in (opener, closer) else end_of(text, i, line, depth)
    raise ConfigError(f"line {line}: {opener} has no end")


def tokens_of(text: str, line: int = 1) -> list[Token]:
    """Split a script into words and operators; comments, line continuations and here-documents are taken out."""
    tokens: list[Token] = []
    here_documents: list[int] = []  # here-documents whose text begins on the next line
    position = 0
    while position < len(text):
        char = text[position]
        if char in " \t\r" or text.startswith("\\\n", position):
            line += char == "\\"
            position += 2 if char == "\\" else 1
        elif char == "#":
            position = len(text) if (stop := text.find("\n", position)) < 0 else stop
        elif (
            text.startswith("((", position)
            and text[(stop := _closed(text, position + 1, "(", ")", line, 0)) - 2 : stop] == "))"
        ):
            tokens.append(Token(text[position:stop], line, False))
            line += text.count("\n", position, stop)
            position = stop
        elif (match := _OPERATORS.match(text, position)) and text[position : position + 2] not in ("<(", ">("):
            position = match.end()
            tokens.append(Token(match[0], line, False))
            if match[0] == "\n":
                line += 1
                for place in here_documents:
                    position, line, tokens[place] = _here_document(
                        text, position, line, tokens[place], tokens[place - 1].text
                    )
                here_documents = []
        else:
            position, word, lines = _word(text, position, line)
            if tokens and tokens[-1].text.lstrip("0123456789") in ("<<", "<<-") and not tokens[-1].is_word:
                here_documents.append(len(tokens))
            tokens.append(Token(word, line))
            line += lines
    return tokens


def _word(text: str, i: int, line: int) -> tuple[int, str, int]:
    """Read a word: its end, its text without line continuations, and how many lines it spans beyond the first."""
    start = i
    while i < len(text) and text[i] not in " \t\r\n;&|<>()":
        i = end_of(text, i, line)
        if i < len(text) and text[i] == "(" and (_ARRAY.match(text[start:i]) or text[i - 1] in "@!?*+"):
            i = _closed(text, i + 1, "(", ")", line, 0)
    # a process substitution is a word too
    if i == start:
        i = end_of(text, i, line)
    raw = text[start : min(i, len(text))]
    return i, raw.replace("\\\n", ""), raw.count("\n")


def _here_document(text: str, i: int, line: int, word: Token, operator: str) -> tuple[int, int, Token]:
    """Take a here-document's text out of a script: the index and line behind it, and its word with the text."""
    mark, lines = re.sub(r"[\"'\\]", "", word.text), []
    while i < len(text):
        stop = len(text) if (end := text.find("\n", i)) < 0 else end
        row, i, line = text[i:stop], stop + 1, line + 1
        if (row.lstrip("\t") if operator.endswith("-") else row) == mark:
            break
        lines.append(row)
    return i, line, Token(word.text, word.line, body="\n".join(lines))


def parse(text: str, line: int = 1) -> Command:
    """Parse a script. ConfigError, with the line, where it is not bash or is nested too deeply."""
    if len(text) > LONGEST:
        raise ConfigError(f"more than {LONGEST:,} characters: not a launch script")
    parser = _Parser(tokens_of(text, line))
    body = parser.commands(())
    if parser.next is not None:
        raise parser.error()
    return body


class _Parser:
    """Recursive descent over the tokens of a script."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.place, self.depth = tokens, 0, 0

    @property
    def next(self) -> Token | None:
        """The next token; None at the end."""
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    @property
    def line(self) -> int:
        token = self.next or (self.tokens[-1] if self.tokens else None)
        return token.line if token else 1

    def error(self) -> ConfigError:
        description = repr(self.next.text) if self.next else "the end"
        return ConfigError(f"line {self.line}: {description} is not expected there: the script can't be read")

    def take(self) -> Token:
        token = self.next
        if token is None:
            raise self.error()
        self.place += 1
        return token

    def is_next(self, *texts: str) -> bool:
        return self.next is not None and self.next.text in texts

    def expect(self, text: str) -> None:
        if not self.is_next(text):
            raise self.error()
        self.place += 1

    def skip(self, *texts: str) -> None:
        while self.is_next(*(texts or ("\n",))):
            self.place += 1

    def commands(self, closers: tuple[str, ...]) -> Command:
        """Read commands up to one of the words that close them, or the end."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise ConfigError(f"line {self.line}: commands are nested more than {DEEPEST} deep")
        line, out = self.line, []
        self.skip("\n", ";")
        while self.next is not None and not (self.is_next(*closers) if closers else False):
            out.append(self.and_or())
            if self.next is not None and not self.is_next(";", "&", "\n", *closers):
                raise self.error()
            if self.is_next("&"):
                out[-1] = Command("background", out[-1].line, (out[-1],))
            self.skip("\n", ";", "&")
        self.depth -= 1
        return Command("list", line, tuple(out))

    def and_or(self) -> Command:
        command = self.pipeline()
        while self.is_next("&&", "||"):
            kind = "and" if self.take().text == "&&" else "or"
            self.skip()
            command = Command(kind, command.line, (command, self.pipeline()))
        return command

    def pipeline(self) -> Command:
        line = self.line
        if self.is_next("!"):
            self.take()
            return Command("not", line, (self.pipeline(),))
        if self.is_next("time"):
            self.take()
        stages = [self.command()]
        while self.is_next("|", "|&"):
            self.take()
            self.skip()
            stages.append(self.command())
        return stages[0] if len(stages) == 1 else Command("pipe", line, tuple(stages))

    def command(self) -> Command:
        """Read one command: a compound one with its redirections, a function, or a simple one."""
        token, line = self.next, self.line
        if token is None or token.text in _INNER:
            raise self.error()
        following = self.tokens[self.place + 1] if self.place + 1 < len(self.tokens) else None
        if token.text.startswith("(("):
            compound = Command("arithmetic", line, (self.take().text[2:-2],))
        elif token.text == "(":
            compound = self.subshell(line)
        elif token.text == "[[":
            compound = self.test(line)
        elif token.text in _COMPOUND:
            compound = getattr(self, _COMPOUND[token.text])(line)
        elif token.text == "function" or (
            token.is_word and following and not following.is_word and following.text == "("
        ):
            return self.function(line)
        elif not token.is_word and not re.search("[<>]", token.text):
            raise self.error()
        else:
            return self.simple(line)
        while self.next is not None and not self.next.is_word and re.search("[<>]", self.next.text):
            self.place += 2
        return compound

    def subshell(self, line: int) -> Command:
        self.take()
        body = self.commands((")",))
        self.expect(")")
        return Command("subshell", line, (body,))

    def test(self, line: int) -> Command:
        """Read `[[ ... ]]`."""
        self.take()
        words = []
        while not self.is_next("]]"):
            token = self.take()
            if token.text != "\n":
                words.append(token)
        self.take()
        return Command("test", line, (tuple(words),))

    def function(self, line: int) -> Command:
        if self.is_next("function"):
            self.take()
        name = self.take().text
        if self.is_next("("):
            self.take()
            self.expect(")")
        self.skip()
        return Command("function", line, (name, self.command()))

    def group(self, line: int) -> Command:
        self.take()
        body = self.commands(("}",))
        self.expect("}")
        return Command("group", line, (body,))

    def loop(self, line: int) -> Command:
        kind = self.take().text
        condition = self.commands(("do",))
        return Command(kind, line, (condition, self.body()))

    def body(self) -> Command:
        self.expect("do")
        body = self.commands(("done",))
        self.expect("done")
        return body

    def iteration(self, line: int) -> Command:
        """Read `for NAME in WORDS`, `for ((...))` or `select`."""
        kind = self.take().text
        if self.next is not None and self.next.text.startswith("(("):
            texts = [text.strip() for text in self.take().text[2:-2].split(";")]
            self.skip("\n", ";")
            return Command("cfor", line, (*[*texts, "", "", ""][:3], self.body()))
        name, words = self.take().text, None
        self.skip()
        if self.is_next("in"):
            self.take()
            words = []
            while not self.is_next(";", "\n"):
                words.append(self.take())
        self.skip("\n", ";")
        return Command(kind, line, (name, None if words is None else tuple(words), self.body()))

    def branch(self, line: int) -> Command:
        """Read `if ...; then ...; elif ...; else ...; fi`."""
        branches: list[tuple[Command | None, Command]] = []
        while self.is_next("if", "elif"):
            self.take()
            condition = self.commands(("then",))
            self.expect("then")
            branches.append((condition, self.commands(("elif", "else", "fi"))))
        if self.is_next("else"):
            self.take()
            branches.append((None, self.commands(("fi",))))
        self.expect("fi")
        return Command("if", line, tuple(branches))

    def case(self, line: int) -> Command:
        """Read `case WORD in PATTERN | PATTERN) ...;; esac`."""
        self.take()
        word = self.take()
        self.skip()
        self.expect("in")
        self.skip()
        branches = []
        while not self.is_next("esac"):
            if self.is_next("("):
                self.take()
            patterns = [self.take()]
            while self.is_next("|"):
                self.take()
                patterns.append(self.take())
            self.expect(")")
            branches.append((tuple(patterns), self.commands((";;", ";&", ";;&", "esac"))))
            if self.is_next(";&", ";;&"):
                raise ConfigError(f"line {self.line}: {self.take().text} of case is not read")
            self.skip(";;", "\n")
        self.take()
        return Command("case", line, (word, tuple(branches)))

    def simple(self, line: int) -> Command:
        """Read words and redirections up to the end of a simple command."""
        words, redirections = [], []
        while self.next is not None:
            if self.next.is_word:
                words.append(self.take())
            elif re.search("[<>]", self.next.text):
                operator = self.take().text
                redirections.append((operator, self.take()))
            else:
                break
        return Command("simple", line, (tuple(words), tuple(redirections)))
