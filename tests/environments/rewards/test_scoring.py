"""RewardSet: weights by name, one trajectory's failure is its own, nothing fails into a 0."""

from __future__ import annotations

import functools
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest
import torch
from tests.environments.rewards.scored_tasks import Source, forest_of, tasks_of
from tests.environments.rewards.task_scorer import verdict
from tests.thorough import some

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet

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


# ---------------------------------------------------------------- weights and names
@pytest.mark.parametrize("trusted", [True, False])
def test_verdict_of_the_task_is_the_default_reward(trusted: bool) -> None:
    with RewardSet.make(None, source=Source(verdict, trusted=trusted)) as rewards:
        forest = score(rewards, ["4", "5", "four"])
    assert forest.component_names == ("correct", "format")
    assert forest.components.tolist() == [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    assert forest.outcome.tolist() == [1.0, 0.0, 0.0]
    assert forest.success.tolist() == [1.0, 0.0, 0.0]
    assert forest.outcome.dtype == torch.float64
    assert sum(rewards.counts.values()) == 0


def test_weights_go_by_name_whatever_their_order() -> None:
    texts = ["4", "5", "four"]
    source = Source(verdict, trusted=True)
    outcomes = []
    for spec in ({"correct": 1.0, "format": 0.25}, {"format": 0.25, "correct": 1.0}):
        outcomes.append(score(RewardSet.make(spec, source=source), texts).outcome.tolist())
    # "4": 1 * 1 + .25 * 1; "5": 1 * 0 + .25 * 1; "four": 0
    assert outcomes == [[1.25, 0.25, 0.0]] * 2


def test_functions_of_a_file_and_the_tasks_scorer_together(file: str) -> None:
    with RewardSet.make({f"{file}:length": -2.0, "correct": 1.0}, source=Source(verdict, trusted=True)) as rewards:
        forest = score(rewards, ["4", "12345"])
    assert forest.component_names == ("length", "correct", "format")
    # "4": -2 * .1 + 1 * 1; "12345": -2 * .5 + 0
    assert forest.outcome.tolist() == pytest.approx([0.8, -1.0], abs=1e-15)
    assert forest.success.tolist() == [1.0, 0.0]


def test_mapping_gives_components_their_own_or_the_reward_weight(file: str) -> None:
    spec = {f"{file}:parts": 1.0, "index": 0.0, "tokens": 0.5}
    with RewardSet.make(spec, source=NO_SCORER) as rewards:
        forest = score(rewards, ["4", "12345"], finish="length")
    assert forest.component_names == ("correct", "index", "tokens", "cut")
    assert forest.components.tolist() == [[1, 0, 1, 1], [0, 1, 5, 1]]
    # correct 1 + cut 1 + tokens .5 * 1; cut 1 + tokens .5 * 5
    assert forest.outcome.tolist() == [2.5, 3.5]
    assert forest.success.tolist() == [1.0, 0.0]


def test_reward_replaces_the_scorers_component_of_the_same_name(file: str) -> None:
    def wrong(text: str, task: object) -> dict[str, float]:
        return {"correct": 7.0, "format": 1.0}

    with RewardSet.make(f"{file}:parts", source=Source(wrong, trusted=True)) as rewards:
        forest = score(rewards, ["4"])
    assert forest.component_names == ("correct", "index", "tokens", "cut", "format")
    assert forest.components[0, 0] == 1.0


def test_a_single_function_is_the_verifier_where_tasks_have_none(file: str) -> None:
    with RewardSet.make(f"{file}:exact", source=Source(default="math")) as rewards:
        forest = score(rewards, ["4", "5"])
    assert forest.component_names == ("exact",)
    assert forest.outcome.tolist() == forest.success.tolist() == [1.0, 0.0]
    with RewardSet.make({f"{file}:exact": 1.0, f"{file}:length": 1.0}, source=NO_SCORER) as rewards:
        assert score(rewards, ["4"]).success.isnan().all()


def test_a_function_that_asks_for_the_task_is_given_it(file: str) -> None:
    with RewardSet.make(f"{file}:asks_for_task", source=NO_SCORER) as rewards:
        assert score(rewards, ["x"], answer="2.5").outcome.tolist() == [2.5]


def test_the_built_in_format_reward() -> None:
    texts = [
        r"\boxed{4}",
        "<answer> 4 </answer>",
        "<answer></answer>",
        r"\boxed{}",
        "4",
        "<answer>4</answer> <answer>5</answer>",
    ]
    with RewardSet.make({"format": 1.0}, source=Source(default="math")) as rewards:
        forest = score(rewards, texts)
    assert forest.outcome.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert forest.success[:5].tolist() == [1.0, 1.0, 0.0, 0.0, 1.0]  # math-verify's verdict is recorded


def test_no_trajectories() -> None:
    forest = score(RewardSet.make(None, source=Source(verdict, trusted=True)), ["4"])
    empty = forest.select(torch.tensor([False]))
    assert RewardSet.make(None, source=Source(verdict, trusted=True)).score(empty, [], []).n_trajectories == 0


# ---------------------------------------------------------------- failures
BAD = {
    "raise": "raised",
    "exit": "raised",
    "hang": "timeout",
    "sleep": "timeout",
    "child": "died",  # its process became another program, which is killed
    "die": "died",
    "segfault": "died",
    "nan": "nonsense",
    "inf": "nonsense",
    "text": "nonsense",
    "none": "nonsense",
    "list": "nonsense",
    "empty": "nonsense",
    "named": "nonsense",
    "nested": "nonsense",
    "complex": "nonsense",
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", some([1, 2], [2]))
def test_failed_item_is_unscored_never_zero_and_alone(file: str, workers: int) -> None:
    texts = ["good"]
    for text in BAD:
        texts += [text, "good"]
    with RewardSet.make(f"{file}:wild", source=NO_SCORER, timeout=1.0, workers=workers) as rewards:
        forest = score(rewards, texts)
        again = score(rewards, ["good"])
    for text, outcome in zip(texts, forest.outcome.tolist(), strict=True):
        assert math.isnan(outcome) if text in BAD else outcome == 0.5, text
    assert again.outcome.tolist() == [0.5]
    assert forest.scored.tolist() == [text == "good" for text in texts]
    assert forest.success.isnan().tolist() == [text != "good" for text in texts]
    assert rewards.counts == {
        kind: list(BAD.values()).count(kind) for kind in ("raised", "timeout", "died", "nonsense", "limit")
    }
    assert set(rewards.messages) == set(BAD.values())
    assert all("\n" not in message for message in rewards.messages.values())
    if workers == 1:
        assert rewards.messages["raised"].endswith(
            "wild: KeyError: 'no such thing\\nsecond line' (my_rewards.py line 20) (task t1)"
        )


FORKING = """
import gc, json, os

def forks(completion):
    n = int(completion)
    if n % 16 == 5:
        os.fork()
    if n % 16 == 9 and os.fork() == 0:
        raise SystemExit("the child is done")
    return n / 128

def answers_itself(completion):
    line = next(x for x in gc.get_objects() if type(x).__name__ == "Line")
    forged = {"nan": '["ok", NaN]', "inf": '["ok", 1e999]', "huge": '["ok", 1' + "0" * 400 + "]", "pair": '["ok"]',
              "names": '{"ok": 1}', "status": '["good", 1.0]', "text": '["ok", "1"]', "message": '["raised", 3]',
              "empty": '["ok", {}]', "deep": "[" * 100_000, "nested": '["ok", {"a": {"a": 1}}]'}
    if completion in forged:
        line.answer(forged[completion])
    return 0.5
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_child_that_a_reward_forks_scores_nobody(tmp_path: Path, workers: int) -> None:
    (tmp_path / "forking.py").write_text(FORKING)
    texts = [str(i) for i in range(128)]
    with RewardSet.make(f"{tmp_path}/forking.py:forks", source=NO_SCORER, timeout=60.0, workers=workers) as rewards:
        for order in (texts, texts[::-1]):
            assert score(rewards, order).outcome.tolist() == [int(text) / 128 for text in order]
    assert sum(rewards.counts.values()) == 0


@pytest.mark.slow
def test_a_forged_reply_costs_its_item(tmp_path: Path) -> None:
    (tmp_path / "forging.py").write_text(FORKING)
    forged = ["nan", "inf", "huge", "pair", "names", "status", "text", "message", "empty", "deep", "nested"]
    texts = [x for text in forged for x in ("good", text)]
    with RewardSet.make(f"{tmp_path}/forging.py:answers_itself", source=NO_SCORER) as rewards:
        forest = score(rewards, [*texts, "good"])
    assert forest.outcome[::2].tolist() == [0.5] * 12 and forest.outcome[1::2].isnan().all()
    assert rewards.counts["died"] == len(forged) == sum(rewards.counts.values())
    assert "its process wrote something that is no answer" in rewards.messages["died"]


def test_failed_component_without_weight_does_not_unscore(file: str) -> None:
    with RewardSet.make({"correct": 1.0, f"{file}:wild": 0.0}, source=Source(verdict, trusted=True)) as rewards:
        forest = score(rewards, ["4", "nan"])
    assert forest.outcome.tolist() == [1.0, 0.0]
    assert rewards.counts["nonsense"] == 1
    assert forest.components[1, forest.component_names.index("wild")].isnan()


def test_failed_scorer_in_process_costs_its_trajectory_alone() -> None:
    def fragile(text: str, task: object) -> dict[str, float]:
        return {"correct": 1 / int(text)}

    with RewardSet.make(None, source=Source(fragile, trusted=True)) as rewards:
        forest = score(rewards, ["1", "0", "2"])
    assert forest.outcome[[0, 2]].tolist() == [1.0, 0.5]
    assert forest.outcome[1].isnan() and rewards.counts["raised"] == 1
    assert "ZeroDivisionError" in rewards.messages["raised"]


def test_everything_failing_is_unscored_not_0(file: str) -> None:
    spec = {f"{file}:wild": 1.0, "style": 1.0}
    with RewardSet.make(spec, source=NO_SCORER, timeout=0.5) as rewards:
        assert score(rewards, ["raise", "die"]).outcome.isnan().all()


def test_answer_that_cannot_be_pickled_costs_one_trajectory(file: str) -> None:
    tasks = tasks_of(["4", "4"])
    tasks[0] = type(tasks[0])("t0", "?", lambda: 4)
    with RewardSet.make(f"{file}:exact", source=NO_SCORER) as rewards:
        forest = rewards.score(forest_of(["4", "4"]), ["4", "4"], tasks)
    assert forest.outcome.isnan().tolist() == [True, False] and rewards.counts["raised"] == 1


def test_worker_that_dies_between_batches_is_replaced_at_no_cost(file: str) -> None:
    with RewardSet.make(f"{file}:exact", source=NO_SCORER) as rewards:
        assert rewards._workers is not None and rewards._workers._workers[0] is not None
        process = rewards._workers._workers[0].process
        process.kill()
        process.wait()
        assert score(rewards, ["4", "5"]).outcome.tolist() == [1.0, 0.0]
        assert sum(rewards.counts.values()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_killed_while_it_scores_costs_nothing(file: str, workers: int, tmp_path: Path) -> None:
    """Once; an item with which it is killed again is to blame."""
    once = [f"killed 1 {tmp_path}/{i}" for i in range(3)]
    texts = ["good", once[0], once[1], "good", f"killed 9 {tmp_path}/always", once[2], "good"]
    with RewardSet.make(f"{file}:wild", source=NO_SCORER, workers=workers) as rewards:
        outcome = score(rewards, texts).outcome.tolist()
    assert [i for i, x in enumerate(outcome) if x != 0.5] == [4] and math.isnan(outcome[4])
    assert rewards.counts["died"] == sum(rewards.counts.values()) == 1
    assert "its process died (signal SIGKILL)" in rewards.messages["died"]
    assert (tmp_path / "always").stat().st_size == 2


def test_worker_killed_while_loading_is_started_once_more(tmp_path: Path) -> None:
    code = """
    import os, signal
    def exact(completion):
        return 0.25
    with open({told!r}, "a") as file:
        file.write("x")
    if os.path.getsize({told!r}) <= {times}:
        os.kill(os.getpid(), signal.SIGKILL)
    """
    for times in (1, 2):
        path = tmp_path / f"loads_{times}.py"
        path.write_text(textwrap.dedent(code.format(told=str(tmp_path / f"told_{times}"), times=times)))
    with RewardSet.make(f"{tmp_path}/loads_1.py:exact", source=NO_SCORER) as rewards:
        assert score(rewards, ["4"]).outcome.tolist() == [0.25]
    with pytest.raises(ConfigError, match=r"loading it: its process died .signal SIGKILL"):
        RewardSet.make(f"{tmp_path}/loads_2.py:exact", source=NO_SCORER)


# ---------------------------------------------------------------- callables
def test_an_importable_callable_goes_to_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "importable_rewards.py").write_text("import os\ndef process(completion): return os.getpid()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import importable_rewards  # type: ignore[import-not-found]  # written above

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rewards = RewardSet.make(importable_rewards.process, source=NO_SCORER)
    with rewards:
        assert score(rewards, ["x"]).outcome.tolist() != [float(os.getpid())]


def test_a_closure_runs_in_process_and_that_is_said() -> None:
    completions: list[str] = []

    def closure(completion: str) -> float:
        completions.append(completion)
        if completion == "bad":
            raise RuntimeError("bad")
        return 1.0

    with pytest.warns(UserWarning, match="closure can't be sent to a worker process"):
        rewards = RewardSet.make(closure, source=NO_SCORER)
    forest = score(rewards, ["a", "bad"])
    assert completions == ["a", "bad"] and rewards.counts["raised"] == 1
    assert forest.outcome[0] == 1.0 and forest.outcome[1].isnan()


def test_what_only_the_running_script_can_import_runs_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner(completion: str) -> float:
        return 1.0

    inner.__module__, inner.__qualname__ = "__main__", "inner"
    monkeypatch.setattr(sys.modules["__main__"], "inner", inner, raising=False)
    with pytest.warns(UserWarning, match="can't be sent"):
        rewards = RewardSet.make(functools.partial(inner), source=NO_SCORER)
    assert score(rewards, ["x"]).outcome.tolist() == [1.0]


# ---------------------------------------------------------------- math-verify
BROKEN_MATH = """
import sys
import math_verify

verify = math_verify.verify

def breaks(gold, found, **rest):
    if str(found[0]) == "13":
        raise RuntimeError("a bug of the library")
    if str(found[0]) == "17":
        while True:
            pass
    return verify(gold, found, **rest)

math_verify.verify = breaks

def loaded(completion):
    return 1.0
"""


@pytest.mark.slow
def test_math_verify_judges_in_the_worker() -> None:
    right = [r"so \boxed{\frac{2}{4}}", "The answer is 0.5", "$1/2$"]
    wrong = ["2", "no idea", "", r"\boxed{\frac{1}{"]
    with RewardSet.make(None, source=Source(default="math")) as rewards:
        forest = score(rewards, [*right, *wrong], answer=r"\frac{1}{2}")
    assert forest.component_names == ("correct",)
    assert forest.outcome.tolist() == [1.0] * 3 + [0.0] * 4 and sum(rewards.counts.values()) == 0


@pytest.mark.slow
def test_math_check_beyond_limits_is_wrong_and_a_broken_unscored(tmp_path: Path) -> None:
    """Too large, too much processor time, and an error of the library; the worker's library is made to do the last."""
    (tmp_path / "broken.py").write_text(BROKEN_MATH)
    spec = {f"{tmp_path}/broken.py:loaded": 0.0, "math": 1.0}
    with RewardSet.make(spec, source=NO_SCORER, timeout=0.5) as rewards:
        forest = score(rewards, [r"\boxed{9^{9^9}}", "4", "$17$", "4", "$13$", "4"])
    assert forest.outcome[[0, 1, 2, 3, 5]].tolist() == [0.0, 1.0, 0.0, 1.0, 1.0]
    assert forest.success[[0, 2]].tolist() == [0.0, 0.0] and forest.outcome[4].isnan()
    assert rewards.counts == {"raised": 1, "timeout": 0, "died": 0, "nonsense": 0, "limit": 2}
    assert "numbers of more than" in rewards.messages["limit"] and "a bug of the library" in rewards.messages["raised"]


@pytest.mark.slow
def test_an_answer_that_is_no_mathematics_is_unscored_not_0() -> None:
    with RewardSet.make("math", source=NO_SCORER) as rewards:
        assert score(rewards, ["4"], answer=None).outcome.isnan().all()
        assert score(rewards, ["4", "5"], answer=4).outcome.tolist() == [1.0, 0.0]
    assert rewards.counts["raised"] == 1


# ---------------------------------------------------------------- life and death of the processes
@pytest.mark.slow
def test_killed_trainer_in_an_unguarded_script_leaves_no_worker(tmp_path: Path, file: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        from tests.environments.rewards.scored_tasks import Source, forest_of, tasks_of
        from gxpo.environments.rewards import RewardSet

        rewards = RewardSet.make({file + ":wild"!r}, source=Source(default=None), timeout=1000.0)
        print(rewards._workers._workers[0].process.pid, flush=True)
        rewards.score(forest_of(["hang"]), ["hang"], tasks_of(["hang"]))
        """)
    )
    trainer = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    with trainer.stdout:
        worker = int(trainer.stdout.readline())
    os.kill(worker, 0)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    for _ in range(200):
        if not _runs(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker outlived the trainer")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_file_edited_during_a_run_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    path.write_text("import os\ndef f(completion): return 1.0 if completion == 'x' else os._exit(1)\n")
    with RewardSet.make(f"{path}:f", source=NO_SCORER) as rewards:
        path.write_text("def f(completion): return 2.0\n")
        forest = score(rewards, ["x", "die", "x"])
    assert forest.outcome[[0, 2]].tolist() == [1.0, 1.0] and forest.outcome[1].isnan()
