"""Test harness: run test statements in a process apart from the program that they test.

The main program in a sandbox, beside `solution.py`. It becomes two processes with a pipe in each direction: the guest,
which runs the solution, and the tester, which reads the statements from its standard input once the guest is on its
way, and executes them. Objects of the solution are `Remote` proxies in the tester, and calls of them go over the pipe.
Only plain values come back (`environments.rewards.wire`), and every comparison is made in the tester with values of its
own.

It imports little, all of it from the standard library: it starts once for every program.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any
if TYPE_CHECKING or __package__:
    from gxpo.environments.rewards.wire import PLAIN, Line, Reader, Writer, raised
else:  # in a sandbox
    from wire import PLAIN, Line, Reader, Writer, raised

NOT_RAISED = (StopIteration, StopAsyncIteration)  # they would end a loop of the tests as if it had no more cases
# Methods of plain values. An object that a function of the program returns has none of them, whatever it says: it would
# be told what is expected, as in `f(x).startswith("expected")`.
METHODS = {name for kind in (*PLAIN, bytearray, complex, range) for name in dir(kind) if name[:2] != "__"}


# ---- the tester
class Remote:
    """Proxy for an object of the program: operations on it run there, and give plain values or other proxies.

    It can be called and iterated, has attributes, a length, a text and a truth. It is equal to itself and to nothing
    else, without asking the program: comparing it with a value is an error. It has no items and none of the methods of
    plain values, unless `is_instance`: an instance of a class, which the tests name with a capital (`Stack().pop()`).
    """

    __slots__ = ("__is_class", "__is_instance", "__number", "__tester")

    def __init__(self, tester: Tester, number: int, is_instance: bool, is_class: bool) -> None:
        for name, value in (
            ("tester", tester),
            ("number", number),
            ("is_instance", is_instance or is_class),
            ("is_class", is_class),
        ):
            object.__setattr__(self, f"_Remote__{name}", value)

    def __asks(self, verb: str, *operands: Any) -> Any:
        return self.__tester.ask(verb, self, *operands)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        result = self.__asks("call", args, keywords)
        if self.__is_class and type(result) is Remote:
            return self.__tester.remote(number_of(result), is_instance=True)
        return result

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__" or (name in METHODS and not self.__is_instance):
            raise AttributeError(f"an object of the program has no {name!r} for the tests: only plain values have")
        return self.__asks("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__asks("set", name, value)

    def _item(self, verb: str, *operands: Any) -> Any:
        if not self.__is_instance:
            raise TypeError("an object of the program has no items for the tests: only plain values have")
        return self.__asks(verb, *operands)

    def __getitem__(self, key: Any) -> Any:
        return self._item("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._item("put", key, value)

    def __delitem__(self, key: Any) -> None:
        self._item("drop", key)

    def __contains__(self, x: Any) -> bool:
        return bool(self._item("contains", x)) if self.__is_instance else any(x is y or x == y for y in self)

    def __iter__(self) -> Any:
        items = self.__asks("iter")
        while True:
            more, item = self.__tester.ask("next", items)
            if not more:
                return
            yield item

    def __next__(self) -> Any:
        more, item = self.__asks("next")
        if not more:
            raise StopIteration
        return item

    def __len__(self) -> int:
        return self.__asks("len")

    def __str__(self) -> str:
        return self.__asks("str")

    def __repr__(self) -> str:
        return self.__asks("repr")

    def __bool__(self) -> bool:
        return self.__asks("bool")

    def __hash__(self) -> int:
        return hash(self.__number)

    def __eq__(self, other: object) -> bool:
        if other is None or type(other) is Remote:
            return other is not None and number_of(other) == self.__number
        raise TypeError("an object of the program can't be compared with a value")


def number_of(remote: Remote) -> int:
    """Number of a proxy's object, read past the proxy's own `__getattr__`."""
    return object.__getattribute__(remote, "_Remote__number")


class Tester:
    """Tester side of the harness: proxies for the program's objects, and callbacks into the statements."""

    def __init__(self, inbox: int, outbox: int) -> None:
        self.line = Line(inbox, outbox, Writer(self._reference), self._proxy)
        self.line.answer = self._answer_call
        self.functions: list[Callable[..., Any]] = []  # of the statements, that the program may call
        self.remotes: dict[tuple[int, bool, bool], Remote] = {}
        self.errors: dict[str, Any] = {}  # what stands for the program's own classes of exceptions

    def ask(self, verb: str, *operands: Any) -> Any:
        """Send a request to the program; return its answer or raise its exception. Its output is printed here."""
        kind, *content, printed = self.line.ask(verb, *operands)
        if printed:
            sys.stdout.write(printed)
        if kind == "raised":
            raise self._error(*content)
        value, *copies = content
        # A function that returns nothing may have changed its arguments in place: the tester has copies of them.
        if verb == "call" and value is None:
            for mine, theirs in zip((*operands[1], *operands[2].values()), *copies, strict=True):
                update(mine, theirs)
        return value

    def names(self, requested: list[str]) -> dict[str, Any]:
        """Objects of the program by name; capitalised names are taken for classes."""
        objects = self.ask("names", requested)
        objects = {name: objects[name] for name in requested if name in objects}
        for name, x in objects.items():
            if type(x) is Remote and name[0].isupper():
                objects[name] = self.remote(number_of(x), is_class=True)
        return objects

    def remote(self, number: int, is_instance: bool = False, is_class: bool = False) -> Remote:
        """Proxy for an object of the program; the same one each time."""
        key = number, is_instance, is_class
        if key not in self.remotes:
            self.remotes[key] = Remote(self, *key)
        return self.remotes[key]

    def _reference(self, value: Any) -> str:
        """Reference to a value of the statements that is not plain, in the text that the program gets."""
        if type(value) is Remote:
            return f"r{number_of(value)};"
        if isinstance(value, type) and value.__module__ == "builtins":
            return f"k{value.__name__};"
        if not callable(value):
            raise TypeError(f"a program can't be given a {type(value).__name__}: plain values, functions and its own")
        self.functions.append(value)
        return f"c{len(self.functions) - 1};"

    def _proxy(self, sign: str, word: str) -> Any:
        """Resolve a reference in the program's text: a proxy, an exception class or a function of the statements."""
        if sign == "r":
            return self.remote(int(word))
        if sign == "q":
            return self._class(*word.split(","))
        if sign == "c":
            return self.functions[int(word)]
        raise ValueError(sign)

    def _class(self, name: str, base: str) -> type[Exception]:
        """Class for one of the program's exceptions."""
        return self.errors.setdefault(name, type(name, (builtin_error(base) or Exception,), {}))

    def _error(self, names: list[str], arguments: list[Any]) -> Exception:
        """Exception that stands for one of the program's, of the nearest class that both sides have."""
        kind = next((k for k in (self.errors.get(name) or builtin_error(name) for name in names) if k), RuntimeError)
        try:
            return kind(*arguments) if kind is not RuntimeError else RuntimeError(names[0], *arguments)
        except TypeError:
            return RuntimeError(names[0], *arguments)

    def _answer_call(self, verb: str, index: int, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        """Call a function of the statements on behalf of the program."""
        try:
            return "value", self.functions[index](*args, **keywords), ""
        except Exception as error:
            return *raised(error), ""


def builtin_error(name: str) -> type[Exception] | None:
    """Built-in exception class of a name; None for another name and for one that would end a loop of the tests."""
    kind = vars(sys.modules["builtins"]).get(name)
    fits = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, NOT_RAISED)
    return kind if fits else None


