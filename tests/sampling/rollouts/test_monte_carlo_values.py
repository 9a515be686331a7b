"""Values of states by continuations: they are true on the mean, charged, and depend on nothing else in the batch."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama
from tests.sampling.rollouts.test_forked_episodes import STEPS, Replayed
from tests.sampling.rollouts.tree_session import COMMA, END, VOCABULARY, EngineSession, TreeSession, numbers, tokens_of

import gxpo
from gxpo.algorithms.credit.value_delta import VALUE, ValueDelta
from gxpo.algorithms.segments import Chunks, Delimiter, Segmenter, SegmentTools
from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks.seeds import SeedTasks
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.methods import METHODS
from gxpo.models.chat import PlainChat
from gxpo.parts.definition import show
from gxpo.parts.protocols import Completion, EpisodeRules, Request, Sampling, StreamKey, Task
from gxpo.parts.registry import CREDITS
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.monte_carlo_values import MonteCarloValues
from gxpo.training.models import character_tokenizer
from gxpo.training.session import Session

NodeValue = CREDITS["node_value"]

A, B = Task("a", "a?"), Task("b", (4, 5))


class Cut:
    """A session with segments: steps that end with a comma."""

    segmenter: Segmenter = Delimiter(",")

    def segment(self, forest: Forest) -> Forest:
        return self.segmenter(forest, SegmentTools(self.decode))  # type: ignore[attr-defined]  # the session's

    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        return tuple(COMMA if c == "," else int(c) for c in text)


class Steps(Cut, TreeSession):
    pass


class Sampled(Cut, EngineSession):
    pass


def values(forest: Forest, r: int) -> list[float | None]:
    """Before each token of trajectory r, None unknown."""
    actual = forest.extras[VALUE][forest.path_token[forest.path_of(r)]].tolist()
    return [None if x != x else x for x in actual]


def right(session: TreeSession, tokens: Sequence[int]) -> float:
    return float(sum(int(c) for c in session.decode(tokens) if c.isdigit()) % 2 == 0)


# ---------------------------------------------------------------- the truth
def exact(session: TreeSession, context: tuple[int, ...], written: tuple[int, ...], room: int) -> float:
    """The chance that the answer comes out right, over all its endings."""

    @cache
    def worth(written: tuple[int, ...], room: int) -> float:
        if not room or (written and written[-1] == END):
            return right(session, written)
        chances = np.exp(session.table((*context, *written)))
        return math.fsum(float(chances[t]) * worth((*written, t), room - 1) for t in range(VOCABULARY))

    return worth(written, room)


@pytest.mark.slow
def test_values_come_close_to_the_exact_chance() -> None:
    session = Steps(sampling=Sampling(max_new_tokens=4), end=0.0)
    n = 1000
    forest = MonteCarloValues(group_size=3, samples=n).grow([A, B], session)
    seen_count = 0
    for r in range(forest.n_trajectories):
        context = session.encode(A if forest.task[r] == "a" else B)
        tokens = tuple(tokens_of(forest, r))
        for at, value in enumerate(values(forest, r)):
            if value is None:
                continue
            truth = exact(session, context, tokens[:at], 4 - at)
            assert abs(value - truth) < 5 * math.sqrt(truth * (1 - truth) / n) + 1e-12
            seen_count += 1
    assert seen_count >= 8


@pytest.mark.slow
def test_the_mean_of_many_small_estimates_is_the_exact_chance() -> None:
    # 250 steps of 3 continuations of the prompt: unbiased however few there are
    sampling, n, k = Sampling(max_new_tokens=3), 250, 3
    part = MonteCarloValues(group_size=1, samples=k, boundaries=1)
    actual = [values(part.grow([A], Steps(step=step, sampling=sampling)), 0)[0] for step in range(n)]
    session = Steps(sampling=sampling)
    truth = exact(session, session.encode(A), (), 3)
    mean = math.fsum(x for x in actual if x is not None) / n
    assert abs(mean - truth) < 4 * math.sqrt(truth * (1 - truth) / (n * k))


# ---------------------------------------------------------------- what is where
@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 50), st.booleans())
def test_values_at_segment_starts_leave_attempts_unchanged(step: int, prompt: bool) -> None:
    session, plain = Steps(step=step), Steps(step=step)
    forest = MonteCarloValues(group_size=3, samples=4, prompt=prompt).grow([A, B, A], session)
    other = plain.segment(Independent(3).grow([A, B, A], plain))
    for name in ("group", "task", "id", "info", "origin"):
        assert getattr(forest, name) == getattr(other, name)
    for name in ("token", "path_token", "segment", "trainable", "compared", "weight"):
        assert torch.equal(getattr(forest, name), getattr(other, name))
    for r in range(forest.n_trajectories):
        tokens, own_value = tokens_of(forest, r), values(forest, r)
        begins = {i + 1 for i, t in enumerate(tokens[:-1]) if t == COMMA} | ({0} if prompt else set())
        assert {i for i, x in enumerate(own_value) if x is not None} == begins
        assert all(x is None or x * 4 == int(x * 4) for x in own_value)
    firsts = [values(forest, r)[0] for r in range(9)]
    assert all(len(set(firsts[i : i + 3])) == 1 for i in (0, 3, 6))  # the prompt is valued once for the group
    again = Forest.from_records(forest.to_records())
    assert torch.equal(again.extras[VALUE].nan_to_num(nan=-1.0), forest.extras[VALUE].nan_to_num(nan=-1.0))


def test_value_is_the_mean_verdict_of_its_continuations() -> None:
    session = Steps()
    forest = MonteCarloValues(group_size=2, samples=3).grow([A], session)
    known_values = {
        (r, at) for r in range(2) for at, x in enumerate(values(forest, r)) if x is not None and (r == 0 or at)
    }
    requested = [(key.attempt, key.path) for key in session.streams if key.path]
    assert sorted(requested) == sorted((r, (at, k)) for r, at in known_values for k in range(3))
    of = {(r, at): [] for r, at in known_values}
    for sampling, requests in session.calls[1:]:
        for request in requests:
            (r, at), prompt = (request.streams[0].attempt, request.streams[0].path[0]), session.encode(A)
            kept_tokens = tokens_of(forest, r)[:at]
            assert request.prompt == (*prompt, *kept_tokens) and sampling.max_new_tokens == 12 - at
            for key in request.streams:
                ending = session.complete(request.prompt, key, sampling).tokens
                of[r, at].append(right(session, [*kept_tokens, *ending]))
    for (r, at), outcomes in of.items():
        assert values(forest, r)[at] == pytest.approx(sum(outcomes) / 3, abs=1e-12)


def test_all_states_of_one_room_are_asked_for_at_once() -> None:
    session = Steps(sampling=Sampling(max_new_tokens=12), end=-2.0)
    MonteCarloValues(group_size=4, samples=2).grow([A, B], session)
    rooms = [sampling.max_new_tokens for sampling, _ in session.calls[1:]]
    assert len(rooms) == len(set(rooms)) and max(len(requests) for _, requests in session.calls[1:]) > 2


def test_what_a_value_is_depends_on_nothing_else_in_the_batch() -> None:
    part = MonteCarloValues(group_size=3, samples=4)
    together, alone = part.grow([A, B], Steps()), part.grow([B], Steps())
    rows = [r for r in range(together.n_trajectories) if together.task[r] == "b"]
    assert [values(together, r) for r in rows] == [values(alone, r) for r in range(alone.n_trajectories)]


def test_continuations_are_charged_and_are_not_in_the_forest() -> None:
    session = Steps()
    forest = MonteCarloValues(group_size=3, samples=4).grow([A, B], session)
    assert forest.n_trajectories == 6 and set(forest.origin) == {"policy"} and bool(forest.compared.all())
    states = sum(len(requests) for _, requests in session.calls[1:])
    own_n_entries = forest.n_entries
    assert session.budget.discarded == 4 * states and session.budget.rollouts == 6 + 4 * states
    assert session.budget.generated_tokens > own_n_entries and int(forest.trainable.sum()) == own_n_entries


# ---------------------------------------------------------------- limits
def test_boundaries_are_spread_over_those_there_are() -> None:
    session = Steps(sampling=Sampling(max_new_tokens=12), end=-9.0)
    session.segmenter = Chunks(1)
    for most, expected in ((1, [6]), (2, [3, 9]), (3, [2, 6, 10]), (11, list(range(1, 12))), (0, list(range(1, 12)))):
        forest = MonteCarloValues(group_size=1, samples=1, boundaries=most).grow([A], session)
        assert len(tokens_of(forest, 0)) == 12
        assert [i for i, x in enumerate(values(forest, 0)) if x is not None] == [0, *expected]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 40), st.integers(1, 400))
def test_a_budget_is_never_exceeded_and_spent_in_order(step: int, budget: int) -> None:
    part = MonteCarloValues(group_size=3, samples=2)
    everything = part.grow([A, B], Steps(step=step))
    session = Steps(step=step)
    forest = dataclasses.replace(part, token_budget=budget).grow([A, B], session)
    spent: Counter[str] = Counter()
    begun: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for sampling, requests in session.calls[1:]:
        for request in requests:
            key = request.streams[0]
            begun[key.task].append((key.attempt, key.path[0]))
            spent[key.task] += sum(len(session.complete(request.prompt, k, sampling).tokens) for k in request.streams)
    for g, name in enumerate("ab"):
        rows = range(3 * g, 3 * g + 3)
        places = [[i for i, x in enumerate(values(everything, r)) if x is not None and i] for r in rows]
        order = [(0, 0)] + [
            (i, own_value[k]) for k in range(12) for i, own_value in enumerate(places) if k < len(own_value)
        ]
        assert spent[name] <= budget and set(begun[name]) == set(order[: len(begun[name])])
        if len(begun[name]) < len(order):  # the next one might not have fitted
            assert 2 * (12 - order[len(begun[name])][1]) > budget - spent[name]
        for i, at in begun[name]:
            assert values(forest, 3 * g + i)[at] == values(everything, 3 * g + i)[at]
        known_counts = {(r - 3 * g, i) for r in rows for i, x in enumerate(values(forest, r)) if x is not None and i}
        assert known_counts == {(i, at) for i, at in begun[name] if at}


# ---------------------------------------------------------------- answers at once
def test_answer_cue_ends_values_at_the_attempts_own_answer() -> None:
    session = Steps(sampling=Sampling(max_new_tokens=12), end=-1.0)
    part = MonteCarloValues(group_size=6, samples=2, answer_cue="7", answer_tokens=2)
    forest = part.grow([A], session)
    wrote = 0
    for r in range(6):
        tokens = tokens_of(forest, r)
        end = tokens.index(7) if 7 in tokens else len(tokens)
        wrote += 0 < end < len(tokens)
        begins = {i + 1 for i, t in enumerate(tokens[:-1]) if t == COMMA and i + 1 < end}
        assert {i for i, x in enumerate(values(forest, r)) if x is not None} == {0} | begins | (
            {end} if end < len(tokens) else set()
        )
    assert 0 < wrote < 6
    prompt = session.encode(A)
    for sampling, requests in session.calls[1:]:
        assert sampling.max_new_tokens == 2
        for request in requests:
            kept_tokens = tokens_of(forest, request.streams[0].attempt)[: request.streams[0].path[0]]
            assert request.prompt == (*prompt, *kept_tokens, 7)
            value = values(forest, request.streams[0].attempt)[len(kept_tokens)]
            outcomes = [
                right(session, [*kept_tokens, 7, *session.complete(request.prompt, k, sampling).tokens])
                for k in request.streams
            ]
            assert value == sum(outcomes) / 2


# ---------------------------------------------------------------- the learner
def test_packed_value_credit_equals_flattened_on_a_real_model() -> None:
    model = clean_llama(vocab_size=VOCABULARY, eos_token_id=END)
    session = Sampled(model, sampling=Sampling(max_new_tokens=10))
    forest = session.score(MonteCarloValues(group_size=4, samples=3).grow([A, B], session))
    learner = TorchLearner(model, lr=0.0)
    assert torch.allclose(learner.outputs(forest)["logprob"], forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    credit = ValueDelta()(forest, {}, 0)
    assert torch.equal(credit, ValueDelta()(forest.flatten(), {}, 0)) and float(credit.abs().max()) > 0.1
    for r in range(forest.n_trajectories):  # each stretch once
        own_credit = credit[forest.path_of(r)].tolist()
        begins = [i for i, x in enumerate(values(forest, r)) if x is not None]
        first = values(forest, r)[0]
        assert first is not None
        assert sum(own_credit[i] for i in begins) == pytest.approx(float(forest.outcome[r]) - first, abs=1e-12)


# ---------------------------------------------------------------- environments
class Coin:
    """An engine whose every action is a letter with chance `good`, else a sign, by the request's key alone."""

    policy_version = prefilled_tokens = reused_tokens = 0

    def __init__(self, good: float, tokenizer) -> None:
        self.good, (self.yes, self.no) = good, (tokenizer.encode(x, add_special_tokens=False)[0] for x in "a!")

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        return [[self._one(key) for key in request.streams] for request in requests]

    def _one(self, key: StreamKey) -> Completion:
        token = self.yes if numbers(dataclasses.astuple(key)).random() < self.good else self.no
        return Completion([token], [-0.5], "stop")

    def release(self, names) -> None:
        """Nothing is kept."""


