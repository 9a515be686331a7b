"""Instances of one environment class by episode: run operations, report results or errors as JSON."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.base.usercode import Unusable, described, from_file, hint, one_line, unusable
from gxpo.environments.envs.checked import Nonsense, check_step, check_text, check_texts, check_whole, to_json
from gxpo.environments.envs.joint import Joint, is_joint
from gxpo.parts.protocols import Reply, TimeStep

PROBED = (0, 1, 2)  # seeds to try before an environment counts as broken
PROBE = ""  # name of the episode that is played before any other


class Host:
    """Instances of one environment class, by episode.

    source  {"module" or "file" with "folder" and "code"; "name"; "options"}

    Raises `Unusable` if the class is not an environment or its first step does not work. That step also warms up: it
    imports and caches what the environment is slow to get, before any time limit runs.
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.episodes: dict[str, Any] = {}
        try:
            kind, options = _class_of(source), dict(source["options"])
            _check_options(kind, options)
            make = lambda: kind(**options)  # noqa: E731
            self.make: Callable[[], Any] = (lambda: Joint(make())) if is_joint(kind) else make
            self._reader = self.make()  # for contents only, never acted in
            self.about = _about(self._reader)
            self.about["provides"] = sorted(self._provides())
            to_json(self.about)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise _unusable(error, "loading") from error

    def run(self, operation: str, episode: str, payload: Any) -> str:
        """Run an operation; gives JSON ["ok", value], or ["raised" or "nonsense", message], which ends the episode.

        reset     seed -> fields of a TimeStep         restore   snapshot -> None
        step      Reply -> fields of a TimeStep        snapshot  None -> text
        expert    None -> text or None                 legal     None -> texts
        content   seed -> text; of no episode          answer    seed -> text or None; of no episode
        level     seed -> whole number; of no episode
        close     None -> None; closes the instance

        A child that an environment has forked, and that returns from it as its parent does, ends here.
        """
        process = os.getpid()
        # BaseException: an environment that calls sys.exit() costs its episode, not the worker
        try:
            return to_json(["ok", getattr(self, f"_{operation}")(episode, payload)])
        except KeyboardInterrupt:
            raise
        except Nonsense as error:
            failure = ["nonsense", one_line(f"{operation}: {error}")]
        except BaseException as error:
            failure = ["raised", f"{operation}: {described(error)}"]
        finally:
            # the child of a fork would go on to answer in its parent's place
            if os.getpid() != process:
                os._exit(0)
        # after an error its state is anybody's guess
        self.episodes.pop(episode, None)
        return to_json(failure)

    def _reset(self, episode: str, seed: int) -> dict[str, Any]:
        env = self.make()
        self.episodes[episode] = env
        return check_step(await_result(env.reset(seed)), first=True)

    def _step(self, episode: str, reply: Reply) -> dict[str, Any]:
        env = self.episodes[episode]
        answer = env.call(reply.content, reply.calls) if self.about["tools"] else env.step(reply.content)
        return check_step(await_result(answer))

    def _expert(self, episode: str, _: None) -> str | None:
        action = self.episodes[episode].expert()
        return None if action is None else check_text("what the expert does", action)

    def _legal(self, episode: str, _: None) -> list[str]:
        return check_texts("what is legal", self.episodes[episode].legal())

    def _snapshot(self, episode: str, _: None) -> str:
        return check_text("the snapshot", self.episodes[episode].snapshot())

    def _restore(self, episode: str, snapshot: str) -> None:
        env: Any = self.make()
        self.episodes[episode] = env
        env.restore(snapshot)

    def _content(self, _: str, seed: int) -> str:
        return check_text("the content", self._reader.content(seed))

    def _answer(self, _: str, seed: int) -> str | None:
        answer = self._reader.answer(seed)
        return None if answer is None else check_text("the answer", answer)

    def _level(self, _: str, seed: int) -> int:
        return check_whole("the level", self._reader.level(seed))

    def _close(self, episode: str, _: None) -> None:
        env = self.episodes.pop(episode, None)
        if _has_method(env, "close"):
            await_result(env.close())

    def _provides(self) -> set[str]:
        """Optional features, from the methods of the class, its declaration, and the results of a first step."""
        features = set(_names_of(getattr(self._reader, "provides", ())))
        features |= {
            name for name in ("expert", "legal", "content", "answer", "level") if _has_method(self._reader, name)
        }
        if isinstance(self._reader, Joint):
            features.add("agents")
        if _has_method(self._reader, "snapshot") and _has_method(self._reader, "restore"):
            features.add("snapshots")
        if self._first().state is not None:
            features.add("states")
        # not declared: found out by acting once
        if "step_rewards" not in features and self._pays():
            features.add("step_rewards")
        self.run("close", PROBE, None)
        return features

    def _first(self) -> TimeStep:
        """First step of the first probed seed whose `reset` works; raises the error of the first seed otherwise."""
        failure: Unusable | None = None
        for seed in PROBED:
            try:
                env = self.make()
                step = await_result(env.reset(seed))
                check_step(step, first=True)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                failure = failure or _unusable(error, f"resetting it with seed {seed}")
            else:
                self.episodes[PROBE] = env
                return step
        assert failure is not None
        raise failure

    def _pays(self) -> bool:
        """True if a first action is rewarded: the expert's, else a legal one, else an empty text."""
        env = self.episodes[PROBE]
        try:
            action = env.expert() if _has_method(env, "expert") else env.legal()[0] if _has_method(env, "legal") else ""
            return self._step(PROBE, Reply(action or ""))["reward"] is not None
        except KeyboardInterrupt:
            raise
        except BaseException:  # it costs the episodes in which it happens, not the run
            return False


