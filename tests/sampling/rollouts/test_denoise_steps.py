"""Noise of samplers by step, and rollouts whose trajectories are single steps."""

import pytest
import torch
from tests.sampling.rollouts.flow_session import TASKS, FlowSession, grown, small_flow

import gxpo
from gxpo.base.errors import ConfigError, ModelError
from gxpo.parts.protocols import Sampling
from gxpo.sampling.rollouts.denoise import Denoise
from gxpo.sampling.rollouts.denoise_steps import DenoiseSteps, Renoise


class AtStep(FlowSession):
    """A session in another training step."""

    def __init__(self, step, steps=8, **settings):
        super().__init__(small_flow(steps), **settings)
        self.step = step


def noisy_steps(forest, r=0):
    scale = forest.extras["noise_scale"][forest.path_token[forest.path_of(r)]]
    return [k - 1 for k in range(1, len(scale)) if scale[k] > 0]


def test_a_window_slides_and_begins_again():
    # 8 steps, the last without noise: a window of 4 has the places 0, 1, 2, 3; it moves every 25 steps by 1
    rollout = Denoise(2, window=4)
    windows = {step: noisy_steps(grown(rollout, TASKS[:1], AtStep(step))) for step in (1, 25, 26, 76, 101)}
    assert windows == {1: [0, 1, 2, 3], 25: [0, 1, 2, 3], 26: [1, 2, 3, 4], 76: [3, 4, 5, 6], 101: [0, 1, 2, 3]}
    with pytest.raises(ModelError, match=r"rollout.window=8: 7 steps can have noise"):
        grown(Denoise(2, window=8), TASKS[:1], AtStep(1))


def test_a_share_of_a_samples_steps_is_trained():
    forest = grown(Denoise(6, share=0.6), TASKS[:1], AtStep(1))
    trained = [forest.trainable[forest.path_token[forest.path_of(r)]].nonzero().squeeze(1).tolist() for r in range(6)]
    assert [len(x) for x in trained] == [4] * 6  # 0.6 of 7, rounded down
    assert len({tuple(x) for x in trained}) > 1 and all(1 <= k <= 7 for x in trained for k in x)
    assert noisy_steps(forest) == list(range(7))


def test_samples_of_a_group_can_share_their_beginning():
    forest = grown(Denoise(3, shared_noise=True), TASKS[:2])
    x = forest.extras["latent"][forest.path_token].view(2, 3, 5, 2)
    assert torch.equal(x[:, 0, 0], x[:, 1, 0]) and not torch.equal(x[0, 0, 0], x[1, 0, 0])
    assert not torch.equal(x[0, 0, 1], x[0, 1, 1])
    assert forest.lengths().tolist() == [3] * 6


def test_noise_falls_by_a_cosine():
    # level .8 at t 1, .5 (1 + .1) .8 ... at the middle: end + (1 - end) (1 + cos(pi / 2)) / 2 = .55
    scale, _ = small_flow(4).noise_scales(0.8, "dance", end=0.1)
    assert (scale / 0.5)[[0, 2]].tolist() == pytest.approx([0.8, 0.8 * 0.55])


def test_every_kind_of_noise_samples_and_trains_all_steps_but_the_last():
    for noise in ("flow_sde", "dance", "ddim_eta", "ddpm"):
        forest = grown(Denoise(2, noise=noise), TASKS[:1])
        assert noisy_steps(forest) == [0, 1, 2] and bool(forest.extras["latent"].nan_to_num().isfinite().all())


def test_a_ratio_needs_noise():
    for rollout in (Denoise(2), DenoiseSteps(2)):
        with pytest.raises(ConfigError, match=r"variance 0 and no importance ratio"):
            rollout.check_sampling(Sampling(temperature=0.0))
    Renoise(2).check_sampling(Sampling(temperature=0.0))


# ---------------------------------------------------------------- single steps
def test_a_step_is_a_trajectory_and_its_look_ahead_the_outcome():
    session = FlowSession()
    forest = grown(DenoiseSteps(2), TASKS[:1], session)
    assert forest.n_trajectories == 2 * 3 and sorted(set(forest.group)) == [f"s3/points/10/{k}" for k in range(3)]
    model = session.model
    for r, info in enumerate(forest.info):
        k, x = info["denoising_step"], forest.extras["latent"][forest.path_token[forest.path_of(r)]]
        assert forest.trainable[forest.path_token[forest.path_of(r)]].tolist() == [False, True, False]
        t = model.times[k + 1]
        with torch.no_grad():
            v = model.network(x[1][None], t[None], torch.tensor([10]))[0]
        assert torch.allclose(x[2], x[1] - t * v, atol=1e-9)
    # the candidate that goes on is the next step's beginning
    by_name = {name: r for r, name in enumerate(forest.id)}
    first, second = (forest.path_token[forest.path_of(by_name[f"s3/points/10/0.{k}.0"])] for k in (0, 1))
    assert torch.equal(forest.extras["latent"][first[1]], forest.extras["latent"][second[0]])


def test_candidates_of_a_step_are_a_group_and_one_of_them_goes_on():
    forest = grown(DenoiseSteps(2, candidates=4, first_step=1, by_sample=True), TASKS[:1])
    assert forest.n_trajectories == 2 * 2 * 4 and len(set(forest.group)) == 4
    x = forest.extras["latent"][forest.path_token].view(-1, 3, 2)
    rows = {name: r for r, name in enumerate(forest.id)}
    begins = [x[rows[f"s3/points/10/0.2.{b}"], 0] for b in range(4)]
    ends = [x[rows[f"s3/points/10/0.1.{b}"], 1] for b in range(4)]
    assert all(torch.equal(b, begins[0]) for b in begins) and any(torch.equal(e, begins[0]) for e in ends)
    with pytest.raises(ConfigError, match=r"rollout.first_step=3: 3 steps have noise"):
        grown(DenoiseSteps(2, first_step=3), TASKS[:1])


@pytest.mark.parametrize("name", ["ddpo", "loop_diffusion", "dance_grpo", "mix_grpo", "hicogen", "vgpo", "dppo"])
def test_only_steps_with_noise_have_an_advantage(name):
    small = {"rollout.group_size": 3} | ({"rollout.window": 2} if name == "mix_grpo" else {})
    m = gxpo.method(name, small)
    forest = grown(m.rollout, TASKS[:2])
    n = forest.n_trajectories
    signals = {"baseline": torch.full((n,), 0.1), "spread": torch.ones(n)} if name == "ddpo" else None
    credit = m.advantages(forest, signals=signals)
    assert bool(credit.isfinite().all()) and bool((credit != 0)[forest.path_trainable].any())
    assert bool((forest.extras["noise_scale"][forest.path_token] > 0)[forest.path_trainable].all())