def world(**options):
    return EnvPool(source(STEPS, options), workers=0)


def in_world(envs, *, good: float = 0.5, turns: int = 6, seed: int = 0) -> Session:
    tokenizer = character_tokenizer()
    tasks = SeedTasks("steps", lambda seeds: [str(s) for s in seeds])
    return Session(
        source=tasks,
        engine=Coin(good, tokenizer),  # type: ignore[arg-type]  # as much of an engine as is asked for
        rewards=RewardSet.make(None, source=tasks),
        tokenizer=tokenizer,
        sampling=Sampling(max_new_tokens=1),
        seed=seed,
        step=1,
        chat=PlainChat(tokenizer),
        envs=envs,
        episode=EpisodeRules(max_turns=turns),
    )


def played(session: Session, part: MonteCarloValues, seeds=(0, 1)) -> Forest:
    tasks = [Task(f"steps/{s}", "", info={"seed": s}) for s in seeds]
    session.know(tasks)
    return part.grow(tasks, session)


def at_least(successes: int, trials: int, p: float) -> float:
    return math.fsum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(successes, trials + 1))


@pytest.mark.slow
def test_values_before_turns_come_close_to_the_exact_chance() -> None:
    n, turns, p = 150, 5, 0.5
    with world() as pool:
        session = in_world(pool, good=p, turns=turns)
        forest = played(session, MonteCarloValues(group_size=2, samples=n, unit="turn"))
        assert forest.n_trajectories == 4 and bool(forest.scored.all())
        checked = 0
        for s in range(forest.n_steps):
            r, turn = int(forest.step_trajectory[s]), int(forest.step_turn[s])
            value = values(forest, r)[turn]  # one token a turn
            truth = at_least(int(forest.state_names[int(forest.step_state[s])]), turns - turn, p)
            assert value is not None
            assert abs(value - truth) < 5 * math.sqrt(truth * (1 - truth) / n) + 1e-12
            checked += 1
        assert checked == forest.n_entries > 12


