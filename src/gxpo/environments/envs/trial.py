"""Check an environment before training: play it, replay it in another process, and report what differs."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gxpo.environments.envs.pool import FAILURES, EnvPool
from gxpo.environments.envs.sources import EnvSource
from gxpo.parts.protocols import EnvFailure, Reply, TimeStep


@dataclass(frozen=True)
class Check:
    """Results of checking an environment.

    problems  faults and doubts to look at before training, a line each
    contents  different instances among the seeds played
    states    different (seed, state id); 0 where it gives no ids
    success   share of the expert's episodes that succeed; None without an expert
    reset_seconds, step_seconds  mean wall time in a worker process
    """

    name: str
    provides: tuple[str, ...]
    episodes: int
    turns: int
    contents: int
    states: int
    success: float | None
    reset_seconds: float
    step_seconds: float
    problems: tuple[str, ...]


@dataclass
class _Episode:
    """Actions and results of one episode."""

    seed: int
    expert: bool
    chance: random.Random
    actions: list[str] = field(default_factory=list)
    steps: list[TimeStep | EnvFailure] = field(default_factory=list)  # one more than actions

    @property
    def over(self) -> bool:
        """True if the episode has ended or failed."""
        last = self.steps[-1]
        return isinstance(last, EnvFailure) or last.done

    @property
    def places(self) -> list[tuple[int, str]]:
        """(seed, state id) of each state in which an action was taken."""
        time_steps = [step for step in self.steps if isinstance(step, TimeStep)]
        return [(self.seed, s.state) for s in time_steps[: len(self.actions)] if s.state is not None]


def check(source: EnvSource, *, seeds: Sequence[int] = range(8), max_turns: int = 50, timeout: float = 5.0) -> Check:
    """Play each seed twice, at random and by the expert if there is one; then replay all episodes in another process.

    Random actions are legal ones if the environment lists them, else an empty text.
    Raises `ConfigError` if the class can't be used at all.
    """
    # without an expert the second episode is random as well, with other actions
    with EnvPool(source, workers=1, timeout=timeout) as envs:
        has_expert = "expert" in envs.provides
        episodes = {f"random {seed}": _Episode(seed, False, random.Random(2 * seed)) for seed in seeds}
        episodes |= {f"second {seed}": _Episode(seed, has_expert, random.Random(2 * seed + 1)) for seed in seeds}
        reset_seconds, step_seconds = _play(envs, episodes, max_turns)
        contents = len(set(envs.contents(list(seeds))))
        failures = [
            f"{envs.counts[kind]} failures, first: {envs.messages[kind]}" for kind in FAILURES if envs.counts[kind]
        ]
    # another process hashes texts differently: a result that depends on the order of a set changes
    with EnvPool(source, workers=1, timeout=timeout) as elsewhere:
        differences = _play_again(elsewhere, episodes, from_snapshot=False)
        # a snapshot of an environment that is not deterministic would be blamed for that
        if "snapshots" in envs.provides and not differences:
            differences = _play_again(elsewhere, episodes, from_snapshot=True)
    turns = sum(len(e.actions) for e in episodes.values())
    return Check(
        name=source.name,
        provides=envs.provides,
        episodes=len(episodes),
        turns=turns,
        contents=contents,
        states=len({place for e in episodes.values() for place in e.places}),
        success=_success([e for e in episodes.values() if e.expert]),
        reset_seconds=reset_seconds / max(len(episodes), 1),
        step_seconds=step_seconds / max(turns, 1),
        problems=(*failures, *differences, *_warnings(list(episodes.values()))),
    )


def _play(envs: EnvPool, episodes: Mapping[str, _Episode], max_turns: int) -> tuple[float, float]:
    """Play all episodes; return the seconds of resets and of steps."""
    begin = time.perf_counter()
    for name, step in envs.reset({name: e.seed for name, e in episodes.items()}).items():
        episodes[name].steps.append(step)
    resets, steps = time.perf_counter() - begin, 0.0
    for _ in range(min(max_turns, envs.max_turns)):
        actions = _choose(envs, {name: e for name, e in episodes.items() if not e.over})
        begin = time.perf_counter()
        for name, step in envs.step({name: Reply(action) for name, action in actions.items()}).items():
            episodes[name].actions.append(actions[name])
            episodes[name].steps.append(step)
        steps += time.perf_counter() - begin
    return resets, steps


def _choose(envs: EnvPool, open_episodes: Mapping[str, _Episode]) -> dict[str, str]:
    """Next action of each episode; a failure while choosing becomes the episode's last step."""
    expert_actions = (
        envs.expert([name for name, e in open_episodes.items() if e.expert]) if "expert" in envs.provides else {}
    )
    others = [name for name, e in open_episodes.items() if not e.expert]
    legal_actions = envs.legal(others) if "legal" in envs.provides else dict.fromkeys(others)
    actions = {}
    for name, choice in {**expert_actions, **legal_actions}.items():
        if isinstance(choice, EnvFailure):
            open_episodes[name].steps.append(choice)
        # without legal actions the episode still has to act: an empty text is always an action
        elif isinstance(choice, list):
            actions[name] = open_episodes[name].chance.choice(choice) if choice else ""
        else:
            actions[name] = choice or ""
    return actions


