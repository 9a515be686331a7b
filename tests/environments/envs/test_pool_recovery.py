"""Processes that hang or die: one episode pays, the others are where they were."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.environments.envs.small_worlds import after

from gxpo.environments.envs import EnvPool, EnvSource
from gxpo.environments.envs.episodes import InWorker
from gxpo.parts.protocols import EnvFailure, Reply, TimeStep

HERE = "tests.environments.envs.small_worlds"
HANG = 1.5  # seconds; a machine under load must not look like a hang


def pool(kind: str, workers: int, timeout: float = 60.0, **options: object) -> EnvPool:
    return EnvPool(EnvSource.of_module(f"{HERE}:{kind}", options), workers=workers, timeout=timeout)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def process_of(envs: EnvPool, place: int = 0) -> subprocess.Popen[bytes]:
    inside = envs._places[place]
    assert isinstance(inside, InWorker) and inside._worker is not None
    return inside._worker.process


def state(step: object) -> int:
    assert isinstance(step, TimeStep), step
    return int(step.state or -1)


def test_others_of_a_process_that_dies_are_where_they_were() -> None:
    with pool("Wild", 1) as envs:
        envs.reset({"a": 1, "b": 2, "c": 3, "done": 4, "given up": 5})
        envs.step({name: Reply("left") for name in ("a", "b", "c", "done", "given up")})
        envs.step({"a": Reply("up"), "done": Reply("stop")})
        envs.finish(["given up"])
        # a comes before the one that dies, c after it
        steps = envs.step({"a": Reply("x"), "b": Reply("die"), "c": Reply("y")})
        at = {"a": after(after(after(1, "left"), "up"), "x"), "c": after(after(3, "left"), "y")}
        assert steps["b"] == EnvFailure("died", "step: its process died (exit code 3)")
        assert {name: state(steps[name]) for name in at} == at
        steps = envs.step({"a": Reply("z"), "c": Reply("z")})
        assert {name: state(step) for name, step in steps.items()} == {name: after(n, "z") for name, n in at.items()}
        assert envs.counts == {"raised": 0, "nonsense": 0, "timeout": 0, "died": 1, "restored": 2}
        with pytest.raises(ValueError, match="no episode 'b'"):
            envs.step({"b": Reply("go")})


@pytest.mark.slow
def test_every_way_to_hang_or_die_costs_one_episode(tmp_path: Path) -> None:
    deadly = {"sleep": "timeout", "loop": "timeout", "stubborn": "timeout", "child": "timeout", "segfault": "died"}
    with pool("Wild", len(deadly) + 1, timeout=HANG, notes=str(tmp_path)) as envs:
        names = [*deadly, "good"]
        envs.reset(dict.fromkeys(names, 7))
        envs.step({name: Reply("go") for name in names})
        steps = envs.step({name: Reply(name) for name in names})
        assert {name: getattr(steps[name], "kind", "no failure") for name in deadly} == deadly
        assert getattr(steps["segfault"], "message", "") == "step: its process died (signal SIGSEGV)"
        assert getattr(steps["sleep"], "message", "") == "step: took longer than 1.5 s; its process was killed"
        assert state(steps["good"]) == after(after(7, "go"), "good")
        assert envs.counts["timeout"] == 4 and envs.counts["died"] == 1
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not runs(child):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("what an environment had started outlived its process")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_child_that_an_environment_forks_answers_for_nobody(workers: int) -> None:
    with pool("Wild", workers) as envs:
        names = {str(n): n for n in range(40)}
        envs.reset(names)
        for action in ("fork", "fork and exit", "go"):
            envs.step({name: Reply(action if n % 3 == 0 else "left") for name, n in names.items()})
        steps = envs.step({name: Reply("go") for name in names})
        others = [after(after(after(n, "left"), "left"), "left") for n in range(40)]
        forked = [after(after(after(n, "fork"), "fork and exit"), "go") for n in range(40)]
        expected = [after(forked[n] if n % 3 == 0 else others[n], "go") for n in range(40)]
        assert [state(steps[name]) for name in names] == expected
        assert sum(envs.counts.values()) == 0


def test_a_forged_answer_costs_its_episode() -> None:
    with pool("Wild", 1) as envs:
        envs.reset({"a": 1, "b": 2, "c": 3})
        steps = envs.step({"a": Reply("go"), "b": Reply("forge"), "c": Reply("go")})
        assert (state(steps["a"]), state(steps["c"])) == (after(1, "go"), after(3, "go"))
        lost = steps["b"]
        assert isinstance(lost, EnvFailure) and lost.kind == "died" and "step: its process wrote" in lost.message
        assert envs.counts["died"] == 1


@pytest.mark.slow
def test_a_reset_may_hang_or_die_too() -> None:
    with pool("Wild", 2, timeout=HANG) as envs:
        first = envs.reset({"hangs": 1006, "dies": 1005, "good": 3})
        assert [getattr(step, "kind", None) for step in first.values()] == ["timeout", "died", None]
        assert getattr(first["hangs"], "message", "") == "reset: took longer than 1.5 s; its process was killed"
        assert state(envs.step({"good": Reply("go")})["good"]) == after(3, "go")


def test_a_process_that_dies_between_two_calls_is_nobodys_fault() -> None:
    with pool("Wild", 1) as envs:
        envs.reset({"a": 1, "b": 2})
        envs.step({"a": Reply("go")})
        process = process_of(envs)
        process.kill()
        process.wait()
        steps = envs.step({"a": Reply("go"), "b": Reply("go")})
        assert (state(steps["a"]), state(steps["b"])) == (after(after(1, "go"), "go"), after(2, "go"))
        assert envs.counts == {"raised": 0, "nonsense": 0, "timeout": 0, "died": 0, "restored": 2}


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_kill_while_an_episode_acts_costs_nothing(tmp_path: Path, concurrency: int) -> None:
    """Once; an episode in which it is killed again is to blame."""
    source = EnvSource.of_module(f"{HERE}:Wild", {})
    with EnvPool(source, workers=1, timeout=60.0, concurrency=concurrency) as envs:
        envs.reset({"a": 1, "b": 2, "c": 3})
        envs.step({name: Reply("left") for name in "abc"})
        once = Reply(f"killed 1 {tmp_path}/once")
        steps = envs.step({"a": Reply("x"), "b": once, "c": Reply("y")})
        messages = {"a": "x", "b": "go", "c": "y"}
        at = {name: after(after(n, "left"), messages[name]) for name, n in zip("abc", (1, 2, 3), strict=True)}
        assert {name: state(step) for name, step in steps.items()} == at
        assert sum(n for kind, n in envs.counts.items() if kind != "restored") == 0
        assert state(envs.step({"b": Reply(f"killed 1 {tmp_path}/alone")})["b"]) == after(at["b"], "go")
        steps = envs.step({"a": Reply("z"), "b": Reply(f"killed 9 {tmp_path}/always")})
        assert steps["b"] == EnvFailure("died", "step: its process died (signal SIGKILL)")
        assert (tmp_path / "always").stat().st_size in (2, 3)  # 3: a was under way, too, and then b alone
        assert state(steps["a"]) == after(at["a"], "z") and envs.counts["died"] == 1


@pytest.mark.slow
def test_a_kill_during_a_replay_costs_nothing(tmp_path: Path) -> None:
    for concurrency in (1, 8):
        source = EnvSource.of_module(f"{HERE}:Wild", {})
        with EnvPool(source, workers=1, timeout=60.0, concurrency=concurrency) as envs:
            envs.reset({"a": 1, "b": 2, "bad": 3})
            file = tmp_path / str(concurrency)
            envs.step({"a": Reply("left"), "b": Reply(f"killed 0 {file}")})
            # ends in the second telling of b, which is the one that goes through it again
            file.write_text("")
            envs._places[0]._logs["b"].items[-1] = ("step", "b", Reply(f"killed 1 {file}"))
            steps = envs.step({"bad": Reply("die"), "a": Reply("x"), "b": Reply("y")})
            assert state(steps["a"]) == after(after(1, "left"), "x")
            assert state(steps["b"]) == after(after(2, "go"), "y") and envs.counts["died"] == 1


@pytest.mark.slow
def test_closing_in_a_killed_process_is_no_failure() -> None:
    with pool("Closing", 1) as envs:
        envs.reset({"a": 1, "b": 2})
        envs.step({"a": Reply("killed"), "b": Reply("go")})
        envs.finish(["a"])
        assert envs.step({"b": Reply("on")})["b"] == TimeStep("on") and envs.counts["died"] == 0


@pytest.mark.slow
def test_an_episode_that_replays_differently_is_reported_lost() -> None:
    with pool("Flaky", 1) as envs:
        envs.reset({"same": 1, "other": 2, "bad": 3})
        envs.step({"same": Reply("go"), "other": Reply("process"), "bad": Reply("go")})
        assert getattr(envs.step({"bad": Reply("die")})["bad"], "kind", None) == "died"
        steps = envs.step({"same": Reply("go"), "other": Reply("go")})
        assert state(steps["same"]) == after(after(1, "go"), "go")
        lost = steps["other"]
        assert isinstance(lost, EnvFailure) and lost.kind == "died"
        assert "lost with its process" in lost.message and "not deterministic" in lost.message
        assert envs.counts == {"raised": 0, "nonsense": 0, "timeout": 0, "died": 2, "restored": 1}


@pytest.mark.slow
def test_an_episode_that_crashes_in_its_replay_is_lost_alone(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        """
import os
from pathlib import Path
from gxpo import TimeStep

