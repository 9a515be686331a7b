"""Single steps from an expert's trajectory (Step-GRPO): the policy acts once from each of its states."""

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
from gxpo.sampling.rollouts.build import (
    AGENT,
    Count,
    Episode,
    Limit,
    RolloutPart,
    action,
    dotted,
    group_of,
    keyed,
    name_draws,
    record,
    stream,
)
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.reference import EXPERTS

_TAG = re.compile(r"<(/?)(\w+)>")


@dataclass(frozen=True)
class Place:
    """Where an expert stood: before turn `turn` of its `episode`, whose last turn that is where `last`."""

    episode: Episode
    draw: str
    turn: int
    last: bool

    @property
    def said(self) -> TimeStep:
        """What the environment had said."""
        return self.episode.stood[self.turn].said

    @property
    def led_to(self) -> str | None:
        """The state that the expert's action led to."""
        after = self.episode.stood[self.turn + 1].said if not self.last else self.episode.said
        return after.state

    @property
    def choice(self) -> Reply:
        """What the expert did there."""
        reply = self.episode.replies[self.turn]
        assert reply is not None
        return reply

    def heard(self, completion: Completion) -> Reply:
        """What an action says there."""
        return self.episode.stood[self.turn].context.copy().act(completion.tokens)

    def agrees(self, tried: Episode) -> bool:
        """Whether an action that was carried out here led where the expert's leads; where states are unknown, whether
        it is the same."""
        did = tried.replies[-1]
        if tried.failure is not None or did is None:
            return False
        if self.led_to is None or tried.said.state is None:
            return did.content == self.choice.content and did.calls == self.choice.calls
        return tried.said.state == self.led_to


def carry_out(play: Play, wanted: Sequence[tuple[Place, StreamKey, Completion]]) -> list[Episode]:
    """Each action in an environment that was put back to its place: the episodes that end with it. `play` is
    restorable."""
    tried = play.fork([(place.episode, place.turn, key, f"{key.task}/{dotted(key)}") for place, key, _ in wanted])
    play.session.budget.rollouts -= sum(e.inherited > 0 for e in tried)  # they were counted when they were sampled
    whole = [(e, said) for e, (_, _, said) in zip(tried, wanted, strict=True) if e.end is None]
    play.take([e for e, _ in whole], [said for _, said in whole])
    return tried


def expert_ways(play: Play, tasks: Sequence[Task], draws: Sequence[str]) -> list[list[Place]]:
    """Every place on the expert's way through each task; none where it has no way, or the environment broke.

    The expert's texts are actions of its own in the episodes' contexts, tokenised and ended as a chat ends them; they
    are in no forest. Nothing is sampled. `play` is restorable.
    """
    session = play.session
    end = tuple(session.chat.stop_ids[:1])
    episodes = play.start(tasks, draws, 1)
    while running := play.running(episodes):
        knows = play.envs.expert([e.name for e in running])
        for episode in running:
            found = knows[episode.name]
            if isinstance(found, EnvFailure):
                episode.end, episode.failure = found.kind, found.message
            elif found is None:
                episode.end = "lost"
        acting = [e for e in running if e.end is None]
        said = [(*session.tokenize(str(knows[e.name])), *end) for e in acting]
        play.take(acting, [Completion(list(ids), [], "stop") for ids in said])
        for episode in acting:
            if error := episode.turns[-1].get("info", {}).get("action_error"):
                raise GxpoError(
                    f"environment {play.envs.name} calls what its expert does {error}: "
                    f"{session.decode(episode.turns[-1]['action'])!r}"
                )
    turns_of = [0 if e.end == "lost" or e.failure else len(e.stood) for e in episodes]
    return [
        [Place(e, draw, turn, turn == turns - 1) for turn in range(turns)]
        for e, draw, turns in zip(episodes, draws, turns_of, strict=True)
    ]


def chosen(ways: Sequence[Sequence[Place]], steps: int, session: Session) -> list[Place]:
    """`steps` places of each way, drawn without replacement, or all where it has fewer or `steps` is 0."""
    out = []
    for way in ways:
        if steps and len(way) > steps:
            draws = keyed(session, way[0].draw, "expert")
            out += [way[i] for i in sorted(draws.sample(range(len(way)), steps))]
        else:
            out += way
    if not out:
        raise GxpoError("no task of the step has an expert's way: its environment's expert() gave nothing")
    return out