def update(mine: Any, copy_value: Any) -> None:
    """Apply the program's changes of its copy to an argument; only after calls that return nothing."""
    if type(mine) is not type(copy_value):
        return
    if type(mine) in (list, bytearray):
        mine[:] = copy_value
    elif type(mine) in (dict, set):
        mine.clear()
        mine.update(copy_value)


def run_tests(inbox: int, outbox: int, verdict_fd: int) -> None:
    """Run the statements from standard input; write a line for each: the secret word, its number, 0 or 1."""
    process_id, data = os.getpid(), b""
    while part := os.read(0, 1 << 20):
        data += part
    word, _, text = data.decode("utf-8", "replace").partition("\n")
    statements, requested, modules = Reader(text, lambda *_: None).value()
    tester = Tester(inbox, outbox)
    names: dict[str, Any] = {"__name__": "tests"}
    # Names are asked for anew before each statement, as one may have changed what the program defines.
    for i, statement in enumerate(statements):
        try:
            names.update(tester.names(requested))
            names.update({name: __import__(module) for name, module in modules.items() if name not in names})
            exec(compile(statement, "tests", "exec", dont_inherit=True), names)
            verdict = 1
        except BaseException:
            verdict = 0
        if os.getpid() != process_id:  # a statement has forked: the child must not report verdicts
            os._exit(0)
        os.write(verdict_fd, f"{word} {i} {verdict}\n".encode())


