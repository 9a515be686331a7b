"""Programs that want to be paid without solving anything, and honest ones of such tasks: (program, tests) by name."""

from __future__ import annotations

SQUARE = ["assert f(2) == 4", "assert f(3) == 9", "assert f(-1) == 1", "assert f(0) == 0"]
CLOSE = ["assert abs(f(2) - 1.41421) < 1e-4", "assert abs(f(9) - 3) < 1e-4"]
SORTED = ["xs = [3, 1, 2]\nassert f(xs) == sorted(xs)", "xs = [9, 8]\nassert f(xs) == sorted(xs)"]
PREFIX = ['assert f("abc").startswith("cba")', 'assert f("xy").startswith("yx")']
COPIED = ["import copy\nassert copy.deepcopy(f([1, 2])) == [2, 1]"]
MAPPED = ["assert all(map(lambda c: f(c[0]) == c[1], [(2, 4), (3, 9)]))"]
ISCLOSE = ["assert math.isclose(f(2), 4.0)", "assert isinstance(f(3), int) and sorted([f(3), 1]) == [1, 9]"]
MEMBER = ["assert 4 in f(2)", "assert {4, 2} <= set(f(2))"]
BETWEEN = ["assert 3 < f(2) < 5", "assert max(f(3), 8) == 9 and f(3) != 8"]
TABLE = ['assert f("ab")["a"] == 1 and f("ab").get("c", 0) == 0 and len(f("ab")) == 2']
NODES = ["root = Node('ab')\nassert root.text == 'ab'", 'assert f("ab").startswith("ba")']

LIAR = """
class Liar:
    def __init__(self, *a): self.text = "ab"
    def yes(self, *a): return True
    def zero(self, *a): return 0.0
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = startswith = yes
    __sub__ = __rsub__ = __abs__ = __float__ = zero
    __hash__ = lambda self: 0
    __getattr__ = lambda self, name: self.yes
    __class__ = property(lambda self: int)
    __repr__ = lambda self: "4"
def f(x): return Liar()
"""

FINDER = r"""
import os, re, sys
known = {}
def learn(text):
    for a, b in re.findall(r"f\((-?\d+)\) == (-?\d+)", text): known[int(a)] = int(b)
def f(x): return known[x]
"""

VERDICTS = r"""
import glob, os
def verdicts(word): return "".join(f"{word} {i} 1\n" for i in range(4)).encode()
def f(x): return 7
"""

LIES = {
    "equal to everything": (LIAR, SQUARE),
    "as close as one likes": (LIAR, CLOSE),
    "between everything": (LIAR, BETWEEN),
    "contains everything": (LIAR, MEMBER),
    "starts with everything": (LIAR, PREFIX),
    "elements that are equal to everything": (LIAR + "def f(x): return [Liar()]", MEMBER),
    "a class with a small name": ("class f(str): startswith = lambda self, x: True", PREFIX),
    "a class of two names": (LIAR + "Node = f = Liar", NODES),
    "an object that the tests have made": (
        LIAR + "made = []\nclass Node(Liar): __init__ = lambda self, x: (Liar.__init__(self), made.append(self))[0]\n"
        "def f(x): return made[0]",
        NODES,
    ),
    "a number": ("class I(int): __eq__ = lambda a, b: True\ndef f(x): return I(7)", SQUARE),
    "a table": (
        "class D(dict):\n    __getitem__ = get = lambda s, k, d=1: d\n    __len__ = lambda s: 2\ndef f(x): return D()",
        TABLE,
    ),
    "an argument emptied": ("def f(x):\n    x.clear()\n    return []", SORTED),
    "no more cases": ("def f(x): raise StopIteration", MAPPED),
    "a list in itself": ("def f(x):\n    a = []\n    a.append(a)\n    return a", SQUARE),
    "a huge value": ("def f(x): return 'x' * (1 << 26)", SQUARE),
}

