"""Methods whose advantages are measured against the whole step: whitening, risk, sets, other groups."""

from gxpo.parts.definition import Definition

# normalised over the batch
reinforce_pp = Definition(
    r"""REINFORCE++: batch normalisation of outcomes over all trainable tokens; no groups.

    A_{i,t} = (r_i - mean) / sqrt(var + 1e-8), mean and unbiased variance over tokens: long trajectories weigh more.

    Groups that are equal within but differ between one another do learn here, unlike under every group baseline.

    Choices. Whitened over tokens, as in verl (TRL's recipe: over sequences). One degree of freedom, as in both, and the
    base's mean over sequences; OpenRLHF, the authors' framework, has the population's variance and a mean over the
    tokens of the optimiser step: `reinforce_pp@paper`. It holds the variance at 1e-8 or more, where that is added here,
    and clips rewards at +-10 before. The paper takes the KL of token t and after off the return at t; here a KL in the
    reward (`objective.kl.place: reward`) is taken off the outcome once, which has the same expected gradient.
    Coefficient 0.
    """,
    cite="hu2025reinforcepp",
    evidence="reference-code",
    code="OpenRLHF/OpenRLHF@3c3be6234e0cb353e76bb8019947db9dfe99fca7 "
    "openrlhf/trainer/ppo_utils/experience_maker.py openrlhf/models/loss.py openrlhf/models/utils.py",
    keys={"credit": "batch_whiten"},
    paper_defaults={"credit.ddof": 0, "objective.aggregate": "token_mean"},
)

reinforce_pp_baseline = Definition(
    r"""REINFORCE++-baseline: group-mean baseline, then batch normalisation over all trainable tokens.

    a_i = r_i - mean_g r;   A_{i,t} = (a_i - mean) / sqrt(var + 1e-8) over tokens of the batch

    Choices. A group of one has a = 0, as `reinforce_baseline` has it in OpenRLHF, the authors' framework (verl keeps
    its raw reward). OpenRLHF's population variance and its mean over the tokens of the optimiser step are
    `reinforce_pp_baseline@paper`; here one degree of freedom is taken off, as in verl, and the mean is the base's. A
    variance below 1e-8 is raised to it there, and has it added here.
    """,
    cite="hu2025reinforcepp",
    evidence="reference-code",
    code="OpenRLHF/OpenRLHF@3c3be6234e0cb353e76bb8019947db9dfe99fca7 "
    "openrlhf/trainer/ppo_utils/experience_maker.py openrlhf/models/loss.py openrlhf/models/utils.py",
    keys={"credit": "batch_whiten", "credit.center": "mean"},
    paper_defaults={"credit.ddof": 0, "objective.aggregate": "token_mean"},
)

gdpo_multi = Definition(
    r"""GDPO: multi-reward GRPO: each reward is normalised within its group before the weighted sum.

    z_k = (r_k - mean_g r_k) / (std_g r_k + 1e-4);   s = sum_k w_k z_k;   A = (s - mean_batch s) / (std_batch s + 1e-4)

    Choices. Weights are by name (`credit.weights: {correct: 1.0, format: 0.5}`); without any, every component has
    weight 1. The two official ports differ: TRL's normalises over the batch's trajectories (ours), verl's over its
    tokens, which weighs long answers more (`credit.batch_unit: tokens`). With one reward the batch normalisation is
    left out, as in TRL.
    """,
    cite="liu2026gdpomulti",
    evidence="reference-code",
    code="NVlabs/GDPO@b080e63d0126870ad08acc8ebc3f04b728175a9e "
    "trl-GDPO/trl-0.18.0-gdpo/trl/trainer/grpo_trainer.py verl-GDPO/verl/trainer/ppo/ray_trainer.py",
    keys={"credit": "decoupled"},
)

