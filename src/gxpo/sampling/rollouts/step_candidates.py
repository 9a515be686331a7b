"""Step-level sampling (SLATE): several candidates for every step, each scored by itself, of which one is taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.functions import user_function
from gxpo.parts.protocols import Session, Task, TimeStep
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Episode
from gxpo.sampling.rollouts.build import Count, RolloutPart, group_of, name_draws, random_for, record
from gxpo.sampling.rollouts.episodes import Play

REWARD = "reward"


@dataclass(frozen=True)
class Candidate:
    """One possible next step of an episode, as the scoring function gets it.

    turn    the episode's turn, from 0
    read    text of the context that it was sampled under
    action  text of the step
    answer  the environment's answer
    """

    task: Task
    turn: int
    read: str
    action: str
    answer: TimeStep


Score = Callable[[Sequence[Candidate]], Sequence["float | None"]]


def pick(scores: Sequence[float | None], temperature: float, uniform: float) -> int | None:
    """Pick candidate j with probability softmax(A / temperature)_j by inverse CDF; None if no candidate has a score.

    A is (score - mean) / (std + 1e-6) over the known scores, one degree of freedom, 0 if they are equal.
    temperature <= 0 takes the first of the best.

    >>> [pick([1.0, 0.0, -1.0], 0.7, u) for u in (0.77, 0.772, 0.956)]
    [0, 1, 2]
    """
    known_places = [j for j, score in enumerate(scores) if score is not None]
    if not known_places:
        return None
    one_group = torch.zeros(len(known_places), dtype=torch.int64)
    advantage = grouped.normalize(torch.tensor([scores[j] for j in known_places], dtype=torch.float64), one_group)
    if temperature <= 0:
        return known_places[int(advantage.argmax())]
    mass = grouped.softmax(advantage, one_group, temperature=temperature).cumsum(0)
    return known_places[min(int((mass <= uniform).sum()), len(known_places) - 1)]


@dataclass(eq=False)
class _Chain:
    """One episode under way: the candidate that was taken last, and the candidates for its next step."""

    draw: str
    number: int
    episode: Episode | None = None
    candidates: list[Episode] = field(default_factory=list)


@part("step_candidates", stage="rollout")
@dataclass(frozen=True)
class StepCandidates(RolloutPart):
    """Episodes with `candidates` scored next steps at each step, of which one is taken, until the end.

    Every candidate is a trajectory of one turn: its prompt is all that it was written under, its outcome its own score,
    and those of one step are one group, "s{step}/{task}/{chain}.{turn}". So the group's statistics are over the
    candidates, and any group-relative method trains each of them once, taken or not. Which one the episode goes on from
    is drawn from softmax(A / `temperature`), see `pick`; where it ends the episode, the chain is over.

    candidates   k
    chains       episodes of each task, one beside the other
    temperature  eta; 0: the best
    score        "reward": the environment's reward of the step (without step rewards its verdict at the end of the
                 episode, and 0 before); or FILE.py:NAME, a function of a list of `Candidate`s that returns a score, or
                 None, for each. A candidate without a score is neither trained nor taken

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
            raise ConfigError(f"rollout.score is {self.score!r}; it must be 'reward' or FILE.py:NAME")
        if not isinstance(self.score, str) and not callable(self.score):
            raise ConfigError(f"rollout.score is {self.score!r}; it must be 'reward', FILE.py:NAME or a function")

    @property
    def group_size(self) -> int:
        """Number of candidates of a step."""
        return self.candidates

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        records: list[dict[str, Any]] = []
        with Play(session, restorable=True) as play:
            draws, k = name_draws(tasks), self.candidates
            chains = [_Chain(draw, number) for draw in draws for number in range(self.chains)]
            episodes = play.start(tasks, draws, self.chains * k)
            for i, chain in enumerate(chains):
                chain.candidates = episodes[i * k : (i + 1) * k]
            while chains:
                play.turn(play.active([c for chain in chains for c in chain.candidates]))
                scores = self._scores([c for chain in chains for c in chain.candidates], session)
                # every candidate is recorded, taken or not; the chain goes on from the one that is taken
                for chain in chains:
                    records += [_record(c, chain, scores[c], session) for c in chain.candidates]
                    chain.episode = self._take_one(chain, scores, session)
                chains = [chain for chain in chains if chain.episode is not None and play.active([chain.episode])]
                self._branch(play, chains)
        return Forest.from_records(records)

    def _scores(self, candidates: Sequence[Episode], session: Session) -> dict[Episode, float | None]:
        if isinstance(self.score, str) and self.score == REWARD:
            return {c: None if c.failure is not None else _step_reward(c) for c in candidates}
        # a broken environment's candidate is not shown to the user's function: it has no answer to judge
        unbroken = [c for c in candidates if c.failure is None]
        views = [
            Candidate(
                c.task,
                len(c.turns) - 1,
                session.decode(_context_of_newest(c)),
                session.decode(c.turns[-1]["action"]),
                c.time_step,
            )
            for c in unbroken
        ]
        scores = list(self._judge(views))
        if len(scores) != len(views):
            raise GxpoError(
                f"rollout.score gave {len(scores)} scores of {len(views)} candidates: one of each is needed"
            )
        score_by_candidate = {c: None if s is None else float(s) for c, s in zip(unbroken, scores, strict=True)}
        return {c: score_by_candidate.get(c) for c in candidates}

    @property
    def _judge(self) -> Score:
        return user_function(self.score, "rollout.score")

    def _take_one(self, chain: _Chain, scores: dict[Episode, float | None], session: Session) -> Episode | None:
        first = chain.candidates[0]
        draws = random_for(session, chain.draw, chain.number, len(first.turns), "take")
        place = pick([scores[c] for c in chain.candidates], self.temperature, draws.random())
        return None if place is None else chain.candidates[place]

    def _branch(self, play: Play, chains: Sequence[_Chain]) -> None:
        """Begin the candidates of the next step of each chain, as forks after the one that was taken."""
        forks = []
        for chain in chains:
            base = chain.episode
            assert base is not None
            for j in range(self.candidates):
                key = dataclasses.replace(base.key, attempt=chain.number, path=(j,))
                forks.append((base, len(base.turns), key, f"{chain.draw}/{chain.number}.{len(base.turns)}.{j}"))
        episodes = play.fork(forks)
        for i, chain in enumerate(chains):
            chain.candidates = episodes[i * self.candidates : (i + 1) * self.candidates]


def _context_of_newest(episode: Episode) -> tuple[int, ...]:
    """Return the ids that the newest action was sampled under; an episode that never acted has no snapshot."""
    return episode.snapshots[-1].context.ids if episode.snapshots else episode.context.ids


def _step_reward(episode: Episode) -> float:
    """Return the newest step's reward or, without one, the verdict at the episode's end."""
    reward = episode.turns[-1].get("reward")
    return float(reward if reward is not None else bool(episode.success))


def newest_turn(episode: Episode) -> dict[str, Any]:
    """Return the record columns of the newest turn alone, under the context that it was sampled in."""
    turn = {k: v for k, v in episode.turns[-1].items() if k not in ("context", "observation")}
    return {
        "prompt": list(_context_of_newest(episode)),
        "prompt_text": None,
        "turns": [turn],
        "final_state": episode.time_step.state,
    }


def _record(episode: Episode, chain: _Chain, score: float | None, session: Session) -> dict[str, Any]:
    """Build a candidate's record: a trajectory of its newest turn alone."""
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
