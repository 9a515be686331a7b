"""Methods of masked models: the numbers of their cards, by hand."""

import pytest
import torch

import gxpo
from gxpo.algorithms.credit.tilted import tilted
from gxpo.algorithms.weighting.token_curves import equal_values
from gxpo.sampling.rollouts.monte_carlo_values import reduce_outcomes


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def forest_of_ratios(rewards, lengths):
    answers = [[5] * n for n in lengths]
    return gxpo.Forest.from_completions(prompts=[[1, 2]], completions=[answers], rewards=[rewards])


def slopes(m, forest, advantages, log_ratio):
    """Gradient of the loss in the log-probs, at these log-ratios to the old policy."""
    logprob = torch.tensor(log_ratio, dtype=torch.float64).requires_grad_()
    old = torch.zeros_like(logprob)
    pol = gxpo.PolicyTokens(logprob, old, old, proximal_logprob=old)
    m.loss(forest, pol, advantages=advantages).value.backward()
    return logprob.grad.tolist()


def test_diffu_grpo_and_cj_grpo_take_off_the_mean_and_divide_by_nothing():
    for name in ("diffu_grpo", "gdpo_dlm"):
        forest = forest_of_ratios([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], [1] * 6)
        assert gxpo.method(name).advantages(forest).tolist() == [0.5, -0.5, -0.5, 0.5, 0.5, -0.5]


def test_coupled_grpo_compares_with_the_mean_of_the_others():
    forest = forest_of_ratios([1.0, 0.0, 0.5], [1] * 3)  # 1 - .25, 0 - .75, .5 - .5
    assert gxpo.method("coupled_grpo").advantages(forest).tolist() == [0.75, -0.75, 0.0]


def test_the_weights_of_dmpo():
    args = column(1.0, 0.0, 0.5), torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    # two tokens each: log p_ref - log p_old of the answers is .2, -.1, 0
    reference, old, length = column(-1.0, -1.0, -1.0), column(-1.1, -0.95, -1.0), column(2.0, 2.0, 2.0)
    actual = tilted(*args, length, reference, old, alpha=1.0)
    assert actual.tolist() == pytest.approx([0.336086, -0.307438, -0.028648], abs=1e-6)
    positive = tilted(*args, length, reference, old, alpha=1.0, strength=0.0)
    assert positive.tolist() == pytest.approx([0.565254, 0.154050, 0.280697], abs=1e-6)
    centred = tilted(*args, length, reference, old, alpha=1.0, baseline="mean")
    assert centred.tolist() == pytest.approx([0.565254 - 1 / 3, 0.154050 - 1 / 3, 0.280697 - 1 / 3], abs=1e-6)


def test_equal_rewards_give_dmpo_nothing_to_learn():
    args = column(1.0, 1.0), torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)
    actual = tilted(*args, column(1.0, 1.0), column(-1.0, -3.0), column(-2.0, -1.0))
    assert actual.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


def test_the_ratio_of_gdpo_is_the_sequences_and_its_loss_is_divided_by_the_length():
    m, advantages = gxpo.method("gdpo_dlm"), torch.ones(4, dtype=torch.float64)
    forest = forest_of_ratios([1.0], [4])
    # sum of log-ratios .1: rho 1.105171 within the clip, each token's slope -A rho / |y|
    inside = slopes(m, forest, advantages, [0.1, 0.0, 0.05, -0.05])
    assert inside == pytest.approx([-1.105171 / 4] * 4, abs=1e-6)
    # .3: rho 1.349859 is above 1.2, the objective is 1.2 / 4 = .3 and does not move
    assert slopes(m, forest, advantages, [0.1, 0.1, 0.05, 0.05]) == [0.0] * 4


def test_steps_of_the_decoder_count_alike_in_cj_grpo():
    m = gxpo.method("cj_grpo")
    forest = forest_of_ratios([1.0], [3])
    forest = forest.replace(extras={"unmasked_at": torch.tensor([-1, -1, 0, 0, 1])})
    logprob = torch.tensor([1.1, 0.9, 1.4], dtype=torch.float64).log()
    pol = gxpo.PolicyTokens(logprob, torch.zeros(3, dtype=torch.float64), proximal_logprob=torch.zeros(3).double())
    loss = m.loss(forest, pol, advantages=torch.ones(3, dtype=torch.float64))
    # clip .2: step 1 has the mean of 1.1 and .9, step 2 has 1.2; a mean over tokens would be -1.066667
    assert float(loss.value) == pytest.approx(-(0.5 * 1.0 + 0.5 * 1.2), abs=1e-12)


def test_values_count_alike_over_the_batch():
    steps, batch = torch.tensor([0, 0, 0, 1, 2, 2]), torch.zeros(6, dtype=torch.int64)
    actual = equal_values(steps, batch, torch.ones(6, dtype=torch.bool))
    assert actual.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0, 1.0, 1.0])


# ---------------------------------------------------------------- values of states from continuations
@pytest.mark.parametrize(
    ("how", "eta", "outcome", "value"),
    [
        ("soft", 1.0, (1.0, 0.0), 0.620115),  # log((e + 1) / 2)
        ("soft", 0.1, (1.0, 0.0), 0.930690),
        ("soft", 1.0, (0.0, 0.0), 0.0),
        ("mean", 1.0, (1.0, 0.0), 0.5),
        ("any", 1.0, (1.0, 0.0), 1.0),
        ("any", 1.0, (0.0, 0.0), 0.0),
        ("soft", 1.0, (1.0, float("nan")), 1.0),
    ],
)
def test_the_value_of_a_state_from_its_continuations(how, eta, outcome, value):
    assert reduce_outcomes(column(*outcome)[None], how, eta).item() == pytest.approx(value, abs=1e-6)


def test_a_state_without_scored_continuations_has_no_value():
    for how in ("mean", "any", "soft"):
        assert reduce_outcomes(column(float("nan"), float("nan"))[None], how).isnan().all()
