"""Episodes of one environment class, in any process: runs operations and reports results or errors."""

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
from gxpo.environments.envs.checked import Nonsense, checked, checked_text, checked_texts, checked_whole, to_json
from gxpo.parts.protocols import Reply, TimeStep

PROBED = (0, 1, 2)  # seeds that are tried before an environment counts as broken
PROBE = ""  # name of the episode that is played before any other


class Host:
    """Instances of one environment class, by episode.

    source  {"module" or "file" with "folder" and "code"; "name"; "options"}

    Raises `Unusable` where the class is not an environment or its first step does not work. That step is a rehearsal
    too: it imports and caches what the environment is slow to get, before any clock runs.
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.episodes: dict[str, Any] = {}
        try:
            kind, options = _class_of(source), dict(source["options"])
            _check_options(kind, options)
            self.make: Callable[[], Any] = lambda: kind(**options)
            self._reader = self.make()  # for contents only, never acted in
            self.about = _about(self._reader)
            self.about["provides"] = sorted(self._provides())
            to_json(self.about)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise _refused(error, "loading") from error

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
        own = os.getpid()
        try:
            return to_json(["ok", getattr(self, f"_{operation}")(episode, payload)])
        except KeyboardInterrupt:
            raise
        except Nonsense as error:
            failure = ["nonsense", one_line(f"{operation}: {error}")]
        except BaseException as error:
            failure = ["raised", f"{operation}: {described(error)}"]
        finally:
            if os.getpid() != own:
                os._exit(0)
        self.episodes.pop(episode, None)
        return to_json(failure)

    def _reset(self, episode: str, seed: int) -> dict[str, Any]:
        env = self.make()
        self.episodes[episode] = env
        return checked(settled(env.reset(seed)), first=True)

    def _step(self, episode: str, reply: Reply) -> dict[str, Any]:
        env = self.episodes[episode]
        answer = env.call(reply.content, reply.calls) if self.about["tools"] else env.step(reply.content)
        return checked(settled(answer))

    def _expert(self, episode: str, _: None) -> str | None:
        action = self.episodes[episode].expert()
        return None if action is None else checked_text("what the expert does", action)

    def _legal(self, episode: str, _: None) -> list[str]:
        return checked_texts("what is legal", self.episodes[episode].legal())

    def _snapshot(self, episode: str, _: None) -> str:
        return checked_text("the snapshot", self.episodes[episode].snapshot())

    def _restore(self, episode: str, snapshot: str) -> None:
        env: Any = self.make()
        self.episodes[episode] = env
        env.restore(snapshot)

    def _content(self, _: str, seed: int) -> str:
        return checked_text("the content", self._reader.content(seed))

    def _answer(self, _: str, seed: int) -> str | None:
        answer = self._reader.answer(seed)
        return None if answer is None else checked_text("the answer", answer)

    def _level(self, _: str, seed: int) -> int:
        return checked_whole("the level", self._reader.level(seed))

    def _close(self, episode: str, _: None) -> None:
        env = self.episodes.pop(episode, None)
        if _has(env, "close"):
            settled(env.close())

    def _provides(self) -> set[str]:
        """Optional features: methods of the class, its own declaration, and the results of a first step."""
        found = set(_declared(getattr(self._reader, "provides", ())))
        found |= {name for name in ("expert", "legal", "content", "answer", "level") if _has(self._reader, name)}
        if _has(self._reader, "snapshot") and _has(self._reader, "restore"):
            found.add("snapshots")
        if self._first().state is not None:
            found.add("states")
        if "step_rewards" not in found and self._pays():
            found.add("step_rewards")
        self.run("close", PROBE, None)
        return found

    def _first(self) -> TimeStep:
        """What `reset` returns for the first seed for which it works."""
        failure: Unusable | None = None
        for seed in PROBED:
            try:
                env = self.make()
                step = settled(env.reset(seed))
                checked(step, first=True)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                failure = failure or _refused(error, f"resetting it with seed {seed}")
            else:
                self.episodes[PROBE] = env
                return step
        assert failure is not None
        raise failure

    def _pays(self) -> bool:
        """Whether a first action is rewarded: the expert's, or a legal one, if there is one."""
        env = self.episodes[PROBE]
        try:
            action = env.expert() if _has(env, "expert") else env.legal()[0] if _has(env, "legal") else ""
            return self._step(PROBE, Reply(action or ""))["reward"] is not None
        except KeyboardInterrupt:
            raise
        except BaseException:  # it costs the episodes in which it happens, not the run
            return False


def _refused(error: BaseException, doing: str) -> Unusable:
    """Why an environment can't be used; gxpo's own errors are passed on as they are."""
    if isinstance(error, Nonsense):
        return Unusable(one_line(f"{doing}: {error}"))
    return Unusable(one_line(str(error))) if isinstance(error, GxpoError) else unusable(error, doing)


def settled(value: Any) -> Any:
    """What an environment returned; of a coroutine what it gives, run on the loop that all coroutines of the process
    share, so that what they hold open stays usable."""
    return asyncio.run_coroutine_threadsafe(value, _loop()).result() if inspect.iscoroutine(value) else value


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gxpo-envs", daemon=True).start()
    return loop


def _has(env: Any, method: str) -> bool:
    return callable(getattr(env, method, None))


def _class_of(source: Mapping[str, Any]) -> type:
    if "file" in source:
        return from_file(source, type, "gxpo_env_file")
    found: Any = importlib.import_module(source["module"])
    for part in source["name"].split("."):
        if not hasattr(found, part):
            own = [name for name, value in vars(found).items() if isinstance(value, type)]
            raise Unusable(f"{source['module']} has no class {source['name']!r}{hint(part, own)}")
        found = getattr(found, part)
    if not isinstance(found, type):
        raise Unusable(f"{source['name']!r} of {source['module']} is a {type(found).__name__}, not a class")
    return found


def _check_options(kind: type, options: Mapping[str, Any]) -> None:
    """Raise an error for options that the constructor does not have, and for missing ones."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):  # a constructor in C: it says itself what it does not know
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for name in options:
        if name not in named and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            there = f"; it has {', '.join(named) or 'none'}"
            raise Unusable(f"{kind.__name__} has no option {name!r}{hint(name, named) or there}")
    for name, p in named.items():
        if p.default is p.empty and name not in options:
            raise Unusable(f"{kind.__name__} needs the option {name!r}")


def _about(env: Any) -> dict[str, Any]:
    """Attributes of an environment; `Unusable` if it is none."""
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
        if not _has(env, method):
            wanted = "with tools has reset(seed) and call(content, calls)" if tools else "has reset(seed), step(action)"
            raise Unusable(f"{kind} has no method {method!r}; an environment {wanted}")
    acting = getattr(env, "call" if tools else "step")
    return {
        "instructions": instructions,
        "max_turns": max_turns,
        "tools": [dict(tool) for tool in tools],
        "blocking": bool(getattr(env, "blocking", False)) or inspect.iscoroutinefunction(acting),
    }


def _declared(value: object) -> list[str]:
    """Features that an environment declares, in addition to visible ones."""
    known = ("states", "snapshots", "expert", "legal", "content", "step_rewards")
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(x in known for x in value):
        raise Unusable(f"provides is {value!r}, not a list out of {', '.join(known)}")
    return list(value)
