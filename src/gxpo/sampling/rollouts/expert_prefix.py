"""Single steps off an expert's trajectory (Step-GRPO): the policy acts once in each of its states."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, EnvFailure, Reply, Request, Session, StreamKey, Task, TimeStep
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Episode
from gxpo.sampling.rollouts.build import (
    AGENT,
    Count,
    Limit,
    RolloutPart,
    action,
    dotted_name,
    group_of,
    name_draws,
    random_for,
    record,
    stream,
)
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.reference import EXPERTS

_TAG = re.compile(r"<(/?)(\w+)>")


@dataclass(frozen=True)
class Place:
    """Place on an expert's way: before turn `turn` of its `episode`; `last`: that is its last turn."""

    episode: Episode
    draw: str
    turn: int
    last: bool

    @property
    def time_step(self) -> TimeStep:
        """The environment's answer that the expert acted on."""
        return self.episode.snapshots[self.turn].time_step

    @property
    def expert_next_state(self) -> str | None:
        """State that the expert's action led to; None if unknown."""
        after = self.episode.snapshots[self.turn + 1].time_step if not self.last else self.episode.time_step
        return after.state

    @property
    def expert_reply(self) -> Reply:
        """The expert's own reply at this place."""
        reply = self.episode.replies[self.turn]
        assert reply is not None
        return reply

    def reply_to(self, completion: Completion) -> Reply:
        """Parse a sampled action into the reply that it would be at this place."""
        return self.episode.snapshots[self.turn].context.copy().act(completion.tokens)

    def agrees(self, attempt: Episode) -> bool:
        """Return True if an attempt's action led where the expert's leads; if states are unknown, if it is the same."""
        reply = attempt.replies[-1]
        if attempt.failure is not None or reply is None:
            return False
        if self.expert_next_state is None or attempt.time_step.state is None:
            return reply.content == self.expert_reply.content and reply.calls == self.expert_reply.calls
        return attempt.time_step.state == self.expert_next_state


def carry_out(play: Play, actions: Sequence[tuple[Place, StreamKey, Completion]]) -> list[Episode]:
    """Carry out each action in an environment that is put back to its place; return the episodes that end with it.

    `play` must be restorable.
    """
    episodes = play.fork(
        [(place.episode, place.turn, key, f"{key.task}/{dotted_name(key)}") for place, key, _ in actions]
    )
    # these actions were counted as rollouts when they were sampled: `fork` has counted them a second time
    play.session.budget.rollouts -= sum(e.n_inherited > 0 for e in episodes)
    alive = [(e, completion) for e, (_, _, completion) in zip(episodes, actions, strict=True) if e.end is None]
    play.take([e for e, _ in alive], [completion for _, completion in alive])
    return episodes


def expert_ways(play: Play, tasks: Sequence[Task], draws: Sequence[str]) -> list[list[Place]]:
    """Play the expert through each task; return the places on its way, none if it has none or the environment broke.

    The expert's texts become actions in the episodes' contexts, tokenised and ended as a chat ends them; they are in no
    forest. Nothing is sampled. `play` must be restorable.
    """
    session = play.session
    end = tuple(session.chat.stop_ids[:1])
    episodes = play.start(tasks, draws, 1)
    while active := play.active(episodes):
        expert_texts = play.envs.expert([e.name for e in active])
        # an expert that has no action left ends its episode as lost: nothing of it serves as an example
        for episode in active:
            text = expert_texts[episode.name]
            if isinstance(text, EnvFailure):
                episode.end, episode.failure = text.kind, text.message
            elif text is None:
                episode.end = "lost"
        acting = [e for e in active if e.end is None]
        # ended by the chat's stop id, as an action of the policy would be
        action_tokens = [(*session.tokenize(str(expert_texts[e.name])), *end) for e in acting]
        play.take(acting, [Completion(list(ids), [], "stop") for ids in action_tokens])
        for episode in acting:
            # an environment that refuses its own expert's action has a bug, and there is nothing to learn from that way
            if error := episode.turns[-1].get("info", {}).get("action_error"):
                raise GxpoError(
                    f"environment {play.envs.name} calls what its expert does {error}: "
                    f"{session.decode(episode.turns[-1]['action'])!r}"
                )
    # a way that was lost or broke serves as no example, not even in its first turns
    turns_of = [0 if e.end == "lost" or e.failure else len(e.snapshots) for e in episodes]
    return [
        [Place(e, draw, turn, turn == turns - 1) for turn in range(turns)]
        for e, draw, turns in zip(episodes, draws, turns_of, strict=True)
    ]


def draw_places(ways: Sequence[Sequence[Place]], steps: int, session: Session) -> list[Place]:
    """Draw `steps` places of each way without replacement; all if it has fewer, or if `steps` is 0."""
    out = []
    for way in ways:
        if steps and len(way) > steps:
            draws = random_for(session, way[0].draw, "expert")
            out += [way[i] for i in sorted(draws.sample(range(len(way)), steps))]
        else:
            out += way
    if not out:
        raise GxpoError("no task of the step has an expert's way: expert() of the environment returned nothing")
    return out


