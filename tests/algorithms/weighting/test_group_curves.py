"""Curves of group weights: the papers' numbers, loops, limits."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of, peers_of, rows_of_verdicts, weighted
from tests.battery import battery

import gxpo
from gxpo.algorithms.weighting.group_curves import (
    _beta_normalizer,
    beta_density,
    difficulty_mix,
    difficulty_softmax,
    gaussian_rate,
    noise_aware,
)
from gxpo.base.errors import ConfigError


# ---------------------------------------------------------------- BNPO
# The card's numbers, the loop, what it reduces to, steps that say nothing about the distribution
def beta_density_weight(**options):
    return part_of("bnpo", "beta_density", **options)


THREE = group_of(1, 0, 0, 0) + group_of(1, 1, 0, 0, name="b") + group_of(1, 1, 1, 0, name="c")


def by_hand_beta_density(rates: list[float], p: float) -> float:
    """1 / density, by the Beta function as a product of gammas."""
    v = statistics.variance(rates) if len(rates) > 1 else 0.0
    if v <= 1e-20 or not 0 < p < 1:
        return 1.0
    m = statistics.fmean(rates)
    k = m * (1 - m) / v - 1
    a, b = max(1.0, 1 + k * m / 3), max(1.0, 1 + k * (1 - m) / 3)
    area = math.gamma(a) * math.gamma(b) / math.gamma(a + b)
    return min(area / (p ** (a - 1) * (1 - p) ** (b - 1)), 1e6)


def test_beta_density_card() -> None:
    rate = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    weights = beta_density(rate, torch.tensor([4, 4, 2]))
    assert weights.tolist() == pytest.approx([0.906900, 0.785398, 0.906900], abs=1e-6)
    # m .5, v .0625: a = b = 1.5, alpha = beta = 1.5
    ends = _beta_normalizer(torch.tensor(0.5, dtype=torch.float64), torch.tensor(0.0625, dtype=torch.float64))
    assert [float(x) for x in ends] == pytest.approx([1.5, 1.5])
    expected = [0.680175, *[-0.226725] * 3, *[0.392699] * 2, *[-0.392699] * 2, *[0.226725] * 3, -0.680175]
    assert weighted("bnpo", forest_of(THREE)) == pytest.approx(expected, abs=1e-6)


def test_beta_of_three_halves_is_the_scale_of_grpo() -> None:
    grpo = weighted("grpo", forest_of(THREE), {"credit.ddof": 0, "credit.eps": 0.0})
    assert weighted("bnpo", forest_of(THREE)) == pytest.approx([math.pi / 8 * a for a in grpo])


@settings(max_examples=60, deadline=None)
@given(rows_of_verdicts)
def test_beta_density_it_equals_a_loop(rows) -> None:
    forest = forest_of(rows)
    weights = beta_density_weight()(forest, torch.ones(forest.n_entries), {}, 0)
    peers = {g: peers_of(rows, g) for g in {row[0] for row in rows}}
    rates = [statistics.fmean(p) for p in peers.values() if len(p) > 1]
    for r, (g, *_) in enumerate(rows):
        group_rate = statistics.fmean(peers[g]) if peers[g] else 0.0
        assert weights[forest.path_of(r)].tolist() == pytest.approx(
            [by_hand_beta_density(rates, group_rate)] * len(forest.path_of(r)), rel=1e-7
        )


def test_equal_rates_are_reinforce_with_a_baseline() -> None:
    one = forest_of(group_of(1, 0, 0))
    same = forest_of(group_of(1, 0, 0) + group_of(0, 1, 0, name="b"))
    for forest in (one, same):
        assert weighted("bnpo", forest) == pytest.approx(weighted("dr_grpo", forest))


def test_groups_without_contrast_weigh_one_but_shape_the_density() -> None:
    with_end = forest_of(THREE + group_of(0, 0, 0, 0, name="d"))
    advantages = weighted("bnpo", with_end)
    assert advantages[12:] == [0.0] * 4
    assert advantages[0] == pytest.approx(0.75 * by_hand_beta_density([0.25, 0.5, 0.75, 0.0], 0.25))
    assert float(beta_density_weight()(with_end, torch.ones(16), {}, 0)[-1]) == 1.0


def test_the_largest_weight() -> None:
    # rates .5 nearly everywhere: the density at 1 / 20 is far out in a tail
    rows = [row for i in range(60) for row in group_of(1, 0, name=f"g{i}")] + group_of(1, *[0] * 19, name="x")
    forest = forest_of(rows)
    assert float(beta_density_weight()(forest, torch.ones(forest.n_entries), {}, 0).max()) == 1e6
    assert float(beta_density_weight(max_density=3.0)(forest, torch.ones(forest.n_entries), {}, 0).max()) == 3.0
    with pytest.raises(ConfigError, match="max_density"):
        beta_density_weight(max_density=0.0)


# ---------------------------------------------------------------- A-GRAE
# The card's numbers with both easy terms, the loop, bounds
def difficulty_mix_weight(**options):
    return part_of("a_grae", "difficulty_mix", **options)


TWO = group_of(1, 0, 0, 0) + group_of(1, 1, 1, 0, name="b")


def test_difficulty_mix_card() -> None:
    coded = [0.749997, *[-0.499998] * 3, *[0.538670] * 3, -3.232023]
    assert weighted("a_grae", forest_of(TWO)) == pytest.approx(coded, abs=2e-6)
    mirrored = [0.591504, *[-0.394336] * 3, *[0.197168] * 3, -1.183008]
    advantages = weighted("a_grae", forest_of(TWO), {"weight.difficulty_mix.easy": "root_of_rest"})
    assert advantages == pytest.approx(mirrored, abs=2e-6)


def by_hand_difficulty_mix(p: float, m: float, easy: str) -> float:
    if not 0 < p < 1:
        return 1.0
    rest = 1 - math.sqrt(p) if easy == "one_minus_root" else math.sqrt(1 - p)
    return (1 - m) * 0.5 / (rest + 1e-6) + m * 0.5 / (math.sqrt(p) + 1e-6)


@settings(max_examples=60, deadline=None)
@given(rows_of_verdicts, st.sampled_from(["one_minus_root", "root_of_rest"]), st.sampled_from([0.5, 1.0]))
def test_difficulty_mix_it_equals_a_loop(rows, easy, full) -> None:
    forest = forest_of(rows)
    credit = torch.tensor([(-1.0) ** int(r) for r in forest.path_trajectory], dtype=torch.float64)
    weights = difficulty_mix_weight(full=full, easy=easy)(forest, credit, {}, 0)
    peers = {g: peers_of(rows, g) for g in {row[0] for row in rows}}
    rates = [statistics.fmean(p) for p in peers.values() if p]
    m = statistics.fmean(rates) if rates else 0.0
    for r, (g, *_) in enumerate(rows):
        w = by_hand_difficulty_mix(statistics.fmean(peers[g]) if peers[g] else 0.0, m, easy)
        w *= min(1.0, m / full) if r % 2 == 0 else 1.0
        assert weights[forest.path_of(r)].tolist() == pytest.approx([w] * len(forest.path_of(r)))


def mix_at(rates: torch.Tensor, accuracy: float) -> torch.Tensor:
    """The curve where the mean over the step's groups is the accuracy: it is that of many further groups."""
    others = torch.full((10**6,), accuracy, dtype=torch.float64)
    both = torch.cat([rates, others])
    return difficulty_mix(both, torch.ones_like(both), easy="root_of_rest")[: len(rates), 1]