class Mine:
    def __init__(self, mark):
        self.mark = Path(mark)
    def reset(self, seed):
        self.said = str(seed)
        return TimeStep(self.said)
    def step(self, action):
        if action == "die" or action == "once" and self.mark.exists():
            os._exit(9)
        self.said += action
        return TimeStep(self.said)
"""
    )
    source = EnvSource.of_file(f"{file}:Mine", {"mark": str(tmp_path / "mark")})
    with EnvPool(source, workers=1) as envs:
        envs.reset({"a": 1, "once": 2, "bad": 3, "b": 4})
        envs.step({"a": Reply("a"), "once": Reply("once"), "b": Reply("b")})
        (tmp_path / "mark").write_text("")
        steps = envs.step({"bad": Reply("die"), "a": Reply("c"), "once": Reply("c"), "b": Reply("c")})
        assert {name: getattr(step, "observation", "lost") for name, step in steps.items()} == {
            "bad": "lost",
            "a": "1ac",
            "once": "lost",
            "b": "4bc",
        }
        assert "going through it again: step: its process died (exit code 9)" in getattr(steps["once"], "message", "")
        assert envs.counts["died"] == 2 and envs.counts["restored"] == 2


def test_an_episode_begun_from_a_snapshot_is_restored_from_it() -> None:
    with pool("Wild", 1) as envs:
        envs.reset({"a": 1, "bad": 2})
        envs.step({"a": Reply("go")})
        envs.restore({"b": str(after(1, "go"))})
        envs.step({"b": Reply("left")})
        steps = envs.step({"bad": Reply("die"), "a": Reply("go"), "b": Reply("go")})
        assert state(steps["a"]) == after(after(1, "go"), "go")
        assert state(steps["b"]) == after(after(after(1, "go"), "left"), "go")


def test_closing_an_instance_may_end_the_process() -> None:
    with pool("Closing", 1) as envs:
        envs.reset({"a": 1, "b": 2})
        envs.step({"a": Reply("die"), "b": Reply("go")})
        envs.finish(["a"])
        assert envs.counts["died"] == 1 and "close: its process died (exit code 4)" in envs.messages["died"]
        assert envs.step({"b": Reply("on")})["b"] == TimeStep("on")
        assert envs.counts["restored"] == 1


@pytest.mark.slow
def test_a_closed_pool_leaves_no_process_and_may_be_used_again() -> None:
    envs = pool("Counter", 2)
    envs.reset({"a": 1, "b": 2})
    processes = [process_of(envs, place).pid for place in (0, 1)]
    envs.close()
    assert not any(map(runs, processes))
    with pytest.raises(ValueError, match="no episode 'a'"):
        envs.step({"a": Reply("go")})
    assert state(envs.reset({"a": 1})["a"]) == 1
    envs.close()


# ---------------------------------------------------------------- many episodes
def play(envs: EnvPool, plans: dict[str, list[str]], batch: int) -> dict[str, list[object]]:
    """Every episode's steps, `batch` episodes at a time; episodes end as they come."""
    seen_steps: dict[str, list[object]] = {}
    waiting = list(plans)
    under_way: dict[str, int] = {}
    while waiting or under_way:
        fresh, waiting = waiting[: batch - len(under_way)], waiting[batch - len(under_way) :]
        for name, step in envs.reset({name: int(name) for name in fresh}).items():
            seen_steps[name] = [step]
        under_way |= dict.fromkeys(fresh, 0)
        steps = envs.step({name: Reply(plans[name][turn]) for name, turn in under_way.items()})
        for name, step in steps.items():
            seen_steps[name].append(step)
            under_way[name] += 1
            if isinstance(step, EnvFailure) or step.done or under_way[name] == len(plans[name]):
                del under_way[name]
        envs.finish([name for name in steps if name not in under_way])
    return seen_steps