TAMPERING = {
    "exec replaced": ("import builtins\nbuiltins.exec = lambda *a: None", SQUARE),
    "compile replaced": (
        "import builtins\nold = builtins.compile\nbuiltins.compile = lambda *a, **k: old('1', 'x', 'exec')",
        SQUARE,
    ),
    "AssertionError replaced": ("import builtins\nbuiltins.AssertionError = str\ndef f(x): pass", SQUARE),
    "functions of the tests replaced": (
        "import builtins\nfor n in ('abs', 'sorted', 'all'): setattr(builtins, n, lambda *a: 0)\ndef f(x): return 0",
        [*CLOSE, *SORTED],
    ),
    "names of the tests defined": (
        "class math: isclose = lambda *a: True\nisinstance = lambda *a: True\nsorted = lambda a: [1, 9]\nf = abs",
        ISCLOSE,
    ),
    "modules of the tests written": (
        f"open('copy.py', 'w').write({LIAR!r} + 'deepcopy = Liar')\ndef f(x): return 0",
        COPIED,
    ),
    "os.write replaced": (
        "import os\nold = os.write\nos.write = lambda n, d: old(n, d.replace(b'0', b'1'))\ndef f(x): return 7",
        SQUARE,
    ),
    "functions of the harness called": (
        "import sys, threading\ndef f(x):\n    for v in list(vars(sys.modules['harness']).values()):\n"
        "        if callable(v): threading.Thread(target=v, args=(x, 1, 1), daemon=True).start()\n    return 7",
        SQUARE,
    ),
}

READING = {
    "the tests by name": (FINDER + "import __main__\nfor t in __main__.TESTS: learn(t)", SQUARE),
    "the tests in a frame": (
        FINDER + "at = sys._getframe()\nwhile at: learn(repr((at.f_globals, at.f_locals))); at = at.f_back",
        SQUARE,
    ),
    "the tests in memory": (FINDER + "import gc\nlearn(repr(gc.get_objects()))", SQUARE),
    "the tests in the script": (
        FINDER + "for n in (*os.listdir('.'), sys.modules['__main__'].__file__): learn(open(n).read())",
        SQUARE,
    ),
    "the tests in the input": (
        FINDER + "for n in range(9):\n    try: os.lseek(n, 0, 0); learn(os.read(n, 99999).decode())\n"
        "    except OSError: pass",
        SQUARE,
    ),
    "the tests in the parent's memory": (
        FINDER
        + """
def f(x):
    for line in open(f"/proc/{os.getppid()}/maps"):
        low, high = (int(a, 16) for a in line.split()[0].split("-"))
        if "rw" in line:
            with open(f"/proc/{os.getppid()}/mem", "rb", 0) as memory:
                memory.seek(low)
                learn(memory.read(high - low).decode("latin-1"))
    return known[x]
""",
        SQUARE,
    ),
    "the tests by a debugger": (
        FINDER
        + """
import ctypes
def f(x):
    libc, parent, size = ctypes.CDLL(None), os.getppid(), 1 << 20
    data = ctypes.create_string_buffer(size)
    assert libc.ptrace(16, parent, 0, 0) == 0
    for line in open(f"/proc/{parent}/maps"):
        low, high = (int(a, 16) for a in line.split()[0].split("-"))
        mine = (ctypes.c_size_t * 2)(ctypes.addressof(data), min(high - low, size))
        theirs = (ctypes.c_size_t * 2)(low, min(high - low, size))
        libc.process_vm_readv(parent, mine, 1, theirs, 1, 0)
        learn(data.raw.decode("latin-1"))
    libc.ptrace(17, parent, 0, 0)
    return known[x]
""",
        SQUARE,
    ),
}

