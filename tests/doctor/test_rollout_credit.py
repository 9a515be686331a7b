"""Reward columns of TRL's tables: told from logged numbers by the advantages."""

import numpy as np
import pytest

from gxpo.doctor.rollout_credit import centred, explains, reward_columns, total

NAN = float("nan")
GROUP = np.array([0, 0, 1, 1, 2, 2])
RIGHT = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
FORM = np.array([0.0, 0.0, 1.0, 0.0, 1.0, 0.0])


def test_totals_leave_out_what_is_missing():
    components = np.array([[1.0, 2.0], [NAN, 2.0], [NAN, NAN]])
    assert total(components, np.array([1.0, 0.5]))[:2].tolist() == [2.0, 1.0]
    assert np.isnan(total(components, np.array([1.0, 0.5]))[2])


def test_values_are_centred_by_the_known_ones_of_their_group():
    assert centred(np.array([1.0, 3.0, NAN, 5.0]), np.array([0, 0, 1, 1])).tolist() == [-1.0, 1.0, 0.0, 0.0]


def test_advantages_are_explained_up_to_one_factor_in_each_group():
    advantage = np.array([0.7, -0.7, -2.0, 2.0, 0.0, 0.0])
    assert explains(RIGHT, advantage, GROUP)
    assert explains(RIGHT, -advantage, GROUP)  # of the other sign in all of them
    assert not explains(RIGHT, advantage * np.array([1, 1, -1, -1, 1, 1]), GROUP)
    assert not explains(RIGHT, np.zeros(6), GROUP)


def test_a_logged_number_behind_the_rewards_is_none_of_them():
    advantage = centred(RIGHT + FORM, GROUP)
    logged = np.array([3.0, 9.0, 1.0, 4.0, 7.0, 2.0])
    n, weights = reward_columns(["right", "form", "words"], np.stack([RIGHT, FORM, logged], axis=1), advantage, GROUP)
    assert (n, weights) == (2, None)


def test_weights_are_fitted_if_no_plain_sum_explains_advantages():
    """Groups of three, weights 1 and 0.25, advantages divided by the deviation of the weighted sum."""
    group = np.repeat([0, 1, 2], 3)
    right = np.array([1.0, 0, 0, 0, 1, 1, 1, 0, 1])
    form = np.array([0.0, 1, 0, 1, 0, 1, 0, 1, 1])
    score = right + 0.25 * form
    deviation = np.array([score[group == g].std(ddof=1) for g in range(3)])[group]
    n, weights = reward_columns(
        ["right", "form"], np.stack([right, form], axis=1), centred(score, group) / deviation, group
    )
    assert n == 2 and weights is not None
    assert weights.tolist() == pytest.approx([1.0, 0.25], abs=1e-3)