@pytest.mark.slow
def test_results_do_not_depend_on_processes_or_other_episodes() -> None:
    chance = random.Random(0)
    plans = {
        str(seed): [chance.choice(["left", "right", "", "raise", "stop", "none", "go"]) for _ in range(6)]
        for seed in range(60)
    }
    seen_plays = []
    for workers, batch in ((0, 60), (1, 60), (3, 7)):
        with pool("Wild", workers) as envs:
            seen_plays.append((play(envs, plans, batch), envs.counts))
    assert seen_plays[0] == seen_plays[1] == seen_plays[2]


@pytest.mark.slow
def test_five_percent_crashes_and_two_percent_hangs_stay_alone() -> None:
    """200 episodes of 4 turns: every 20th dies, every 50th hangs, in turn 3; they are never the same."""
    names = [str(seed) for seed in range(2000, 2200)]
    fate = {name: "die" if int(name) % 20 == 3 else "sleep" if int(name) % 50 == 7 else "on" for name in names}
    plans = {name: ["left", "right", fate[name], "stop"] for name in names}
    with pool("Wild", 4, timeout=HANG) as envs:
        seen_play = play(envs, plans, batch=200)
        assert envs.counts["died"] == 10 and envs.counts["timeout"] == 4
        assert envs.counts["raised"] == envs.counts["nonsense"] == 0
        assert "step: took longer than 1.5 s" in envs.messages["timeout"]
    with pool("Counter", 0) as calm:
        expected = play(calm, {name: ["left", "right", "on", "stop"] for name in names}, batch=200)
    for name in names:
        if fate[name] == "on":
            assert seen_play[name] == expected[name]
        else:
            assert seen_play[name][:3] == expected[name][:3]
            assert [getattr(step, "kind", None) for step in seen_play[name][3:]] == [
                "died" if fate[name] == "die" else "timeout"
            ]