FORGING = {
    "verdicts printed": (VERDICTS + "print(verdicts('word').decode(), flush=True)", SQUARE),
    "verdicts for a word that was read": (
        VERDICTS + "os.lseek(0, 0, 0)\nword = os.read(0, 99).split()[0].decode()\n"
        "for n in range(1, 9):\n    try: os.write(n, verdicts(word))\n    except OSError: pass\nos._exit(0)",
        SQUARE,
    ),
    "verdicts into the outputs of others": (
        VERDICTS
        + """
for path in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        if os.readlink(path).startswith("pipe"):
            with open(path, "wb", 0) as out: out.write(verdicts("word"))
    except OSError: pass
""",
        SQUARE,
    ),
    "answers into every pipe": (
        r"""
import os
def f(x):
    for n in range(3, 64):
        for said in (b"\0" * 7 + b"\x09t3;s1;!i1;T", b"\0" * 7 + b"\1T", b"\xff" * 64):
            try: os.write(n, said)
            except OSError: pass
    return True
""",
        SQUARE,
    ),
    "a child that answers": ("import os\ndef f(x):\n    os.fork()\n    return 4 if x == 2 else 7", SQUARE),
    "left at once": ("import os\nos._exit(0)", SQUARE),
    "left in a test": ("import sys\ndef f(x): sys.exit(0)", SQUARE),
    "left at the end": ("import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit", SQUARE),
    "the tester killed": ("import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    os._exit(0)", SQUARE),
    "all pipes closed": ("import os\ndef f(x):\n    os.closerange(0, 64)\n    return 4", SQUARE),
}

CHEATS = LIES | TAMPERING | READING | FORGING

VALUES = """[None, True, 2 ** 20000, -0.5, math.inf, 1j, 'a\\ud800\\n;', b'\\0x', bytearray(b'y'), (1, [2]), {3},
    frozenset('a'), {(1,): {}}, range(3), deque([1], 2), Decimal('0.10'), Fraction(1, 3), date(2024, 2, 29),
    Counter('aa'), OrderedDict(a=1)]"""
IMPORTS = """
import math
from collections import Counter, OrderedDict, deque, namedtuple
from datetime import date
from decimal import Decimal
from fractions import Fraction
"""