def _unusable(error: BaseException, doing: str) -> Unusable:
    """Error for an environment that can't be used; messages of gxpo's own errors are kept."""
    if isinstance(error, Nonsense):
        return Unusable(one_line(f"{doing}: {error}"))
    return Unusable(one_line(str(error))) if isinstance(error, GxpoError) else unusable(error, doing)


def await_result(value: Any) -> Any:
    """Await an environment's result if it is a coroutine, on the loop that all coroutines of the process share, so that
    connections they hold open stay usable; any other result is returned unchanged."""
    return asyncio.run_coroutine_threadsafe(value, _loop()).result() if inspect.iscoroutine(value) else value


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gxpo-envs", daemon=True).start()
    return loop


def _has_method(env: Any, method: str) -> bool:
    return callable(getattr(env, method, None))


def _class_of(source: Mapping[str, Any]) -> type:
    # a user's file runs from the code that was read when the run began, not from the disk
    if "file" in source:
        return from_file(source, type, "gxpo_env_file")
    target: Any = importlib.import_module(source["module"])
    for part in source["name"].split("."):
        if not hasattr(target, part):
            class_names = [name for name, value in vars(target).items() if isinstance(value, type)]
            raise Unusable(f"{source['module']} has no class {source['name']!r}{hint(part, class_names)}")
        target = getattr(target, part)
    if not isinstance(target, type):
        raise Unusable(f"{source['name']!r} of {source['module']} is a {type(target).__name__}, not a class")
    return target


def _check_options(kind: type, options: Mapping[str, Any]) -> None:
    """Raise `Unusable` for options that the constructor does not have, and for missing ones."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):  # a constructor in C: it says itself what it does not know
        return
    parameter_by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for name in options:
        if name not in parameter_by_name and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            suggestion = hint(name, parameter_by_name) or f"; it has {', '.join(parameter_by_name) or 'none'}"
            raise Unusable(f"{kind.__name__} has no option {name!r}{suggestion}")
    for name, p in parameter_by_name.items():
        if p.default is p.empty and name not in options:
            raise Unusable(f"{kind.__name__} needs the option {name!r}")


def _about(env: Any) -> dict[str, Any]:
    """Attributes of an environment for the pool; `Unusable` if a method is missing or an attribute has a wrong type."""
    # a user's class needs no base: what it leaves out has a default here
    kind = type(env).__name__
    instructions, max_turns = getattr(env, "instructions", ""), getattr(env, "max_turns", 50)
    tools = getattr(env, "tools", ())
    if not isinstance(instructions, str):
        raise Unusable(f"{kind}.instructions is a {type(instructions).__name__}, not a text")
    if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
        raise Unusable(f"{kind}.max_turns is {max_turns!r}, not a whole number above 0")
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise Unusable(f"{kind}.tools is not a list of schemas in OpenAI's function format")
    for method in ("reset", "call" if tools else "step"):
        if not _has_method(env, method):
            protocol = (
                "with tools has reset(seed) and call(content, calls)" if tools else "has reset(seed), step(action)"
            )
            raise Unusable(f"{kind} has no method {method!r}; an environment {protocol}")
    acting = getattr(env, "call" if tools else "step")
    return {
        "instructions": instructions,
        "max_turns": max_turns,
        "tools": [dict(tool) for tool in tools],
        "blocking": bool(getattr(env, "blocking", False)) or inspect.iscoroutinefunction(acting),
    }


def _names_of(value: object) -> list[str]:
    """Features that an environment declares in `provides`, in addition to those that are found by looking."""
    features = ("states", "snapshots", "expert", "legal", "content", "step_rewards")
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(x in features for x in value):
        raise Unusable(f"provides is {value!r}, not a list out of {', '.join(features)}")
    return list(value)