# statistics of several groups
bnpo = Definition(
    r"""BNPO: advantages normalised by a Beta density fitted to the success rates of the step.

    A = (r - p) / f(p; alpha, beta), p = mean_g r;   alpha = max(1, 1 + a / 3), beta = max(1, 1 + b / 3)
    a = k m, b = k (1 - m), k = m (1 - m) / v - 1;   m, v mean and variance (ddof 1) of p over the step's groups
    Beta(1, 1) is REINFORCE with a baseline, Beta(3/2, 3/2) GRPO's scale up to pi / 8.

    Choices. p by verdicts, where the code maps rewards to [0, 1]: the same for binary ones. A group of fewer than two
    is not in m and v (code: it is, with p = 0). Equal p everywhere: weight 1 (code: 0 / 0). p of 0 or 1: weight 1,
    advantage 0 (code: up to 1e6). One Beta for each of several rewards, off in the code by default, is not built. TRL's
    `loss_type` "bnpo" is a token mean and has nothing to do with this.
    """,
    cite="xiao2025bnpo",
    evidence="reference-code",
    code="changyi7231/BNPO@a9c51b9848283286ff3c51afbba2a867977a2e36 recipe/bnpo/src/bnpo_ray_trainer.py "
    "recipe/bnpo/run.sh",
    keys={"credit.scale": "none", "weight.beta_density": "group_weight", "weight.beta_density.curve": "beta_density"},
    paper_defaults={
        "objective.surrogate": "dual_clip",
        "objective.ratio_max": 10.0,
        "objective.clip_high": 0.28,
        "objective.aggregate": "sequence_sum",
        "rollout.group_size": 16,
        "tasks.per_step": 32,
        "optim.lr": 1e-6,
    },
)

copo = Definition(
    r"""COPO: blend of within-group and between-group advantages, weighted by the entropy of the group's answers.

    A = w A_in + (1 - w) A_between;   w = 1 / (1 + exp(-20 (H - 1.5))),  H = entropy of the group's answers in bits
    A_in = GRPO's;   A_between = (R_g - mean R) / (std R + eps),  R_g = mean_g r, over the groups of the step

    Choices. Logarithms to base 2, standard deviations of one degree of freedom, eps 1e-6 as in the authors' code; 20
    and 1.5 are the paper's. Their `run_copo.sh` has 5 and 1 and measures failures between groups alone
    (`credit.steepness`, `middle`, `failures: between`), other scripts 20 and 0.5 or 1; `credit.unit: nats` is what the
    paper's formula reads like, and with 4 attempts H is then below log 4 = 1.39. They add two clipped losses with
    weights w and 1 - w; here the advantages are added, which is the same wherever both have one sign or nothing is
    clipped. Their clip is dual (3). Answers are compared as strings, an attempt without one is an answer of its own.
    """,
    cite="han2025copo",
    evidence="reference-code",
    code="hijih/copo-code@f66883fb89271d4664bfdd9ca98acf6d28d3887b verl/trainer/ppo/core_algos.py",
    keys={"credit": "consistency_blended", "signal.answer_clusters": "answer_clusters"},
    paper_defaults={"rollout.group_size": 6},
)

riskpo = Definition(
    r"""RiskPO: risk-sensitive advantages (CVaR and RVaR of the lower tail) over bundles of prompts.

    S_j = sum of the j-th attempts at the 5 tasks of a bundle;   q_a, q_b tracked quantiles of S, a = 0.2, b = 0.9
    A_S = (1.5 CVaR / a + RVaR / (b - a)) / 2.5 / std S,   CVaR = -(q_a - S)+, RVaR = (S - q_a)+ - (S - q_b)+ -
      (q_b - q_a)
    A_i = A_S / std_g r;   q <- q + 0.1 (level - share of S below q)

    Choices. Those of the script for MATH: with the term q_b - q_a no advantage is positive, all is learned from
    failures. The script for DAPO-Math has b = 0.8 and leaves that term out (`credit.zero_at: low`), and shares A_S by r
    - mean_g r (not built: the shares have a pole). Quantiles are tracked as the paper says; in the code they are noted
    on a batch whose advantages have been taken, and the next step's batch is a new one. A std of 0 counts as 1 (code:
    1e-6). Bundles are consecutive groups; a remainder makes some bundles larger. The scripts leave verl's loss as it
    is: a mean over tokens (`riskpo@paper`) with a dual clip at 3 (`objective.surrogate: dual_clip`).
    """,
    cite="ren2025riskpo",
    evidence="reference-code",
    code="RTkenny/RiskPO@65ec40c935f5726aa2d80160d9056b1236d5551e verl/trainer/ppo/core_algos.py "
    "verl/trainer/ppo/ray_trainer.py scripts/run_qwen2.5_1.5b_MVaR_math.sh",
    keys={"credit": "risk_bundle"},
    paper_defaults={
        "objective.aggregate": "token_mean",
        "rollout.group_size": 5,
        "tasks.per_step": 1024,
        "update.minibatches": 2,
        "optim.lr": 1e-6,
    },
)