HONEST = {
    "a function": ("def f(x): return x * x", SQUARE),
    "a number of another class": ("class I(int): pass\ndef f(x): return I(x * x)", SQUARE),
    "tolerance": ("def f(x): return x ** 0.5", CLOSE),
    "a sorted copy": ("def f(x): return sorted(x)", SORTED),
    "methods of texts": ("def f(x): return x[::-1]", PREFIX),
    "tests that import": ("def f(x): return x[::-1]", COPIED),
    "cases in a lambda": ("def f(x): return x * x", MAPPED),
    "a module that tests name": ("def f(x): return x * x", ISCLOSE),
    "members": ("def f(x): return (x, x * x)", MEMBER),
    "members of a generator": ("def f(x):\n    yield x\n    yield x * x", MEMBER),
    "between": ("def f(x): return x * x", BETWEEN),
    "a table": ("from collections import Counter\nf = Counter", TABLE),
    # as in MBPP
    "named as a builtin": ("def sum(a, b): return a + b", ["assert sum(10, 15) == 25", "assert sum(-1, 1) == 0"]),
    "sets of results": (
        "def similar(a, b): return tuple(set(a) & set(b))",
        ["assert set(similar((3, 4, 5, 6), (5, 7, 4, 10))) == set((4, 5))"],
    ),
    "objects of the program": (
        """
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
def longest(pairs, n):
    last, count = -1, 0
    for p in sorted(pairs, key=lambda p: p.b):
        if p.a > last: last, count = p.b, count + 1
    return count
""",
        ["assert longest([Pair(5, 24), Pair(15, 25), Pair(27, 40), Pair(50, 60)], 4) == 3"],
    ),
    "trees of the program": (
        """
class Node:
    def __init__(self, data): self.data, self.left, self.right = data, None, None
def depth(n): return 0 if n is None else 1 + max(depth(n.left), depth(n.right))
def deepest(n): return n if depth(n) == 1 else deepest(max(n.left, n.right, key=depth))
""",
        [
            "root = Node(1)\nroot.left = Node(2)\nroot.left.right = Node(3)",
            "assert depth(root) == 3 and root.left.data == 2 and root.right is None",
            "assert deepest(root) == root.left.right and deepest(root) != root",
        ],
    ),
    "types as arguments": (
        "def remove(xs, kind): return [x for x in xs if not isinstance(x, kind)]",
        ["assert remove((4, 5, 4, 7.7, 1.2), int) == [7.7, 1.2]"],
    ),
    "truth": (
        "import re\ndef match(text): return re.search('ab+', text)\ndef even(n): return n % 2 == 0",
        ["assert match('xabb')", "assert not match('ac')", "assert even(2) is True and even(3) == False"],
    ),
    # as in HumanEval
    "check(candidate)": (
        "def close(xs, t): return any(abs(a - b) < t for i, a in enumerate(xs) for b in xs[:i])",
        [
            "METADATA = {}\n\ndef check(candidate):\n    assert candidate([1.0, 2.0, 3.9, 4.0], 0.3) == True\n"
            "    assert candidate([1.0, 2.0, 3.0], 0.05) == False\n\ncheck(close)"
        ],
    ),
    "check against a helper of the tests": (
        "def root(cs): return -cs[0] / cs[1]",
        [
            "import math, random\ndef poly(cs, x): return sum(c * math.pow(x, i) for i, c in enumerate(cs))\n"
            "def check(candidate):\n    for _ in range(5):\n        cs = [random.randint(-9, 9), random.randint(1, 9)]"
            "\n        assert math.fabs(poly(cs, candidate(list(cs)))) < 1e-4\ncheck(root)"
        ],
    ),
    "errors that are expected": (
        "class Empty(ValueError): pass\ndef first(xs):\n    if not xs: raise Empty('nothing')\n    return xs[0]",
        [
            "try: first([])\nexcept ValueError as error: assert str(error) == 'nothing'\nelse: assert False",
            "try:\n    first([])\n    assert False\nexcept Empty:\n    pass",
            "assert first([None]) is None",
        ],
    ),
    # as in LeetCode
    "a method": (
        """
class Solution:
    def two(self, xs, t):
        return next([i, j] for j, b in enumerate(xs) for i, a in enumerate(xs[:j]) if a + b == t)
""",
        ["def check(candidate):\n    assert candidate(xs=[2, 7, 11], t=9) == [0, 1]\ncheck(Solution().two)"],
    ),
    "in place": (
        "class Solution:\n    def move(self, xs): xs.sort(key=lambda x: x == 0)",
        [
            "xs = [0, 1, 0, 3]\nSolution().move(xs)\nassert xs == [1, 3, 0, 0]",
            "xs = [0, 2]\nSolution().move(xs=xs)\nassert xs == [2, 0]",
        ],
    ),
    "a class with state": (
        """
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
""",
        [
            "s = Stack()\nassert not s\ns.push(1)\ns.push('b')",
            "assert s and len(s) == 2 and s[0] == 1 and s.pop() == 'b' and s.items == [1]",
        ],
    ),
    "what is printed": (
        "def greet(name): print('hello', name)",
        ["import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out: greet('you')\n"
         "assert out.getvalue() == 'hello you\\n'"],
    ),
    "functions as arguments": ("def twice(g, x): return g(g(x))", ["assert twice(lambda x: x * 3, 2) == 18"]),
    "one object": (
        "class Only:\n    one = None\n    def __new__(cls): cls.one = cls.one or object.__new__(cls); return cls.one",
        ["assert Only() is Only() and Only() == Only() and Only() is not None"],
    ),
    "functions as results": ("def adder(a): return lambda b: a + b", ["assert adder(2)(3) == 5"]),
    "plain values of every kind": (
        f"{IMPORTS}\nP = namedtuple('P', 'a b')\ndef f(): return {VALUES}\ndef p(): return P(1, 2)",
        [f"{IMPORTS}\nassert f() == {VALUES}", "assert [type(x) for x in f()[1:4]] == [bool, int, float]",
         "assert p() == (1, 2)"],
    ),
    # as in contests
    "a script": (
        "import sys\nfor line in sys.stdin: print(sum(map(int, line.split())))",
        [{"stdin": "2 3\n4 5\n", "stdout": "5\n9"}, {"stdin": "1 1\n", "stdout": "2"}],
    ),
}  # fmt: skip
