"""Estimators of likelihoods, against exact ones of answers of up to four tokens; worked numbers of their cards."""

import math

import numpy as np
import pytest
import torch
from tests.models.masked_toys import END, along, every_answer, mean_over_orders, orders, row, toy

from gxpo.algorithms.likelihoods.base import Answer
from gxpo.algorithms.likelihoods.estimators import Coupled, Elbo, OneStep, TrajectoryLikelihood
from gxpo.base.errors import ConfigError
from gxpo.models.masked import estimate

ANSWERS = [(END,), (3, END), (3, 4, END), (3, 4, 2, END)]  # the first tokens of each are those of the next
OF_EACH_LENGTH = pytest.mark.parametrize("answer", ANSWERS, ids=["1", "2", "3", "4"])


@torch.no_grad()
def totals(answer, likelihood, seeds=(0,)):
    """Estimate of the whole answer for each seed of its masks."""
    values = estimate(toy(), [row(answer, seed=seed) for seed in seeds], likelihood)["logprob"]
    return values.reshape(len(seeds), len(answer)).sum(1)


# ---------------------------------------------------------------- exact
@pytest.mark.parametrize("order", orders(2))
def test_likelihoods_of_all_answers_sum_to_one_in_any_order(order):
    # an end in the second place ends an answer there; in the first it is the only token
    total = math.fsum(math.exp(along(a, order[: len(a)] if len(a) == 2 else (0,), room=2)) for a in every_answer(2))
    if order == (0, 1):
        assert total == pytest.approx(1.0, abs=1e-12)
    else:  # from right to left an answer of one token is an end in the second place, and then one in the first: banned
        ended = math.exp(along((END,), (0,), room=2))
        assert total - ended <= 1.0 + 1e-12


@OF_EACH_LENGTH
def test_the_exact_bound_is_the_mean_over_orders(answer):
    assert totals(answer, Elbo("exact")).item() == pytest.approx(mean_over_orders(answer), abs=1e-10)


@OF_EACH_LENGTH
def test_the_bound_is_below_the_likelihood_of_random_orders(answer):
    likelihoods = [math.exp(along(answer, order)) for order in orders(len(answer))]
    assert mean_over_orders(answer) <= math.log(math.fsum(likelihoods) / len(likelihoods)) + 1e-12


@pytest.mark.parametrize(
    "likelihood",
    [OneStep(0.0), Elbo("exact"), Elbo("uniform", 1), Elbo("uniform", 2, antithetic=True), Coupled(0.5, 0.5)],
    ids=["one_step", "exact", "uniform", "antithetic", "coupled"],
)
def test_estimators_are_exact_on_one_token(likelihood):
    actual = totals((END,), likelihood, range(5))
    assert torch.allclose(actual, torch.full_like(actual, along((END,), (0,))), atol=1e-12)


def test_the_one_step_estimate_reads_every_token_from_the_prompt_alone():
    answer = (3, 4, END)
    # each token first in its order: nothing of the answer is visible
    firsts = [
        estimate(toy(), [row(answer, order=o)], TrajectoryLikelihood()) for o in ((0, 1, 2), (1, 0, 2), (2, 1, 0))
    ]
    by_hand = [float(x["logprob"][i]) for i, x in enumerate(firsts)]
    actual = estimate(toy(), [row(answer)], OneStep(0.0))["logprob"]
    assert actual.tolist() == pytest.approx(by_hand, abs=1e-12)


# ---------------------------------------------------------------- unbiased
def mean_weights(likelihood, n, seeds):
    """Mean over seeds of the weight that each set of hidden tokens is given, by set."""
    sums: dict[tuple[bool, ...], np.ndarray] = {}
    for seed in seeds:
        answer = Answer(0, torch.zeros(n, dtype=torch.int64), seed)
        for hidden, weight in zip(*likelihood.views(answer), strict=True):
            key = tuple(hidden.tolist())
            sums[key] = sums.get(key, np.zeros(n)) + weight.numpy() / len(seeds)
    return sums


