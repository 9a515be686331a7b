"""EnvPool: what breaks costs its own episode, and where episodes live changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pytest
from tests.environments.envs.small_worlds import ODD, after

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.base.media import PICTURES
from gxpo.environments.envs import EnvPool, EnvSource
from gxpo.parts.protocols import EnvFailure, Reply, TimeStep, ToolCall

HERE = "tests.environments.envs.small_worlds"
NOTHING = {"raised": 0, "nonsense": 0, "timeout": 0, "died": 0, "restored": 0}


def pool(kind: str, workers: int, timeout: float = 60.0, **options: object) -> EnvPool:
    return EnvPool(EnvSource.of_module(f"{HERE}:{kind}", options), workers=workers, timeout=timeout)


@pytest.fixture(params=[0, 2], ids=["in process", "two workers"], scope="module")
def counters(request: pytest.FixtureRequest) -> Iterator[EnvPool]:
    with pool("Counter", request.param, offset=10) as envs:
        yield envs


@pytest.fixture(params=[0, 1], ids=["in process", "a worker"], scope="module")
def wild(request: pytest.FixtureRequest) -> Iterator[EnvPool]:
    with pool("Wild", request.param) as envs:
        yield envs


def say(actions: Mapping[str, str]) -> dict[str, Reply]:
    return {name: Reply(action) for name, action in actions.items()}


# ---------------------------------------------------------------- what works
def test_what_the_class_says(counters: EnvPool) -> None:
    assert (counters.instructions, counters.max_turns, counters.tools) == ("Say anything, then stop.", 20, ())
    assert counters.provides == ("states", "snapshots", "expert", "legal", "content", "step_rewards")


def test_episodes_are_told_apart_and_only_content_is_given(counters: EnvPool) -> None:
    first = counters.reset({"a": 1, "b": 2, "c": 3})
    assert first["b"] == TimeStep("n=12", "12", info={"even": True})
    steps = counters.step({"c": Reply("go", "what I thought"), "a": Reply("")})
    assert list(steps) == ["c", "a"]
    # 31 * 13 + ord("g") + ord("o") + 1 = 403 + 103 + 111 + 1 = 618; 31 * 11 + 1 = 342
    assert steps["c"] == TimeStep("n=618", "618", 0.5, info={"even": True})
    assert steps["a"] == TimeStep("n=342", "342", 0.5, info={"even": True})
    # 31 * 12 + 115 + 116 + 111 + 112 + 1 = 827
    assert counters.step(say({"b": "stop"}))["b"] == TimeStep("n=827", "827", 0.5, True, False, info={"even": False})
    counters.finish(["a", "b", "c", "never"])


def test_an_action_without_an_episode_is_a_value_error(counters: EnvPool) -> None:
    counters.reset({"over": 1, "finished": 2})
    counters.step(say({"over": "stop"}))
    counters.finish(["finished", "finished"])
    for name in ("over", "finished", "never"):
        with pytest.raises(ValueError, match=f"no episode '{name}' is under way"):
            counters.step(say({name: "go"}))
    with pytest.raises(ValueError, match="a text"):
        counters.reset({"": 1})


def test_a_name_that_begins_again_begins_anew(counters: EnvPool) -> None:
    counters.reset({"a": 1})
    counters.step(say({"a": "go"}))
    assert counters.reset({"a": 1})["a"] == TimeStep("n=11", "11", info={"even": False})
    counters.finish(["a"])


def test_snapshots_go_on_under_any_name(counters: EnvPool) -> None:
    counters.reset({"a": 1})
    counters.step(say({"a": "go"}))
    taken = counters.snapshot(["a"])["a"]
    assert isinstance(taken, str)
    on = counters.step(say({"a": "left"}))["a"]
    assert counters.restore({"b": taken, "c": taken, "a": taken}) == {"b": None, "c": None, "a": None}
    again = counters.step(say({"a": "left", "b": "left", "c": "right"}))
    assert again["a"] == again["b"] == on != again["c"]
    counters.finish(["a", "b", "c"])


def test_what_experts_and_rules_say(counters: EnvPool) -> None:
    counters.reset({"a": 1, "b": 2})  # 11: 31 * 11 + 455 = 796 is even; 12: 827 is not
    assert counters.expert(["b", "a"]) == {"b": "go", "a": "stop"}
    assert counters.legal(["a"]) == {"a": ["go", "stop"]}
    assert counters.contents([3, 1, 2]) == ["starts at 13", "starts at 11", "starts at 12"]
    counters.finish(["a", "b"])


def test_nothing_was_counted(counters: EnvPool) -> None:
    assert counters.counts == NOTHING and counters.messages == {}


def test_what_a_class_does_not_have_is_refused() -> None:
    with pool("Bare", 0) as envs:
        assert envs.provides == () and envs.max_turns == 50
        assert envs.contents([3, 4]) == ["3", "4"]
        envs.reset({"a": 1})
        for ask in (envs.expert, envs.legal, envs.snapshot):
            with pytest.raises(ConfigError, match="provides no"):
                ask(["a"])
        with pytest.raises(ConfigError, match="provides no snapshots"):
            envs.restore({"a": "text"})
        assert envs.step(say({"a": "cut"}))["a"] == TimeStep("cut", done=True, truncated=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_tools_are_called_with_what_was_called(workers: int) -> None:
    with pool("Tools", workers) as envs:
        assert [tool["function"]["name"] for tool in envs.tools] == ["add"]
        envs.reset({"a": 1})
        call = ToolCall("add", {"x": 1}, error="no y")
        step = envs.step({"a": Reply("hm", "thinking", (call,))})["a"]
        assert step == TimeStep(({"role": "tool", "content": "hm: [\"add({'x': 1}, no y)\"]"},))
        assert getattr(envs.step({"a": Reply("end")})["a"], "done", None) is True


@pytest.mark.parametrize("workers", [0, 1])
def test_pictures_are_seen_from_any_process(workers: int) -> None:
    with pool("Screens", workers) as envs:
        first, twin = envs.reset({"a": 7, "b": 7}).values()
        said_step = envs.step({"a": Reply("go")})["a"]
    (message,) = first.observation
    image, text = message["content"]
    assert text == {"type": "text", "text": "n=7"}
    assert PICTURES.pixels(image["image"]).tolist() == [[[7] * 3] * 3] * 2
    assert first == twin != said_step  # 31 * 7 + ord("g") + ord("o") + 1 = 432 = 256 + 176
    assert PICTURES.pixels(said_step.observation[0]["content"][0]["image"]).tolist() == [[[176] * 3] * 3] * 2


def test_pictures_are_played_again_where_a_process_was_killed() -> None:
    with pool("Screens", 1) as envs:
        envs.reset({"a": 1, "b": 2})
        os.kill(envs._places[0]._worker.worker, 9)  # type: ignore[union-attr]
        text = envs.step({"a": Reply("go")})["a"]
        assert envs.counts["restored"] == 2 and text.observation[0]["content"][1]["text"] == "n=246"


def test_gxpos_own_worlds_stay_and_others_leave_the_process() -> None:
    trusted = EnvSource.of_module(f"{HERE}:Wild", trusted=True)
    for source, is_here in ((trusted, True), (EnvSource.of_module(f"{HERE}:Wild"), False)):
        with EnvPool(source) as envs:
            envs.reset({"a": 1})
            step = envs.step(say({"a": "where"}))["a"]
            assert isinstance(step, TimeStep)
            assert (step.observation == str(os.getpid())) is is_here
            if not is_here:
                assert step.info["torch"] is False


# ---------------------------------------------------------------- what breaks
RAISED = {
    "raise": r"step: ValueError: no such action (small_worlds.py line ",
    "exit": "step: SystemExit: bye",
    "deep": "step: RecursionError",
}


@pytest.mark.parametrize("action", [*RAISED, *ODD])
def test_what_an_episode_does_wrong_costs_that_episode(wild: EnvPool, action: str) -> None:
    kind = "raised" if action in RAISED else "nonsense"
    before = dict(wild.counts)
    wild.reset({"good": 5, "bad": 6, "other": 7})
    steps = wild.step(say({"good": "go", "bad": action, "other": "go"}))
    failure = steps["bad"]
    assert isinstance(failure, EnvFailure) and failure.kind == kind
    assert failure.message.startswith(RAISED.get(action, "step: ")) and "\n" not in failure.message
    assert [getattr(steps[name], "state", None) for name in ("good", "other")] == [str(after(n, "go")) for n in (5, 7)]
    assert wild.counts == {**before, kind: before[kind] + 1}
    with pytest.raises(ValueError, match="no episode 'bad'"):
        wild.step(say({"bad": "go"}))
    wild.finish(["good", "bad", "other"])


def test_what_goes_wrong_in_reset(wild: EnvPool) -> None:
    first = wild.reset({"a": 1001, "b": 1002, "c": 1003, "d": 1004, "e": 4})
    kinds = [step.kind if isinstance(step, EnvFailure) else step.state for step in first.values()]
    assert kinds == ["raised", "nonsense", "nonsense", "nonsense", "4"]
    assert "KeyError: 'no such instance'" in getattr(first["a"], "message", "")
    wild.finish(["e"])


@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_message_of_each_kind_is_kept(workers: int) -> None:
    with pool("Wild", workers) as envs:
        envs.reset({"bad": 5, "next": 6, "odd": 7})
        envs.step(say({"bad": "raise"}))
        envs.step(say({"next": "exit", "odd": next(iter(ODD))}))
        assert set(envs.messages) == {"raised", "nonsense"}
        assert envs.messages["raised"].startswith(f"environment {HERE}:Wild: {RAISED['raise']}")
        assert envs.messages["raised"].endswith("(episode bad)")


def test_what_is_printed_is_no_answer(wild: EnvPool) -> None:
    wild.reset({"a": 1})
    step = wild.step(say({"a": "print"}))["a"]
    assert step == TimeStep(
        f"n={after(1, 'print')}", str(after(1, "print")), 0.5, info={"even": after(1, "print") % 2 == 0}
    )
    wild.finish(["a"])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_snapshot_that_is_none_costs_the_episode(workers: int) -> None:
    with pool("Counter", workers) as envs:
        envs.reset({"a": 1})
        restored = envs.restore({"a": "no number", "b": "3"})
        assert getattr(restored["a"], "kind", None) == "raised" and restored["b"] is None
        assert getattr(envs.step(say({"b": "go"}))["b"], "state", None) == str(after(3, "go"))


@pytest.mark.parametrize("workers", [0, 1])
def test_contents_that_fail_are_an_error(workers: int) -> None:
    with pool("Counter", workers) as envs, pytest.raises(GxpoError, match="seed None: content: TypeError"):
        envs.contents([1, None])  # type: ignore[list-item]  # a seed for which it raises


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_failure_to_close_is_counted_and_costs_no_episode(workers: int) -> None:
    with pool("Closing", workers) as envs:
        envs.reset({"a": 1, "b": 2})
        assert envs.step(say({"a": "raise"}))["a"] == TimeStep("raise", done=True)
        assert envs.step(say({"b": "go"}))["b"] == TimeStep("go")
        assert envs.counts == {**NOTHING, "raised": 1}
        assert "close: OSError: can't close" in envs.messages["raised"]
