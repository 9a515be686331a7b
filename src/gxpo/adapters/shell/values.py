"""Values of an abstract reading: texts that are known or known in parts, states, and what branches agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gxpo.adapters.shell.syntax import Command

LONGEST = 100_000  # characters of a value
MOST_PIECES = 2_000  # of a text that is known in parts
CALLER = "{} is set by the caller"  # why a variable is not known


@dataclass(frozen=True)
class Unknown:
    """A text that is known in parts: as it is written, why it is not known, and its certain beginning and end.

    options  all its possible values, if they are known
    pieces   texts that are known and those that are not, in their order
    """

    text: str
    why: str
    start: str = ""
    end: str = ""
    options: tuple[str, ...] = ()
    pieces: tuple[str | Unknown, ...] = ()


Text = str | Unknown
Value = str | Unknown | list[Text] | dict[str, Text]


def to_text(value: Value | None) -> str:
    """A value as a text for people."""
    if isinstance(value, (list, dict)):
        return " ".join(map(to_text, value.values() if isinstance(value, dict) else value))
    return value.text if isinstance(value, Unknown) else value or "nothing"


def joined_text(pieces: Sequence[Text]) -> Text:
    """Join the pieces of a word."""
    flat = [inner for p in pieces for inner in (p.pieces if isinstance(p, Unknown) and p.pieces else (p,))]
    open_places = [i for i, piece in enumerate(flat) if isinstance(piece, Unknown)]
    if not open_places:
        return "".join(map(str, flat))
    if len(flat) == 1:
        return flat[0]
    first, last = flat[open_places[0]], flat[open_places[-1]]
    assert isinstance(first, Unknown) and isinstance(last, Unknown)
    before, behind = "".join(map(str, flat[: open_places[0]])), "".join(map(str, flat[open_places[-1] + 1 :]))
    options = tuple(before + option + behind for option in first.options) if len(open_places) == 1 else ()
    text = "".join(piece.text if isinstance(piece, Unknown) else piece for piece in flat)
    if len(flat) > MOST_PIECES or len(text) > LONGEST:  # a text that doubles itself again and again
        return Unknown(f"{text[:40]}...", first.why)
    return Unknown(text, first.why, before + first.start, last.end + behind, options, tuple(flat))


def _options(value: Text) -> tuple[str, ...]:
    return value.options if isinstance(value, Unknown) else (value,)


def merged(a: Value | None, b: Value | None, why: str) -> Value:
    """Merge the values that a variable has after two branches, of which one is taken."""
    if a == b and a is not None:
        return a
    if isinstance(a, dict) or isinstance(b, dict):
        return Unknown(f"{to_text(a)} or {to_text(b)}", why)
    if isinstance(a, list) or isinstance(b, list):
        lists = [x if isinstance(x, list) else [] if x is None else [x] for x in (a, b)]
        return merged_words(lists[0], lists[1], why)
    if a is None or b is None:
        return Unknown(f"{to_text(a)} or {to_text(b)}", why)
    options = tuple(dict.fromkeys((*_options(a), *_options(b)))) if _options(a) and _options(b) else ()
    texts = dict.fromkeys((*(_options(a) or (to_text(a),)), *(_options(b) or (to_text(b),))))
    return Unknown(
        " or ".join(text or "nothing" for text in texts)[:200], why, options=options if len(options) < 9 else ()
    )


def merged_words(a: Sequence[Text], b: Sequence[Text], why: str) -> list[Text]:
    """Merge two lists of words: what they share at both ends stays, and all else may be there or not."""
    shortest = min(len(a), len(b))
    front = next((i for i in range(shortest) if a[i] != b[i]), shortest)
    back = next((i for i in range(shortest - front) if a[-1 - i] != b[-1 - i]), shortest - front)
    middle = [*a[front : len(a) - back], *b[front : len(b) - back]]
    return [*a[:front], *(possible(word, why) for word in middle), *a[len(a) - back :]]


def possible(word: Text, why: str) -> Unknown:
    """A word that may be there or not; of KEY=VALUE the key is known."""
    text, start = to_text(word), word.start if isinstance(word, Unknown) else word
    key, sign, _ = start.partition("=")
    return Unknown(text, why, key + sign if sign else "")


@dataclass(frozen=True)
class Call:
    """A command that a script would run; `why` says on what that depends, "" if it surely would.

    directory  where it runs: "" the caller's
    """

    where: str
    words: tuple[Text, ...]
    why: str = ""
    directory: Text = ""


@dataclass
class State:
    """State of the shell at a place of a script.

    arguments  None if they are the caller's
    flow       what ends the commands: break, continue, return, exit, or fail, an exit that is an error
    is_strict  whether an unset variable is an error, as after `set -u`
    directory  where the script has gone by `cd`: "" is its caller's directory
    """

    variables: dict[str, Value]
    arguments: list[Text] | None
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Command] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    local: dict[str, Value | None] = field(default_factory=dict)
    flow: str = ""
    is_strict: bool = False
    hazy: str = ""  # why it is not known whether the next commands run
    directory: Text = ""

    def go_to(self, directory: Text) -> None:
        """Follow `cd`."""
        is_relative = isinstance(directory, Unknown) or not directory.startswith("/")
        self.directory = joined_text([self.directory, "/", directory]) if self.directory and is_relative else directory

    def copy(self) -> State:
        return replace(self, variables=dict(self.variables), exported=set(self.exported), local=dict(self.local),
                       functions=dict(self.functions), calls=list(self.calls))  # fmt: skip

    def put(self, name: str, value: Value) -> None:
        if isinstance(value, str) and len(value) > LONGEST:
            value = Unknown(f"{value[:40]}...", f"${name} is longer than {LONGEST:,} characters")
        self.variables[name] = merged(self.variables.get(name), value, self.hazy) if self.hazy else value


def merged_calls(calls: Sequence[Sequence[Call]], why: str) -> list[Call]:
    """Merge the calls of branches: as many in each are the same ones with other words, else each may be there."""
    if len({len(branch_calls) for branch_calls in calls}) == 1:
        merged_branch = list(calls[0])
        for other in calls[1:]:
            merged_branch = [
                a if a == b else replace(a, words=tuple(merged_words(a.words, b.words, why)), why=a.why or b.why)
                for a, b in zip(merged_branch, other, strict=True)
            ]
        return merged_branch
    return [replace(call, why=call.why or why) for branch_calls in calls for call in branch_calls]


def same(a: Text, b: Text) -> bool | None:
    """True if two texts are the same, False if they can't be, None if that is not known."""
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    first, second = (set(x.options) if isinstance(x, Unknown) else {x} for x in (a, b))
    if first and second and not first & second:
        return False
    for unknown, text in ((a, b), (b, a)):
        if isinstance(unknown, Unknown) and isinstance(text, str) and not (
                text.startswith(unknown.start) and text.endswith(unknown.end)):  # fmt: skip
            return False
    return None


def spaced(words: Sequence[Text]) -> list[Text]:
    return [piece for word in words for piece in (" ", word)][1:]
