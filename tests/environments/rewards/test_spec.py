"""Rewards of a configuration: bad specifications, names and components."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.environments.rewards.scored_tasks import Source, forest_of, tasks_of
from tests.environments.rewards.task_scorer import verdict

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.spec import with_weights

NO_SCORER = Source(default=None)

REWARDS = """
import os, signal, sys, time

def exact(completion, answer):
    return completion == answer

def length(completion):
    return len(completion) / 10

def parts(prompt, completion, answer, info, tokens, finish):
    print("a reward may print")
    right, cut = completion == answer, finish == "length"
    return {"correct": int(right), "index": info["index"], "tokens": len(tokens), "cut": cut}

def asks_for_task(task):
    return float(task.answer)

def wild(completion):
    if completion == "raise":
        raise KeyError("no such thing\\nsecond line")
    if completion == "exit":
        sys.exit("bye")
    if completion == "hang":
        while True:
            pass
    if completion == "sleep":
        time.sleep(1000)
    if completion == "die":
        os._exit(3)
    if completion == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if completion == "child":
        os.execvp("sleep", ["sleep", "1000"])
    if completion.startswith("killed"):  # "killed N FILE": in the first N times that it is asked
        _, times, told = completion.split()
        with open(told, "a") as file:
            file.write("x")
        if os.path.getsize(told) <= int(times):
            os.kill(os.getpid(), signal.SIGKILL)
    odd = {"nan": float("nan"), "inf": float("inf"), "text": "good", "none": None, "list": [1.0], "empty": {},
           "named": {"a": 1.0}, "nested": {"wild": {"a": 1}}, "complex": 1j}
    return odd.get(completion, 0.5)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "my_rewards.py"
    path.write_text(REWARDS)
    return str(path)


def score(rewards: RewardSet, texts: list[str], answer: object = "4", finish: str = "stop"):
    return rewards.score(forest_of(texts, finish), texts, tasks_of(texts, answer))


# ---------------------------------------------------------------- refused before anything runs
def one_line(spec: object, source: Source, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        RewardSet.make(spec, source=source)  # type: ignore[arg-type]  # what a user may write
    assert "\n" not in str(caught.value)


def test_bad_specs_are_one_line_errors_at_construction(file: str, tmp_path: Path) -> None:
    own_source = Source(verdict, trusted=True)
    one_line({"corect": 1.0}, own_source, r"'corect' has a weight, but no reward computes it; did you mean 'correct'\?")
    one_line("fromat", own_source, "did you mean 'format'")
    one_line("maths", own_source, "did you mean 'math'")
    one_line({"correct": "high"}, own_source, "weight of 'correct' must be a finite number, not 'high'")
    one_line({"correct": math.nan}, own_source, "finite number")
    one_line({"correct": True}, own_source, "finite number")
    one_line({"correct": 0.0}, own_source, "no reward has a weight")
    one_line({}, own_source, "no reward has a weight")
    one_line(3, own_source, "neither a name nor a function")
    one_line(None, NO_SCORER, "no verifier")
    one_line("missing.py:exact", own_source, r"there is no file missing.py")
    one_line(file, own_source, r"name a function in the file, as in \S+\.py:FUNCTION")
    one_line(f"{file}:exat", own_source, "has no function 'exat'; did you mean 'exact'")
    one_line(f"{file}:os", own_source, "is a module, not a function")
    one_line({f"{file}:exact": 1.0, "exact": 1.0}, own_source, "names both")
    (tmp_path / "other.py").write_text("def exact(completion): return 1")
    one_line({f"{file}:exact": 1.0, f"{tmp_path}/other.py:exact": 1.0}, own_source, "two functions are named 'exact'")
    (tmp_path / "broken.py").write_text("x = 1\ndef exact(:\n")
    one_line(f"{tmp_path}/broken.py:exact", own_source, r"broken.py line 2: invalid syntax")
    (tmp_path / "raises.py").write_text("import no_such_module\n")
    one_line(f"{tmp_path}/raises.py:exact", own_source, r"ModuleNotFoundError while loading: .*\(raises.py line 1\)")
    (tmp_path / "dies.py").write_text("import os\nos._exit(7)\n")
    one_line(f"{tmp_path}/dies.py:exact", own_source, "loading it: its process died .exit code 7")
    (tmp_path / "asks.py").write_text("def exact(complection): return 1\n")
    one_line(f"{tmp_path}/asks.py:exact", own_source, "asks for 'complection'.*did you mean 'completion'")


def test_weight_that_no_reward_computes_is_refused_after_scoring(file: str) -> None:
    with (
        RewardSet.make({f"{file}:parts": 1.0, "tokns": 0.5}, source=NO_SCORER) as rewards,
        pytest.raises(ConfigError, match="'tokns' has a weight, but no reward computes it; did you mean 'tokens'"),
    ):
        score(rewards, ["4"])


def test_two_rewards_that_compute_one_component_are_refused(file: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def other(completion): return {'correct': 1}")
    spec = {f"{file}:parts": 1.0, f"{tmp_path}/other.py:other": 1.0}
    with RewardSet.make(spec, source=NO_SCORER) as rewards, pytest.raises(ConfigError, match="computes 'correct'"):
        score(rewards, ["4"])


def test_a_list_holds_rewards_and_pairs_with_weights() -> None:
    assert with_weights(["correct", ("short", 0.5), ["polite", 2]]) == {"correct": 1.0, "short": 0.5, "polite": 2}
    with pytest.raises(ConfigError, match=r"\('short', 0.5, 1\) is neither a reward nor \(reward, weight\)"):
        with_weights(["correct", ("short", 0.5, 1)])
    with pytest.raises(ConfigError, match="'correct' is listed twice"):
        with_weights(["correct", ("correct", 0.5)])