@pytest.mark.parametrize(
    "likelihood", [Elbo("uniform", 2), Elbo("uniform", 2, antithetic=True), Elbo("uniform", 1, masks=2)], ids=str
)
def test_random_masks_have_the_exact_weights_on_average(likelihood):
    exact = mean_weights(Elbo("exact"), 3, [0])
    actual = mean_weights(likelihood, 3, range(1000))
    assert actual.keys() == exact.keys()
    assert all(np.abs(actual[key] - exact[key]).max() < 0.1 for key in exact)


def test_coupled_masks_read_every_token_once_and_add_up():
    # the whole answer once, and a pair in which token i has weight 1/t with probability t and 1/(1-t) with 1-t: 1 + 2
    answer = Answer(2, torch.zeros(4, dtype=torch.int64), 3)
    hidden, _ = Coupled().views(answer)
    assert not hidden[:, :2].any() and hidden[0, 2:].all()
    assert (hidden[1:, 2:].sum(0) == 1).all()
    mean = sum(mean_weights(Coupled(), 2, range(1000)).values())
    assert np.abs(mean - 1.0).max() < 0.05
    assert Coupled(scale=1.5).views(answer)[1][0].tolist() == [0.5] * 4  # (log p + ...) / 2, as in the code


def test_a_trajectory_has_a_view_for_each_step():
    answer = Answer(1, torch.tensor([0, 2, 0, 1]), 0)
    hidden, weight = TrajectoryLikelihood().views(answer)
    assert hidden.tolist() == [
        [False, True, True, True, True],
        [False, False, True, False, True],
        [False, False, True, False, False],
    ]
    assert weight.tolist() == [[1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0]]


# ---------------------------------------------------------------- numbers of the cards
@pytest.mark.parametrize(
    ("rule", "points", "n", "sum_of_weights"),
    [
        ("gauss", 2, 4, 4.267949),  # .5 (1 / .211325) + .5 (3 / .788675)
        ("gauss", 2, 100, 99.770527),  # .5 (21 / .211325) + .5 (79 / .788675)
        ("simpson", 3, 4, 5.0),  # 1/6 (1 / .1) + 4/6 (2 / .5) + 1/6 (4 / 1)
        ("simpson", 3, 100, 100.0),
    ],
)
def test_quadrature_of_equal_log_probabilities(rule, points, n, sum_of_weights):
    _, weight = Elbo(rule, points).views(Answer(0, torch.zeros(n, dtype=torch.int64), 0))
    assert weight.sum().item() == pytest.approx(sum_of_weights, abs=1e-6)


def test_the_prompt_is_masked_at_its_rate_and_the_same_way_again():
    answer = Answer(4000, torch.zeros(2, dtype=torch.int64), 7)
    hidden, weight = OneStep(0.15).views(answer)
    assert hidden.shape == (1, 4002) and hidden[0, 4000:].all() and weight.tolist() == [[1.0, 1.0]]
    assert 0.12 < hidden[0, :4000].double().mean() < 0.18
    assert torch.equal(OneStep(0.15).views(answer)[0], hidden)
    assert not torch.equal(OneStep(0.15).views(Answer(4000, answer.unmasked_at, 8))[0], hidden)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Elbo("gauss", antithetic=True), "likelihood.antithetic pairs random masks"),
        (lambda: Elbo("uniform", 3, antithetic=True), "an even likelihood.points"),
        (lambda: Coupled(0.2, 0.6), "symmetric about 0.5"),
        (lambda: OneStep(1.5), "it is from 0 to 1"),
        (lambda: Elbo("exact").views(Answer(0, torch.zeros(9), 0)), "up to 8 of them, and one has 9"),
    ],
)
def test_estimators_that_can_not_be_are_refused(made, message):
    with pytest.raises(ConfigError, match=message):
        made()
