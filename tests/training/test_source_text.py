"""Functions of a script, written as a module that another process loads."""

import linecache
import sys
import textwrap
import types

import pytest

from gxpo.training.source_text import file_name, module_text

SCRIPT = """
from __future__ import annotations

import math
import os.path as places
import re
from collections import Counter
from dataclasses import dataclass

WEIGHT, WORDS = 0.5, {"a": [1, 2], "b": (None, True)}
PATTERN = re.compile("[0-9]+", re.I)
model = object()
sum = max

@dataclass
class Part:
    value: float = WEIGHT

def helper(text):
    return len(PATTERN.findall(text)) * WEIGHT if text else other(text)

def other(text):
    return helper("1")

def reward(completion: Model, answer=WORDS) -> Model:
    total = Counter(completion)["1"] + math.floor(1.5) + helper(completion) + Part().value
    return total + sum(1, 2) + len(places.join("a", "b")) + len(answer)

def reads_model(completion):
    return model

def outer():
    k = 3
    return lambda completion: k

closure = outer()
print("the script runs")
"""


@pytest.fixture
def script(monkeypatch):
    """The namespace of a script that has run as `__main__`."""
    module = types.ModuleType("__main__")
    module.__file__ = "script.py"
    monkeypatch.setitem(sys.modules, "__main__", module)
    linecache.cache["script.py"] = (len(SCRIPT), None, SCRIPT.splitlines(keepends=True), "script.py")
    exec(compile(SCRIPT, "script.py", "exec"), vars(module))
    yield module
    del linecache.cache["script.py"]


def namespace(text, monkeypatch):
    """What a process that loads this text has."""
    module = types.ModuleType("elsewhere")
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    exec(text, vars(module))
    return vars(module)


def test_a_function_takes_along_what_it_reads_and_nothing_else(script, capsys, monkeypatch):
    text = module_text([script.reward])
    capsys.readouterr()
    loaded = namespace(text, monkeypatch)
    # one "1" + 1 + two numbers * 0.5 + 0.5, then max(1, 2), the length of "a/b" and of WORDS
    assert loaded["reward"]("1 22") == script.reward("1 22") == (1 + 1 + 1 + 0.5) + 2 + 3 + 2
    assert capsys.readouterr().out == "" and "model" not in loaded and "reads_model" not in loaded
    assert text.startswith("from __future__ import annotations\nimport ")


def test_several_share_what_they_read(script, monkeypatch):
    loaded = namespace(module_text([script.helper, script.reward]), monkeypatch)
    assert loaded["helper"]("1") == 0.5


def test_what_can_not_be_written_gives_none(script):
    for value in (script.reads_model, script.closure, print, object(), "".join, len):
        assert module_text([value]) is None
    assert module_text([script.helper, script.closure]) is None


def test_a_function_of_a_package_is_imported():
    from gxpo.environments.rewards.built_in import well_formed

    assert "from gxpo.environments.rewards.built_in import well_formed" in module_text([well_formed])
    assert file_name(well_formed) is None


def test_function_of_a_module_beside_the_script_is_named_by_file(tmp_path, monkeypatch):
    (tmp_path / "my_own_rewards.py").write_text(textwrap.dedent("def exact(completion):\n    return 1.0\n"))
    monkeypatch.syspath_prepend(tmp_path)
    import my_own_rewards

    assert file_name(my_own_rewards.exact) == f"{tmp_path / 'my_own_rewards.py'}:exact"
    assert f"sys.path.append({str(tmp_path)!r})\nfrom my_own_rewards import exact" in module_text(
        [my_own_rewards.exact]
    )
    assert file_name(lambda: 1) is None and file_name(script) is None