def test_the_focus_moves_from_easy_to_hard() -> None:
    rates = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    weak, able = (mix_at(rates, m) for m in (0.0, 1.0))
    assert bool((weak.diff() > 0).all()) and bool((able.diff() < 0).all())
    assert torch.allclose(weak, able.flip(0), rtol=1e-3)  # mirrors of each other


def test_successes_are_held_back_and_failures_are_not() -> None:
    forest = forest_of(TWO)
    part = difficulty_mix_weight(full=1.0)
    up, down = (part(forest, sign * torch.ones(8), {}, 0) for sign in (1.0, -1.0))
    assert torch.allclose(up, 0.5 * down)  # M = .5
    assert torch.equal(difficulty_mix_weight(full=0.5)(forest, torch.ones(8), {}, 0), down)
    assert torch.equal(part(forest, torch.zeros(8), {}, 0), down)


def test_groups_without_contrast_have_no_pole() -> None:
    forest = forest_of(group_of(0, 0) + group_of(1, 1, name="b") + group_of(1, 0, name="c"))
    weights = difficulty_mix_weight()(forest, -torch.ones(6), {}, 0)
    assert weights[:4].tolist() == [1.0] * 4 and bool((weights < 3).all())


def test_difficulty_mix_options() -> None:
    for bad in ({"full": 0.0}, {"full": 1.5}, {"easy": "rest"}, {"eps": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            difficulty_mix_weight(**bad)


# ---------------------------------------------------------------- DGPO
# Harder tasks weigh more, among those that have anything to teach
def difficulty_softmax_weight(**options):
    return part_of("dgpo_math", "difficulty_softmax", **options)


def test_the_cards_numbers():
    # e^-.125, e^-.25, e^-.375 = .882497 .778801 .687289, over their mean .782862
    rate, tokens = torch.tensor([0.25, 0.5, 0.75]), torch.tensor([3, 9, 5])  # sizes do not matter
    weights = difficulty_softmax(rate, torch.ones(3, dtype=torch.bool), tokens)
    assert weights.tolist() == pytest.approx([1.127270, 0.994812, 0.877918], abs=1e-6)


def forest_of_difficulty_softmax(groups):
    """Groups of (reward, success or None, compared); lengths are the battery's."""
    forest = battery(4, sizes=[len(g) for g in groups])
    rows = [row for g in groups for row in g]
    verdicts = [math.nan if s is None else float(s) for _, s, _ in rows]
    return forest.replace(
        outcome=torch.tensor([r for r, _, _ in rows], dtype=torch.float64),
        success=torch.tensor(verdicts, dtype=torch.float64),
        compared=torch.tensor([c for _, _, c in rows]),
    )


MEMBER = st.tuples(st.sampled_from([0.0, 1.0, 0.2]), st.sampled_from([0, 1, None]), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(MEMBER, min_size=1, max_size=4), min_size=1, max_size=4), st.sampled_from([2.0, 0.5, 0.01]))
def test_difficulty_softmax_it_equals_a_loop(groups, temperature):
    forest = forest_of_difficulty_softmax(groups)
    differ, score = [], []
    for g in groups:
        peers = [(r, s) for r, s, c in g if c]
        differ.append(len({r for r, _ in peers}) > 1)
        right = [r > 0 if s is None else s == 1 for r, s in peers]
        rate = sum(right) / len(right) if right else 0.0
        score.append(-(rate or 1.0) / temperature)
    mixed = [s for s, d in zip(score, differ, strict=True) if d]
    soft = [len(mixed) * math.exp(s) / sum(map(math.exp, mixed)) if d else 1.0
            for s, d in zip(score, differ, strict=True)]  # fmt: skip
    owner = [q for q, g in enumerate(groups) for _ in g]
    tokens = forest.lengths().tolist()
    taught = sum(n for n, q in zip(tokens, owner, strict=True) if differ[q])
    factor = sum(tokens) / taught if taught else 1.0
    plain = difficulty_softmax_weight(temperature=temperature, over_differing=False)(forest, torch.ones(1), {}, 0)
    assert plain.tolist() == pytest.approx([soft[owner[r]] for r in forest.path_trajectory.tolist()], rel=1e-9)
    scaled = difficulty_softmax_weight(temperature=temperature)(forest, torch.ones(1), {}, 0)
    assert scaled.tolist() == pytest.approx((plain * factor).tolist())
    if mixed:
        assert sum(w for w, d in zip(soft, differ, strict=True) if d) == pytest.approx(len(mixed))


def test_a_group_that_always_fails_is_thought_too_hard():
    # failures of different format scores: accuracy 0 counts as 1, the least weight there is
    groups = [[(0.2, 0, True), (0.0, 0, True)], [(1.0, 1, True), (0.0, 0, True)]]
    weight = difficulty_softmax_weight(over_differing=False)(forest_of_difficulty_softmax(groups), torch.ones(1), {}, 0)
    assert weight[0] < 1 < weight[-1]


def test_a_token_mean_is_over_the_tokens_of_groups_that_differ():
    m = gxpo.method("dgpo_math", {"weight.difficulty_softmax.temperature": 1e9})
    still, mixed = [(1.0, 1, True)] * 3, [(1.0, 1, True), (0.0, 0, True), (0.0, 0, True)]
    forest = forest_of_difficulty_softmax([still, mixed])
    credit = m.advantages(forest)
    weight = m.token_weights(forest, credit)
    in_differing_group = forest.path_trajectory >= 3
    value = float((weight * credit).sum()) / forest.n_entries
    assert value == pytest.approx(float(credit[in_differing_group].mean()), rel=1e-8)
    assert float(credit[in_differing_group].abs().max()) > 0 and not credit[~in_differing_group].any()


def test_a_batch_without_differences_is_left_alone_and_errors():
    weights = difficulty_softmax_weight()(
        forest_of_difficulty_softmax([[(1.0, 1, True)] * 2, [(0.0, 0, True)] * 3]), torch.ones(1), {}, 0
    )
    assert bool((weights == 1).all())
    with pytest.raises(ConfigError, match=r"difficulty_softmax\.temperature is 0"):
        difficulty_softmax_weight(temperature=0.0)
    m = gxpo.method("dgpo_math")
    assert (m.credit.scale, m.credit.eps, m.terms["policy"].aggregate) == ("mean_absolute", 1e-4, "token_mean")


# ---------------------------------------------------------------- FG-ExPO's weights
# The card's numbers, a loop, mean 1 over groups
def gaussian_rate_weight(**options):
    keys = {"weight.mine": "group_weight", "weight.mine.curve": "gaussian_rate"}
    return gxpo.method("grpo", keys | {f"weight.mine.{k}": v for k, v in options.items()}).weights["mine"]


def weights(rows, part):
    forest = forest_of(rows)
    weight_P = part(forest, torch.zeros(forest.n_entries), {}, 0)
    return [float(weight_P[forest.path_of(r)[0]]) for r in range(len(rows))]


def test_gaussian_rate_card() -> None:
    rate = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    raw = [0.135335, 0.606531, 1.0, 0.135335]
    weight_G = gaussian_rate(rate, torch.tensor([2, 4, 2, 0]))  # nobody is compared in the last
    assert weight_G.tolist() == pytest.approx([x / (sum(raw[:3]) / 3) for x in raw], abs=1e-5)
    rows = group_of(0, 0) + group_of(1, 0, name="b")
    mean = (0.135335 + 1) / 2  # of the two groups
    assert weights(rows, gaussian_rate_weight()) == pytest.approx([0.135335 / mean] * 2 + [1 / mean] * 2, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(rows_of_verdicts)
def test_equals_a_loop(rows):
    def raw(group):
        peers = peers_of(rows, group)
        return math.exp(-(((statistics.fmean(peers) if peers else 0.0) - 0.4) ** 2) / (2 * 0.3**2))

    group_weights = [raw(g) for g in {r[0] for r in rows} if peers_of(rows, g)]
    mean = statistics.fmean(group_weights) if group_weights else None
    expected = [raw(g) / mean if mean else 1.0 for g, *_ in rows]
    assert weights(rows, gaussian_rate_weight(center=0.4, sigma=0.3)) == pytest.approx(expected)


def test_a_wide_gaussian_is_no_weight_and_one_group_has_one() -> None:
    rows = group_of(1, 1, 0) + group_of(0, 0, name="b")
    assert weights(rows, gaussian_rate_weight(sigma=1e6)) == pytest.approx([1.0] * 5)
    assert weights(group_of(1, 1, 1), gaussian_rate_weight()) == pytest.approx([1.0] * 3)


def test_bad_options() -> None:
    for bad in ({"sigma": 0.0}, {"center": 1.5}):
        with pytest.raises(ConfigError, match=r"weight\.mine"):
            gaussian_rate_weight(**bad)


# ---------------------------------------------------------------- S-GRPO
# The card's weights, the loop, what it reduces to
def noise_aware_weight(**options):
    return part_of("s_grpo", "noise_aware", **options)


def by_hand_noise_aware(p: float, q: float) -> float:
    t = min(max((p - q) / (1 - 2 * q), 0.0), 1.0)
    return (1 - 2 * q) * t * (1 - t) / (math.sqrt(p * (1 - p) + 1e-8) * math.sqrt(t * (1 - t) + 1e-8))


def test_noise_aware_card() -> None:
    rates = torch.arange(9) / 8
    expected = [0, 0.420883, 0.721110, 0.784857, 0.8, 0.784857, 0.721110, 0.420883, 0]
    assert noise_aware(rates, flip=0.1).tolist() == pytest.approx(expected, abs=1e-6)
    assert noise_aware(rates, flip=0.0).tolist() == pytest.approx([0, 1, 1, 1, 1, 1, 1, 1, 0], abs=1e-6)
    assert noise_aware(rates, flip=0.15)[[1, 7]].tolist() == [0.0, 0.0]  # a lone success of 8 is taken for an error


def test_card_of_the_method() -> None:
    advantages = weighted("s_grpo", forest_of(group_of(1, 1, 0, 0, 0, 0, 0, 0)), {"credit.eps": 1e-8})
    assert advantages == pytest.approx([1.168332] * 2 + [-0.389444] * 6, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(rows_of_verdicts, st.sampled_from([0.0, 0.1, 0.3]))
def test_noise_aware_it_equals_a_loop(rows, flip) -> None:
    forest = forest_of(rows)
    weights = noise_aware_weight(flip=flip)(forest, torch.ones(forest.n_entries), {}, 0)
    for r, (g, *_) in enumerate(rows):
        peers = peers_of(rows, g)
        p = sum(peers) / len(peers) if peers else 0.0
        assert weights[forest.path_of(r)].tolist() == pytest.approx(
            [by_hand_noise_aware(p, flip)] * len(forest.path_of(r))
        )


@given(st.floats(0, 1), st.floats(0, 0.49))
def test_noise_aware_weight_is_symmetric_and_bounded(p, q) -> None:
    w = float(noise_aware(torch.tensor(p, dtype=torch.float64), flip=q))
    assert 0 <= w <= 1 - 2 * q + 1e-9
    assert w == pytest.approx(float(noise_aware(torch.tensor(1 - p, dtype=torch.float64), flip=q)), abs=1e-6)


def test_verdicts_go_before_scores() -> None:
    verdict_forest = forest_of([("a", 0.5, 1, {"success": s}) for s in (True, False, False, False)])
    assert noise_aware_weight()(verdict_forest, torch.ones(4), {}, 0).tolist() == pytest.approx(
        [by_hand_noise_aware(0.25, 0.1)] * 4
    )
    unsaid = forest_of([("a", r, 1, {"success": None}) for r in (0.5, 0.0, 0.0, -1.0)])
    assert noise_aware_weight()(unsaid, torch.ones(4), {}, 0).tolist() == pytest.approx(
        [by_hand_noise_aware(0.25, 0.1)] * 4
    )
    unscored_forest = forest_of(group_of(1, 0, 0, None))
    assert weighted("s_grpo", unscored_forest)[:3] == weighted("s_grpo", forest_of(group_of(1, 0, 0)))
    assert weighted("s_grpo", unscored_forest)[3] == 0.0


def test_noise_aware_options() -> None:
    with pytest.raises(ConfigError, match=r"flip is 0\.5"):
        noise_aware_weight(flip=0.5)
    with pytest.raises(ConfigError, match="eps"):
        noise_aware_weight(eps=0.0)
