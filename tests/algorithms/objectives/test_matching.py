"""Losses of re-noised samples against the published numbers, their gradients, and the methods that apply them."""

import math

import pytest
import torch
from tests.sampling.rollouts.flow_session import TASKS, FlowSession, grown, small_flow

import gxpo
from gxpo.algorithms.objectives.matching import group_preference, likelihood, negative_aware
from gxpo.algorithms.objectives.preference_pairs import clamped
from gxpo.algorithms.objectives.surrogate import Entries
from gxpo.algorithms.objectives.surrogate_denoising import denoising_clip
from gxpo.algorithms.signals.denoisers import decay_at
from gxpo.learning.flow import FlowLearner
from gxpo.sampling.rollouts.denoise_steps import Renoise


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def test_likelihoods_of_awm_are_the_published_ones():
    # d .25, t .6, p .25: -((.25 + 1e-10)^.25 - 1e-2.5) .6 / .25 = -1.689467; d .30 gives exp(l - l_old) = 1.082358
    new, old = (likelihood(column(d), column(0.6)).item() for d in (0.25, 0.30))
    assert new == pytest.approx(-1.689467, abs=1e-6) and math.exp(new - old) == pytest.approx(1.082358, abs=1e-6)
    curves = {c: likelihood(column(0.25), column(0.6), c).item() for c in ("uniform", "t", "t2", "huber")}
    assert curves == pytest.approx({"uniform": -0.25, "t": -0.15, "t2": -0.09, "huber": -(0.5 - 1e-5) * 0.6}, abs=1e-9)


def test_group_preferences_of_dgpo_are_the_published_ones():
    # A (1, -1), d (.30, .50), ref (.35, .40), beta 10: z = 10 ((-.05) - .10) / 2 = -.75; S(z) = .320821
    # loss = mean (.320821 * .30, -.320821 * .50) = -.032082; beta 100 gives S(-7.5) = .000553
    d, ref, a, one = column(0.3, 0.5), column(0.35, 0.4), column(1, -1), torch.zeros(2, dtype=torch.int64)
    loss, weight = group_preference(d, ref, a, one, 10.0)
    assert weight.tolist() == pytest.approx([0.320821] * 2, abs=1e-6)
    assert loss.mean().item() == pytest.approx(-0.032082, abs=1e-6)
    assert group_preference(d, ref, a, one)[1][0].item() == pytest.approx(0.000553, abs=1e-6)
    shifted = group_preference(d + 0.3, ref, a, one, 10.0)[1]
    assert torch.allclose(shifted, weight)  # a constant on all errors of a group changes no preference


def test_the_gradient_of_a_group_preference_is_the_surrogates():
    # d(-log S(-z)) / dd_i = S(z) beta A_i / G, and the code's loss has it without beta / G
    d, ref, a = column(0.3, 0.5).requires_grad_(), column(0.35, 0.4), column(1, -1)
    one = torch.zeros(2, dtype=torch.int64)
    group_preference(d, ref, a, one, 10.0)[0].sum().backward()
    actual, d2 = d.grad, column(0.3, 0.5).requires_grad_()
    (-torch.nn.functional.logsigmoid(-10 * (a * (d2 - ref)).mean())).backward()
    assert actual is not None and d2.grad is not None
    assert torch.allclose(actual * 10 / 2, d2.grad)


def test_the_minimum_of_diffusion_nft_is_the_published_one():
    # b .1, v_old .2, u 1, A 2.5: r = .75, and v* = v_old + (2 r - 1) / b (u - v_old) = 4.2 where weights are 1
    v = torch.tensor(4.2, dtype=torch.float64, requires_grad=True)
    plus, minus = ((0.2 + s * 0.1 * (v - 0.2) - 1.0) ** 2 for s in (1, -1))
    negative_aware(plus, minus, torch.tensor(2.5), 0.1).backward()
    assert v.grad is not None and v.grad.item() == pytest.approx(0.0, abs=1e-9)
    still = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    plus, minus = ((0.2 + s * (still - 0.2) - 1.0) ** 2 for s in (1, -1))
    negative_aware(plus, minus, torch.tensor(0.0), 1.0).backward()
    assert still.grad is not None and still.grad.item() == pytest.approx(0.0, abs=1e-12)  # A 0: v_old is the minimum


def test_a_pair_of_spo_is_the_published_one():
    # log-ratios .05 and -.2 are clamped at .05 and log .9: -log S(10 (.05 + .105361)) = .191846; no gradient beyond
    better, worse = column(0.05).requires_grad_(), column(-0.2).requires_grad_()
    loss = clamped(better, worse, 10.0, clip=0.1)
    assert loss.item() == pytest.approx(0.191846, abs=1e-6)
    loss.sum().backward()
    assert better.grad is not None and worse.grad is not None
    assert better.grad.item() < 0 and worse.grad.item() == 0


