"""Regenerate failing tool calls (THOR): one step resampled several times, as a group judged by execution."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, StreamKey
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.build import AGENT, Count, Episode, Limit, action, keyed, record, sample_within
from gxpo.sampling.rollouts.episodes import Play


def first_failing(turns: Sequence[dict[str, Any]]) -> int | None:
    """The first turn whose action the environment could not carry out; None where there is none.

    >>> first_failing([{}, {"info": {"action_error": "illegal"}}, {"info": {"action_error": "malformed"}}])
    1
    """
    return next((i for i, turn in enumerate(turns) if turn.get("info", {}).get("action_error")), None)


@part("regenerate", stage="rollout")
@dataclass(frozen=True)
class Regenerate(Rollout):
    """`group_size` episodes of each task; of those with a failing call, the first failing step `samples` times more.

    A call fails where the environment says that it was malformed or illegal. The step is cut `dropped` tokens before
    its end, where its reasoning stops; what is kept, and all before it, is the prompt of a group of its own,
    "s{step}/{task}/{attempt}/t{turn}". Each member is one action: its outcome is 1 where the environment, put back to
    that step, can carry it out, else 0 (component "execution"), whatever becomes of the episode; only what was written
    anew is trained. There are at most `prompts` such groups, drawn among the failed episodes of the step.

    group_size  episodes a task
    samples     of a failing step; 0: this is `independent`
    dropped     tokens taken off the end of the failing action
    prompts     the most steps that are written anew; 0: as many as there are tasks

    Member j of a cut before turn t of attempt i has the stream (seed, step, draw, i, path (t, j), turn t). Held-out
    tasks are attempted without any of this.

    Source: THOR, arXiv 2509.13761, and its code (16 samples, 100 tokens, as many prompts as tasks). There a prefix is
    tokenised again, so that its ids can differ from those that were sampled; here ids are kept. Where nothing failed it
    cuts one episode with a call at random; here there is no second group then.
    """

    group_size: Count = 8
    samples: Limit = 8
    dropped: Count = 100
    prompts: Limit = 0

    forks = True
    requires = ("restarts",)

    @property
    def across_groups(self) -> bool:
        """The steps that are written anew are chosen among all tasks."""
        return self.samples > 0

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        if not self.samples:
            return rounds[0].forest
        sampling, episodes = dataclasses.asdict(play.session.sampling), rounds[0].episodes
        records = [episode.record(sampling) for episode in episodes]
        records += self._again(self._cut(episodes, len(play.drawn), play.session), play)
        return play.session.score(Forest.from_records(records))

    def _cut(self, episodes: Sequence[Episode], tasks: int, session: Session) -> list[tuple[Episode, int]]:
        """The episodes to go back to, and before which turn."""
        failed = [(e, turn) for e in episodes if e.failure is None and (turn := first_failing(e.turns)) is not None]
        most = self.prompts or tasks
        if len(failed) <= most:
            return failed
        chosen = keyed(session, "regenerate").sample(range(len(failed)), most)
        return [failed[i] for i in sorted(chosen)]

    def _again(self, cuts: Sequence[tuple[Episode, int]], play: Play) -> list[dict[str, Any]]:
        """`samples` new endings of every cut step, and what came of them."""
        session, kept, requests = play.session, [], []
        for episode, turn in cuts:
            said: list[int] = episode.turns[turn]["action"]
            kept.append(said[: max(0, len(said) - self.dropped)])
            keys = tuple(_key(episode, turn, j) for j in range(self.samples))
            requests.append(Request((*episode.stood[turn].context.ids, *kept[-1]), keys))
        found = sample_within(session, requests, [session.sampling.max_new_tokens - len(k) for k in kept])
        records = []
        for (episode, turn), said, request, new in zip(cuts, kept, requests, found, strict=True):
            records += self._judged(episode, turn, said, request, new, play)
        return records

    def _judged(
        self,
        base: Episode,
        turn: int,
        kept: list[int],
        request: Request,
        new: Sequence[Completion],
        play: Play,
    ) -> list[dict[str, Any]]:
        """The new endings of one step as lines of `gxpo.rollouts/1`, each with whether it can be carried out."""
        group = f"{base.id}/t{turn}"
        forks = play.fork([(base, turn, key, f"{base.name}/t{turn}/{j}") for j, key in enumerate(request.streams)])
        alive = [(fork, c) for fork, c in zip(forks, new, strict=True) if fork.end is None]
        whole = [dataclasses.replace(c, tokens=[*kept, *c.tokens], logprobs=[], support=None) for _, c in alive]
        play.take([fork for fork, _ in alive], whole)
        out = []
        for j, (fork, completion) in enumerate(zip(forks, new, strict=True)):
            error = fork.turns[-1].get("info", {}).get("action_error")
            worked = None if fork.failure is not None else float(error is None)
            step = {"agent": AGENT, "state": base.turns[turn]["state"], **action(completion)}
            if error:
                step["info"] = {"action_error": error}
            columns = {
                "prompt": list(request.prompt),
                "turns": [step],
                "reward": worked,
                "rewards": {"execution": worked},
                "truncated": completion.finish == "length",
                "info": {"regenerated": base.id, "turn": turn, "kept": len(kept)},
            }
            if fork.failure is not None:
                columns["info"]["failure"] = fork.failure
            out.append(record(base.task, group, f"{group}/{j}", play.session.sampling, **columns))
        return out


def _key(episode: Episode, turn: int, j: int) -> StreamKey:
    return dataclasses.replace(episode.key, path=(*episode.key.path, turn, j), turn=turn)
