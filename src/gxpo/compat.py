"""Other trainers' numbers under their own names: `grpo@verl`, or `compat="verl"` for every method that has an entry.

Each entry holds the keys in which a system, left at its defaults, differs from this catalogue; an empty one says that
it does not. Held against the installed package: verl 0.9.1, and TRL 1.16 (`grpo`, in a run). Read in the code: NeMo-RL
and OpenRLHF 0.11. From published comparisons of their numbers: AReaL, rLLM, tinker-cookbook, verl-agent, Trinity-RFT.

What the entries leave out: KL coefficients, which are a run's setting here; objectives that can't be said in keys, or
were not read (TRL's RLOO takes one ratio for a whole sequence, tinker sums over tokens); and float32 residues where
rewards are equal, which those systems may divide by eps: here such groups have exactly 0. OpenRLHF further clips what
it has normalised at +-10, which no group of fewer than 102 reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gxpo.objectives import DualClip

# the policy loss of verl: clip 0.2, bounded at 3 where A < 0, mean over tokens
_VERL: Mapping[str, Any] = {"objective.gate": DualClip, "objective.aggregate": "token_mean"}
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
    },
    # a group of one keeps its raw reward: the mean is taken to be 0 and the std 1
    "verl": {
        "grpo": {"credit.single": "raw", **_VERL},
        "dr_grpo": {"credit.single": "raw", "objective.gate": DualClip},
        "rloo": {"credit.single": "raw", **_VERL},
        "reinforce_pp": _VERL,
        "reinforce_pp_baseline": {"credit.single": "raw", **_VERL},
        "gdpo_multi": {"credit.over": "tokens", "credit.eps": 1e-6, "credit.single": "raw", **_VERL},
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
        "rloo": {},
        "reinforce_pp": {"credit.ddof": 0},
        "reinforce_pp_baseline": {"credit.ddof": 0},
    },
    "tinker": {"grpo": {"credit.scale": "none"}},
    # every turn is a row: long trajectories weigh more in the mean and the std
    "verl-agent": {"grpo": {"credit.unit": "step", "credit.single": "raw"}},
    "trinity": {
        "grpo": {"credit.single": "raw", "objective.aggregate": "token_mean"},
        "asymre": {"credit.single": "raw", "objective.aggregate": "token_mean"},
    },
}