def _play_again(envs: EnvPool, episodes: Mapping[str, _Episode], *, from_snapshot: bool) -> list[str]:
    """Replay episodes; a line for each that differs with the same seed and actions.

    interrupted  halfway, each episode continues in a new instance from a snapshot
    """
    fault = "a snapshot does not hold the whole state" if from_snapshot else "not deterministic"
    step_by_name: dict[str, TimeStep | EnvFailure] = envs.reset({name: e.seed for name, e in episodes.items()})
    differences = []
    for turn in range(1 + max((len(e.actions) for e in episodes.values()), default=0)):
        differing_fields = {name: _differ(episodes[name].steps[turn], step) for name, step in step_by_name.items()}
        differences += [
            f"{fault}: {name}, turn {turn}: other {differ}" for name, differ in differing_fields.items() if differ
        ]
        # one difference is enough: what follows from it differs as well
        envs.finish([name for name, differ in differing_fields.items() if differ])
        open_names = [
            name for name, differ in differing_fields.items() if not differ and turn < len(episodes[name].actions)
        ]
        if from_snapshot:
            failures = _restore(envs, [name for name in open_names if turn == len(episodes[name].actions) // 2])
            differences += [f"{fault}: {name}, turn {turn}: {failure}" for name, failure in failures.items()]
            open_names = [name for name in open_names if name not in failures]
        step_by_name = envs.step({name: Reply(episodes[name].actions[turn]) for name in open_names})
    return differences


def _restore(envs: EnvPool, names: Sequence[str]) -> dict[str, str]:
    """Restore each episode in a new instance; return the messages of failures by episode."""
    texts = envs.snapshot(names)
    failures = {name: text.message for name, text in texts.items() if isinstance(text, EnvFailure)}
    result_by_name = envs.restore({name: text for name, text in texts.items() if isinstance(text, str)})
    return failures | {name: failure.message for name, failure in result_by_name.items() if failure is not None}


def _differ(first: TimeStep | EnvFailure, second: TimeStep | EnvFailure) -> str:
    """Names of the fields that differ, or kinds of failures; messages of failures are not compared."""
    if isinstance(first, EnvFailure) or isinstance(second, EnvFailure):
        kinds = [step.kind if isinstance(step, EnvFailure) else "no failure" for step in (first, second)]
        return "" if kinds[0] == kinds[1] else " and ".join(kinds)
    return ", ".join(name for name in vars(first) if getattr(first, name) != getattr(second, name))


def _success(episodes: Sequence[_Episode]) -> float | None:
    is_won = [isinstance(e.steps[-1], TimeStep) and e.steps[-1].success is True for e in episodes]
    return sum(is_won) / len(is_won) if is_won else None


def _warnings(episodes: Sequence[_Episode]) -> list[str]:
    """Warnings about properties that some methods can't work with."""
    places = [place for e in episodes for place in e.places]
    ends = [e.steps[-1] for e in episodes if e.over]
    silent = sum(isinstance(step, TimeStep) and step.success is None and not step.truncated for step in ends)
    warnings = []
    # methods that imitate an expert would learn to fail
    by_expert = [e for e in episodes if e.expert]
    if by_expert and _success(by_expert) == 0:
        warnings.append(
            f"its expert solved none of {len(by_expert)} episodes: methods that need one learn nothing from it, so "
            "mend expert(), or leave it out"
        )
    if places and len(set(places)) == len(places):
        warnings.append(
            "no state id was met twice, not even at the start: make it an id of the state, not of the moment"
        )
    if silent:
        warnings.append(f"{silent} episodes ended without a verdict: set success, which filters and evaluation read")
    return warnings
