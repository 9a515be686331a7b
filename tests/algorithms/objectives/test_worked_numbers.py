"""Losses and gradients on the five tokens, to the digits worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.objectives.by_position import Truncate
from tests.algorithms.objectives.conftest import figures_of

from gxpo.algorithms.objectives import Clip, DualClip, LogClip, PolicyGradient, Surrogate
from gxpo.algorithms.weighting import truncated
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.parts.protocols import PolicyTokens


@pytest.mark.parametrize(
    ("term", "loss", "gradient"),
    [
        (PolicyGradient(aggregate="token_mean"), 0.313057, [0, -0.180967, 0, 0.244281, 0.329744]),
        (PolicyGradient(), 0.085478, [0, -0.226209, 0, 0.203567, 0.274787]),
        # sums per sequence, averaged over the two: the horizon is 1
        (PolicyGradient(aggregate="sequence_sum", horizon=1), 0.782643, [0, -0.452419, 0, 0.610701, 0.824361]),
        (PolicyGradient(aggregate="sequence_sum", horizon=4), 0.195661, [0, -0.113105, 0, 0.152675, 0.206090]),
        (
            PolicyGradient(surrogate=Clip(0.2, 0.28), aggregate="token_mean"),
            0.297057,
            [0, -0.180967, 0, 0.244281, 0.329744],
        ),
        (
            PolicyGradient(surrogate=DualClip(ratio_max=1.3), aggregate="token_mean"),
            0.243313,
            [0, -0.180967, 0, 0.244281, 0],
        ),
        (
            PolicyGradient(surrogate=Truncate(), aggregate="token_mean"),
            -0.147117,
            [-0.256000, -0.180967, 0.134064, 0.244281, 0.256000],
        ),
        (
            PolicyGradient(ratio="sequence"),
            0.0,
            [-0.276293, -0.276293, 0.184195, 0.184195, 0.184195],
        ),
        (PolicyGradient(ratio="sequence", surrogate=Clip(3e-4, 4e-4)), 0.052385, [0, 0, 0.184195, 0.184195, 0.184195]),
        (
            PolicyGradient(ratio="sequence", surrogate=LogClip()),
            0.0,
            [-0.276293, -0.276293, 0.184195, 0.184195, 0.184195],
        ),
        (
            PolicyGradient(ratio="sequence", surrogate=LogClip(0.2, 0.2)),
            0.065045,
            [0, -0.262818, 0, 0.196893, 0.196893],
        ),
    ],
    ids=["token", "seqtok", "seqsum", "fixed", "clip-higher", "dual", "cispo", "gspo-wide", "gspo", "gmpo", "gmpo-0.2"],
)
def test_toy(toy, term: PolicyGradient, loss: float, gradient: list[float]) -> None:
    value, slopes = toy.loss(term)
    assert value == pytest.approx(loss, abs=6e-7)
    assert slopes == pytest.approx(gradient, abs=6e-7)


def test_two_sided_delta_is_the_dual_clip_with_that_bound(toy) -> None:
    value, gradient = toy.loss(PolicyGradient(surrogate=DualClip(ratio_max=1.5), aggregate="token_mean"))
    assert value == pytest.approx(0.283313, abs=6e-7)
    assert gradient[4] == 0


def test_decoupled_ppo(toy) -> None:
    proximal = toy.old + torch.tensor([0.1, 0.0, -0.2, 0.1, 0.9], dtype=torch.float64)
    term = PolicyGradient(aggregate="token_mean")
    uncapped = truncated(proximal, toy.old, cap=1e6)
    assert uncapped.tolist() == pytest.approx([1.105171, 1.0, 0.818731, 1.105171, 2.459603], abs=1e-6)
    value, _ = toy.loss(term, proximal_logprob=proximal, weight=uncapped)
    assert value == pytest.approx(0.325673, abs=6e-7)
    # capped at 2, the last token's loss 0.8 weighs 2 and not 2.459603: 0.325673 - 0.459603 * 0.8 / 5
    value, _ = toy.loss(term, proximal_logprob=proximal, weight=truncated(proximal, toy.old))
    assert value == pytest.approx(0.252136, abs=1e-6)


def test_three_aggregations_of_lengths_two_and_six(grow) -> None:
    # A = [1, -1], lengths [2, 6], ratio 1: (-2 + 6) over 2 x 10, over 8, and -1 + 1
    forest = grow([("a", 2), ("a", 6)])
    lp = torch.full((8,), -1.0, dtype=torch.float64)
    credit = torch.tensor([1.0] * 2 + [-1.0] * 6, dtype=torch.float64)
    for mode, expected in (("sequence_mean", 0.0), ("token_mean", 0.5), ("sequence_sum", 0.2)):
        term = PolicyGradient(aggregate=mode, horizon=10)  # type: ignore[arg-type]  # one of the allowed words
        assert float(term(forest, PolicyTokens(lp, lp), credit, torch.ones(8), {}, 0)[0]) == pytest.approx(expected)


@pytest.mark.parametrize("surrogate", [Clip(), DualClip(), LogClip(), Truncate()], ids=lambda g: type(g).__name__)
def test_on_policy_every_surrogate_has_the_reinforce_gradient(toy, surrogate: Surrogate) -> None:
    # T5: a coefficient of exactly 1 at ratio 1, for defaults
    for ratio in ("token", "sequence"):
        term = PolicyGradient(ratio=ratio, surrogate=surrogate, aggregate="token_mean")  # type: ignore[arg-type]
        _, gradient = toy.loss(term, proximal_logprob=toy.logprob.detach())
        assert gradient == [-0.2, -0.2, 0.2, 0.2, 0.2]


def test_cispo_with_trls_default_bound_shrinks_every_gradient(toy) -> None:
    # T5: an absolute bound of 0.2, which was meant as a width, multiplies every gradient by 0.2
    _, meant = toy.loss(PolicyGradient(surrogate=Truncate(5.0)), proximal_logprob=toy.logprob.detach())
    _, shrunk = toy.loss(PolicyGradient(surrogate=Truncate(0.2)), proximal_logprob=toy.logprob.detach())
    assert shrunk == pytest.approx([0.2 * g for g in meant])


def test_surrogates_agree_where_they_should(toy) -> None:
    def both(a: PolicyGradient, b: PolicyGradient) -> None:
        (u, du), (v, dv) = toy.loss(a), toy.loss(b)
        assert u == pytest.approx(v, abs=1e-14) and du == pytest.approx(dv, abs=1e-14)

    both(PolicyGradient(surrogate=DualClip(ratio_max=50)), PolicyGradient(surrogate=Clip()))
    both(
        PolicyGradient(ratio="sequence", surrogate=LogClip(9, 9)),
        PolicyGradient(ratio="sequence", surrogate=Clip(0.999999, 9)),
    )
    log_space = Clip(1 - math.exp(-0.25), math.exp(0.35) - 1)
    both(PolicyGradient(surrogate=LogClip(0.25, 0.35)), PolicyGradient(surrogate=log_space))
    both(PolicyGradient(surrogate=Surrogate()), PolicyGradient(surrogate=Clip(0.99, 99)))


def test_gmpo_of_single_tokens_is_ppo_with_bounds_in_log_space(grow) -> None:
    forest = grow([("a", 1)] * 4)
    old = torch.tensor([-1.0, -1.0, -2.0, -2.0], dtype=torch.float64)
    credit = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    grads = []
    for term in (
        PolicyGradient(ratio="sequence", surrogate=LogClip(0.4, 0.4)),
        PolicyGradient(surrogate=Clip(1 - math.exp(-0.4), math.exp(0.4) - 1)),
    ):
        lp = torch.tensor([-0.5, -0.5, -2.5, -2.5], dtype=torch.float64, requires_grad=True)
        term(forest, PolicyTokens(lp, old), credit, torch.ones(4), {}, 0)[0].backward()
        grads.append(lp.grad.tolist())  # type: ignore[union-attr]  # just computed
    assert grads[0] == pytest.approx(grads[1], abs=1e-14)
    assert [g != 0 for g in grads[0]] == [False, True, True, False]


def test_gspo_in_token_form_is_gspo(toy) -> None:
    # the ratio of the paper, one per sequence, differentiated as it stands
    term = PolicyGradient(ratio="sequence", surrogate=Clip(0.05, 0.2))
    value, gradient = toy.loss(term)
    lp = toy.logprob.detach().clone().requires_grad_()
    delta = lp - toy.old
    s = torch.stack([delta[:2].mean().exp(), delta[2:].mean().exp()])
    credit = torch.tensor([1.0, -1.0], dtype=torch.float64)
    direct = torch.maximum(-credit * s, -credit * s.clamp(0.95, 1.2)).mean()
    direct.backward()
    assert value == pytest.approx(float(direct.detach()), abs=1e-15)
    assert gradient == pytest.approx(lp.grad.tolist(), abs=1e-15)  # type: ignore[union-attr]  # just computed


def test_settings_that_make_no_sense_are_refused(toy) -> None:
    with pytest.raises(ConfigError, match="dedup_shared_tokens works with"):
        PolicyGradient(ratio="sequence", dedup_shared_tokens=True)
    with pytest.raises(ConfigError, match=r"objective\.ratio is 'word'"):
        PolicyGradient(ratio="word")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ConfigError, match="above 1"):
        DualClip(ratio_max=0.3)
    with pytest.raises(ConfigError, match="0 or more"):
        Clip(clip_low=-0.2)
    with pytest.raises(ConfigError, match="0 or more"):
        LogClip(log_clip_high=-0.4)
    with pytest.raises(ConfigError, match="above 0"):
        Truncate(0.0)
    with pytest.raises(GxpoError, match=r"objective\.horizon"):
        toy.loss(PolicyGradient(aggregate="sequence_sum"))


def test_clip_metrics(toy) -> None:
    def of(term: PolicyGradient, **changes) -> dict[str, float]:
        return figures_of(term, toy.forest, toy.policy(**changes), toy.credit, toy.weight)

    metrics = of(PolicyGradient())
    assert metrics["clip_fraction"] == pytest.approx(2 / 5)  # tokens 0 and 2
    k3 = [math.exp(d) - 1 - d for d in (0.3, -0.1, -0.4, 0.2, 0.5)]
    assert metrics["approx_kl"] == pytest.approx(sum(k3) / 5)
    assert metrics["ratio_max"] == pytest.approx(1.648721, abs=1e-6) and metrics["on_policy"] == 0
    assert of(PolicyGradient(surrogate=DualClip(ratio_max=1.3)))["clip_fraction"] == pytest.approx(3 / 5)
    assert of(PolicyGradient(surrogate=Truncate()))["clip_fraction"] == pytest.approx(2 / 5)
    assert of(PolicyGradient(ratio="sequence", surrogate=LogClip(0.2, 0.2)))["clip_fraction"] == pytest.approx(2 / 5)
    assert of(PolicyGradient(surrogate=Surrogate()))["clip_fraction"] == 0
    fresh = of(PolicyGradient(), proximal_logprob=toy.logprob.detach())
    assert fresh == {"clip_fraction": 0.0, "approx_kl": 0.0, "ratio_max": 1.0, "on_policy": 1.0}
    none = figures_of(PolicyGradient(), toy.forest, toy.policy(), torch.zeros(5), toy.weight)
    assert none["clip_fraction"] == 0
