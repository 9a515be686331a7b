"""Surrogates on the five tokens, to the digits worked out by hand; what they reduce to; far from ratio 1, at edges."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.algorithms.objectives.by_position import (
    DivergenceMask,
    Drift,
    ElasticClip,
    Gamma,
    LogLikelihood,
    PreservingClip,
    QuadraticPenalty,
    RatioMask,
    RatioTarget,
    SequenceSum,
    Sigmoid,
    Tapered,
    Truncate,
    Unclipped,
    slopes,
)
from tests.algorithms.objectives.conftest import figures_of

import gxpo
from gxpo.algorithms.objectives import Clip, DualClip, Entries, LogClip, PolicyGradient
from gxpo.algorithms.objectives.surrogate_penalties import RatioVariance
from gxpo.base.errors import ConfigError

PPO = [0, -0.180967, 0, 0.244281, 0.329744]  # a fifth of -A rho where the clip leaves it
FREE = [-0.269972, -0.180967, 0.134064, 0.244281, 0.329744]  # a fifth of -A rho: rho = 1.349859 .904837 .670320 ...
REINFORCE = [-0.2, -0.2, 0.2, 0.2, 0.2]

TOY = {  # surrogate: loss and gradient, token ratios and token mean
    "clip": (Clip(), 0.313057, PPO),
    "clip-higher": (Clip(0.2, 0.28), 0.297057, PPO),
    "dual-1.3": (DualClip(ratio_max=1.3), 0.243313, [0, -0.180967, 0, 0.244281, 0]),
    "delta-1.5": (DualClip(ratio_max=1.5), 0.283313, [0, -0.180967, 0, 0.244281, 0]),
    # held: e^.2, .904837 | e^-.2, 1.221403, 1.648721: (-2.126240 + 3.688855) / 5
    "log-clip": (LogClip(0.2, 0.2), 0.312523, PPO),
    "cispo": (Truncate(), -0.147117, [-0.256000, -0.180967, 0.134064, 0.244281, 0.256000]),
    "reinforce": (LogLikelihood(), -0.280000, REINFORCE),
    "unclipped": (Unclipped(), 0.257150, FREE),  # (-2.254696 + 3.540444) / 5
    # widths .2 * 1.380797 * 1.5 = .414239: bounds .585761 and 1.414239, which cut nothing
    "elastic": (ElasticClip(), 0.257150, FREE),
    "spo": (QuadraticPenalty(), 0.612152, [0.202288, -0.267074, -0.086927, 0.514702, 1.399305]),
    "r2vpo": (RatioVariance(penalty=0.5), 0.328150, [-0.175520, -0.198189, 0.089866, 0.298365, 0.543656]),
    "discovered": (Drift(), 0.267921, [-0.261876, -0.180967, 0.066137, 0.244281, 0.329744]),
    "bpo": (RatioTarget(), 0.368965, [0.269972, -0.180967, -0.134064, 0.244281, 0.329744]),
    "gppo": (PreservingClip(), 0.313057, [-0.240000, -0.180967, 0.160000, 0.244281, 0.329744]),
    "ce-gppo": (PreservingClip(slope_low=0.75), 0.273057, [-0.240000, -0.180967, 0.120000, 0.244281, 0.329744]),
    "topr-token": (Tapered(), -0.121754, [-0.2, -0.2, 0.134064, 0.2, 0.2]),
    "dppo-tv": (DivergenceMask(), -0.213066, [0, -0.180967, 0.134064, 0.244281, 0.329744]),
    # binary KL .122987 .002715 .010630 .111522 .265911: only a gain above the bound is out
    "dppo-kl": (
        DivergenceMask("kl", 0.05, 0.05),
        -0.213066,
        [0, -0.180967, 0.134064, 0.244281, 0.329744],
    ),
    # masks 0 1 0 1 1, 0 1 0 0 0, 0 1 0 0 0; -A lp / 5 of what passes: (1.1 | -.1 - .2) / 5 and 1.1 / 5
    "rec-one": (RatioMask(), 0.16, [0, -0.2, 0, 0.2, 0.2]),
    "rec-two": (RatioMask("two"), 0.22, [0, -0.2, 0, 0, 0]),
    "rec-ring": (RatioMask("ring"), 0.22, [0, -0.2, 0, 0, 0]),
    # a narrower ring lets the last token (1.648721 >= 1.6) and none of the others in: (1.1 - .2) / 5
    "rec-ring-0.6": (RatioMask("ring", ring_low=0.6, ring_high=0.6), 0.18, [0, -0.2, 0, 0, 0.2]),
    # -A min(rho, 1.3) lp of the one-sided: (.904837 * 1.1 - 1.221403 * .1 - 1.3 * .2) / 5
    "rec-truncated": (
        RatioMask("one", "ratio", ratio_max=1.3),
        0.122636,
        [0, -0.180967, 0, 0.244281, 0.26],
    ),
}


@pytest.mark.parametrize("name", TOY)
def test_token_ratios_and_token_mean(toy, name: str) -> None:
    surrogate, loss, gradient = TOY[name]
    value, slopes = toy.loss(PolicyGradient(surrogate=surrogate, aggregate="token_mean"))
    assert value == pytest.approx(loss, abs=6e-7)
    assert slopes == pytest.approx(gradient, abs=6e-7)


def test_sapo_as_it_is_aggregated(toy) -> None:
    value, gradient = toy.loss(PolicyGradient(surrogate=Sigmoid()))
    assert value == pytest.approx(-0.023974, abs=6e-7)
    assert gradient == pytest.approx([-0.327345, -0.225698, 0.108439, 0.200841, 0.245225], abs=6e-7)


def of(toy, name: str, overrides=None):
    return toy.loss(gxpo.method(name, overrides).terms["policy"])


def test_whole_answers(toy) -> None:
    # ratios e^.2 and e^.3: the negatives are held at 1
    value, gradient = of(toy, "topr")
    assert value == pytest.approx(-0.7) and gradient == pytest.approx([-0.5, -0.5, 0.5, 0.5, 0.5])
    by_token = {"objective.ratio": "token", "objective.aggregate": "token_mean"}
    assert of(toy, "topr", by_token)[0] == pytest.approx(-0.121754, abs=6e-7)
    # .767814 (A > 0, W = e^.2); A < 0, W = e^.3: e^(.9 + 2 (1 - 1.349859)) = 1.221748; a fifth each
    _, gradient = of(toy, "vespo")
    assert gradient == pytest.approx([-0.153563] * 2 + [0.244350] * 3, abs=6e-7)
    # mean of -1.0025 * 2 and 1.105171 * 3; the first answer is cut
    value, gradient = of(toy, "luspo")
    assert value == pytest.approx(0.655256, abs=6e-7)
    assert gradient == pytest.approx([0, 0, 0.552585, 0.552585, 0.552585], abs=6e-7)


def test_the_gamma_kernel() -> None:
    ratio = torch.tensor([math.exp(0.2), math.exp(0.6), 1.0, 1.0], dtype=torch.float64)
    x = Entries.of(ratio, torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64))
    assert slopes(Gamma(), x).tolist() == pytest.approx([0.767814, 1.168549, 1.0, 1.0], abs=6e-7)


# ---------------------------------------------------------------- what surrogates reduce to
SURROGATES = [case[0] for case in TOY.values()] + [Sigmoid(), Gamma(), Truncate(math.inf)]


def term(surrogate, **fields) -> PolicyGradient:
    return PolicyGradient(surrogate=surrogate, aggregate="token_mean", **fields)


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda g: type(g).__name__)
def test_at_ratio_one_every_gate_has_the_gradient_of_reinforce(toy, surrogate) -> None:
    for ratio in ("token", "sequence", SequenceSum()):
        _, gradient = toy.loss(term(surrogate, ratio=ratio), proximal_logprob=toy.logprob.detach())
        assert gradient == pytest.approx(REINFORCE, abs=1e-15)
    unknown = torch.full_like(toy.old, torch.nan)
    _, gradient = toy.loss(term(surrogate, on_unknown_behaviour="one"), behaviour_logprob=unknown)
    assert gradient == pytest.approx(REINFORCE, abs=1e-15)


def both(toy, a: PolicyGradient, b: PolicyGradient, *, value: bool = True) -> None:
    (u, du), (v, dv) = toy.loss(a), toy.loss(b)
    assert du == pytest.approx(dv, abs=1e-14)
    assert not value or u == pytest.approx(v, abs=1e-14)


def test_reductions(toy) -> None:
    # credit of one magnitude: |A| / (2 e) is one coefficient
    both(toy, term(QuadraticPenalty(0.2)), term(RatioVariance(penalty=2.5)))
    both(toy, term(QuadraticPenalty(1e15)), term(Unclipped()))
    both(toy, term(RatioVariance(penalty=0.0)), term(Unclipped()))
    both(toy, term(Drift(1e9, 1e9)), term(Unclipped()))
    both(toy, term(RatioTarget(9.0, 9.0)), term(Unclipped()), value=False)
    both(toy, term(PreservingClip(0.2, 0.28, 0.0, 0.0)), term(Clip(0.2, 0.28)), value=False)
    assert toy.loss(term(PreservingClip(0.1, 0.3)))[0] == pytest.approx(toy.loss(term(Clip(0.1, 0.3)))[0])
    both(toy, term(RatioMask("one", "ratio", 0.1, 0.3)), term(Clip(0.1, 0.3)), value=False)
    both(toy, term(RatioMask("two", clip_low=1, clip_high=9, ring_low=1, ring_high=9)), term(LogLikelihood()))
    both(toy, term(DivergenceMask("tv", 1.0, 1.0, 1.28)), term(Truncate(1.28)))
    both(toy, term(Truncate(math.inf)), term(Unclipped()), value=False)
    # BPO has PPO's gradient wherever PPO has one
    bpo, ppo = toy.loss(term(RatioTarget()))[1], toy.loss(term(Clip()))[1]
    assert [b for b, p in zip(bpo, ppo, strict=True) if p] == pytest.approx([p for p in ppo if p])


@pytest.mark.parametrize("delta", [1.3, 1.5, 2.0])
def test_the_dual_clip_is_the_two_sided_one(toy, delta: float) -> None:
    lp = toy.logprob.detach().clone().requires_grad_()
    rho = (lp - toy.old).exp()
    loss = torch.maximum(-toy.credit * rho.clamp_max(delta), -toy.credit * rho.clamp(0.8, 1.2)).mean()
    loss.backward()
    value, gradient = toy.loss(term(DualClip(ratio_max=delta)))
    assert lp.grad is not None and value == pytest.approx(float(loss.detach()))
    assert gradient == pytest.approx(lp.grad.tolist())


def test_luspo_is_gspo_times_the_length(toy) -> None:
    gspo = PolicyGradient(ratio="sequence", surrogate=Clip(2e-3, 2.5e-3))
    weight = torch.tensor([2.0, 2.0, 3.0, 3.0, 3.0], dtype=torch.float64)
    (value, gradient), (same, slope) = of(toy, "luspo"), toy.loss(gspo, weight=weight)
    assert value == pytest.approx(same) and gradient == pytest.approx(slope)


# ---------------------------------------------------------------- far from ratio 1, at the edges
RATIOS = (1e-6, 0.05, 0.35, 0.4, 0.5, 0.79, 0.8, 0.81, 0.95, 1.0, 1.05, 1.19, 1.2, 1.21, 1.6, 3.0, 3.5, 1e6)
CREDITS = (-2.0, -0.5, 0.0, 0.5, 2.0)


def entries(surrogate, p: float = math.exp(-16.0)) -> tuple[Entries, torch.Tensor]:
    """Single tokens of every ratio and credit, sampled with probability p; and their log-probs."""
    pairs = torch.tensor([(r, a) for r in RATIOS for a in CREDITS], dtype=torch.float64)
    exact, credit = pairs.unbind(1)
    logprob = (math.log(p) + exact.log()).requires_grad_()
    change = logprob - logprob.detach()
    log_ratio, row_ids = exact.log() + change, torch.arange(len(exact))
    ratio = exact * (surrogate.before(log_ratio, credit) - exact.log()).exp()
    return Entries(logprob, logprob.detach() - exact.log(), log_ratio, ratio, credit, row_ids, row_ids), logprob


@pytest.mark.parametrize(
    "surrogate", [*SURROGATES, Clip(0.2, 0.2), RatioMask("ring", "ratio")], ids=lambda g: type(g).__name__
)
def test_clipped_is_where_the_gradient_is_cut_shrunk_or_turned(surrogate) -> None:
    x, logprob = entries(surrogate)
    loss = surrogate.loss(x)
    (slope,) = torch.autograd.grad(loss.sum(), logprob)
    assert bool(loss.isfinite().all()) and bool(slope.isfinite().all())
    assert bool((slope[x.credit == 0] == 0).all())
    if surrogate == LogLikelihood():  # has no ratio that anything could be measured by
        return
    exact = x.log_ratio.detach().exp()
    share = torch.where(x.credit != 0, slope / (-x.credit * exact), torch.ones_like(exact))  # of the gradient of -A rho
    assert surrogate.clipped(x).tolist() == (share < 1 - 1e-12).tolist()


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda g: type(g).__name__)
def test_single_precision_stays_finite(surrogate) -> None:
    old = torch.full((8,), -20.0)
    ratio = torch.tensor([1e-6, 1.0, 1.5, 1e6] * 2)
    logprob, credit = (old + ratio.log()).requires_grad_(), torch.tensor([1.5] * 4 + [-1.5] * 4)
    log_ratio = logprob - old
    clipped_ratio = surrogate.before(log_ratio, credit).exp()
    x = Entries(logprob, old, log_ratio, clipped_ratio, credit, torch.arange(8), torch.arange(8))
    loss = surrogate.loss(x)
    (slope,) = torch.autograd.grad(loss.sum(), logprob)
    assert loss.dtype == slope.dtype == torch.float32
    assert bool(loss.isfinite().all()) and bool(slope.isfinite().all())


def test_masks_by_divergence_do_not_look_at_the_factor() -> None:
    # q = .01, ratio 3: p - q = .02 stays; q = .7, ratio 1.3: .21 goes, also where it goes down: .7 to .49
    q = torch.tensor([0.01, 0.7, 0.7, 0.7], dtype=torch.float64)
    ratio = torch.tensor([3.0, 1.3, 0.7, 0.7], dtype=torch.float64)
    credit = torch.tensor([1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    x = Entries.of(ratio, credit, (q * ratio).log())
    assert slopes(DivergenceMask(), x).tolist() == pytest.approx([3.0, 0.0, 0.0, 0.7])
    # by KL a token of .5 that became certain is .5 log .5 + .5 log(.5 / 1e-8) = 8.517 away, one that was certain and is
    # left -log p
    sure = Entries.of(torch.tensor([2.0, 0.5], dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64),
                      torch.tensor([1.0, 0.5], dtype=torch.float64).log())  # fmt: skip
    assert slopes(DivergenceMask("kl", 0.7, 8.51), sure).tolist() == [0.0, 0.5]
    assert slopes(DivergenceMask("kl", 0.69, 8.52), sure).tolist() == [2.0, 0.0]
    # a probability that float32 rounds to 1 is not far from one that it does not
    near = Entries.of(torch.tensor([1.0 + 1e-7]), torch.tensor([1.0]), torch.tensor([0.0]))
    assert slopes(DivergenceMask("kl"), near).tolist() == pytest.approx([1.0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: QuadraticPenalty(0.0),
        lambda: RatioVariance(penalty_rate=-1.0),
        lambda: Drift(drift_negative=0.0),
        lambda: RatioTarget(clip_low=-0.1),
        lambda: Sigmoid(tau_positive=0.0),
        lambda: PreservingClip(slope_low=-1.0),
        lambda: PreservingClip(ratio_max=1.0),
        lambda: Tapered(0.0),
        lambda: Gamma(decay_negative=0.0),
        lambda: DivergenceMask("js"),  # type: ignore[arg-type]  # the point of the test
        lambda: DivergenceMask(divergence_low=-0.1),
        lambda: RatioMask("three"),  # type: ignore[arg-type]  # the point of the test
        lambda: RatioMask("ring", ring_low=0.1),
        lambda: SequenceSum(0.0),
        lambda: gxpo.method("luspo", {"objective.aggregate": "sequence_mean"}),
    ],
)
def test_settings_that_make_no_sense_are_refused(make) -> None:
    with pytest.raises(ConfigError, match=r"objective|surrogate|luspo"):
        make()


def test_methods_compose(toy) -> None:
    assert gxpo.method("gppo+dapo").terms["policy"].surrogate == PreservingClip(0.2, 0.28)
    assert gxpo.method("gbpo", {"objective.clip_high": 0.28}).terms["policy"].surrogate == RatioTarget(0.2, 0.28)
    assert gxpo.method("rec", {"objective.side": "ring"}).terms["policy"].surrogate == replace(RatioMask(), side="ring")
    assert gxpo.method("vespo").couples == "trajectory" and gxpo.method("rec").couples == "token"
    for name in ("gae+spo_simple", "r2vpo+repo_replay", "sapo_gate+dr_grpo", "dpo_discovered+gigpo"):
        assert gxpo.method(name).couples == "token"


def test_log_likelihood_has_value_and_gradient_of_reinforce(toy):
    term = PolicyGradient(surrogate=LogLikelihood(), aggregate="token_mean")
    value, gradient = toy.loss(term)
    credit, logprob = toy.credit.tolist(), toy.logprob.tolist()
    assert value == pytest.approx(-sum(a * x for a, x in zip(credit, logprob, strict=True)) / 5)
    assert gradient == pytest.approx([-a / 5 for a in credit])


def test_log_likelihood_does_not_read_the_rollout_policy(toy):
    term = PolicyGradient(surrogate=LogLikelihood())
    assert toy.loss(term) == toy.loss(term, behaviour_logprob=toy.old - 3.0)
    policy = toy.policy()
    assert figures_of(term, toy.forest, policy, toy.credit, toy.weight)["clip_fraction"] == 0.0


def test_log_likelihood_on_policy_is_the_unclipped_surrogate(toy):
    logprob_now = toy.logprob.detach()
    gradients = [
        toy.loss(PolicyGradient(surrogate=surrogate), behaviour_logprob=logprob_now)[1]
        for surrogate in (LogLikelihood(), Unclipped())
    ]
    assert gradients[0] == pytest.approx(gradients[1])


def test_log_likelihood_has_a_name():
    m = gxpo.method("grpo", {"objective.surrogate": "log_likelihood"})
    assert m.terms["policy"].surrogate == LogLikelihood()
    entries = Entries.of(torch.tensor([9.0]), torch.tensor([2.0]), torch.tensor([-0.5]))
    assert m.terms["policy"].surrogate.loss(entries).tolist() == [1.0]