def test_episodes_are_those_of_independent_and_forks_are_charged() -> None:
    with world() as pool:
        session, plain = in_world(pool), in_world(pool)
        part = MonteCarloValues(group_size=2, samples=3, unit="turn")
        forest, other = played(session, part), played(plain, Independent(2))  # type: ignore[arg-type]  # grows as well
        assert forest.id == other.id and torch.equal(forest.token, other.token)
        assert torch.equal(forest.parent, other.parent) and forest.info == other.info
        states = forest.n_steps - 2  # the prompt once for each of two groups of two
        assert session.budget.discarded == 3 * states
        assert session.budget.rollouts == plain.budget.rollouts + 3 * states
        assert session.budget.generated_tokens > plain.budget.generated_tokens == forest.n_entries
        scored = session.score(forest)  # the trainer asks again, and nothing changes
        assert torch.equal(scored.outcome, forest.outcome) and bool(scored.scored.all())


def test_replay_and_snapshot_give_the_same_values() -> None:
    with EnvPool(source("keydoor", {"style": "bare", "size": 4, "max_turns": 4}), workers=0) as pool:
        part = MonteCarloValues(group_size=2, samples=2, unit="turn")
        one, other = (played(in_world(envs, turns=4), part, seeds=(3,)) for envs in (pool, Replayed(pool)))
        assert torch.equal(one.extras[VALUE].nan_to_num(nan=-1), other.extras[VALUE].nan_to_num(nan=-1))
        assert int(one.extras[VALUE].isfinite().sum()) == one.n_steps