# other sets of attempts
polychromic = Definition(
    r"""Polychromic objectives: set-level reward (mean reward times diversity), shared by the members of each set.

    f(set) = mean R * (number of different attempts) / n;   A_i = mean of f over sets with i - mean of f over all sets

    Choices. Sets have 2 members (the paper's number is open in our source), so that small groups have many. The mean is
    over all of them, in closed form, where the paper draws a few. Attempts are different where their tokens are; for
    texts a level such as `credit.identity: info.answer` says more. The group is the branching state: vine sampling at
    later states, and GAE elsewhere, are not built. The paper's KL per state is `objective.kl.coef`.
    """,
    cite="hamid2025polychromic",
    evidence="secondary",
    keys={"credit": "set_relative"},
)

ospo = Definition(
    r"""OSPO: one-step group advantage for fleets of like agents: those that act at the same time are the group.

    A = (r - mean_t r) / (std_t r + 1e-8) - (change of the std of earnings at t);   std of the population

    Choices. A group is one world, a trajectory one of its agents. Earnings are compared among the agents that act at t
    (the code: the whole fleet). Clip 0.2 / 0.28 and entropy 0.05 under `ospo@paper`; the code's KL to its target
    network is off by default and not built. The paper's GRPO for fleets: `credit.discount` above 0. Without step
    rewards the outcome is the reward of the last turn.
    """,
    cite="zhao2025ospo",
    evidence="reference-code",
    code="RS2002/OSPO@02ed2da285833bf9cf3e28a81859c22c8688c836 OSPO/Platform.py OSPO/Worker.py",
    keys={"credit": "turn_relative"},
    paper_defaults={"objective.clip_high": 0.28, "objective.entropy.coef": 0.05},
)

# rescaled for groups without spread
gpg = Definition(
    r"""GPG: plain policy gradient with a group-mean baseline, rescaled for zero-variance groups; no ratio, clip or KL.

    A_i = alpha (r_i - mean_g r);   alpha = B / (B - M), M of the step's B rollouts in groups of equal rewards
    L   = -mean_i mean_t A_i log pi: no ratio, no clip, no reference

    Choices. F_norm = 1, the paper's main setting (`credit.scale: std` for the other). alpha is over the step; "equal"
    groups are those in which every advantage is 0. The code divides by the share + 1e-5. The paper samples again while
    the share is below 0.6 (scripts: 0.4): not built; with `rollout=dynamic_sampling` alpha is 1. verl's `gpg` is
    something else: its alpha is B over the number of non-zero rewards.
    """,
    cite="chu2025gpg",
    evidence="reference-code",
    code="AMAP-ML/GPG@e096da8ce527a1636272469cee383ba71ec4a511 R1-V/src/r1-v/src/open_r1/trainer/grpo_trainer.py",
    keys={
        "credit.scale": "none",
        "objective.surrogate": "log_likelihood",
        "weight.valid_share": "group_weight",
        "weight.valid_share.statistic": "credited",
        "weight.valid_share.curve": "over_share",
    },
)
