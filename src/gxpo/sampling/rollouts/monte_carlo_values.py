"""Monte Carlo state values (VinePPO, SPO): mean outcome of continuations from where segments or turns begin."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.build import Count, Episode, Limit, forest_of, sample_within
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork

VALUE = "state_value"  # the extra that holds the values, [T] float64, nan unknown


@dataclass(eq=False)
class _State:
    """A state to be valued: that of an attempt before its token (in an environment: turn) number `at`."""

    row: int  # the attempt
    at: int
    longest: int  # tokens that its continuations generate at most
    value: float = math.nan


Measure = Callable[[Sequence[_State]], list[tuple[float, int]]]  # of each the value, and the tokens that it took


@part("monte_carlo_values", stage="rollout")
@dataclass(frozen=True)
class MonteCarloValues(Rollout):
    """`group_size` independent attempts a task (as `independent`), and the values of states that they went through.

    A state's value is the mean outcome of `samples` continuations from it, which are scored as the attempts are, before
    any reward of the method's own. It stands in `forest.extras["state_value"]` at the token that is chosen in the
    state, the first of a segment or turn. Elsewhere that column is nan, and where no continuation could be scored.

    samples        continuations of a state
    at             "segment": states are those before the method's segments (`segment`), on tasks of prompts; "turn":
                   those before an agent's actions, in environments that can be restarted
    prompt         the state before the first token is valued, too: once for the group, from its first attempt
    boundaries     at most so many states of an attempt, evenly among those there are; 0: all. The prompt isn't counted
    token_budget   a bound on the tokens of a group's continuations, 0: none. A state is valued if its continuations
                   fit in what is left even at their longest; once one does not, the group's others are not valued.
                   First comes the prompt, then the first state of every attempt, then the second
    answer_cue     a text that stands between a state and its continuations: the answer is asked for at once (VSRM:
                   "</think>"). Where an attempt wrote it by itself a boundary is added, and those after it are left out
    answer_tokens  of a continuation; 0: what the attempt had left, without the cue

    Continuations are generated, charged to the budget and counted as discarded. They are not in the forest: rows that
    are neither compared nor trained would change no credit and no denominator, and would still be stored, read by the
    policy and counted in the figures of the step. Attempt i of a draw has the stream (seed, step, draw, i), and sample
    k of the state before its token or turn n that stream with path (n, k); so a value depends on nothing else in the
    batch. Held-out tasks are attempted once, without values.

    Source: VinePPO, arXiv 2410.01679, and SPO-chain, arXiv 2505.23564, with their code (9 samples); VSRM, arXiv
    2508.10293, and its code (5 answers of 768 tokens). These value the prompt anew for each attempt, or (SPO) only
    where a segment's cut falls on it.
    """

    group_size: Count = 8
    samples: Count = 9
    at: Literal["segment", "turn"] = "segment"
    prompt: bool = True
    boundaries: Limit = 0
    token_budget: Limit = 0
    answer_cue: str = ""
    answer_tokens: Limit = 0

    provides = ("states", "state_values")
    forks = True
    requires = ("segments",)

    def __post_init__(self) -> None:
        if self.at == "turn":
            if self.answer_cue or self.answer_tokens:
                raise ConfigError("rollout.answer_cue and answer_tokens cut answers short: set rollout.at=segment")
            object.__setattr__(self, "requires", ("restarts",))

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        if self.at == "turn" and session.envs is None:
            raise ConfigError("rollout.at=turn needs an environment: set rollout.at=segment, or choose such a task")
        if self.at == "segment" and session.envs is not None:
            raise ConfigError(
                "rollout.at=segment goes on from the middle of an action, and environments can't be taken back to "
                "there: set rollout.at=turn, or choose a task of prompts"
            )
        return super().grow(tasks, session)

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        return (self._of_episodes if play.world else self._of_answers)(rounds[0], play)

    # ------------------------------------------------------------ which states
    def _planned(self, places: Sequence[Sequence[int]], longest: Callable[[int, int], int]) -> list[list[_State]]:
        """The states of each group in the order in which they are valued; places: of each attempt, 0 the prompt's."""
        planned = []
        for first in range(0, len(places), self.group_size):
            rows = range(first, min(first + self.group_size, len(places)))
            inner = [self._spread([at for at in places[row] if at]) for row in rows]
            order = [(row, 0) for row in rows if self.prompt and 0 in places[row]][:1]
            most = max(map(len, inner), default=0)
            order += [(row, own[k]) for k in range(most) for row, own in zip(rows, inner, strict=True) if k < len(own)]
            planned.append([_State(row, at, self.samples * longest(row, at)) for row, at in order])
        return planned

    def _spread(self, places: list[int]) -> list[int]:
        n, most = len(places), self.boundaries
        return places if not most or n <= most else [places[(2 * i + 1) * n // (2 * most)] for i in range(most)]

    def _valued(self, planned: Sequence[Sequence[_State]], measure: Measure, session: Session) -> list[_State]:
        """The states that the budget allows, all that fit at once, then those that fit in what they have left."""
        waiting = [list(states) for states in planned]
        left = [float(self.token_budget or math.inf) for _ in planned]
        valued: list[_State] = []
        while True:
            batch: list[tuple[int, _State]] = []
            for group, states in enumerate(waiting):
                room = left[group]
                while states and states[0].longest <= room:
                    room -= states[0].longest
                    batch.append((group, states.pop(0)))
            if not batch:
                return valued
            found = measure([state for _, state in batch])
            for (group, state), (value, tokens) in zip(batch, found, strict=True):
                state.value = value
                left[group] -= tokens
                valued.append(state)
            session.budget.discarded += self.samples * len(batch)

    def _written(self, forest: Forest, valued: Sequence[_State], token: Callable[[int, int], int | None]) -> Forest:
        """The forest with the values; `token(row, at)`: the stored token before which a state stands."""
        column = torch.full((forest.n_tokens,), torch.nan, dtype=torch.float64)
        for state in valued:
            first = state.row - state.row % self.group_size
            for row in range(first, first + self.group_size) if state.at == 0 else (state.row,):
                if (place := token(row, state.at)) is not None:
                    column[place] = state.value
        return forest.replace(extras={**forest.extras, VALUE: column})

    # ------------------------------------------------------------ answers to prompts
    def _of_answers(self, grown: Round, play: Play) -> Forest:
        session, begun = play.session, grown.episodes
        forest = session.segment(grown.forest)
        path = [forest.path_token[forest.path_of(row)] for row in range(forest.n_trajectories)]
        actions = [forest.token[tokens].tolist() for tokens in path]
        segments = [forest.segment[tokens].tolist() for tokens in path]
        cue, limit = session.tokenize(self.answer_cue, markup=True), session.sampling.max_new_tokens

        def room(row: int, at: int) -> int:
            return self.answer_tokens or max(1, limit - at - len(cue))

        def measure(states: Sequence[_State]) -> list[tuple[float, int]]:
            kept = [(*actions[s.row][: s.at], *cue) for s in states]
            bases = [begun[s.row] for s in states]
            asked = []
            for e, s, own in zip(bases, states, kept, strict=True):
                keys = tuple(self._key(e, s.at, k) for k in range(self.samples))
                asked.append(Request((*e.opening.ids, *own), keys))
            answers = sample_within(session, asked, [room(s.row, s.at) for s in states])
            scored = session.score(
                forest_of(
                    [e.task for e in bases],
                    [f"{e.id}/from{s.at}" for e, s in zip(bases, states, strict=True)],
                    [e.opening.ids for e in bases],
                    [[_whole(own, c) for c in found] for own, found in zip(kept, answers, strict=True)],
                    session.sampling,
                )
            )
            return self._means(scored.outcome, [len(c.tokens) for found in answers for c in found])

        places = [self._begins(*both, session) for both in zip(actions, segments, strict=True)]
        valued = self._valued(self._planned(places, room), measure, session)
        return self._written(forest, valued, lambda row, at: int(path[row][at]) if at < len(path[row]) else None)

    def _means(self, outcome: Tensor, tokens: Sequence[int]) -> list[tuple[float, int]]:
        """The value of each state, and the tokens that it took."""
        k, means = self.samples, outcome.reshape(-1, self.samples).nanmean(1).tolist()
        return [(mean, sum(tokens[i * k : (i + 1) * k])) for i, mean in enumerate(means)]

    @staticmethod
    def _key(base: Episode, at: int, sample: int) -> StreamKey:
        return dataclasses.replace(base.key, path=(at, sample))

    def _begins(self, action: Sequence[int], segment: Sequence[int], session: Session) -> list[int]:
        """Before how many tokens of an attempt a state stands, 0 first."""
        begins = [i for i in range(1, len(action)) if segment[i] != segment[i - 1]]
        if self.answer_cue and (at := session.decode(action).find(self.answer_cue)) >= 0:
            own = bisect_right(range(len(action) + 1), at, key=lambda n: len(session.decode(action[:n]))) - 1
            begins = [*(i for i in begins if i < own), *([own] if own else [])]
        return [0, *begins]

    # ------------------------------------------------------------ episodes in environments
    def _of_episodes(self, grown: Round, play: Play) -> Forest:
        session, begun = play.session, grown.episodes
        forest = grown.scored  # before the others, which are not to be scored with them twice

        def longest(row: int, at: int) -> int:
            return (session.episode.max_turns - begun[row].stood[at].moves) * session.sampling.max_new_tokens

        def measure(states: Sequence[_State]) -> list[tuple[float, int]]:
            each = [(begun[s.row], s.at, k) for s in states for k in range(self.samples)]
            twins = play.fork([Fork(e, at, self._key(e, at, k), f"{e.name}/{at}.{k}") for e, at, k in each])
            play.finish(twins)
            outcome = session.score(play.forest([*begun, *twins])).outcome[-len(twins) :]
            return self._means(outcome, [sum(len(turn["action"]) for turn in e.turns[e.inherited :]) for e in twins])

        valued = self._valued(self._planned([range(len(e.stood)) for e in begun], longest), measure, session)
        first: dict[tuple[int, int], int] = {}  # the first token of each turn
        steps = zip(forest.path_token.tolist(), forest.path_step.tolist(), strict=True)
        where = list(zip(forest.step_trajectory.tolist(), forest.step_turn.tolist(), strict=True))
        for token, step in steps:
            first.setdefault(where[step], token)
        return self._written(forest, valued, lambda row, at: first.get((row, at)))


def _whole(kept: tuple[int, ...], answer: Completion) -> Completion:
    """The answer with what it goes on from, to be scored."""
    tokens = [*kept, *answer.tokens]
    return Completion(tokens, [math.nan] * len(tokens), answer.finish, policy_version=answer.policy_version)