def test_an_attempt_that_broke_has_the_values_that_there_are() -> None:
    with world(crash=1) as pool:  # seed 0 breaks at its second action, and so does everything that goes on from there
        session = in_world(pool)
        forest = played(session, MonteCarloValues(group_size=2, samples=2, unit="turn"))
        assert [bool(x) for x in forest.scored] == [False, False, True, True]
        assert all(x is None for r in (0, 1) for x in values(forest, r))
        assert all(x is not None for r in (2, 3) for x in values(forest, r))


# ---------------------------------------------------------------- methods, refusals
@pytest.mark.parametrize("name", ["vineppo", "spo_segment", "vsrm", "pav"])
def test_methods_ask_for_what_they_read(name: str) -> None:
    m = gxpo.method(name)
    assert isinstance(m.rollout, MonteCarloValues) and m.segmenter is not None
    assert {"state_values", "segments"} <= set(m.requires) and "state_values" in m.rollout.provides


def test_steps_are_by_default_those_of_texts() -> None:
    """Lines, or VSRM's words; the comma and "#" of the built-in arithmetic are for whoever trains on it."""
    parts = [gxpo.method(name).rollout for name in ("tree_grpo", "himac", "search_r2")]
    assert [part.delimiter for part in parts] == ["\n"] * 3
    assert [gxpo.method(name).segmenter.text for name in ("vineppo", "pav")] == ["\n"] * 2
    vsrm = gxpo.method("vsrm")
    assert (vsrm.segmenter.min_offset, vsrm.segmenter.min_distance) == (1000, 400)
    assert (vsrm.rollout.answer_cue, vsrm.rollout.answer_tokens, vsrm.rollout.samples) == ("</think>", 768, 5)
    assert [name for name, d in METHODS.items() if any(value in (",", "#") for value in d.keys.values())] == []


