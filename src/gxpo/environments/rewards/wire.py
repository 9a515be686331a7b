"""Request-reply protocol of plain values over a pair of pipes, for untrusted programs.

Both sides of a sandbox's tests use it (`rewards.harness`), so it is copied into sandboxes and imports little, all of it
from the standard library.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

LARGEST = 1 << 25  # bytes of a message
DEEPEST = 100  # containers in each other
SEQUENCES = {list: "l", tuple: "t", set: "e", frozenset: "z"}
CONTAINERS = {sign: kind for kind, sign in SEQUENCES.items()}
PLAIN: dict[type, Callable[[Any], Any]] = {  # the plain value of an instance of a subclass
    int: int.__index__, float: float.__float__, str: str.__str__, bytes: bytes, dict: dict,
    list: list, tuple: tuple, set: set, frozenset: frozenset,
}  # fmt: skip
STANDARD: dict[str, Callable[[Any], Sequence[Any]]] = {  # constructor arguments that make an equal value
    "builtins.bytearray": lambda x: (bytes(x),),
    "builtins.complex": lambda x: (x.real, x.imag),
    "builtins.range": lambda x: (x.start, x.stop, x.step),
    "collections.Counter": lambda x: (dict(x),),
    "collections.OrderedDict": lambda x: (list(x.items()),),
    "collections.deque": lambda x: (list(x), x.maxlen),
    "datetime.date": lambda x: (x.year, x.month, x.day),
    "datetime.datetime": lambda x: (x.year, x.month, x.day, x.hour, x.minute, x.second, x.microsecond),
    "datetime.time": lambda x: (x.hour, x.minute, x.second, x.microsecond),
    "datetime.timedelta": lambda x: (x.days, x.seconds, x.microseconds),
    "decimal.Decimal": lambda x: (str(x),),
    "fractions.Fraction": lambda x: (x.numerator, x.denominator),
    "numpy.ndarray": lambda x: (x.tolist(), x.dtype.str),
}
MAKERS = {"numpy.ndarray": "numpy.array"}


class Forged(Exception):
    """Malformed message on the pipe; nothing after it can be trusted."""


# ---- values as text
class Writer:
    """Serialiser of plain values, `text(value)`; `foreign(value)` gives the text of any other value."""

    def __init__(self, foreign: Callable[[Any], str]) -> None:
        self.foreign = foreign

    def text(self, value: Any) -> str:
        parts: list[str] = []
        self._add(value, parts, DEEPEST)
        return "".join(parts)

    def _add(self, value: Any, parts: list[str], depth: int) -> None:
        kind = type(value)
        if kind is int:
            parts.append(f"i{value:x};")  # not decimal: Python limits the digits
        elif kind is str:
            parts.append(f"s{len(value)};{value}")
        elif kind is float:
            parts.append(f"f{value!r};")
        elif value is None or kind is bool:
            parts.append(str(value)[0])
        elif kind is bytes:
            parts.append(f"b{value.hex()};")
        elif not depth:
            raise ValueError(f"more than {DEEPEST} containers in each other")
        elif kind in SEQUENCES:
            # Long lists of numbers are common in tests, and one join is much faster than a part for each.
            kinds = set(map(type, value))
            if kinds == {int} or kinds == {float}:
                write = "{:x}" if kinds == {int} else "{!r}"
                parts.append(f"p{SEQUENCES[kind]}{'i' if kinds == {int} else 'f'}{','.join(map(write.format, value))};")
                return
            parts.append(f"{SEQUENCES[kind]}{len(value)};")
            for x in value:
                self._add(x, parts, depth - 1)
        elif kind is dict:
            parts.append(f"d{len(value)};")
            for key, x in value.items():
                self._add(key, parts, depth - 1)
                self._add(x, parts, depth - 1)
        else:
            self._add_other(value, kind, parts, depth)

    def _add_other(self, value: Any, kind: type, parts: list[str], depth: int) -> None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        # A time zone may be an object of the program's: such dates travel as foreign ones.
        if name in STANDARD and getattr(value, "tzinfo", None) is None:
            arguments = STANDARD[name](value)
            parts.append(f"x{name};{len(arguments)};")
            for x in arguments:
                self._add(x, parts, depth - 1)
        # Numbers of numpy as plain ones: the other side may have no numpy.
        elif kind.__module__ == "numpy" and hasattr(value, "item"):
            self._add(value.item(), parts, depth - 1)
        else:
            # Subclasses of plain types (an IntEnum, a defaultdict) travel as what they hold.
            base = next((base for base in kind.__mro__ if base in PLAIN), None)
            if base is None or base is kind:
                parts.append(self.foreign(value))
            else:
                self._add(PLAIN[base](value), parts, depth - 1)


class Reader:
    """Parser of a value's text; `foreign(sign, word)` gives values that are not plain. Any error is a forged text."""

    def __init__(self, text: str, foreign: Callable[[str, str], Any]) -> None:
        self.text, self.position, self.foreign = text, 0, foreign

    def value(self, depth: int = DEEPEST + 2) -> Any:
        sign = self.text[self.position]
        self.position += 1
        if sign == "i":
            return int(self._word(), 16)
        if sign == "s":
            length = self._length()
            self.position += length
            return self.text[self.position - length : self.position]
        if sign == "f":
            return float(self._word())
        if sign in "NTF":
            return {"N": None, "T": True, "F": False}[sign]
        if sign == "b":
            return bytes.fromhex(self._word())
        # From here on values hold others: the depth is bounded, as the text may come from an untrusted program.
        if not depth:
            raise ValueError("too deep")
        if sign in CONTAINERS:
            return CONTAINERS[sign]([self.value(depth - 1) for _ in range(self._length())])
        if sign == "p":
            kind, read, numbers = (
                CONTAINERS[self.text[self.position]],
                self.text[self.position + 1],
                self._word()[2:].split(","),
            )
            return kind([int(x, 16) for x in numbers] if read == "i" else map(float, numbers))
        if sign == "d":
            return {self.value(depth - 1): self.value(depth - 1) for _ in range(self._length())}
        if sign == "x":
            name = self._word()
            STANDARD[name]  # KeyError: only listed classes are made, whatever the text names
            module, _, kind = MAKERS.get(name, name).rpartition(".")
            return getattr(__import__(module), kind)(*[self.value(depth - 1) for _ in range(self._length())])
        return self.foreign(sign, self._word())

    def _word(self) -> str:
        end = self.text.index(";", self.position)
        word, self.position = self.text[self.position : end], end + 1
        return word

    def _length(self) -> int:
        length = int(self._word())
        if not 0 <= length <= len(self.text) - self.position:
            raise ValueError("longer than the message")
        return length