def named_call(reply: Reply) -> tuple[str, str]:
    """What a reply does, as a name and what it is done with.

    Of its only call; else of its last `<tag>...</tag>`, or all of it: the call that stands there as JSON, or its first
    word and the rest. The name is empty where there are several calls, or one that can't be read.

    >>> named_call(Reply("so <action>search[red shoes]</action>")), named_call(Reply("left"))
    (('search', '[red shoes]'), ('left', ''))
    >>> named_call(Reply('<tool_call>{"name": "lookup", "arguments": {"row": "b"}}</tool_call>'))
    ('lookup', 'b')
    """
    if reply.calls:
        call = reply.calls[0]
        alone = len(reply.calls) == 1 and call.error is None
        return (call.name if alone else "", _texts(call.arguments))
    text = _last_tagged(reply.content).strip()
    with suppress(ValueError, KeyError, TypeError):
        made = json.loads(text)
        return (str(made["name"]), _texts(made["arguments"]))
    name = re.match(r"\w*", text)
    assert name is not None
    return (name[0], text[name.end() :].strip())


def _last_tagged(text: str) -> str:
    """The text in the element `<name>...</name>` that is closed last; the whole text without one."""
    opened: dict[str, int] = {}
    inside = text
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened[tag[2]] = tag.end()
        elif tag[2] in opened:
            inside = text[opened.pop(tag[2]) : tag.start()]
    return inside


def _texts(arguments: Mapping[str, Any]) -> str:
    return " ".join(map(str, arguments.values()))


@part("expert_steps", stage="rollout")
@dataclass(frozen=True)
class ExpertSteps(RolloutPart):
    """`group_size` samples of one step, at each of `steps` places on an expert's way through a task.

    The expert plays each task once, unsampled and uncharged, with every text of its in the context: what the policy is
    asked next stands behind the expert's history. A place is a group of its own, "s{step}/{task}/t{turn}", of single
    actions, and no credit passes from one to another. What they are worth is for a reward to say, by what was done
    (info["call"]: name and argument), what the expert did (info["expert"]) and whether it was the expert's last step
    (info["last"]).

    compares  what the outcome is 1 for, where no reward says more:
              "call"   the very same call; the environment does not hear of it
              "state"  an action that leads where the expert's leads, in an environment that was put back to the place;
                       info["format"] is 1 where it could read one

    Member j before turn t has the stream (seed, step, draw, j, path (t,)). Held-out tasks are attempted as episodes,
    without the expert.

    Source: Step-GRPO of R1-Router, arXiv 2505.22095: one row for every (question, history up to step t).
    """

    group_size: Count = 8
    steps: Limit = 1
    compares: Literal["call", "state"] = "call"

    provides = ("states",)
    requires = ("expert", "restarts")
    allows = EXPERTS

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        with Play(session, restorable=True) as play:
            places = chosen(expert_ways(play, tasks, name_draws(tasks)), self.steps, session)
            requests = []
            for place in places:
                keys = (stream(session, place.draw, j, (place.turn,)) for j in range(self.group_size))
                requests.append(Request(place.episode.stood[place.turn].context.ids, tuple(keys)))
            said = [
                (place, key, completion)
                for place, request, found in zip(places, requests, session.sample(requests), strict=True)
                for key, completion in zip(request.streams, found, strict=True)
            ]
            tried = carry_out(play, said) if self.compares == "state" else [None] * len(said)
        records = [self._record(*row, session, after) for row, after in zip(said, tried, strict=True)]
        return session.score(Forest.from_records(records))

    @staticmethod
    def _record(
        place: Place, key: StreamKey, completion: Completion, session: Session, after: Episode | None
    ) -> dict[str, Any]:
        group = f"{group_of(session, place.draw)}/t{place.turn}"
        call, wanted = named_call(place.heard(completion)), named_call(place.choice)
        info = {"call": list(call), "expert": list(wanted), "last": place.last, "turn": place.turn}
        turn = {"agent": AGENT, "state": place.said.state, **action(completion)}
        reward: float | None = float(call == wanted)
        if after is not None:
            error = after.said.action_error
            info |= {"format": float(error != "malformed")}
            turn |= {"info": {"action_error": error}} if error else {}
            reward = None if after.failure is not None else float(place.agrees(after))
            info |= {"failure": after.failure} if after.failure is not None else {}
        columns = {
            "prompt": list(place.episode.stood[place.turn].context.ids),
            "turns": [turn],
            "reward": reward,
            "truncated": completion.finish == "length",
            "info": info,
        }
        return record(place.episode.task, group, f"{group}/{key.attempt}", session.sampling, **columns)
