"""Test harness: verdicts on programs that cheat, end or print, none of which they can forge."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.environments.rewards.code_programs import CHEATS, HONEST
from tests.environments.rewards.scored_tasks import Source, forest_of

from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.code import CodeReward, passed
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


def verdicts(programs, sandbox):
    """What each program is paid."""
    reward = CodeReward(sandbox, wall=3.0, packages=False)
    texts, tests = zip(*programs.values(), strict=True)
    tasks = [Task(f"t{i}", "?", None, {"tests": list(t)}) for i, t in enumerate(tests)]
    with RewardSet.make(reward, source=Source(None, None)) as rewards:
        forest = rewards.score(forest_of(list(texts)), list(texts), tasks)
    assert sum(rewards.counts.values()) == 0, rewards.messages
    return dict(zip(programs, forest.outcome.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sandbox", ["local", pytest.param(Plain(), marks=pytest.mark.thorough)], ids=["local", "no sandbox"]
)
def test_cheats_earn_nothing_and_every_solution_is_paid(sandbox):
    paid = verdicts(CHEATS | HONEST, sandbox)
    assert {name for name, value in paid.items() if value == 1} == set(HONEST)


def test_program_cannot_read_hidden_tests_or_other_programs(tmp_path):
    if not Local().isolation().reads:
        pytest.skip("the kernel does not let this user restrict what is read")
    (tmp_path / "tests.jsonl").write_text("assert f(2) == 4")
    looks = "\nimport glob\ndef f(x):\n    found = glob.glob(%r)\n    return [open(p).read() for p in found] or 'none'"
    with fresh_directory({"solution.py": "def f(x): return x * x"}) as directory:
        for pattern in (
            f"{tmp_path}/*",
            f"{os.path.dirname(directory)}/gxpo-sandbox-*/solution.py",
            f"{directory}/*",
        ):
            reads = passed(looks % pattern, ["assert f(2) == 'none'"], Local(), Limits())
            assert reads == [True], pattern
        with_leave = Local(readable=(str(tmp_path),))
        assert passed(looks % f"{tmp_path}/*", ["assert f(2) == ['assert f(2) == 4']"], with_leave, Limits()) == [True]


def test_verdicts_are_not_cut_off_with_the_output():
    assert (
        passed("def f(x): return x", [f"assert f({i}) == {i}" for i in range(2000)], Local(), Limits()) == [True] * 2000
    )


def test_tests_that_can_not_start_leave_unscored():
    class Old(Plain):
        def run(self, files, stdin="", limits=SHORT):
            return Result("ok", "error OSError: the kernel does not protect the tests\n")

    _, forest, rewards = score(["def f(x): return x * x"], reward=CodeReward(Old()))
    assert forest.outcome.isnan().all() and "the kernel does not protect" in rewards.messages["died"]


def test_order_of_verdicts():
    program = "def f(x): return abs(x)"
    tests = ["assert f(1) == 2", {"stdin": "", "stdout": ""}, "assert f(-1) == 1"]
    assert passed(program, tests, Local(), SHORT) == [False, True, True]
