"""A method's own rewards in a loop of one's own: applied once, by `Method.shaped`, and missed aloud."""

import warnings

import pytest
import torch

import gxpo
from gxpo.base.errors import GxpoError

RIGHT = [1.0, 0.0, 0.0, 1.0]


def forest(**fields):
    completions = [[[2], [3, 4], [5], [6, 7, 8]]]
    return gxpo.Forest.from_completions([[1]], completions, [RIGHT], success=[RIGHT], **fields)


def test_psr_nsr_learns_from_failures_with_its_rewards_applied():
    method = gxpo.method("psr_nsr")
    shaped = method.shaped(forest())
    assert shaped.outcome.tolist() == [1.0, -1.0, -1.0, 1.0] and shaped.success.tolist() == RIGHT
    assert shaped.shaped_by == ("reward.shape.signed",) and shaped.component_names == ("signed",)
    credit = method.advantages(shaped)
    assert (credit * method.token_weights(shaped, credit)).tolist() == [0.1, -1.0, -1.0, -1.0, 0.1, 0.1, 0.1]


def test_loss_without_the_methods_rewards_warns_with_the_fix():
    method = gxpo.method("psr_nsr")
    logprob = torch.full((7,), -1.0)
    with pytest.warns(UserWarning, match=r"psr_nsr without reward\.shape\.signed.*forest = method\.shaped\(forest\)"):
        method.loss(forest(), gxpo.PolicyTokens(logprob, logprob))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.loss(method.shaped(forest()), gxpo.PolicyTokens(logprob, logprob))
        gxpo.method("grpo").advantages(forest())


def test_rewards_are_applied_once_and_stay_with_the_rollouts():
    method = gxpo.method("psr_nsr", {"reward.add.length": "length", "reward.add.length.max_length": 4})
    once = method.shaped(forest())
    assert method.shaped(once) is once
    assert once.select([0, 1]).shaped_by == once.shaped_by == once.in_context("sampled").shaped_by
    assert gxpo.Forest.concat([once, once]).shaped_by == once.shaped_by
    assert gxpo.Forest.concat([once, forest()]).shaped_by == ()
    assert once.with_rewards(forest().outcome).shaped_by == ()


def test_rollouts_that_a_run_has_written_are_not_shaped_twice():
    method = gxpo.method("psr_nsr")
    read = gxpo.Forest.from_records(method.shaped(forest()).to_records())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert method.advantages(read).tolist() == method.advantages(method.shaped(forest())).tolist()
    with pytest.raises(GxpoError, match="'signed' has the name of a component"):
        method.shaped(read)


def test_another_methods_rewards_are_refused():
    with pytest.raises(GxpoError, match=r"unlikeliness: the rollouts hold reward\.shape\.signed of another method"):
        gxpo.method("unlikeliness").shaped(gxpo.method("psr_nsr").shaped(forest()))


def test_method_without_own_rewards_leaves_rollouts_unchanged():
    rollouts = forest()
    assert gxpo.method("grpo").shaped(rollouts) is rollouts
