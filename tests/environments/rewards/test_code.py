"""Code reward: programs against unit tests in a sandbox, and the free names of test statements."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading

import pytest
from tests.environments.rewards.scored_tasks import Source, forest_of

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.code import CodeReward, extract_program, names_of
from gxpo.environments.rewards.sandbox import Limits, Local, Result
from gxpo.environments.rewards.scratch import fresh_directory
from gxpo.parts.protocols import Task

SQUARE = ["assert f(2) == 4", "assert f(3) == 9", "assert f(-1) == 1", "assert f(0) == 0"]
SHORT = Limits(wall=2.0)


def score(texts, tests=SQUARE, reward=None, spec=None, **info):
    tasks = [Task(f"t{i}", "?", None, {"tests": tests, **info}) for i in range(len(texts))]
    with RewardSet.make(spec or reward or CodeReward(wall=2.0), source=Source(None, None)) as rewards:
        forest = rewards.score(forest_of(texts), texts, tasks)
    listed_component_names = dict(zip(forest.component_names, forest.components.T.tolist(), strict=True))
    return listed_component_names, forest, rewards


def test_share_of_passed_tests_is_recorded_and_all_are_correct():
    texts = ["def f(x): return x * x", "def f(x): return 2 * x", "def f(x):", "", "f = lambda x: 1 / 0"]
    components, forest, rewards = score(texts)
    # 2 x is right at 2 and at 0: 2 of 4
    assert components == {"correct": [1, 0, 0, 0, 0], "tests": [1, 0.5, 0, 0, 0]}
    assert forest.outcome.tolist() == [1, 0, 0, 0, 0] == forest.success.tolist()
    assert sum(rewards.counts.values()) == 0
    _, forest, _ = score(texts[:2], spec={CodeReward(wall=2.0): 1.0, "tests": 0.5})
    assert forest.outcome.tolist() == [1.5, 0.25]


def test_programs_are_taken_from_the_last_python_block():
    wrapped = (
        "First:\n```python\ndef f(x): return 0\n```\nBetter:\n```python\ndef f(x): return x*x\n```\n```text\n4\n```"
    )
    assert score([wrapped])[0]["correct"] == [1]
    assert extract_program("```\na = 1\n```") == "a = 1"
    assert extract_program("```py title=x\n  a = 1\n  ```") == "  a = 1"
    assert extract_program("```js\nlet a\n```") == "let a"
    assert extract_program("a = 1\n```python\nunfinished") == "a = 1\n```python\nunfinished"


@pytest.mark.slow
def test_programs_beyond_their_limits_are_wrong_not_unscored():
    texts = ["while True: pass", "x = bytearray(1 << 30)", "print('x' * 10**6)\ndef f(x): return x*x",
             "def f(x):\n    while x == 3: pass\n    return x * x"]  # fmt: skip
    components, _, rewards = score(texts, reward=CodeReward(wall=1.0))
    assert components["correct"] == [0, 0, 0, 0] and sum(rewards.counts.values()) == 0
    assert components["tests"][3] == 0.25  # the first was passed before the second hung


def test_input_and_output_cases():
    cases = [{"stdin": "2 3\n", "stdout": "5"}, {"stdin": "1 1\n", "stdout": "2\n"}]
    right = "a, b = map(int, input().split())\nprint(a + b, ' ')"
    texts = [right, "print(5)", right + "\nraise SystemExit(1)", "print(5)\nprint()\nprint()"]
    assert score(texts, cases)[0] == {"correct": [1, 0, 0, 0], "tests": [1, 0.5, 0, 0.5]}
    mixed = ["assert add(1, 1) == 2", {"stdin": "", "stdout": "hi"}]
    assert score(["def add(a, b): return a + b\nprint('hi')"], mixed)[0]["tests"] == [1]


def test_a_template_makes_a_function_of_an_expression():
    assert score(["x * x", "x", "x)("], template="f = lambda x: ({program})")[0]["correct"] == [1, 0, 0]


class Plain:
    """A sandbox that does nothing but run the program, as this user: the tests' own guards are all there are."""

    def check(self):
        pass

    def run(self, files, stdin="", limits=SHORT):
        with fresh_directory(files) as directory:
            command, stdin_bytes = [sys.executable, "-S", "main.py"], stdin.encode("utf-8", "replace")
            try:
                done = subprocess.run(
                    command, input=stdin_bytes, capture_output=True, timeout=limits.wall, check=False, cwd=directory
                )
            except subprocess.TimeoutExpired as error:
                return Result("timeout", (error.stdout or b"").decode())
        return Result(
            "failed" if done.returncode else "ok", done.stdout.decode(), done.stderr.decode("utf-8", "replace")
        )


