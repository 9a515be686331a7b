"""Files beside a user's file: imported by it, and by no other folder's files."""

import types

import gxpo
from gxpo.base.usercode import from_file, object_at

FOREST = gxpo.Forest.from_completions([[1, 2]], [[[3], [4]]], [[1.0, 0.0]])
PARTS = """
from __future__ import annotations
import json
from dataclasses import dataclass

import numpy
import helpers
import tools.deep
from helpers import size
from tools import deep
from . import helpers as relative
from gxpo.algorithms.credit import CreditPart


@dataclass(frozen=True)
class Sized(CreditPart):
    times: float = 1.0

    def __call__(self, forest, signals, step):
        import lazy
        assert relative is helpers and tools.deep is deep
        return forest.to_path(forest.outcome, "R") * self.times * size() * lazy.TWO * deep.ONE


def sized(outcome, group):
    return outcome * size()


def paid(completion):
    import lazy
    return size() * lazy.TWO
"""


HELPERS = """
import numbers_of_ours


def size():
    import lazy
    return numbers_of_ours.SIZE * lazy.TWO / 2
"""


def folder(path, size):
    """A folder with a part and the files that it imports, which import one another."""
    (path / "tools").mkdir(parents=True)
    files = {
        "parts.py": PARTS,
        "helpers.py": HELPERS,
        "numbers_of_ours.py": f"SIZE = {size}\n",
        "lazy.py": "TWO = 2.0\n",
        "tools/__init__.py": "",
        "tools/deep.py": "ONE = 1.0\n",
        "numpy.py": "raise ImportError('it hides a library')\n",
        "json.py": "raise ImportError('it hides a library')\n",
    }
    for name, text in files.items():
        (path / name).write_text(text)
    return path / "parts.py"


def test_parts_of_two_folders_import_their_own_neighbours(tmp_path):
    paths = {size: folder(tmp_path / str(size), size) for size in (3.0, 5.0)}
    methods = {
        size: (
            gxpo.method("grpo", {"credit": f"{path}:Sized", "credit.times": 2.0}),
            gxpo.method("grpo", {"credit": f"{path}:sized"}),
            object_at(f"{path}:paid"),
        )
        for size, path in paths.items()
    }
    for size, (part, function, paid) in methods.items():
        assert part.advantages(FOREST).tolist() == [4 * size, 0.0]
        assert function.advantages(FOREST).tolist() == [size, 0.0]
        assert paid("") == 2 * size


def test_rewards_of_two_folders_import_their_own_neighbours(tmp_path):
    loaded = []
    for size in (3.0, 5.0):
        path = folder(tmp_path / str(size), size)
        source = {"file": str(path), "folder": str(path.parent), "code": path.read_text(), "name": "paid"}
        loaded.append(from_file(source, types.FunctionType, f"reward_of_{int(size)}"))
    assert [paid("") for paid in loaded] == [6.0, 10.0]
