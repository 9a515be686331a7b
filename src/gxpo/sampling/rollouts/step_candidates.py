"""Step-level sampling (SLATE): several candidates for every step, each scored on its own, of which one is taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.base.usercode import Unusable, object_at
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Session, Task, TimeStep
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count, Episode, RolloutPart, group_of, keyed, name_draws, record
from gxpo.sampling.rollouts.episodes import Play

REWARD = "reward"


@dataclass(frozen=True)
class Candidate:
    """One possible next step of an episode, for who scores it.

    turn    of the episode, from 0
    read    the text of the context that it was written in
    action  what was written
    then    what the environment made of it
    """

    task: Task
    turn: int
    read: str
    action: str
    then: TimeStep


Score = Callable[[Sequence[Candidate]], Sequence["float | None"]]


def pick(scores: Sequence[float | None], temperature: float, uniform: float) -> int | None:
    """Which candidate is taken: j with probability softmax(A / temperature)_j by inverse CDF; None: none has a score.

    A is (score - mean) / (std + 1e-6) of the scores that are known, one degree of freedom, 0 where they are equal.
    temperature <= 0 takes the first of the best.

    >>> [pick([1.0, 0.0, -1.0], 0.7, u) for u in (0.77, 0.772, 0.956)]
    [0, 1, 2]
    """
    known = [j for j, score in enumerate(scores) if score is not None]
    if not known:
        return None
    same = torch.zeros(len(known), dtype=torch.int64)
    advantage = grouped.normalize(torch.tensor([scores[j] for j in known], dtype=torch.float64), same)
    if temperature <= 0:
        return known[int(advantage.argmax())]
    mass = grouped.softmax(advantage, same, temperature=temperature).cumsum(0)
    return known[min(int((mass <= uniform).sum()), len(known) - 1)]


@dataclass(eq=False)
class _Chain:
    """One episode in the making: the candidate that was taken last, and those for its next step."""

    draw: str
    number: int
    at: Episode | None = None
    candidates: list[Episode] = field(default_factory=list)


@part("step_candidates", stage="rollout")
@dataclass(frozen=True)
class StepCandidates(RolloutPart):
    """At each step of an episode `candidates` next steps from one prefix, each scored; one is taken, until the end.

    Every candidate is a trajectory of one turn: its prompt is all that it was written under, its outcome its own score,
    and those of one step are one group, "s{step}/{task}/{chain}.{turn}". So the group's statistics are over the
    candidates, and any group-relative method trains each of them once, taken or not. Which one the episode goes on from
    is drawn from softmax(A / `temperature`), see `pick`; where it ends the episode, the chain is over.

    candidates   k
    chains       episodes of each task, one beside the other
    temperature  eta; 0: the best
    score        "reward", what the environment paid for the step (where it pays nothing by the step, its verdict at the
                 end of the episode and 0 before), or a function of a list of `Candidate`s that gives a score of each,
                 None where it has none: FILE.py:NAME. A candidate without score is not trained and not taken

    A verdict is that of the episode, so only candidates that end it have one. Streams: (seed, step, task, candidate) of
    the first step, then (seed, step, task, chain, path (candidate,), turn).

    The prefix of a step is stored once for its candidates, and again, with what was added to it, for the next step's.

    Source: SLATE, arXiv 2602.23440 (k 5, eta 0.7), and its code, but for the answer that it forces when the turns are
    used up. In that code advantages and candidates are handed over as `step_data`, which its trainer never reads.
    """

    candidates: Count = 5
    chains: Count = 1
    temperature: float = 0.7
    score: Any = REWARD

    provides = ("states",)
    requires = ("restarts",)
    allows: ClassVar = {"env.context": (("full", "window"), "scores steps, and a summary is none")}

    def __post_init__(self) -> None:
        if isinstance(self.score, str) and self.score != REWARD and ":" not in self.score:
            raise ConfigError(f"rollout.score is {self.score!r}; it is 'reward' or FILE.py:NAME")
        if not isinstance(self.score, str) and not callable(self.score):
            raise ConfigError(f"rollout.score is {self.score!r}; it is 'reward', FILE.py:NAME or a function")

    @property
    def group_size(self) -> int:
        """Candidates of a step."""
        return self.candidates

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        records: list[dict[str, Any]] = []
        with Play(session, restorable=True) as play:
            draws, k = name_draws(tasks), self.candidates
            chains = [_Chain(draw, number) for draw in draws for number in range(self.chains)]
            begun = play.start(tasks, draws, self.chains * k)
            for i, chain in enumerate(chains):
                chain.candidates = begun[i * k : (i + 1) * k]
            while chains:
                play.turn(play.running([c for chain in chains for c in chain.candidates]))
                scores = self._scores([c for chain in chains for c in chain.candidates], session)
                for chain in chains:
                    records += [_record(c, chain, scores[c], session) for c in chain.candidates]
                    chain.at = self._taken(chain, scores, session)
                chains = [chain for chain in chains if chain.at is not None and play.running([chain.at])]
                self._fork(play, chains)
        return Forest.from_records(records)

    def _scores(self, candidates: Sequence[Episode], session: Session) -> dict[Episode, float | None]:
        if isinstance(self.score, str) and self.score == REWARD:
            return {c: None if c.failure is not None else _paid(c) for c in candidates}
        whole = [c for c in candidates if c.failure is None]
        shown = [
            Candidate(
                c.task,
                len(c.turns) - 1,
                session.decode(_read(c)),
                session.decode(c.turns[-1]["action"]),
                c.said,
            )
            for c in whole
        ]
        given = list(self._judge(shown))
        if len(given) != len(shown):
            raise GxpoError(f"rollout.score gave {len(given)} scores of {len(shown)} candidates: one of each is needed")
        found = {c: None if s is None else float(s) for c, s in zip(whole, given, strict=True)}
        return {c: found.get(c) for c in candidates}

    @property
    def _judge(self) -> Score:
        if not isinstance(self.score, str):
            return self.score
        try:
            return object_at(self.score)
        except Unusable as error:
            raise ConfigError(f"rollout.score={self.score}: {error}") from None

    def _taken(self, chain: _Chain, scores: dict[Episode, float | None], session: Session) -> Episode | None:
        first = chain.candidates[0]
        draws = keyed(session, chain.draw, chain.number, len(first.turns), "take")
        place = pick([scores[c] for c in chain.candidates], self.temperature, draws.random())
        return None if place is None else chain.candidates[place]

    def _fork(self, play: Play, chains: Sequence[_Chain]) -> None:
        """The candidates of the next step, which stand where the one that was taken stands."""
        forks = []
        for chain in chains:
            base = chain.at
            assert base is not None
            for j in range(self.candidates):
                key = dataclasses.replace(base.key, attempt=chain.number, path=(j,))
                forks.append((base, len(base.turns), key, f"{chain.draw}/{chain.number}.{len(base.turns)}.{j}"))
        begun = play.fork(forks)
        for i, chain in enumerate(chains):
            chain.candidates = begun[i * self.candidates : (i + 1) * self.candidates]


def _read(episode: Episode) -> tuple[int, ...]:
    """What the newest action was written under; an episode that never acted has stood nowhere."""
    return episode.stood[-1].context.ids if episode.stood else episode.context.ids


def _paid(episode: Episode) -> float:
    """For the newest step: its reward, or, where there is none, the verdict at the end."""
    reward = episode.turns[-1].get("reward")
    return float(reward if reward is not None else bool(episode.success))


def newest_turn(episode: Episode) -> dict[str, Any]:
    """Columns of a trajectory of the newest turn alone, under the context that it was written in."""
    turn = {k: v for k, v in episode.turns[-1].items() if k not in ("context", "observation")}
    return {
        "prompt": list(_read(episode)),
        "prompt_text": None,
        "turns": [turn],
        "final_state": episode.said.state,
    }


def _record(episode: Episode, chain: _Chain, score: float | None, session: Session) -> dict[str, Any]:
    """A candidate as a trajectory of its newest turn, under the context that it was written in."""
    number = len(episode.turns) - 1
    group = f"{group_of(session, chain.draw)}/{chain.number}.{number}"
    info: dict[str, Any] = {"end": episode.end, "chain": chain.number, "turn": number}
    if score is None:
        info["failure"] = episode.failure or "rollout.score gave none"
    return record(
        episode.task,
        group,
        f"{group}/{chain.candidates.index(episode)}",
        session.sampling,
        **newest_turn(episode),
        reward=score,
        rewards={"env": score},
        success=episode.success if episode.end is not None else None,
        truncated=episode.end in ("turns", "context", "truncated"),
        info=info,
    )
