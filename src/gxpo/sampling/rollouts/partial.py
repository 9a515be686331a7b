"""Partial rollouts (T-PPO): attempts are sampled a window a step; unfinished ones go on in the next step."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import TaskError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Sampling, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Episode
from gxpo.sampling.rollouts.build import Count, RolloutPart, name_draws
from gxpo.sampling.rollouts.episodes import Play

Json = dict[str, Any]
_REASON = "goes on under the whole vocabulary"
UNTRUNCATED = {"sampling.top_k": ((0,), _REASON), "sampling.top_p": ((1.0,), _REASON)}


@part("partial_rollouts", stage="rollout")
@dataclass(frozen=True)
class PartialRollouts(RolloutPart):
    """`group_size` attempts at each task, a window of tokens a step; unfinished ones go on in later steps.

    windows  number of windows in `sampling.max_new_tokens`, each of their quotient, rounded up

    A step's forest has every attempt that was sampled in it, each whole: a window is a turn (with nothing observed
    before it), so each has its own policy version, and `weighting.NewestVersion` tells this step's tokens from those
    that earlier steps have trained. An attempt that is not over has `truncated`, the outcome 0 and no verdict; it is
    scored in the step in which it ends. One that the limit on tokens has ended is over: `truncated` is false, its last
    turn's finish is "length". The groups of a step may lack members, so this is for credit that compares none.

    Deviation: T-PPO keeps the batch full by starting as many prompts as have finished; here each step starts the
    run's number of tasks beside the unfinished attempts. In an environment a window is a share of `env.max_turns`, and
    earlier actions are carried out again, not sampled. Truncated supports (top_k, top_p) are refused.
    """

    group_size: Count = 8
    windows: Count = 2
    memory: list[Json] = field(init=False, repr=False, compare=False, default_factory=list)

    provides = ("states",)
    allows = UNTRUNCATED

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        # tasks of unfinished attempts are not drawn in this step, but their attempts may be scored in it
        session.know([_task(a["task"]) for a in self.memory])
        if session.envs is not None:
            return self._episodes(tasks, session)
        attempts = [*self.memory, *self._begin(tasks, session)]
        self._sample(attempts, session)
        self.memory[:] = [a for a in attempts if not a["over"]]
        # records hold lists of their own: what a later window appends to an attempt is no part of this step's forest
        return Forest.from_records([_record(a, session.sampling) for a in attempts])

    def _episodes(self, tasks: Sequence[Task], session: Session) -> Forest:
        """Bring unfinished episodes back by their actions, begin new ones, and play all for a window of turns."""
        with Play(session) as play:
            # bring the unfinished episodes back, under the names and groups of the step in which they were born
            entries_in_memory = list(self.memory)
            groups = [f"s{a['born']}/{a['draw']}" for a in entries_in_memory]
            entries = zip(entries_in_memory, groups, strict=True)
            resumed_episodes = play.begin(
                Attempts(_task(a["task"]), a["draw"], [a["attempt"]], group, group) for a, group in entries
            )
            for number in range(max((len(a["turns"]) for a in entries_in_memory), default=0)):
                past_actions = [
                    (e, Completion(t["action"], t["logprob"], t["finish"], policy_version=t["policy_version"]))
                    for e, a in zip(resumed_episodes, entries_in_memory, strict=True)
                    for t in a["turns"][number : number + 1]
                    if e.end is None
                ]
                play.take([e for e, _ in past_actions], [completion for _, completion in past_actions])
            # from here on their streams carry the step of birth, which new attempts of the same draw do not have
            for episode, attempt in zip(resumed_episodes, entries_in_memory, strict=True):
                episode.label, episode.key = episode.id, dataclasses.replace(episode.key, path=(attempt["born"],))
            episodes = resumed_episodes + play.begin([draw.attempts(self.group_size) for draw in play.draws(tasks)])
            for _ in range(-(-play.rules.max_turns // self.windows)):
                play.turn(play.active(episodes))
            self.memory[:] = [_entry_of(e, session.step) for e in episodes if e.end is None]
            lines = [e.record(dataclasses.asdict(session.sampling)) for e in episodes]
            # an unfinished episode is in this step's forest with its turns so far, outcome 0 and no verdict
            unfinished_columns = {"reward": 0.0, "rewards": {"env": 0.0}, "success": None, "truncated": True}
            return Forest.from_records(
                [line | unfinished_columns if e.end is None else line for e, line in zip(episodes, lines, strict=True)]
            )

    def _begin(self, tasks: Sequence[Task], session: Session) -> list[Json]:
        draws = name_draws(tasks, Counter())
        return [
            {
                "task": _task_to_json(task),
                "draw": draw,
                "born": session.step,
                "attempt": i,
                "prompt": list(session.encode(task)),
                "turns": [],
                "over": False,
            }
            for task, draw in zip(tasks, draws, strict=True)
            for i in range(self.group_size)
        ]

    def _sample(self, attempts: Sequence[Json], session: Session) -> None:
        """Sample one more window of each attempt."""
        limit = session.sampling.max_new_tokens
        window = -(-limit // self.windows)
        rooms = [min(window, limit - sum(len(t["action"]) for t in a["turns"])) for a in attempts]
        # the last window of an attempt may be shorter: one call for each size
        for size in sorted(set(rooms)):
            batch = [a for a, r in zip(attempts, rooms, strict=True) if r == size]
            requests = [Request(_context(a), (_stream(a, session),)) for a in batch]
            completions = session.sample(requests, dataclasses.replace(session.sampling, max_new_tokens=size))
            for attempt, (completion,) in zip(batch, completions, strict=True):
                turn = {
                    "action": list(completion.tokens),
                    "logprob": list(completion.logprobs),
                    "policy_version": completion.policy_version,
                    "finish": completion.finish,
                }
                attempt["turns"] = [*attempt["turns"], turn]
                n_tokens = sum(len(t["action"]) for t in attempt["turns"])
                attempt["over"] = completion.finish != "length" or n_tokens >= limit

    def state_dict(self) -> Json:
        return {"unfinished": list(self.memory)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory[:] = state["unfinished"]


def _context(attempt: Json) -> tuple[int, ...]:
    return (*attempt["prompt"], *(token for turn in attempt["turns"] for token in turn["action"]))


def _stream(attempt: Json, session: Session) -> StreamKey:
    path = (attempt["born"],) if attempt["turns"] else ()
    return StreamKey(session.seed, session.step, attempt["draw"], attempt["attempt"], path, len(attempt["turns"]))


def _entry_of(episode: Episode, step: int) -> Json:
    """Store an unfinished episode by its actions, which bring back its environment and context in a later step."""
    turn_keys = ("action", "logprob", "finish", "policy_version")
    return {
        "task": _task_to_json(episode.task),
        "draw": episode.key.task,
        "born": episode.key.path[0] if episode.key.path else step,
        "attempt": episode.key.attempt,
        "turns": [{name: turn[name] for name in turn_keys} for turn in episode.turns],
    }


def _task_to_json(task: Task) -> Json:
    """Convert the task to JSON values, so that a resumed run scores by exactly the same task; TaskError if it can't."""
    try:
        return json.loads(json.dumps(dataclasses.asdict(task)))
    except TypeError as error:
        raise TaskError(
            f"task {task.id!r} can't be stored for a later step: its answer or info is not JSON: {error}"
        ) from None


def _task(fields: Json) -> Task:
    prompt = fields["prompt"]
    return Task(**{**fields, "prompt": prompt if isinstance(prompt, str) else tuple(prompt)})


def _record(attempt: Json, sampling: Sampling) -> Json:
    group, prompt = f"s{attempt['born']}/{attempt['draw']}", attempt["task"]["prompt"]
    return {
        "schema": "gxpo.rollouts/1",
        "task": attempt["task"]["id"],
        "group": group,
        "id": f"{group}/{attempt['attempt']}",
        "prompt": attempt["prompt"],
        "prompt_text": prompt if isinstance(prompt, str) else None,
        "turns": attempt["turns"],
        "reward": None if attempt["over"] else 0.0,
        "truncated": not attempt["over"],
        "sampling": dataclasses.asdict(sampling),
    }
