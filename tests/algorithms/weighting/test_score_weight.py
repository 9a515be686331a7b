"""Weights by a score: tokens and answers of high entropy, groups by their mean outcome."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.test_scores import grown
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of

import gxpo
from gxpo.algorithms.weighting.group_curves import ramp
from gxpo.algorithms.weighting.token_curves import above_quantile
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.environments.rewards.shape import Shape


# ---------------------------------------------------------------- Tokens of high entropy
# The card's numbers, a loop, scopes; and answers of high entropy
def entropy_quantile_weight(**options):
    return part_of("earl", "entropy_quantile", **options)


def entropy_ceiling_weight(**options):
    return part_of("gtpo", "entropy_ceiling", **options)


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def test_card() -> None:
    h = column(0.1, 2.0, 0.5, 0.05, 1.5)  # linear .8-quantile: 1.5 + .2 * .5 = 1.6
    assert above_quantile(h, torch.zeros(5, dtype=torch.int64), h >= 0).tolist() == [0, 1, 0, 0, 0]
    x = column(*h, 1.6 - 1e-9, 1.6)
    assert above_quantile(x, torch.tensor([0] * 5 + [1] * 2), x >= 0, share=1.0).tolist() == [1] * 7


ROWS = st.lists(
    st.tuples(st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.7, 2.0]), min_size=1, max_size=4), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=80, deadline=None)
@given(ROWS, st.sampled_from([0.1, 0.2, 0.5, 1.0]), st.sampled_from(["batch", "trajectory"]))
def test_equals_a_loop(rows, share, scope):
    forest = forest_of([("a", 1.0, len(h), {"compared": c}) for h, c in rows])
    entropy = column(*(x for h, _ in rows for x in h))
    weights = entropy_quantile_weight(share=share, scope=scope)(forest, entropy, {"entropy": entropy}, 0).tolist()
    pool = [x for h, c in rows if c for x in h] or [0.0]
    expected = []
    for h, _ in rows:
        bound = np.quantile(pool if scope == "batch" else h, 1 - share)
        expected += [float(x >= bound - 1e-12) for x in h]
    assert weights == expected


def test_masked_tokens_stay_in_the_denominators() -> None:
    forest = forest_of(group_of(1, 0, n=2))
    signals = {"entropy": column(0.1, 2.0, 0.3, 0.2)}
    logprob = column(-1, -1, -1, -1).requires_grad_()
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)
    m = gxpo.method("earl", {"credit.scale": "none"})
    (slope,) = torch.autograd.grad(m.loss(forest, policy, signals=signals).value, logprob)
    assert slope.tolist() == pytest.approx([0, -0.5 / 4, 0.5 / 4, 0])
    every = gxpo.method("earl", {"credit.scale": "none", "weight.entropy_quantile.share": 1.0})
    base = gxpo.method("grpo", {"credit.scale": "none"})
    slopes = [torch.autograd.grad(x.loss(forest, policy, signals=signals).value, logprob)[0] for x in (every, base)]
    assert torch.equal(*slopes)


def test_untrainable_tokens_are_in_no_quantile_and_nan_is_said() -> None:
    records = forest_of(group_of(1, 0, n=3)).to_records()
    records[0]["turns"][0]["trainable"] = [True, False, True]
    forest = gxpo.Forest.from_records(records)
    h = column(0.5, math.nan, 0.1, 0.2, 0.3, 0.4)
    assert entropy_quantile_weight(share=0.2, scope="batch")(forest, h, {"entropy": h}, 0).tolist() == [
        1,
        1,
        0,
        0,
        0,
        0,
    ]
    bad = {"entropy": column(0.5, 0.1, math.nan, 0.2, 0.3, 0.4)}
    for part in (entropy_quantile_weight(), entropy_ceiling_weight()):
        with pytest.raises(MissingSignal, match="nan for 1 of 5"):
            part(forest, h, bad, 0)


def test_answers_of_high_mean_entropy_are_left_out() -> None:
    forest = forest_of([("a", 1.0, 2), ("a", 0.0, 1), ("a", 0.0, 2)])
    signals = {"entropy": column(0.9, 0.5, 0.71, 0.0, 1.3)}
    assert entropy_ceiling_weight()(forest, column(*[0.0] * 5), signals, 0).tolist() == [1, 1, 0, 1, 1]
    assert entropy_ceiling_weight(high=math.inf)(forest, column(*[0.0] * 5), signals, 0).tolist() == [1] * 5


def test_bad_options() -> None:
    for bad in ({"share": 0.0}, {"share": 1.1}, {"scope": "step"}):
        with pytest.raises(ConfigError, match="entropy_quantile"):
            entropy_quantile_weight(**bad)


# ---------------------------------------------------------------- VITAL's difficulty weight
def mean_outcome_weight(**options):
    return part_of("vital_dgrpo", "mean_outcome", **options)


def test_the_cards_numbers():
    weights = ramp(torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5]), torch.ones(5), hard_rate=1.0, easy_rate=2.0, min_weight=0.5)
    assert weights.tolist() == pytest.approx([1, 1, 0.75, 0.5, 0.5])


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.4, 1.0, 2.5]), st.booleans()), min_size=1),
    st.sampled_from([(1 / 3, 2 / 3, 0.5), (1.0, 2.0, 0.5), (-1.0, 0.5, 0.0)]),
)
def test_it_equals_a_loop(rows, constants):
    hard, easy, least = constants
    forest = grown([(g, r) for g, r, _ in rows], compared=[c for *_, c in rows])
    expected = []
    for g, *_ in rows:
        peers = [r for h, r, c in rows if h == g and c]
        if not peers:
            expected.append(1.0)
            continue
        mean = sum(peers) / len(peers)
        expected.append(least + (1 - least) * min(1.0, max(0.0, (easy - mean) / (easy - hard))))
    weights = mean_outcome_weight(hard_rate=hard, easy_rate=easy, min_weight=least)(
        forest, torch.zeros(len(rows)), {}, 0
    )
    assert weights.tolist() == pytest.approx(expected) and bool((weights >= least).all() and (weights <= 1).all())


@pytest.mark.filterwarnings("ignore:.*method.shaped:UserWarning")  # credit on the task's rewards alone
def test_a_weight_survives_normalisation_by_the_std():
    rewards = [2.0, 3.0, 2.0, 2.0]  # mean 2.25, above easy: a weight of 1/2
    plain, scaled = grown([("g", r) for r in rewards]), grown([("g", 0.5 * r) for r in rewards])
    grpo, vital = gxpo.method("grpo"), gxpo.method("vital_dgrpo@paper")
    credit = grpo.advantages(plain)
    assert grpo.advantages(scaled).tolist() == pytest.approx(credit.tolist(), abs=1e-5)  # eps alone is left of it
    assert vital.token_weights(plain, vital.advantages(plain)).tolist() == [0.5] * 4
    # without a std the two are one
    bare = gxpo.method("vital_dgrpo@paper", {"credit.scale": "none"})
    weighted = bare.advantages(plain) * bare.token_weights(plain, credit)
    assert weighted.tolist() == pytest.approx(gxpo.method("grpo", {"credit.scale": "none"}).advantages(scaled).tolist())


def test_the_ramp_reads_the_rescaled_component():
    assert (
        gxpo.method("vital_dgrpo@paper").shapes == {"rescaled": Shape("rescaled")}
        and not gxpo.method("vital_dgrpo").shapes
    )
    for wrong in ({"min_weight": 1.5}, {"min_weight": -0.1}):
        with pytest.raises(ConfigError, match=r"weight\.mean_outcome"):
            mean_outcome_weight(**wrong)
    with pytest.raises(ConfigError, match=r"hard_rate \(0\.7\) must be below easy_rate"):
        mean_outcome_weight(hard_rate=0.7)
