"""VITAL's difficulty weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.weighting.test_answer_entropy import grown
from tests.algorithms.weighting.verdict_rows import part_of

import gxpo
from gxpo.algorithms.weighting.group_curves import ramp
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.shape import Shape


def mean_outcome_weight(**options):
    return part_of("vital_dgrpo", "mean_outcome", **options)


def test_the_cards_numbers():
    found = ramp(torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5]), torch.ones(5), hard=1.0, easy=2.0, least=0.5)
    assert found.tolist() == pytest.approx([1, 1, 0.75, 0.5, 0.5])


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
    found = mean_outcome_weight(hard=hard, easy=easy, least=least)(forest, torch.zeros(len(rows)), {}, 0)
    assert found.tolist() == pytest.approx(expected) and bool((found >= least).all() and (found <= 1).all())


@pytest.mark.filterwarnings("ignore:.*method.shaped:UserWarning")  # credit on the task's rewards alone
def test_what_the_std_takes_out_of_scaled_rewards_stays_in_the_weight():
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


def test_the_paper_asks_for_the_rescaled_component_and_bad_options_are_refused():
    assert (
        gxpo.method("vital_dgrpo@paper").shapes == {"rescaled": Shape("rescaled")}
        and not gxpo.method("vital_dgrpo").shapes
    )
    for wrong in ({"least": 1.5}, {"least": -0.1}):
        with pytest.raises(ConfigError, match=r"weight\.mean_outcome"):
            mean_outcome_weight(**wrong)
    with pytest.raises(ConfigError, match=r"hard \(0\.7\) must be below easy"):
        mean_outcome_weight(hard=0.7)