class Line:
    """End of the two pipes: sends requests, and answers requests while it waits.

    writer   of this side's values;   foreign  of the other side's, as `Reader` takes it
    answer   of a question, its verb and operands: ("value", ...) or `raised(...)`, and last what has been printed
    """

    def __init__(self, inbox: int, outbox: int, writer: Writer, foreign: Callable[[str, str], Any]) -> None:
        self.inbox, self.outbox, self.writer, self.foreign = inbox, outbox, writer, foreign
        self.answer: Callable[..., tuple[Any, ...]] = lambda *question: ()
        self.n_questions, self.broken = 0, False

    def ask(self, *question: Any) -> list[Any]:
        """Send a request and return the answer; `Forged` or EOFError where no answer can come any more."""
        if self.broken:
            raise EOFError("the program is gone")
        self.n_questions += 1
        number = self.n_questions
        data = self._data("?", number, *question)
        # While it waits the other side may ask back, as for a callback; anything but the answer to this very question
        # is forged, and after an error the pipe is in an unknown state.
        try:
            self._send(data)
            while True:
                kind, their_number, *content = self._receive()
                if kind == "?":
                    self._reply(their_number, content)
                elif kind == "!" and their_number == number:
                    return content
                else:
                    raise Forged("an answer to another question")
        except BaseException:
            self.broken = True
            raise

    def serve(self) -> None:
        """Answer requests until the other side hangs up."""
        while True:
            _, number, *question = self._receive()
            self._reply(number, question)

    def _reply(self, number: int, question: list[Any]) -> None:
        try:
            data = self._data("!", number, *self.answer(*question))
        except Exception as error:
            data = self._data("!", number, *raised(error), "")
        self._send(data)

    def _data(self, *message: Any) -> bytes:
        data = self.writer.text(message).encode("utf-8", "surrogatepass")
        if len(data) > LARGEST:
            raise ValueError(f"values of {len(data)} bytes: a message has at most {LARGEST}")
        return len(data).to_bytes(8, "big") + data

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.outbox, view) :]

    def _receive(self) -> list[Any]:
        # The other side is not trusted: its length is checked before anything is allocated.
        length = int.from_bytes(self._bytes(8), "big")
        if length > LARGEST:
            raise Forged(f"a message of {length} bytes")
        data = self._bytes(length)
        try:
            message = Reader(data.decode("utf-8", "surrogatepass"), self.foreign).value()
        except Exception as error:
            raise Forged(f"{type(error).__name__}: {error}") from None
        if type(message) is not tuple or len(message) < 2:
            raise Forged("no message")
        return list(message)

    def _bytes(self, n: int) -> bytes:
        parts = []
        while n:
            part = os.read(self.inbox, min(n, 1 << 20))
            if not part:
                raise EOFError("the program has ended")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)


def raised(error: BaseException) -> tuple[Any, ...]:
    """Encode an exception: the names of its classes, and its arguments where they are plain."""
    arguments = error.args if all(type(x) in (str, int, float, bool) for x in error.args) else (str(error),)
    return "raised", [kind.__name__ for kind in type(error).__mro__], list(arguments)