def named_call(reply: Reply) -> tuple[str, str]:
    """Return the action of a reply as (name, arguments).

    It is the reply's only call; else the last `<tag>...</tag>`, or the whole text, read as a call in JSON or as its
    first word and the rest. The name is empty if there are several calls, or one that can't be read.

    >>> named_call(Reply("so <action>search[red shoes]</action>")), named_call(Reply("left"))
    (('search', '[red shoes]'), ('left', ''))
    >>> named_call(Reply('<tool_call>{"name": "lookup", "arguments": {"row": "b"}}</tool_call>'))
    ('lookup', 'b')
    """
    if reply.calls:
        call = reply.calls[0]
        is_only_call = len(reply.calls) == 1 and call.error is None
        return (call.name if is_only_call else "", _texts(call.arguments))
    text = _last_tagged(reply.content).strip()
    with suppress(ValueError, KeyError, TypeError):
        fields = json.loads(text)
        return (str(fields["name"]), _texts(fields["arguments"]))
    name = re.match(r"\w*", text)
    assert name is not None
    return (name[0], text[name.end() :].strip())


def _last_tagged(text: str) -> str:
    """Return the text in the element `<name>...</name>` that is closed last; without one the whole text."""
    open_tags: dict[str, int] = {}
    inside = text
    for tag in _TAG.finditer(text):
        if not tag[1]:
            open_tags[tag[2]] = tag.end()
        elif tag[2] in open_tags:
            inside = text[open_tags.pop(tag[2]) : tag.start()]
    return inside


def _texts(arguments: Mapping[str, Any]) -> str:
    return " ".join(map(str, arguments.values()))


@part("expert_steps", stage="rollout")
@dataclass(frozen=True)
class ExpertSteps(RolloutPart):
    """`group_size` samples of a single step, at each of `steps` places on an expert's way through a task.

    The expert plays each task once, unsampled and uncharged, and its history is the policy's context. A place is a
    group of its own, "s{step}/{task}/t{turn}", of single actions, and no credit passes from one place to another. A
    reward may judge them by info["call"] (name and argument), info["expert"] (the expert's) and info["last"] (it was
    the expert's last step).

    match_on  outcome of an action without such a reward:
              "call"   1 for the very same call; the environment is not asked
              "state"  1 for an action that leads to the expert's next state, in an environment that was put back to the
                       place; info["format"] is 1 if it could read the action

    Member j before turn t has the stream (seed, step, draw, j, path (t,)). Held-out tasks are attempted as episodes,
    without the expert.

    Source: Step-GRPO of R1-Router, arXiv 2505.22095: one row for every (question, history up to step t).
    """

    group_size: Count = 8
    steps: Limit = 1
    match_on: Literal["call", "state"] = "call"

    provides = ("states",)
    requires = ("expert", "restarts")
    allows = EXPERTS

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        with Play(session, restorable=True) as play:
            places = draw_places(expert_ways(play, tasks, name_draws(tasks)), self.steps, session)
            requests = []
            for place in places:
                keys = (stream(session, place.draw, j, (place.turn,)) for j in range(self.group_size))
                requests.append(Request(place.episode.snapshots[place.turn].context.ids, tuple(keys)))
            rows = [
                (place, key, completion)
                for place, request, completions in zip(places, requests, session.sample(requests), strict=True)
                for key, completion in zip(request.streams, completions, strict=True)
            ]
            outcomes = carry_out(play, rows) if self.match_on == "state" else [None] * len(rows)
        records = [self._record(*row, session, after) for row, after in zip(rows, outcomes, strict=True)]
        return session.score(Forest.from_records(records))

    @staticmethod
    def _record(
        place: Place, key: StreamKey, completion: Completion, session: Session, after: Episode | None
    ) -> dict[str, Any]:
        group = f"{group_of(session, place.draw)}/t{place.turn}"
        call, expert_call = named_call(place.reply_to(completion)), named_call(place.expert_reply)
        info = {"call": list(call), "expert": list(expert_call), "last": place.last, "turn": place.turn}
        turn = {"agent": AGENT, "state": place.time_step.state, **action(completion)}
        reward: float | None = float(call == expert_call)
        if after is not None:
            error = after.time_step.action_error
            info |= {"format": float(error != "malformed")}
            turn |= {"info": {"action_error": error}} if error else {}
            reward = None if after.failure is not None else float(place.agrees(after))
            info |= {"failure": after.failure} if after.failure is not None else {}
        columns = {
            "prompt": list(place.episode.snapshots[place.turn].context.ids),
            "turns": [turn],
            "reward": reward,
            "truncated": completion.finish == "length",
            "info": info,
        }
        return record(place.episode.task, group, f"{group}/{key.attempt}", session.sampling, **columns)