def test_the_clip_of_dppo_widens_and_early_steps_count_less():
    # K 10: c(0) .001, c(4) .002317, c(9) .01; discounts .913517 .950990 1; a ratio of 1.005 is clipped up to c = .005
    x = Entries.of(torch.full((10,), 1.005, dtype=torch.float64), torch.ones(10, dtype=torch.float64))
    one = torch.zeros(10, dtype=torch.int64)
    loss, is_clipped = denoising_clip(Entries(x.logprob, x.below, x.log_ratio, x.ratio, x.credit, one, one))
    wanted = {0: -0.913517 * 1.001, 4: -0.950990 * 1.002317, 9: -1.005}
    assert {i: loss[i].item() for i in wanted} == pytest.approx(wanted, abs=1e-6)
    assert is_clipped.tolist() == [True] * 7 + [False] * 3
    single = denoising_clip(Entries.of(column(1.005), column(1.0)))[0]
    assert single.tolist() == [-1.005]  # one step: the last width, where the authors' code divides by 0


def test_the_moving_average_falls_behind_as_published():
    assert decay_at(1000, 0.001, 0.5) == 0.5 and decay_at(75, 0.0075, 0.999, 75) == 0.0


# ---------------------------------------------------------------- with the learner
FOREST = grown(Renoise(3, levels=2), TASKS[:2])


def error_of(model, p):
    """Squared error of the velocity at an entry, from its latents alone."""
    r = int(FOREST.path_trajectory[p])
    own, data = (FOREST.extras["latent"][t] for t in (FOREST.path_token[p], FOREST.path_token[FOREST.path_of(r)][-1]))
    t = FOREST.extras["time"][FOREST.path_token[p]]
    condition = torch.tensor([int(FOREST.task[r].split("/")[1])])
    v = model.network(own[None], t[None], condition)[0]
    return (v - (own - data) / t).square().mean()  # noise - data, for own = (1 - t) data + t noise


def test_a_learner_reads_the_error_of_a_sample_that_was_noised_again():
    learner = FlowLearner(small_flow(seed=3), lr=1e-2)
    logprob = learner.outputs(FOREST)["logprob"]
    for p in FOREST.path_trainable.nonzero().squeeze(1).tolist():
        with torch.no_grad():
            assert float(logprob[p]) == pytest.approx(-float(error_of(learner.model, p)), abs=1e-9)


@pytest.mark.parametrize("name", ["awm", "dgpo_diffusion", "diffusion_nft"])
def test_matching_methods_move_towards_good_samples(name):
    # on policy the derivative of each loss in d has the sign of the advantage: errors of good samples fall
    m = gxpo.method(name, {"rollout.group_size": 3})
    learner = FlowLearner(small_flow(), lr=1e-3, reference=True)
    anchor = learner.outputs(FOREST, ("prediction",))["prediction"]
    credit = m.advantages(FOREST)
    signals = {"anchor_prediction": anchor, "reference_logprob": learner.outputs(FOREST)["logprob"]}
    names = tuple(dict.fromkeys(("logprob", *m.outputs)))

    def loss(x):
        policy = gxpo.PolicyTokens(
            x["logprob"], FOREST.path_behaviour_logprob, signals["reference_logprob"],
            proximal_logprob=x["logprob"].detach(), outputs=x,
        )  # fmt: skip
        return m.loss(FOREST, policy, advantages=credit, signals=signals).value

    before = learner.outputs(FOREST)["logprob"]
    info = learner.step(FOREST, loss, names=names, couples="step", constants={"anchor_prediction": anchor})
    change = learner.outputs(FOREST)["logprob"] - before
    assert not info.empty and float((change * credit)[FOREST.path_trainable].sum()) > 0


def test_samples_of_a_group_that_share_noise_share_it():
    shared = grown(Renoise(3, levels=2, shared_noise=True), TASKS[:1])
    t, x = (shared.extras[k][shared.path_token].view(3, 3, -1) for k in ("time", "latent"))
    assert torch.equal(t[0], t[1]) and not torch.equal(t[0, 0], t[0, 1])
    noise = (x[:, :2] - (1 - t[:, :2]) * x[:, 2:]) / t[:, :2]
    assert torch.allclose(noise[0], noise[2], atol=1e-9)
    own = grown(Renoise(3, levels=2), TASKS[:1])
    assert not torch.equal(own.extras["time"][own.path_token].view(3, 3)[0], own.extras["time"][own.path_token][3:6])


def test_times_are_stratified_over_the_steps_that_are_set():
    forest = grown(Renoise(8, levels=2, first_step=1), TASKS[:1], FlowSession(small_flow(5)))
    t = forest.extras["time"][forest.path_token].view(8, 3)
    assert {round(x, 6) for x in t[:, 0].tolist()} <= {0.8, 0.6}  # steps 1 to 4, of 0.8 0.6 0.4 0.2, in two parts
    assert {round(x, 6) for x in t[:, 1].tolist()} <= {0.4, 0.2} and bool((t[:, 2] == 0).all())
    assert forest.behaviour_logprob[forest.path_token].view(8, 3)[:, :2].isnan().all()
