"""Scores that weights are functions of: the papers' numbers, loops, limits."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import forest_of, part_of, weighted
from tests.battery import battery

import gxpo
from gxpo.algorithms.weighting.group_curves import damped
from gxpo.algorithms.weighting.scores import _cluster_entropy as answer_entropy
from gxpo.algorithms.weighting.scores import lateness
from gxpo.algorithms.weighting.scores import taught as score
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest


# ---------------------------------------------------------------- ADORA
# The card's numbers, the loop, empty sets
def length_signal_weight(**options):
    return part_of("adora", "length_signal", **options)


def test_length_card() -> None:
    def of(lengths):
        rows = [("a", r, n) for r, n in zip((1, 0, 0, 0), lengths, strict=True)]
        return weighted("adora", forest_of(rows), {"credit.eps": 0.0})

    assert of((500, 300, 350, 400)) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert of((200, 300, 350, 400)) == pytest.approx([0.15, -0.05, -0.05, -0.05])


row = st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(1, 5), st.booleans(), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1, max_size=10))
def test_length_it_equals_a_loop(rows) -> None:
    forest = forest_of([(g, float(r), n, {"compared": c, "truncated": t}) for g, r, n, c, t in rows])
    weights = length_signal_weight(otherwise=0.25)(forest, torch.ones(forest.n_entries), {}, 0)
    for i, (g, *_) in enumerate(rows):
        right = [n for h, r, n, c, _ in rows if h == g and c and r]
        wrong = [n for h, r, n, c, t in rows if h == g and c and not r and not t]
        longest = max(right, default=float("-inf"))
        keep = longest > (sum(wrong) / len(wrong) if wrong else float("-inf"))
        assert weights[forest.path_of(i)].tolist() == [1.0 if keep else 0.25] * len(forest.path_of(i))


def test_all_right_all_wrong_and_equal_lengths() -> None:
    rows = [("right", 1, 1), ("right", 1, 2), ("wrong", 0, 1), ("wrong", 0, 2), ("even", 1, 2), ("even", 0, 2)]
    forest = forest_of(rows)
    weights = length_signal_weight()(forest, torch.ones(forest.n_entries), {}, 0)
    at = [float(weights[forest.path_of(r)[0]]) for r in range(len(rows))]
    assert at == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.1])


def test_one_makes_no_difference_and_bad_weights_are_refused() -> None:
    forest = forest_of([("a", 1, 1), ("a", 0, 3)])
    assert weighted("adora", forest, {"weight.length_signal.otherwise": 1.0}) == weighted("grpo", forest)
    for bad in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="otherwise"):
            length_signal_weight(otherwise=bad)


# ---------------------------------------------------------------- ASPO's bonus
# The card's numbers, a loop, its bounds, who is eligible
def early_use_weight(**options):
    return part_of("aspo", "early_use", **options)


NAN_LATENESS = math.nan


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def test_lateness_card() -> None:
    one, yes = torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    bonus = -2.0 * lateness(column(100, 300, 200), column(1000, 1000, 1000), one, yes, yes)
    assert bonus.tolist() == pytest.approx([0.2, -0.2, 0.0])
    forest = forest_of([("a", 1.0, 10)] * 3)
    weight = early_use_weight()(forest, torch.full((30,), 0.5, dtype=torch.float64), {"first_use": column(1, 3, 2)}, 0)
    assert [float(0.5 * weight[i]) for i in (0, 10, 20)] == pytest.approx([0.7, 0.3, 0.5])


def test_the_bonus_is_held_and_never_turns_the_sign() -> None:
    forest = forest_of([("a", 1.0, 2), ("a", 1.0, 2)])
    for a in (1e-3, -1e-3, 0.2, -5.0):
        weight = early_use_weight()(forest, column(a, a, a, a), {"first_use": column(0, 2)}, 0)
        sign = 1 if a > 0 else -1
        expected = [a + min(max(b, -0.7 * abs(a)), 0.7 * abs(a)) for b in (1, 1, -1, -1)]
        assert (weight * a).tolist() == pytest.approx(expected) and bool((sign * weight * a > 0).all())
    assert early_use_weight()(forest, column(0, 0, 0, 0), {"first_use": column(0, 2)}, 0).tolist() == [1] * 4


ROWS_LATENESS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([0.0, 1.0]),
        st.integers(1, 3),
        st.sampled_from([NAN_LATENESS, 0.0, 1.0, 2.0]),
        st.booleans(),
        st.sampled_from([-0.5, 0.0, 0.3, 2.0]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100, deadline=None)
@given(ROWS_LATENESS)
def test_equals_a_loop(rows):
    forest = forest_of([(g, r, n, {"compared": c}) for g, r, n, _, c, _ in rows])
    credit = forest.to_path(column(*(r[5] for r in rows)), "R")
    weights = early_use_weight()(forest, credit, {"first_use": column(*(r[3] for r in rows))}, 0)
    for i, (g, reward, _, p, _, a) in enumerate(rows):
        peers = [(q, m) for h, r, m, q, c, _ in rows if h == g and r and c and not math.isnan(q)]
        expected = a
        if reward and not math.isnan(p) and peers:
            mean, size = sum(q for q, _ in peers) / len(peers), sum(m for _, m in peers) / len(peers)
            expected = a + min(max(-2 * (p - mean) / size, -0.7 * abs(a)), 0.7 * abs(a))
        row_advantages = (weights * credit)[forest.path_of(i)]
        assert row_advantages.tolist() == pytest.approx([expected] * len(row_advantages))


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="early_use"):
        early_use_weight(bound=-0.1)


# ---------------------------------------------------------------- SEED-GRPO's weight
# The card's numbers, a loop, both estimators, what it reduces to
def answer_entropy_weight(**options):
    return part_of("seed_grpo", "answer_entropy", **options)


ROWS_ANSWER_ENTROPY = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from([-1, 0, 1, 2]), st.booleans(), st.floats(-3, 0)),
    min_size=1,
    max_size=10,
)


def ids(*x: int) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.int64)


def grown(rows: list[tuple[str, float]], length: int = 1, **fields: list) -> Forest:
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": str(i), "prompt": [1], "reward": r,
             "turns": [{"action": [5] * length, "logprob": [-1.0] * length}], **{k: v[i] for k, v in fields.items()}}
            for i, (g, r) in enumerate(rows)
        ]
    )  # fmt: skip


def test_the_cards_numbers():
    one = torch.zeros(4, dtype=torch.int64)
    # 2/2: -(log .5 + log .5) / 2 = log 2; 3/1: -(log .75 + log .25) / 2
    assert answer_entropy(ids(0, 0, 1, 1), one).tolist() == pytest.approx([0.693147] * 4, abs=1e-6)
    assert answer_entropy(ids(0, 0, 0, 1), one).tolist() == pytest.approx([0.836988] * 4, abs=1e-6)
    # Shannon has them the other way round: .75 log(4/3) + .25 log 4 = .562335
    shannon = [float(answer_entropy(c, one, estimator="shannon")[0]) for c in (ids(0, 0, 1, 1), ids(0, 0, 0, 1))]
    assert shannon == pytest.approx([0.693147, 0.562335], abs=1e-6)
    # over log 4 that is a half: A = [.75, -.25, -.25, -.25] / 2
    forest = grown([("g", r) for r in (1.0, 0.0, 0.0, 0.0)])
    m, signals = gxpo.method("seed_grpo"), {"answer_cluster": ids(0, 0, 1, 1)}
    credit = m.advantages(forest, signals)
    scaled = credit * m.token_weights(forest, credit, signals)
    assert scaled.tolist() == pytest.approx([0.375, -0.125, -0.125, -0.125])


@given(ROWS_ANSWER_ENTROPY, st.sampled_from(["mean_log", "shannon"]), st.booleans())
def test_answer_entropy_it_equals_a_loop(rows, estimator, by_likelihood):
    group = ids(*(g for g, *_ in rows))
    cluster = ids(*(4 * g + c if c >= 0 else -1 for g, c, *_ in rows))
    where, score = torch.tensor([w for *_, w, _ in rows]), torch.tensor([s for *_, s in rows], dtype=torch.float64)
    entropies = answer_entropy(cluster, group, where, score if by_likelihood else None, estimator)
    expected = []
    for g, *_ in rows:
        mass: dict[int, float] = {}
        for h, c, w, s in rows:
            if h == g and c >= 0 and w:
                mass[c] = mass.get(c, 0.0) + (math.exp(s) if by_likelihood else 1.0)
        p = [m / sum(mass.values()) for m in mass.values()]
        if estimator == "shannon":
            expected.append(-sum(x * math.log(x) for x in p))
        else:
            expected.append(-sum(map(math.log, p)) / len(p) if p else 0.0)
    assert entropies.tolist() == pytest.approx(expected, abs=1e-12)


@given(
    ROWS_ANSWER_ENTROPY, st.sampled_from(["linear", "exponential", "focal"]), st.sampled_from(["mean_log", "shannon"])
)
def test_weights_are_shares_and_one_where_all_agree(rows, decay, estimator):
    forest = grown([("ab"[g], 1.0) for g, *_ in rows], compared=[w for *_, w, _ in rows])
    group = forest.ids("group", axis="R")
    cluster = ids(*(4 * g + c if c >= 0 else -1 for g, (_, c, *_) in zip(group.tolist(), rows, strict=True)))
    part = answer_entropy_weight(decay=decay, estimator=estimator)
    weight = part(forest, torch.zeros(len(rows)), {"answer_cluster": cluster}, 0)
    assert bool((weight >= 0).all() and (weight <= 1).all())
    for g in set(group.tolist()):
        clusters = {c for h, (_, c, w, _) in zip(group.tolist(), rows, strict=True) if h == g and w and c >= 0}
        if len(clusters) <= 1:
            assert weight[group == g].tolist() == pytest.approx([1.0] * int((group == g).sum()))
        assert len(set(weight[group == g].tolist())) == 1


def test_decays():
    share = torch.tensor([0.0, 0.25, 1.0, 1.5])
    assert damped(share).tolist() == pytest.approx([1, 0.75, 0, 0])
    assert damped(share, alpha=0.5).tolist() == pytest.approx([1, 0.875, 0.5, 0.25])
    assert damped(share, decay="exponential").tolist() == pytest.approx([math.exp(-x) for x in (0, 0.25, 1, 1.5)])
    assert damped(share, decay="focal", power=2.0).tolist() == pytest.approx([1, 0.5625, 0, 0])


def test_likelihoods_never_push_a_weight_below_zero():
    forest = grown([("g", 1.0), ("g", 0.0)], length=2)
    # mean log-probabilities -1 and -3: p = 1 / (1 + e^-2) = .880797, .119203; -(log p1 + log p2) / 2 = 1.126928
    signals = {"answer_cluster": ids(0, 1), "proximal_logprob": torch.tensor([-0.5, -1.5, -4.0, -2.0]).double()}
    weight = answer_entropy_weight(mass="likelihood", decay="exponential")(forest, torch.zeros(4), signals, 0)
    assert weight.tolist() == pytest.approx([math.exp(-1.126928 / math.log(2))] * 4, abs=1e-6)
    assert answer_entropy_weight(mass="likelihood")(forest, torch.zeros(4), signals, 0).tolist() == [0.0] * 4
    far = {**signals, "proximal_logprob": torch.tensor([0.0, 0.0, -2000.0, -2000.0]).double()}
    assert bool(
        answer_entropy_weight(mass="likelihood", decay="exponential")(forest, torch.zeros(4), far, 0).isfinite().all()
    )


def test_alpha_zero_is_dr_grpo_and_one_drops_disagreement():
    forest, signals = grown([("g", 1.0), ("g", 0.0), ("h", 1.0)]), {"answer_cluster": ids(0, 1, 2)}
    off, on = (gxpo.method("seed_grpo", {"weight.answer_entropy.alpha": a}) for a in (0.0, 1.0))
    credit = on.advantages(forest, signals)
    assert credit.tolist() == [0.5, -0.5, 0.0]
    assert off.token_weights(forest, credit, signals).tolist() == [1.0] * 3
    assert on.token_weights(forest, credit, signals).tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-12)


def test_bad_options_are_refused():
    for wrong in ({"alpha": -1.0}, {"power": 0.0}, {"decay": "step"}, {"estimator": "other"}, {"mass": "other"}):
        with pytest.raises(ConfigError, match=r"weight\.answer_entropy"):
            answer_entropy_weight(**wrong)  # type: ignore[arg-type]  # that is what is tested


# ----------------------------------------------------------------
# Trajectories that have a teacher get no policy gradient
def untaught_weight(**options):
    return part_of("srpo_routing", "untaught", **options)


NAN_TAUGHT = math.nan


@given(st.integers(0, 10**6))
def test_a_loop(seed):
    rng = random.Random(seed)
    owner = sorted(rng.randrange(5) for _ in range(rng.randrange(12)))
    entropy = [rng.choice((NAN_TAUGHT, NAN_TAUGHT, rng.random())) for _ in owner]
    taught = {r for r, h in zip(owner, entropy, strict=True) if not math.isnan(h)}
    weights = 1 - score(torch.tensor(entropy), torch.tensor(owner, dtype=torch.int64))
    assert weights.tolist() == [0.0 if r in taught else 1.0 for r in owner]


def test_the_part():
    forest = battery(1)
    entropy = torch.full((forest.n_entries,), NAN_TAUGHT, dtype=torch.float64)
    part = untaught_weight()
    everything = part(forest, entropy, {"teacher_entropy": entropy}, 1)
    assert bool((everything == 1).all()) and part.needs == ("teacher_entropy",)
    entropy[forest.path_of(2)[-1]] = 0.5  # one token is enough: a rollout goes one way as a whole
    weights = part(forest, entropy, {"teacher_entropy": entropy}, 1)
    assert torch.equal(weights == 0, forest.path_trajectory == 2)
