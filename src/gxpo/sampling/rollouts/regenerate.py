"""Regeneration of failing tool calls (THOR): one step is resampled as a group that execution judges."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, StreamKey
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Episode
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.build import AGENT, Count, Limit, action, random_for, record, sample_within
from gxpo.sampling.rollouts.episodes import Play


def first_failing(turns: Sequence[dict[str, Any]]) -> int | None:
    """Return the first turn whose action the environment could not carry out; None if there is none.

    >>> first_failing([{}, {"info": {"action_error": "illegal"}}, {"info": {"action_error": "malformed"}}])
    1
    """
    return next((i for i, turn in enumerate(turns) if turn.get("info", {}).get("action_error")), None)


@part("regenerate", stage="rollout")
@dataclass(frozen=True)
class Regenerate(Rollout):
    """`group_size` episodes of each task, and groups of `samples` new endings of their first failing step.

    A step fails if the environment calls its action malformed or illegal. It is cut `cut_tokens` tokens before its end,
    where its reasoning stops; the rest of it, and all before it, is the prompt of a group of its own,
    "s{step}/{task}/{attempt}/t{turn}". Each member is one action: its outcome is 1 if the environment, put back to that
    step, can carry it out, else 0 (component "execution"), whatever becomes of the episode; only the new tokens are
    trained. There are at most `prompts` such groups, drawn among the failed episodes of the step.

    group_size  episodes a task
    samples     new endings of a failing step; 0: this is `independent`
    cut_tokens  tokens taken off the end of the failing action
    prompts     most steps to regenerate; 0: as many as there are tasks

    Member j of a cut before turn t of attempt i has the stream (seed, step, draw, i, path (t, j), turn t). Held-out
    tasks are attempted without any of this.

    Source: THOR, arXiv 2509.13761, and its code (16 samples, 100 tokens, as many prompts as tasks). There a prefix is
    tokenised again, so that its ids can differ from those that were sampled; here ids are kept. Where nothing failed it
    cuts one episode with a call at random; here there is no second group then.
    """

    group_size: Count = 8
    samples: Limit = 8
    cut_tokens: Count = 100
    prompts: Limit = 0

    forks = True
    requires = ("restarts",)

    @property
    def across_groups(self) -> bool:
        """True with `samples`: the steps to regenerate are chosen among all tasks."""
        return self.samples > 0

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        if not self.samples:
            return rounds[0].forest
        sampling, episodes = dataclasses.asdict(play.session.sampling), rounds[0].episodes
        records = [episode.record(sampling) for episode in episodes]
        records += self._regenerate(self._choose_cuts(episodes, len(play.step_draws), play.session), play)
        return play.session.score(Forest.from_records(records))

    def _choose_cuts(self, episodes: Sequence[Episode], tasks: int, session: Session) -> list[tuple[Episode, int]]:
        """Return the episodes to go back to, and the turn to go back before."""
        failures = [(e, turn) for e in episodes if e.failure is None and (turn := first_failing(e.turns)) is not None]
        most = self.prompts or tasks
        if len(failures) <= most:
            return failures
        places = random_for(session, "regenerate").sample(range(len(failures)), most)
        return [failures[i] for i in sorted(places)]

    def _regenerate(self, cuts: Sequence[tuple[Episode, int]], play: Play) -> list[dict[str, Any]]:
        """Sample `samples` new endings of every cut step, carry them out and return their records."""
        session, prefixes, requests = play.session, [], []
        for episode, turn in cuts:
            action_tokens: list[int] = episode.turns[turn]["action"]
            prefixes.append(action_tokens[: max(0, len(action_tokens) - self.cut_tokens)])
            keys = tuple(_key(episode, turn, j) for j in range(self.samples))
            requests.append(Request((*episode.snapshots[turn].context.ids, *prefixes[-1]), keys))
        completions = sample_within(session, requests, [session.sampling.max_new_tokens - len(k) for k in prefixes])
        records = []
        for (episode, turn), action_tokens, request, endings in zip(cuts, prefixes, requests, completions, strict=True):
            records += self._execute(episode, turn, action_tokens, request, endings, play)
        return records

    def _execute(
        self,
        base: Episode,
        turn: int,
        prefix: list[int],
        request: Request,
        endings: Sequence[Completion],
        play: Play,
    ) -> list[dict[str, Any]]:
        """Carry out the new endings of one step; return their records, with 1 for those that could be carried out."""
        group = f"{base.id}/t{turn}"
        # every ending gets an environment of its own, put back to before the step
        forks = play.fork([(base, turn, key, f"{base.name}/t{turn}/{j}") for j, key in enumerate(request.streams)])
        alive = [(fork, c) for fork, c in zip(forks, endings, strict=True) if fork.end is None]
        # the environment is given the whole action, of which the record trains the new tokens alone
        actions = [dataclasses.replace(c, tokens=[*prefix, *c.tokens], logprobs=[], support=None) for _, c in alive]
        play.take([fork for fork, _ in alive], actions)
        # an environment that broke leaves its ending unscored: that is no failure of the action
        records = []
        for j, (fork, completion) in enumerate(zip(forks, endings, strict=True)):
            error = fork.turns[-1].get("info", {}).get("action_error")
            is_executable = None if fork.failure is not None else float(error is None)
            step = {"agent": AGENT, "state": base.turns[turn]["state"], **action(completion)}
            if error:
                step["info"] = {"action_error": error}
            columns = {
                "prompt": list(request.prompt),
                "turns": [step],
                "reward": is_executable,
                "rewards": {"execution": is_executable},
                "truncated": completion.finish == "length",
                "info": {"regenerated": base.id, "turn": turn, "kept": len(prefix)},
            }
            if fork.failure is not None:
                columns["info"]["failure"] = fork.failure
            records.append(record(base.task, group, f"{group}/{j}", play.session.sampling, **columns))
        return records


def _key(episode: Episode, turn: int, j: int) -> StreamKey:
    return dataclasses.replace(episode.key, path=(*episode.key.path, turn, j), turn=turn)
