"""A sick and a healthy run under the names of eight trainers: the sampler's gap grows, or the reward does."""

import json
import math

import numpy as np
import pytest

from gxpo.doctor import diagnose, read

from .logs import noise

N = 60
ENTROPY, NORM, LENGTH = 0.5 + noise(0.01, turn=3), 0.4 + noise(0.05), 200 + noise(5, turn=2)


def trl(i, gap, reward):
    yield {
        "step": i + 1,
        "reward": reward,
        "reward_std": 0.49,
        "frac_reward_zero_std": 0.2,
        "grad_norm": NORM[i],
        "entropy": ENTROPY[i],
        "learning_rate": 1e-6,
        "completions/mean_length": LENGTH[i],
        "sampling/sampling_logp_difference/mean": gap,
    }


def verl(i, gap, reward):
    figures = {
        "critic/score/mean": reward,
        "actor/grad_norm": NORM[i],
        "actor/entropy": ENTROPY[i],
        "actor/lr": 1e-6,
    }
    yield {"step": i + 1, "data": {**figures, "training/rollout_probs_diff_mean": gap / 2}}


def nemo_rl(i, gap, reward):
    yield {
        "_step": i + 1,
        "train/reward": reward,
        "train/grad_norm": NORM[i],
        "train/approx_entropy": ENTROPY[i],
        "train/mean_gen_tokens_per_sample": LENGTH[i],
        "train/token_mult_prob_error": math.exp(gap),
    }


def slime(i, gap, reward):
    yield {
        "rollout/raw_reward": reward,
        "rollout/rewards": 0.0,
        "rollout/response_lengths": LENGTH[i],
        "rollout/step": i,
    }
    yield {"train/grad_norm": NORM[i], "train/entropy_loss": ENTROPY[i], "train/step": i} | {
        "train/train_rollout_logprob_abs_diff": gap
    }


def roll(i, gap, reward):
    figures = {"critic/score/mean": reward, "critic/rewards/mean": 0.0, "actor/pg_loss@sum": 0.01}
    figures |= {"actor_train/grad_norm": NORM[i], "critic/entropy/mean": ENTROPY[i], "system/global_step": i}
    yield {"step": i, "metrics": figures | {"actor/train_infer_diff_token_mean@sum": -gap / 3}}


def skyrl(i, gap, reward):
    yield {
        "trainer/global_step": i + 1,
        "reward/avg_raw_reward": reward,
        "policy/grad_norm": NORM[i],
        "policy/policy_entropy": ENTROPY[i],
        "generate/avg_num_tokens": LENGTH[i],
        "policy/rollout_train_logprobs_abs_diff_mean": gap,
    }


def areal(i, gap, reward):
    yield {
        "_step": i,
        "rollout/reward": reward,
        "ppo_actor/update/grad_norm": NORM[i],
        "ppo_actor/update/entropy/avg": ENTROPY[i],
        "ppo_actor/update/behave_approx_kl/avg": -gap / 2,
    }


def trinity(i, gap, reward):
    yield {
        "_step": i + 1,
        "critic/score/mean": reward,
        "actor/grad_norm": NORM[i],
        "actor/entropy_loss": ENTROPY[i],
        "actor/ppo_kl": gap / 2,
        "time/train_step": 3.0,
    }


TRAINERS = [trl, verl, nemo_rl, slime, roll, skyrl, areal, trinity]


def diagnosis_of(folder, rows, gap_N, reward_N):
    lines = [json.dumps(row) for i in range(N) for row in rows(i, float(gap_N[i]), float(reward_N[i]))]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return diagnose(read(folder))


@pytest.mark.parametrize("rows", TRAINERS)
def test_a_stale_sampler_is_the_cause_under_any_names(tmp_path, rows):
    gap_N = np.linspace(0.03, 0.74, N) * (1 + noise(0.05))
    result = diagnosis_of(tmp_path, rows, gap_N, 0.4 + noise(0.04))
    assert result.source == rows.__name__.replace("_", "-")
    assert (result.findings[0].ids[0], result.exit_code, result.points) == ("stale_sampler", 1, N)


@pytest.mark.parametrize("rows", TRAINERS)
def test_a_run_that_learns_is_healthy_under_any_names(tmp_path, rows):
    result = diagnosis_of(tmp_path, rows, 0.003 + noise(0.001), np.linspace(0.3, 0.7, N) + noise(0.03))
    assert (result.exit_code, result.verdict) == (0, "no sickness found") and "gains" in result.progress
