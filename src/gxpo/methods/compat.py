"""Constants of other trainers: `grpo@verl`, or `compat="verl"` for every method of a composition with an entry.

Each entry has the keys in which a system at its defaults differs from this catalogue; an empty entry: it does not
differ. Compared key by key with the source: statistic, center, scale, ddof, eps, group of one (credit.*); gate, bounds,
ratio and its denominator, aggregate, horizon, KL, entropy (objective.*); rollout.

  trl         1.16.0, installed and run: GRPOConfig, RLOOConfig, GMPOConfig; REINFORCE++ as in its paper index
  verl        0.9.1, installed and run: core_algos.py, its generated ppo_trainer.yaml
  openrlhf    3c3be62: train_ppo_ray.py, experience_maker.py, loss.py
  areal       cbff54d: cli_args.py, data.py (Normalization), functional.py
  rllm        9beb6e0: rl_algo.py, base.yaml and its default backend, verl
  nemo-rl     7ea279a: advantage_estimator.py, loss_functions.py, grpo_math_1B.yaml
  tinker      cookbook 9dfcc3a: data_processing.py, train.py; its losses, which run on servers, from the documentation
  slime       624b824: arguments.py, rollout.py, ppo_utils.py
  skyrl       a956457: config.py, ppo_utils.py, worker.py
  verl-agent  in two forks that leave these files as they are (langfengQ/DrMAS 19c632b, JonP07/HiPER-agent 9d3c118)
  roll        8eb27cc: agentic/utils.py, agentic_config.py, base_worker.py, base_config.py
  trinity     0fcd37e and older files of its first address: algorithm.py, advantage_fn, policy_loss_fn, kl_fn

A paper's own bounds and discounts stay where a system asks its user for them (DAPO's 0.28, GSPO's 3e-4 and 4e-4 and its
mean over sequences, GiGPO's .95, which verl-agent's scripts set), since at the defaults it would be another method.
CISPO's are the systems' own, which say one bound in three ways: TRL's `epsilon_high` is the bound itself and 0.2 where
it is not set, so that even on policy every gradient is a fifth; tinker's is the bound too, 4; SkyRL's and
Trinity-RFT's are distances from 1, of which the lower one switches itself off; those of verl, slime and NeMo-RL, 0.2
and 0.2, bound the weight on both sides.

KL and entropy that are on by default are in the entries: such a preset needs a reference model (`objective.kl.coef: 0`
takes it out). What a coefficient of 0 switches off is not: TRL weighs k3 by the ratio once a beta is set.

Left out of the entries, since no key can state it:
- sizes of groups and batches, learning rates and passes, which are a run's;
- OpenRLHF's KL (k1, .01): taken off each token after the group's statistics; its clip of what it has normalised at
  +-10, which no group of fewer than 102 reaches;
- AReaL: its code's defaults normalise nothing; the entry is `reward_norm` by groups. gsm8k_grpo.yaml whitens over the
  batch's tokens after that, clips at .4 and drops tokens whose sampler is off by more than 5;
- a sum over tokens (tinker): the entry's differs by the number of sequences;
- a mean over rows where a row is a turn (ROLL); TRL's "bnpo", a mean of its micro-batches' means, and its "dapo" where
  a generation batch has several steps; the half that Trinity-RFT's AsymRE is divided to, 1 / (1 + tau);
- clamps: of the log-ratio at +-20 (verl, OpenRLHF, SkyRL, Trinity-RFT), of GSPO's at 10, of k3 at +-10; the product
  ratio's logarithm is held in +-20 here and not in TRL; a floor of 1e-8 under a batch's variance (OpenRLHF, NeMo-RL)
  where 1e-8 is added here;
- NeMo-RL weighs k3 by policy / stop(policy), whose value is 1 off policy too;
- of turns: equal states of different tasks, which Trinity-RFT's GiGPO compares; verl-agent's penalty on invalid actions
  and its copies of rows that fill a batch; the 1e-6 that HGPO's recipe adds to the sum of the weights;
- float32 residues where rewards are equal, which those systems may divide by eps: here such groups have exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gxpo.algorithms.objectives import DualClip
from gxpo.algorithms.objectives.ratio_trajectory import sequence_sum
from gxpo.algorithms.objectives.surrogate import log_likelihood, unclipped
from gxpo.sampling.rollouts.rounds import Independent

# the policy loss of verl: clip 0.2, bounded at 3 where A < 0, mean over tokens
_VERL: Mapping[str, Any] = {"objective.surrogate": DualClip, "objective.aggregate": "token_mean"}
# verl's recipe for DAPO bounds A < 0 at 10
_VERL_DAPO: Mapping[str, Any] = {
    "credit.singleton": "raw",
    "objective.surrogate": DualClip,
    "objective.ratio_max": 10.0,
}
# CISPO's weight between 1 - 0.2 and 1 + 0.2
_BOTH_SIDES: Mapping[str, Any] = {"objective.ratio_min": 0.8, "objective.ratio_max": 1.2}
# RLOOTrainer: one ratio for a sequence, the product of its tokens', and its clip; KL in the reward
_TRL_RLOO: Mapping[str, Any] = {
    "objective.ratio": sequence_sum,
    "objective.aggregate": "sequence_sum",
    "objective.horizon": 1.0,
    "objective.kl.coef": 0.05,
    "objective.kl.place": "reward",
    "objective.kl.estimator": "k1",
}
# RLOOTrainer with normalize_advantages, TRL's recipe for REINFORCE++: over trajectories
_TRL_WHITEN: Mapping[str, Any] = {
    "credit.center": "leave_one_out",
    "credit.batch_unit": "trajectories",
    "credit.eps": 1e-4,
    **_TRL_RLOO,
}
_TOKENS: Mapping[str, Any] = {"objective.aggregate": "token_mean"}
_NEMO_KL: Mapping[str, Any] = {"objective.kl.coef": 0.01, "objective.kl.ratio_weighted": True}
# mean and std of the others
_NEMO_CREDIT: Mapping[str, Any] = {"credit.center": "leave_one_out", "credit.scale": "leave_one_out_std"}
# a sum over tokens, up to the number of sequences; the sampler's log-probs are the ratio's
_TINKER: Mapping[str, Any] = {
    "credit.scale": "none",
    "objective.aggregate": "sequence_sum",
    "objective.horizon": 1.0,
    "objective.ratio_over": "behaviour",
}
_SKYRL_KL: Mapping[str, Any] = {"objective.kl.coef": 0.001, "objective.kl.aggregate": "sequence_mean"}
# a fork of verl whose entropy bonus is on
_VERL_AGENT: Mapping[str, Any] = {**_VERL, "objective.entropy.coef": 0.001}
_TRINITY_KL: Mapping[str, Any] = {"objective.kl.coef": 0.001, "objective.kl.estimator": "k2"}

# system -> method -> the keys in which that system's default differs from ours
COMPAT: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # a group of one has 0; loss_type "dapo"; two std's of GDPO with eps 1e-4, over trajectories
    "trl": {
        "grpo": {"credit.eps": 1e-4, **_TOKENS},
        "dr_grpo": {},
        "rloo": _TRL_RLOO,
        "reinforce_pp": _TRL_WHITEN,
        "reinforce_pp_baseline": _TRL_WHITEN,
        "gdpo_multi": _TOKENS,
        "dapo": {"credit.eps": 1e-4, "rollout": Independent},  # groups are not sampled again
        "gspo": {"credit.eps": 1e-4},  # loss_type "grpo", importance_sampling_level "sequence"
        "cispo": {"credit.eps": 1e-4, "objective.ratio_max": 0.2},  # epsilon_high, absolute, unset
        "gmpo": {"credit.eps": 1e-4},  # trl.experimental
        "luspo": {"credit.eps": 1e-4},
        "sapo_gate": {"credit.eps": 1e-4},
        "vespo": {"credit.eps": 1e-4},
    },
    # a group of one keeps its raw reward: the mean is taken to be 0 and the std 1
    "verl": {
        "grpo": {"credit.singleton": "raw", **_VERL},
        "dr_grpo": {"credit.singleton": "raw", "objective.surrogate": DualClip},
        "rloo": {"credit.singleton": "raw", **_VERL},
        "reinforce_pp": _VERL,
        "reinforce_pp_baseline": {"credit.singleton": "raw", **_VERL},
        "gdpo_multi": {"credit.batch_unit": "tokens", "credit.eps": 1e-6, "credit.singleton": "raw", **_VERL},
        "dapo": _VERL_DAPO,
        "gspo": {"credit.singleton": "raw"},
        "cispo": {"credit.singleton": "raw", **_BOTH_SIDES},
        "sapo_gate": {"credit.singleton": "raw"},  # a mean over sequences whatever loss_agg_mode says
        # dppo_tv, measured from the policy at the start of the step, its weight bounded by clip_ratio_c
        "dppo_divergence": {"credit.singleton": "raw", "objective.ratio_over": "proximal", "objective.ratio_max": 3.0},
        # clip_ratio, of the log-ratio here
        "gmpo": {"credit.singleton": "raw", "objective.log_clip_low": 0.2, "objective.log_clip_high": 0.2},
    },
    # group_norm, dr_grpo, rloo, reinforce, reinforce_baseline; a mean over tokens; the batch's variance is the
    # population's
    "openrlhf": {
        "grpo": {"credit.eps": 1e-9, **_TOKENS},
        "dr_grpo": _TOKENS,
        "rloo": _TOKENS,
        "reinforce_pp": {"credit.ddof": 0, **_TOKENS},
        "reinforce_pp_baseline": {"credit.ddof": 0, **_TOKENS},
    },
    # mean and std of the group, unbiased; the mean over tokens is fixed
    "areal": {"grpo": {"credit.eps": 1e-5, **_TOKENS}},
    # numpy's std; the loss is its backend's
    "rllm": {"grpo": {"credit.ddof": 0, "credit.singleton": "raw", **_VERL}},
    # without normalize_rewards this is RLOO
    "nemo-rl": {
        "grpo": {**_NEMO_CREDIT, **_TOKENS, **_NEMO_KL},
        "cispo": {**_NEMO_CREDIT, **_BOTH_SIDES, **_NEMO_KL},
        "rloo": {**_TOKENS, **_NEMO_KL},
        "reinforce_pp": {"credit.ddof": 0, **_TOKENS, **_NEMO_KL},
        "reinforce_pp_baseline": {"credit.ddof": 0, **_TOKENS, **_NEMO_KL},
    },
    # "importance_sampling", its default, clips nothing
    "tinker": {"grpo": {**_TINKER, "objective.surrogate": unclipped}, "cispo": {**_TINKER, "objective.ratio_max": 4.0}},
    # a mean over sequences, also of CISPO; a group of one is nan there
    "slime": {"grpo": {}, "cispo": {"objective.aggregate": "sequence_mean", **_BOTH_SIDES}},
    # sample std, eps 1e-6; bounds of CISPO 1 - 1 and 1 + 4
    "skyrl": {
        "grpo": {"credit.singleton": "raw", **_TOKENS, **_SKYRL_KL},
        "rloo": {**_TOKENS, **_SKYRL_KL},
        "cispo": {"credit.singleton": "raw", "objective.ratio_max": 5.0, **_SKYRL_KL},
    },
    # every turn is a row: long trajectories weigh more in the mean and the std
    "verl-agent": {
        "grpo": {"credit.unit": "step", "credit.singleton": "raw", **_VERL_AGENT},
        # the mean alone is its yaml's default; its ALFWorld scripts divide by the std
        "gigpo": {"credit.scale": "none", "credit.unit": "step", "credit.singleton": "raw", **_VERL_AGENT},
        "hgpo": {"credit.offset": 2, "credit.ignore": "zero", **_VERL_AGENT},
        "graph_gpo": {"credit.unit": "step", "credit.singleton": "raw", **_VERL_AGENT},
    },
    # every turn is a row of mean and std; a group of one has 0
    "roll": {"grpo": {"credit.unit": "step"}, "gigpo": {"credit.unit": "step"}},
    # PPO's loss is verl's; AsymRE has OPMD's, -A log pi, and neither KL nor a ratio
    "trinity": {
        "gigpo": {
            "credit.scale": "none",
            "credit.add.state.discount": 1.0,
            "credit.singleton": "raw",
            **_VERL,
            **_TRINITY_KL,
        },
        "grpo": {"credit.singleton": "raw", **_VERL, **_TRINITY_KL},
        "asymre": {"credit.singleton": "raw", "objective.surrogate": log_likelihood, **_TOKENS},
        "cispo": {"credit.singleton": "raw", **_TRINITY_KL},  # bounds 1 - 1 and 1 + 0.28
    },
}
