"""Small repositories for repository.yaml, each with one faulty line: ten kinds of functions, eight constants, three
faults of each."""

import ast
import random

from gxpo.environments.envs.repository import Repo, Repository

A, Z = "'abcdefghijk'", "'zyxwvutsrqp'"
# kind -> (parameter, purpose, right line, faulty lines, argument of the visible test, arguments of hidden ones)
KINDS = {
    "plus": ("x", "x plus {k}", "x + {k}", ("x - {k}", "x * {k}", "x"), "3", ("0", "11", "-2")),
    "minus": ("x", "x minus {k}", "x - {k}", ("x + {k}", "{k} - x", "x"), "20", ("0", "9", "-5")),
    "times": ("x", "x times {k}", "x * {k}", ("x + {k}", "x - {k}", "x"), "5", ("1", "7", "-3")),
    "line": ("x", "{k} times x, plus 1", "{k} * x + 1", ("{k} * x - 1", "{k} * x", "x + {k}"), "4", ("0", "9")),
    "most": ("x", "x, at most {k}", "min(x, {k})", ("max(x, {k})", "x", "min(x, 0)"), "99", ("-4", "200", "1")),
    "least": ("x", "x, at least {k}", "max(x, {k})", ("min(x, {k})", "x", "max(x, 0)"), "-9", ("-50", "99", "1")),
    "above": ("x", "whether x is above {k}", "x > {k}", ("x < {k}", "x == {k}", "x"), "50", ("12", "{k}", "{k} + 1")),
    "first": ("s", "the first {k} of s", "s[:{k}]", ("s[{k}:]", "s[:1]", "s[-{k}:]"), A, (Z,)),
    "last": ("s", "the last {k} of s", "s[-{k}:]", ("s[:{k}]", "s[{k}:]", "s[-1:]"), A, (Z, "'lm'")),
    "repeat": ("s", "s, {k} times", "s * {k}", ("s + 's'", "s", "s[:{k}]"), "'ab'", ("'c'", "'de'")),
}  # fmt: skip
VERDICTS: dict[tuple[str, tuple[str, ...]], list[bool]] = {}


def _parses(text: str) -> bool:
    try:
        return bool(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


class Bugs(Repository):
    """A function of one line that does not do what the comment above it says."""

    def repository(self, seed: int) -> Repo:
        rng = random.Random(f"repository/{seed}")
        parameter, purpose, right, faults, visible_argument, hidden_arguments = KINDS[rng.choice(sorted(KINDS))]
        k = rng.randrange(2, 10)
        self._right, fault = right.format(k=k), rng.choice(faults).format(k=k)
        purpose, scope = purpose.format(k=k), {}
        exec(f"def f({parameter}): return {self._right}", scope)
        calls = [f"f({argument.format(k=k)})" for argument in (visible_argument, *hidden_arguments)]
        visible, *tests = [f"assert {call} == {eval(call, scope)!r}" for call in calls]
        files = {
            "f.py": f"# {purpose}\ndef f({parameter}):\n    return {fault}\n",
            "test_f.py": f"from f import f\n\ndef test_f():\n    {visible}\n",
        }
        return Repo(files, "f.py", ("test_f.py",), tuple(tests), f"f does not return {purpose}.")

    def content(self, seed: int) -> str:
        """Return the comment: a function that is held out is held out with all its faults."""
        return self.repository(seed).files["f.py"].split("\n")[0].removeprefix("# ")

    def judge(self) -> list[bool]:
        """Return the verdicts; the sandbox runs each function once, and none that is no Python."""
        assert self._repo is not None
        key = text, tests = self._files["f.py"], self._repo.hidden
        if key not in VERDICTS:
            VERDICTS[key] = super().judge() if _parses(text) else [False] * len(tests)
        return VERDICTS[key]

    def expert(self) -> str:
        """Return the next action of somebody who reads the file, writes its line anew, and is done."""
        if self.tools:
            edit = f'<tool>edit({{"path": "f.py", "line": 3, "text": "    return {self._right}"}})</tool>'
            return ('<tool>read({"path": "f.py"})</tool>', edit, "done")[min(self._turn, 2)]
        return ("read f.py", f"edit f.py 3     return {self._right}", "done")[min(self._turn, 2)]
