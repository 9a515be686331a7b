"""Monte Carlo state values (VinePPO, SPO): mean outcomes of continuations from the starts of segments or turns."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Episode, Fork
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.build import Count, Limit, forest_of, sample_within
from gxpo.sampling.rollouts.episodes import Play

VALUE = "state_value"  # the extra that holds the values, [T] float64, nan unknown


@dataclass(eq=False)
class _State:
    """A state to be valued: an attempt's before its token (in an environment: turn) number `at`."""

    row: int  # of the attempt
    at: int
    longest: int  # most tokens that its continuations may generate in all
    value: float = math.nan


Measure = Callable[[Sequence[_State]], list[tuple[float, int]]]  # each state's value, and the tokens generated for it


@part("monte_carlo_values", stage="rollout")
@dataclass(frozen=True)
class MonteCarloValues(Rollout):
    """`group_size` independent attempts a task (as `independent`), with values of the states along them.

    A state's value is the mean outcome of `samples` continuations from it, which are scored as the attempts are, before
    any reward of the method's own. It stands in `forest.extras["state_value"]` at the token that is chosen in the
    state, the first of a segment or turn. Elsewhere that column is nan, and where no continuation could be scored.

    samples        continuations of a state
    unit           "segment": states are those before the method's segments (`segment`), on tasks of prompts; "turn":
                   those before an agent's actions, in environments that can be restarted
    prompt         the state before the first token is valued, too: once for the group, from its first attempt
    boundaries     at most so many states of an attempt, evenly among those there are; 0: all. The prompt isn't counted
    token_budget   a bound on the tokens of a group's continuations, 0: none. A state is valued if its continuations
                   fit in what is left even at their longest; once one does not, the group's others are not valued.
                   First comes the prompt, then the first state of every attempt, then the second
    answer_cue     a text that stands between a state and its continuations: the answer is asked for at once (VSRM:
                   "</think>"). Where an attempt wrote it by itself a boundary is added, and those after it are left out
    answer_tokens  of a continuation; 0: what the attempt had left, without the cue
    reduce         value of a state from its continuations' outcomes R_k: their "mean"; "any", the largest (of verdicts:
                   whether any is right); "soft", eta log mean e^(R_k / eta), in between (VAR-GRPO, arXiv 2505.23331)
    eta            of "soft": the smaller, the nearer to "any"

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
    unit: Literal["segment", "turn"] = "segment"
    prompt: bool = True
    boundaries: Limit = 0
    token_budget: Limit = 0
    answer_cue: str = ""
    answer_tokens: Limit = 0
    reduce: Literal["mean", "any", "soft"] = "mean"
    eta: Annotated[float, Gt(0)] = 1.0

    provides = ("states", "state_values")
    forks = True
    requires = ("segments",)

    def __post_init__(self) -> None:
        if self.unit == "turn":
            if self.answer_cue or self.answer_tokens:
                raise ConfigError("rollout.answer_cue and answer_tokens cut answers short: set rollout.unit=segment")
            object.__setattr__(self, "requires", ("restarts",))

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        if self.unit == "turn" and session.envs is None:
            raise ConfigError("rollout.unit=turn needs an environment: set rollout.unit=segment, or choose such a task")
        if self.unit == "segment" and session.envs is not None:
            raise ConfigError(
                "rollout.unit=segment goes on from the middle of an action, and environments can't be taken back to "
                "there: set rollout.unit=turn, or choose a task of prompts"
            )
        return super().grow(tasks, session)

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        return (self._value_episodes if play.world else self._value_answers)(rounds[0], play)

    # ------------------------------------------------------------ which states
    def _plan_states(self, places: Sequence[Sequence[int]], longest: Callable[[int, int], int]) -> list[list[_State]]:
        """Return each group's states in the order of valuation.

        places   of each attempt, as tokens (turns) before each state; 0 is the prompt
        longest  (row, place) -> most tokens of one continuation from there
        """
        states_by_group = []
        for first in range(0, len(places), self.group_size):
            rows = range(first, min(first + self.group_size, len(places)))
            places_in_attempts = [self._spread([at for at in places[row] if at]) for row in rows]
            # the prompt's value is the same for the whole group, so its first attempt stands for all of them
            order = [(row, 0) for row in rows if self.prompt and 0 in places[row]][:1]
            # then every attempt's first state, every attempt's second...: a budget cuts all attempts alike
            longest_row = max(map(len, places_in_attempts), default=0)
            order += [
                (row, row_places[k])
                for k in range(longest_row)
                for row, row_places in zip(rows, places_in_attempts, strict=True)
                if k < len(row_places)
            ]
            states_by_group.append([_State(row, at, self.samples * longest(row, at)) for row, at in order])
        return states_by_group

    def _spread(self, places: list[int]) -> list[int]:
        """Choose at most `boundaries` of the places, evenly spaced."""
        n, most = len(places), self.boundaries
        return places if not most or n <= most else [places[(2 * i + 1) * n // (2 * most)] for i in range(most)]

    def _measure_within_budget(
        self, states_by_group: Sequence[Sequence[_State]], measure: Measure, session: Session
    ) -> list[_State]:
        """Measure the states that the budget holds at their longest, then more with the tokens that these left over."""
        waiting_by_group = [list(states) for states in states_by_group]
        budget_left = [float(self.token_budget or math.inf) for _ in states_by_group]
        measured_states: list[_State] = []
        while True:
            batch: list[tuple[int, _State]] = []
            # a state that does not fit blocks those after it, so that the order decides and not their lengths
            for group, states in enumerate(waiting_by_group):
                room = budget_left[group]
                while states and states[0].longest <= room:
                    room -= states[0].longest
                    batch.append((group, states.pop(0)))
            if not batch:
                return measured_states
            measurements = measure([state for _, state in batch])
            for (group, state), (value, tokens) in zip(batch, measurements, strict=True):
                state.value = value
                budget_left[group] -= tokens
                measured_states.append(state)
            session.budget.discarded += self.samples * len(batch)

    def _with_values(self, forest: Forest, states: Sequence[_State], token: Callable[[int, int], int | None]) -> Forest:
        """Return the forest with the values; `token(row, at)`: the stored token before which the state is."""
        value_T = torch.full((forest.n_tokens,), torch.nan, dtype=torch.float64)
        # the prompt's value goes to the first token of all attempts of the group
        for state in states:
            first = state.row - state.row % self.group_size
            for row in range(first, first + self.group_size) if state.at == 0 else (state.row,):
                if (place := token(row, state.at)) is not None:
                    value_T[place] = state.value
        return forest.replace(extras={**forest.extras, VALUE: value_T})

    # ------------------------------------------------------------ answers to prompts
    def _value_answers(self, played_round: Round, play: Play) -> Forest:
        """Value the states before the segments of answers to prompts."""
        session, attempts = play.session, played_round.episodes
        forest = session.segment(played_round.forest)
        path = [forest.path_token[forest.path_of(row)] for row in range(forest.n_trajectories)]
        actions = [forest.token[tokens].tolist() for tokens in path]
        segments = [forest.segment[tokens].tolist() for tokens in path]
        cue, limit = session.tokenize(self.answer_cue, markup=True), session.sampling.max_new_tokens

        def room(row: int, at: int) -> int:
            return self.answer_tokens or max(1, limit - at - len(cue))

        def measure(states: Sequence[_State]) -> list[tuple[float, int]]:
            prefixes = [(*actions[s.row][: s.at], *cue) for s in states]
            bases = [attempts[s.row] for s in states]
            requests = []
            for e, s, prefix in zip(bases, states, prefixes, strict=True):
                keys = tuple(self._key(e, s.at, k) for k in range(self.samples))
                requests.append(Request((*e.opening.ids, *prefix), keys))
            answers = sample_within(session, requests, [room(s.row, s.at) for s in states])
            # the continuation is judged as part of its whole answer
            scored = session.score(
                forest_of(
                    [e.task for e in bases],
                    [f"{e.id}/from{s.at}" for e, s in zip(bases, states, strict=True)],
                    [e.opening.ids for e in bases],
                    [
                        [_with_prefix(prefix, c) for c in completions]
                        for prefix, completions in zip(prefixes, answers, strict=True)
                    ],
                    session.sampling,
                )
            )
            return self._values(scored.outcome, [len(c.tokens) for completions in answers for c in completions])

        places = [self._state_places(*both, session) for both in zip(actions, segments, strict=True)]
        states = self._measure_within_budget(self._plan_states(places, room), measure, session)
        return self._with_values(forest, states, lambda row, at: int(path[row][at]) if at < len(path[row]) else None)

    def _values(self, outcome: Tensor, tokens: Sequence[int]) -> list[tuple[float, int]]:
        """Return each state's value, and the tokens generated for it."""
        k, values = self.samples, reduce_outcomes(outcome.reshape(-1, self.samples), self.reduce, self.eta).tolist()
        return [(value, sum(tokens[i * k : (i + 1) * k])) for i, value in enumerate(values)]

    @staticmethod
    def _key(base: Episode, at: int, sample: int) -> StreamKey:
        return dataclasses.replace(base.key, path=(at, sample))

    def _state_places(self, action: Sequence[int], segment: Sequence[int], session: Session) -> list[int]:
        """Return the places of an attempt's states, as tokens before each; the first is 0."""
        begins = [i for i in range(1, len(action)) if segment[i] != segment[i - 1]]
        # from where the attempt wrote the cue itself, its segments are of the answer and need no value
        if self.answer_cue and (at := session.decode(action).find(self.answer_cue)) >= 0:
            cue_token = bisect_right(range(len(action) + 1), at, key=lambda n: len(session.decode(action[:n]))) - 1
            begins = [*(i for i in begins if i < cue_token), *([cue_token] if cue_token else [])]
        return [0, *begins]

    # ------------------------------------------------------------ episodes in environments
    def _value_episodes(self, played_round: Round, play: Play) -> Forest:
        """Value the states before the turns of episodes."""
        session, attempts = play.session, played_round.episodes
        forest = played_round.scored  # scored first, so that `measure` scores the continuations alone

        def longest(row: int, at: int) -> int:
            return (session.episode.max_turns - attempts[row].snapshots[at].moves) * session.sampling.max_new_tokens

        def measure(states: Sequence[_State]) -> list[tuple[float, int]]:
            each = [(attempts[s.row], s.at, k) for s in states for k in range(self.samples)]
            twins = play.fork([Fork(e, at, self._key(e, at, k), f"{e.name}/{at}.{k}") for e, at, k in each])
            play.finish(twins)
            outcome = session.score(play.forest([*attempts, *twins])).outcome[-len(twins) :]
            return self._values(outcome, [sum(len(turn["action"]) for turn in e.turns[e.n_inherited :]) for e in twins])

        states = self._measure_within_budget(
            self._plan_states([range(len(e.snapshots)) for e in attempts], longest), measure, session
        )
        first_tokens: dict[tuple[int, int], int] = {}  # (row, turn) -> its first stored token
        steps = zip(forest.path_token.tolist(), forest.path_step.tolist(), strict=True)
        turn_of_step = list(zip(forest.step_trajectory.tolist(), forest.step_turn.tolist(), strict=True))
        for token, step in steps:
            first_tokens.setdefault(turn_of_step[step], token)
        return self._with_values(forest, states, lambda row, at: first_tokens.get((row, at)))


def reduce_outcomes(outcome: Tensor, reduction: str, eta: float = 1.0) -> Tensor:
    """Value [n] of states from the outcomes [n, K] of their continuations, nan unscored; see `reduce`.

    >>> reduce_outcomes(torch.tensor([[1.0, 0.0]]), "soft").round(decimals=6).tolist()
    [0.620115]
    """
    if reduction == "mean":
        return outcome.nanmean(1)
    is_scored = outcome.isfinite()
    known_outcomes = torch.where(is_scored, outcome.to(torch.float64), -torch.inf)
    value = (
        known_outcomes.amax(1)
        if reduction == "any"
        else eta * ((known_outcomes / eta).logsumexp(1) - is_scored.sum(1).log())
    )
    return torch.where(is_scored.any(1), value, torch.nan)


def _with_prefix(prefix: tuple[int, ...], answer: Completion) -> Completion:
    """Return the answer with the tokens before it, to be scored as a whole."""
    tokens = [*prefix, *answer.tokens]
    return Completion(tokens, [math.nan] * len(tokens), answer.finish, policy_version=answer.policy_version)
