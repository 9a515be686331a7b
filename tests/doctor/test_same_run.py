"""One sick run under the names of eight trainers: the sampler's gap grows from .03 to .74, the reward is flat."""

import json
import math

import numpy as np
import pytest

from gxpo.doctor import diagnose, read

from .logs import noise

N = 60
GAP = np.linspace(0.03, 0.74, N) * (1 + noise(0.05))
REWARD, ENTROPY, NORM, LENGTH = 0.4 + noise(0.04), 0.5 + noise(0.01, turn=3), 0.4 + noise(0.05), 200 + noise(5, turn=2)


def trl(i):
    yield {
        "step": i + 1,
        "reward": REWARD[i],
        "reward_std": 0.49,
        "frac_reward_zero_std": 0.2,
        "grad_norm": NORM[i],
        "entropy": ENTROPY[i],
        "learning_rate": 1e-6,
        "completions/mean_length": LENGTH[i],
        "sampling/sampling_logp_difference/mean": GAP[i],
    }


def verl(i):
    figures = {
        "critic/score/mean": REWARD[i],
        "actor/grad_norm": NORM[i],
        "actor/entropy": ENTROPY[i],
        "actor/lr": 1e-6,
    }
    yield {"step": i + 1, "data": {**figures, "training/rollout_probs_diff_mean": GAP[i] / 2}}


def nemo_rl(i):
    yield {
        "_step": i + 1,
        "train/reward": REWARD[i],
        "train/grad_norm": NORM[i],
        "train/approx_entropy": ENTROPY[i],
        "train/mean_gen_tokens_per_sample": LENGTH[i],
        "train/token_mult_prob_error": math.exp(GAP[i]),
    }


def slime(i):
    yield {
        "rollout/raw_reward": REWARD[i],
        "rollout/rewards": 0.0,
        "rollout/response_lengths": LENGTH[i],
        "rollout/step": i,
    }
    yield {"train/grad_norm": NORM[i], "train/entropy_loss": ENTROPY[i], "train/step": i} | {
        "train/train_rollout_logprob_abs_diff": GAP[i]
    }


def roll(i):
    figures = {"critic/score/mean": REWARD[i], "critic/rewards/mean": 0.0, "actor/pg_loss@sum": 0.01}
    figures |= {"actor_train/grad_norm": NORM[i], "critic/entropy/mean": ENTROPY[i], "system/global_step": i}
    yield {"step": i, "metrics": figures | {"actor/train_infer_diff_token_mean@sum": -GAP[i] / 3}}


def skyrl(i):
    yield {
        "trainer/global_step": i + 1,
        "reward/avg_raw_reward": REWARD[i],
        "policy/grad_norm": NORM[i],
        "policy/policy_entropy": ENTROPY[i],
        "generate/avg_num_tokens": LENGTH[i],
        "policy/rollout_train_logprobs_abs_diff_mean": GAP[i],
    }


def areal(i):
    yield {
        "_step": i,
        "rollout/reward": REWARD[i],
        "ppo_actor/update/grad_norm": NORM[i],
        "ppo_actor/update/entropy/avg": ENTROPY[i],
        "ppo_actor/update/behave_approx_kl/avg": -GAP[i] / 2,
    }


def trinity(i):
    yield {
        "_step": i + 1,
        "critic/score/mean": REWARD[i],
        "actor/grad_norm": NORM[i],
        "actor/entropy_loss": ENTROPY[i],
        "actor/ppo_kl": GAP[i] / 2,
        "time/train_step": 3.0,
    }


@pytest.mark.parametrize("rows", [trl, verl, nemo_rl, slime, roll, skyrl, areal, trinity])
def test_a_stale_sampler_is_the_cause_under_any_names(tmp_path, rows):
    lines = [json.dumps(row) for i in range(N) for row in rows(i)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    result = diagnose(read(tmp_path))
    assert result.source == rows.__name__.replace("_", "-")
    assert (result.findings[0].ids[0], result.exit_code, result.points) == ("stale_sampler", 1, N)
