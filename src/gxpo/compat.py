"""Other trainers' numbers under their own names: `grpo@verl`, or `compat="verl"` for every method that has an entry.

Each entry holds the keys in which a system, left at its defaults, differs from this catalogue; an empty one says that
it does not. Held against the installed package: verl 0.9.1 (estimators and losses), and TRL 1.16 (in runs). Read in
the code: NeMo-RL, OpenRLHF 0.11 and SkyRL; of Trinity-RFT, ROLL and verl-agent's recipes the credit of turns. From
published comparisons of their numbers: AReaL, rLLM, tinker-cookbook, verl-agent, Trinity-RFT, slime.

A paper's own bounds stay where a system asks its user for them (DAPO's 0.28, GSPO's 3e-4 and 4e-4), since at the
defaults it would be another method. CISPO's are the systems' own, which say one bound in three ways: TRL's
`epsilon_high` is the bound itself and 0.2 where nobody sets it, so that even on policy every gradient is a fifth;
tinker's is the bound too, 4; SkyRL's and Trinity-RFT's are distances from 1, of which the lower one switches itself
off; those of verl, slime and NeMo-RL, 0.2 and 0.2, bound the weight on both sides.

What the entries leave out: KL coefficients, which are a run's setting here; objectives that can't be said in keys, or
were not read (TRL's RLOO takes one ratio for a whole sequence, tinker sums over tokens, TRL's "bnpo" takes a mean of
its micro-batches' means, and its "dapo" divides by the average step's tokens where a generation batch has several);
clamps of the log-ratio at +-20 (verl) and of GSPO's at 10; and float32 residues where rewards are equal, which those
systems may divide by eps: here such groups have exactly 0. OpenRLHF further clips what it has normalised at +-10,
which no group of fewer than 102 reaches. Of turns: equal states of different tasks, which Trinity-RFT's GiGPO compares;
verl-agent's penalty on invalid actions and its copies of rows that fill a batch; and the 1e-6 that HGPO's recipe adds
to the sum of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gxpo.objectives import DualClip
from gxpo.rollouts.independent import Independent

# the policy loss of verl: clip 0.2, bounded at 3 where A < 0, mean over tokens
_VERL: Mapping[str, Any] = {"objective.gate": DualClip, "objective.aggregate": "token_mean"}
# verl's recipe for DAPO bounds A < 0 at 10
_VERL_DAPO: Mapping[str, Any] = {"credit.single": "raw", "objective.gate": DualClip, "objective.ratio_max": 10.0}
# CISPO's weight between 1 - 0.2 and 1 + 0.2
_BOTH_SIDES: Mapping[str, Any] = {"objective.ratio_min": 0.8, "objective.ratio_max": 1.2}
# RLOOTrainer with normalize_advantages, TRL's recipe for REINFORCE++: over trajectories
_TRL_WHITEN: Mapping[str, Any] = {"credit.center": "leave_one_out", "credit.over": "trajectories", "credit.eps": 1e-4}

# system -> method -> the keys in which that system's default differs from ours
COMPAT: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # a group of one has 0; loss_type "dapo"; two std's of GDPO with eps 1e-4, over trajectories
    "trl": {
        "grpo": {"credit.eps": 1e-4, "objective.aggregate": "token_mean"},
        "dr_grpo": {},
        "rloo": {},
        "reinforce_pp": _TRL_WHITEN,
        "reinforce_pp_baseline": _TRL_WHITEN,
        "gdpo_multi": {"objective.aggregate": "token_mean"},
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
        "grpo": {"credit.single": "raw", **_VERL},
        "dr_grpo": {"credit.single": "raw", "objective.gate": DualClip},
        "rloo": {"credit.single": "raw", **_VERL},
        "reinforce_pp": _VERL,
        "reinforce_pp_baseline": {"credit.single": "raw", **_VERL},
        "gdpo_multi": {"credit.over": "tokens", "credit.eps": 1e-6, "credit.single": "raw", **_VERL},
        "dapo": _VERL_DAPO,
        "gspo": {"credit.single": "raw"},
        "cispo": {"credit.single": "raw", **_BOTH_SIDES},
        "sapo_gate": {"credit.single": "raw"},
        # dppo_tv, measured from the policy at the start of the step, its weight bounded by clip_ratio_c
        "dppo_divergence": {"credit.single": "raw", "objective.ratio_over": "proximal", "objective.ratio_max": 3.0},
        # clip_ratio, of the log-ratio here
        "gmpo": {"credit.single": "raw", "objective.log_clip_low": 0.2, "objective.log_clip_high": 0.2},
    },
    # group_norm, dr_grpo, rloo, reinforce, reinforce_baseline; the batch's variance is the population's
    "openrlhf": {
        "grpo": {"credit.eps": 1e-9},
        "dr_grpo": {},
        "rloo": {},
        "reinforce_pp": {"credit.ddof": 0},
        "reinforce_pp_baseline": {"credit.ddof": 0},
    },
    # mean and std of the group, unbiased; the mean over tokens is fixed
    "areal": {"grpo": {"credit.eps": 1e-5, "objective.aggregate": "token_mean"}},
    # numpy's std
    "rllm": {"grpo": {"credit.ddof": 0, "credit.single": "raw"}},
    # mean and std of the others; without normalize_rewards this is RLOO
    "nemo-rl": {
        "grpo": {"credit.center": "leave_one_out", "credit.scale": "leave_one_out_std"},
        "cispo": {"credit.center": "leave_one_out", "credit.scale": "leave_one_out_std", **_BOTH_SIDES},
        "rloo": {},
        "reinforce_pp": {"credit.ddof": 0},
        "reinforce_pp_baseline": {"credit.ddof": 0},
    },
    "tinker": {"grpo": {"credit.scale": "none"}, "cispo": {"credit.scale": "none", "objective.ratio_max": 4.0}},
    # a mean over sequences, also of CISPO; a group of one is nan there
    "slime": {"grpo": {}, "cispo": {"objective.aggregate": "sequence_mean", **_BOTH_SIDES}},
    # sample std, eps 1e-6; bounds of CISPO 1 - 1 and 1 + 4
    "skyrl": {
        "grpo": {"credit.single": "raw", "objective.aggregate": "token_mean"},
        "rloo": {"objective.aggregate": "token_mean"},
        "cispo": {"credit.single": "raw", "objective.ratio_max": 5.0},
    },
    # every turn is a row: long trajectories weigh more in the mean and the std
    "verl-agent": {
        "grpo": {"credit.unit": "step", "credit.single": "raw"},
        # the mean alone is its yaml's default; its ALFWorld scripts divide by the std
        "gigpo": {"credit.scale": "none", "credit.unit": "step", "credit.single": "raw"},
        "hgpo": {"credit.offset": 2, "credit.ignore": "zero"},
        "graph_gpo": {"credit.unit": "step", "credit.single": "raw"},
    },
    # every turn is a row of mean and std; a group of one has 0
    "roll": {"grpo": {"credit.unit": "step"}, "gigpo": {"credit.unit": "step"}},
    "trinity": {
        "gigpo": {"credit.scale": "none", "credit.discount": 1.0, "credit.single": "raw"},
        "grpo": {"credit.single": "raw", "objective.aggregate": "token_mean"},
        "asymre": {"credit.single": "raw", "objective.aggregate": "token_mean"},
        "cispo": {"credit.single": "raw"},  # bounds 1 - 1 and 1 + 0.28
    },
}