# ---- the guest
class Guest:
    """Program side of the harness: answers requests; the tester accepts only values from it."""

    def __init__(self, inbox: int, outbox: int, names: dict[str, Any]) -> None:
        self.line = Line(inbox, outbox, Writer(self._reference), self._argument)
        self.line.answer = self._answer
        self.names = names
        self.objects: list[Any] = []  # that the tester knows, by number
        self.numbers: dict[int, int] = {}  # of each, by its id
        self.process = os.getpid()
        self.verbs: dict[str, Callable[..., Any]] = {
            "names": lambda requested: {name: names[name] for name in requested if name in names},
            "get": getattr, "set": setattr, "iter": iter, "next": self._next,
            "len": len, "bool": bool, "str": str, "repr": repr,
            "item": lambda x, key: x[key], "put": lambda x, key, value: x.__setitem__(key, value),
            "drop": lambda x, key: x.__delitem__(key), "contains": lambda x, key: key in x,
        }  # fmt: skip

    def _answer(self, verb: str, *operands: Any) -> tuple[Any, ...]:
        """Carry out a request on the program's objects: its value or exception, and what was printed."""
        previous, captured = sys.stdout, io.StringIO()
        # What the program prints goes with the answer, in the order in which the tests would have seen it.
        sys.stdout = captured
        try:
            if verb == "call":
                function, args, keywords = operands
                value = function(*args, **keywords)
                answer = ("value", value, [*args, *keywords.values()] if value is None else ())
            else:
                answer = ("value", self.verbs[verb](*operands))
        except BaseException as error:
            answer = raised(error)
        sys.stdout = previous
        if os.getpid() != self.process:
            os._exit(0)  # a process that the program has made answers nothing
        return *answer, captured.getvalue()

    def _next(self, items: Any) -> tuple[bool, Any]:
        try:
            return True, next(items)
        except StopIteration:
            return False, None

    def _reference(self, value: Any) -> str:
        """Reference to a value of the program that is not plain, in the text that the tester gets."""
        if isinstance(value, Function):
            return f"c{value.number};"
        if isinstance(value, type) and issubclass(value, Exception):
            base = next(kind.__name__ for kind in value.__mro__ if kind.__module__ == "builtins")
            return f"q{value.__name__},{base};"
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return f"r{self.numbers[id(value)]};"

    def _argument(self, sign: str, word: str) -> Any:
        """Resolve a reference in the tester's text: an object of the program, a callback or a built-in class."""
        if sign == "r":
            return self.objects[int(word)]
        return Function(self, int(word)) if sign == "c" else vars(sys.modules["builtins"])[word]


class Function:
    """Callback, the program's proxy for a function of the statements."""

    def __init__(self, guest: Guest, number: int) -> None:
        self.guest, self.number = guest, number

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        kind, *content, _ = self.guest.line.ask("call", self.number, args, keywords)
        if kind == "raised":
            raise (builtin_error(content[0][0]) or RuntimeError)(*content[1])
        return content[0]


def run_guest(inbox: int, outbox: int, directory: str) -> None:
    """Run the solution as the guest, then answer requests until the tester is gone."""
    with open(os.path.join(directory, "solution.py"), "rb") as file:
        source = file.read()
    # In sys.modules, where dataclasses and pickle look for a class's module.
    module = sys.modules["solution"] = type(sys)("solution")
    try:
        exec(compile(source, "solution.py", "exec", dont_inherit=True), vars(module))
        Guest(inbox, outbox, vars(module)).line.serve()
    except EOFError:
        os._exit(0)
    # Shown as Python shows it, since nothing else here prints what ended the program.
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
        sys.stderr.flush()
    os._exit(1)


# ---- the two processes
def hide_memory(guest: bool) -> None:
    """Protect this process from being read or traced by the user's other processes (Linux).

    Elsewhere the system's rules hold: macOS lets no process but a debugger with its consent read another.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(4, int(guest), 0, 0, 0) != 0:  # PR_SET_DUMPABLE
        raise OSError("the kernel does not protect the tests' process from the program (prctl)")
    if guest:
        _enter_domain(libc)


def _enter_domain(libc: Any) -> None:
    """Enter a Landlock domain from which no outside process can be traced or signalled; it forbids nothing else."""
    import ctypes

    # Older kernels have no Landlock: the other kinds of isolation have to do.
    version = libc.syscall(444, None, ctypes.c_size_t(0), 1)  # landlock_create_ruleset
    if version < 2:
        return
    refer = 1 << 13  # moving files between directories, which every domain forbids unless its rules allow it
    handled = (ctypes.c_uint64 * 3)(refer, 0, 2 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = libc.syscall(444, ctypes.byref(handled), ctypes.c_size_t(size), 0)
    if rules < 0:
        return
    root = os.open("/", os.O_PATH)
    rule = refer.to_bytes(8, sys.byteorder) + root.to_bytes(4, sys.byteorder)
    libc.syscall(445, rules, 1, rule, 0)  # landlock_add_rule
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    libc.syscall(446, rules, 0)  # landlock_restrict_self
    os.close(root)
    os.close(rules)


def main() -> None:
    """Fork into guest and tester with a pipe in each direction."""
    directory = sys.path[0]
    try:
        # Before the fork: the guest must find the tester's memory closed from its first instruction on.
        hide_memory(False)
        (inbox, theirs), (their_inbox, outbox) = os.pipe(), os.pipe()
        os.write(1, b"ready\n")
        guest = os.fork()
    except Exception as error:
        os.write(1, " ".join(f"error {type(error).__name__}: {error}".split()).encode() + b"\n")
        return
    # The guest must not reach the tester's statements (standard input) or its verdicts (standard output).
    if not guest:
        os.close(inbox)
        os.close(outbox)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        hide_memory(True)
        run_guest(their_inbox, theirs, directory)
    os.close(theirs)
    os.close(their_inbox)
    sys.path.remove(directory)  # the program can write there: nothing is imported from it
    verdict_fd = os.dup(1)
    # What the tests print must not get between the verdicts.
    os.dup2(2, 1)
    run_tests(inbox, outbox, verdict_fd)
    os._exit(0)