def test_what_one_program_does_costs_that_one_alone(monkeypatch):
    if os.access("/dev/shm", os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")  # where directories are made quickly
    deep = "import os\nfor _ in range(1200):\n    os.mkdir('d')\n    os.chdir('d')\n"

    class Failing(Plain):
        def run(self, files, stdin="", limits=SHORT):
            if "unlucky" in files["solution.py"]:
                raise RecursionError("deep")
            return super().run(files, stdin, limits)

    right = "def f(x): return x * x"
    for sandbox, outcomes in (("local", [1, 0, 1]), (Failing(), [1, 1, None])):
        texts = [right, deep + right, right + "  # unlucky"]
        _, forest, rewards = score(texts, reward=CodeReward(sandbox))
        assert [None if x != x else x for x in forest.outcome.tolist()] == outcomes
    assert (
        rewards.counts["raised"] == 1 and "RecursionError while running a program: deep" in rewards.messages["raised"]
    )


def test_broken_sandbox_leaves_rollouts_unscored_and_is_counted():
    class Flaky:
        def check(self):
            pass

        def run(self, files, stdin="", limits=SHORT):
            if "2 * x" in files["solution.py"]:
                return Result("broken", stderr="no space left")
            return Local().run(files, stdin, limits)

    _, forest, rewards = score(["def f(x): return x * x", "def f(x): return 2 * x"], reward=CodeReward(Flaky()))
    assert forest.outcome.isnan().tolist() == [False, True] and forest.success.isnan().tolist() == [False, True]
    assert rewards.counts["died"] == 1 and "no space left" in rewards.messages["died"]


def test_a_sandbox_that_can_not_start_at_all_ends_the_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no docker command"):
        score(["1"], reward=CodeReward("docker"))
    with pytest.raises(ConfigError, match="'local' or 'docker', not 'jail'"):
        CodeReward("jail")
    with pytest.raises(ConfigError, match="readable is a list of paths, not '/data'"):
        CodeReward(readable="/data")
    with pytest.raises(ConfigError, match="readable names /nowhere, which does not exist"):
        score(["1"], reward=CodeReward(readable=["/nowhere"]))


@pytest.mark.parametrize(
    "tests", [None, [], "assert f(1)", [3], [{"stdin": "1"}], ["import math", "def test_f():\n    assert f(1) == 2"]]
)
def test_tasks_without_tests_are_unscored_and_counted(tests):
    _, forest, rewards = score(["def f(x): return x"], tests)
    assert forest.outcome.isnan().all() and rewards.counts["nonsense"] == 1


def test_equal_programs_for_equal_tests_are_run_once():
    class Counting:
        def __init__(self):
            self.runs, self.lock = 0, threading.Lock()

        def check(self):
            pass

        def run(self, files, stdin="", limits=SHORT):
            with self.lock:
                self.runs += 1
            return Result("failed")

    counting = Counting()
    score(["a", "b", "a", "```python\na\n```"], reward=CodeReward(counting))
    assert counting.runs == 2


@pytest.mark.slow
def test_the_named_reward_and_its_options():
    source = Source(None, "code")
    options = {"code": {"wall": 1.0, "memory_mb": 128, "processes": 4}}
    task = Task("t", "?", None, {"tests": SQUARE})
    text = "def f(x): return x * x"
    for spec, outcome in ((None, 1.0), ("code", 1.0), ({"tests": 3.0}, 3.0), ({"correct": 2.0, "tests": 1.0}, 3.0)):
        with RewardSet.make(spec, source=source, options=options) as rewards:
            assert rewards.score(forest_of([text]), [text], [task]).outcome.tolist() == [outcome]
    with pytest.raises(ConfigError, match="'test' has a weight"):
        RewardSet.make({"test": 1.0}, source=source)
    with pytest.raises(ConfigError, match="code has no 'memory'; did you mean 'memory_mb'"):
        RewardSet.make("code", source=source, options={"code": {"memory": 3}})


@pytest.mark.parametrize(
    ("statements", "program", "modules"),
    [
        (["assert f(2) == 4", "assert set(g(1)) == {1}"], ["f", "g"], {}),
        (["def check(candidate):\n    assert candidate(h) == 4", "check(f)"], ["f", "h"], {}),
        (["def check(f):\n    f(1)", "check(f)"], ["f"], {}),  # a parameter of one, a name of the other
        (["for x in range(3):\n    assert f(x) == [y for y in (x,)]"], ["f"], {}),
        (["assert math.isclose(f(1), np.pi)"], ["f"], {"math": "math", "np": "numpy"}),
        (["import math\nfrom random import random as r\nassert math.floor(r()) == f()"], ["f"], {}),
        (["assert select(math, [1])"], ["math", "select"], {}),  # used as values: functions of the program
        (["assert sum(10, 15) == 25"], ["sum"], {}),
        (["assert sum([f(1)]) == 25"], ["f"], {}),
        (["assert sum(abs(1)) == 25"], [], {}),  # nobody can tell which one is meant
        (["root = Node(1)", "assert depth(root) == 1"], ["Node", "depth"], {}),
        (["def set_up():\n    global case\n    case = 1", "set_up()\nassert f(case)"], ["f"], {}),
        (["this is no Python", "assert f(2)"], ["f"], {}),
    ],
)
def test_whose_a_name_is(statements, program, modules):
    assert names_of(tuple(statements)) == (program, modules)


def test_tests_that_only_define_are_refused():
    with pytest.raises(ValueError, match="define functions and call none: any program would pass"):
        names_of(('"""Tests."""\nimport math', "class Tests:\n    def test(self):\n        assert f(1)"))