def test_the_tree_of_spo_is_a_composition() -> None:
    m = gxpo.method(
        "spo_segment",
        {
            "rollout": "tree",
            "credit": "node_value",
            "credit.form": "edge",
            "credit.value": "child_mean",
            "credit.scale": "sibling_std",
            "objective.dedup_shared_tokens": True,
        },
    )
    assert show(m.credit) == "node_value" and type(m.rollout).__name__ == "Tree"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_size", 0),
        ("samples", 0),
        ("boundaries", -1),
        ("token_budget", -1),
        ("answer_tokens", -1),
        ("unit", "line"),
    ],
)
def test_impossible_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"rollout.{field}"):
        MonteCarloValues(**{field: value})


def test_segments_and_turns_belong_to_prompts_and_environments() -> None:
    with pytest.raises(ConfigError, match=r"set rollout\.unit=turn"):
        MonteCarloValues().grow([A], Steps(envs=object()))
    with pytest.raises(ConfigError, match=r"set rollout\.unit=segment"):
        MonteCarloValues(unit="turn").grow([A], Steps())
    with pytest.raises(ConfigError, match=r"set rollout\.unit=segment"):
        MonteCarloValues(unit="turn", answer_cue="#")
    assert MonteCarloValues().requires == ("segments",) and MonteCarloValues(unit="turn").requires == ("restarts",)
