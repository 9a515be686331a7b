"""Methods that replay rollouts, share out a budget of attempts, or put reference answers into groups."""

from gxpo.parts.definition import Definition

# replay and staged sampling
repo_replay = Definition(
    r"""RePO: replay-enhanced GRPO: a group of replayed rollouts of each prompt in addition to the fresh group.

    B_q: the newest 16 rollouts of task q with the log-probs that they were sampled with. From 16 stored on,
      K = 8 of them are drawn each time q is sampled.
    A_i = GRPO's, over the G fresh rows and over the K replayed rows separately ("split")
    L   = mean over all rows of c_i mean_t max(-A rho, -A clip(rho, 0.8, 1.2)), c = 1 for fresh rows and `rollout.coef`
      for replayed ones; rho over the behaviour policy

    Choices. The paper has a mean over the G fresh rows plus a mean over the K replayed ones. The reference divides both
    sums by all rows, so that replay takes weight from the fresh rows (their loss is G / (G + K) of GRPO's where every
    task has replays); so does this. Fresh rows, too, have the sampler's log-probs in the ratio, which differ from the
    learner's by rounding, so their first ratio is 1 to about 1e-6 and not exactly. The reference selects by the
    unweighted sum of its reward functions; here the outcome decides, in the task's own weights and before any shaping.
    Of equal outcomes the newest is replayed. With `objective.kl.coef` the KL is taken on replayed rows as well
    (reference: fresh rows only). A task without enough stored rollouts has no replayed rows. "highest" soon finds
    groups that are right throughout and teach nothing: `rollout.choice: max_variance` does not.
    """,
    cite="li2025reporeplay",
    evidence="reference-code",
    code="SihengLi99/RePO@119fef699104b52adf915ca630b8b03400b0e0ea src/replay_grpo_trainer.py "
    "scripts/train_replay_grpo.slurm",
    keys={"rollout": "replay", "objective.ratio_over": "behaviour"},
    paper_defaults={"credit.eps": 1e-4, "sampling.top_k": 50, "optim.lr": 1e-6},
    cost="K more trajectories a task in the update; about 70 bytes of memory for every stored token",
)

ar3po = Definition(
    r"""AR3PO: adaptive rollout in stages until a prompt has a success, and reuse of a stored correct answer.

    Stage s = 1..S: k answers to every prompt that has no right one yet, so n_q is k, 2k,
      ... or S k. After S stages without one, and with right answers of earlier steps stored: one of them takes the
      place of a wrong row, r = 1.
    A = GRPO's over the n_q rows;  L = sum max(-A rho, -A clip(rho, 0.8, 1.28)) / tokens

    Choices. Read in summaries; neither the authors' code nor the paper's text was found. k = 4, S = 2
    (`rollout.stage_size`, `rollout.group_size`) fits the published average of 5.7 answers a prompt. The stored answer
    is drawn at random from the newest 8 (`rollout.choice: recent`, `rollout.max_stored`) and replaces the last wrong
    row. It counts in the group's mean and std and has no gradient, which is said to be the paper's best variant. With
    one (`rollout.coef: 1`) two treatments of its ratio are described: evaluated anew under the policy at the start of
    the step (`objective.ratio_over: proximal`: exactly 1 at the first update), or over the log-probs it was sampled
    with (`behaviour`). "DAPO-like" is read as clip-higher and token mean, without its overlong penalty; the token mean
    weighs prompts by n_q, and its denominator has the reused row's tokens. Stopping at the first success makes the
    success rate of easy prompts, and the baseline, no longer unbiased.
    """,
    cite="zhang2025ar3po",
    evidence="secondary",
    keys={
        "rollout": "retry",
        "rollout.retry_if": "unsolved",
        "rollout.retry_with": "more",
        "rollout.keep": "everything",
        "rollout.reuse": True,
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
    },
    cost="saves samples: k (1 + (1 - p)^k) answers of a prompt of pass rate p, for S = 2",
)

# a budget of rollouts over prompts
v0 = Definition(
    r"""V0: adaptive group sizes: split a fixed rollout budget across prompts by predicted success rate.

    U(n, p) = n (1 - p) (1 - (1 - p)^(n - 1)): expected failures in a group with a success,
      of n attempts at success rate p
    max sum_q U(n_q, p_q) with sum_q n_q = the budget and 2 <= n_q <= 128, greedily;   A = GRPO's over the n_q rows

    Choices. Read in a note; the authors' repository (Now-Join-Us/V0) holds the value model alone, no allotment. The
    paper's p is that model's, given other prompts' outcomes as context, which gxpo does not have: here it is the task's
    discounted rate of success in earlier steps, drawn towards the mean over all tasks (one half before there is any).
    The budget is `rollout.group_size` times the number of tasks. Greedy, as in the paper: hard tasks, for which U is
    convex in n, may stay at two attempts. Where a sequence mean is taken, as by default, tasks with more attempts weigh
    more. Routing between models is not part of this.
    """,
    cite="zhang2026v0",
    evidence="secondary",
    keys={"rollout": "adaptive_group_size"},
    cost="none in samples; two numbers a task in the checkpoint; useful only where tasks repeat",
)

knapsack_rl = Definition(
    r"""Knapsack RL: a fixed rollout budget split across prompts by the chance of a mixed group times what it can raise.

    max sum_q (1 - p^n - (1 - p)^n) p (1 - p)^2 with sum_q n_q = the budget and 2 <= n_q <= 128;
      A = GRPO's over n_q rows

    Choices. From the authors' code: p is the mean of a task's newest 16 verdicts, or of all of its last visit; below 8
    a task has the usual number. Tasks with p = 0 or 1 have 2 attempts; what the others are not expected to need to have
    both verdicts with probability .9 goes to those with p = 0 or none yet. Two attempts count as worth nothing there,
    the third as worth the whole, so that each task has it before one has four: not the optimum of the sum above, which
    `rollout.solver: knapsack` finds, with `rollout.window: null`. Its script's token mean and clip_high 0.28 are under
    `knapsack_rl@paper`; its clamp of A to 5 in size is left out, which a group of 128 with one success passes. Where a
    sequence mean is taken, as by default, tasks with more attempts weigh more: `weight.by_size: group_weight` with
    `weight.by_size.curve: equal_groups` gives each group the same weight.
    """,
    cite="li2025knapsackrl",
    evidence="reference-code",
    code="liziniu/KnapsackRL@ca5d5f5b7e933378d916d05d1aeb4ae9de929ee5 verl/trainer/ppo/exploration_utils.py "
    "verl/utils/dataset/rl_dataset.py examples/knapsack_trainer/run_knapsack_grpo_7b.sh",
    keys={
        "rollout": "adaptive_group_size",
        "rollout.value": "mixed_gain",
        "rollout.solver": "fallback",
        "rollout.window": 16,
    },
    paper_defaults={"objective.aggregate": "token_mean", "objective.clip_high": 0.28},
    cost="none in samples; two numbers a task in the checkpoint; useful only where tasks repeat",
)

# replay of earlier steps
pipo = Definition(
    r"""PIPO: retrospective replay of the previous batch, scaled by the improvement of the mean reward since.

    xi   = (mean reward now - mean of the last K) / std of the last K;   phi = xi, or 0.1 xi where it is negative
    r^_i = phi G A_i / sum_j |A_j| for the rollouts of the step before: one clipped step on them, then GRPO's on the new

    Choices. K = 8; nothing is repeated until there have been K steps. The first step's ratio is over the policy that
    sampled the old batch, the second's over the one that sampled the new: `objective.ratio_over: behaviour`, the
    sampler's log-probs. eps 1e-6 is added to std and to sum |A|. xi has no bound (`signal.improvement.bound`); where
    the last means are all equal it is 0, in the code mean now - mean. The old batch is one optimiser step; the code
    cuts it, too, into mini-batches. The authors' code and the paper differ. Its window of 8 holds the current step, so
    that 7 earlier ones are compared with, and its std is the population's: `signal.improvement.window=7
    signal.improvement.ddof=0`. Its older version (GRPO, GSPO and DAPO on mathematics) stores every mean twice and
    compares a step with a window that it is part of. Its replay for GRPO maximises min(rho, 1.2) r^ whatever the sign
    of r^: where r^ < 0, a token with a ratio above 1.2 has no gradient and one that fell is pushed down further. Here,
    and in its replay for GSPO, it is PPO's minimum. Its loss is a token mean. Batches of different tasks differ in
    difficulty too, which xi cannot tell from improvement.
    """,
    cite="wang2026pipo",
    evidence="reference-code",
    code="JacckMa/pipo_verl@8e8e63fbb4dd0b4fa990c46860854cf59fc60145 verl/trainer/ppo/layback_utils.py "
    "verl/trainer/ppo/core_algos.py verl/trainer/ppo/ray_trainer.py",
    keys={
        "credit": "retrospective",
        "rollout": "group_replay",
        "rollout.choice": "all",
        "rollout.max_groups": 0,
        "signal.improvement": "improvement",
        "update.first": "replay",
        "objective.ratio_over": "behaviour",
    },
    cost="a second update per step on the stored rollouts of the previous step; 40-49% more time by the paper",
)

r1v2_ssb = Definition(
    r"""Skywork R1V2 (SSB): selective sample buffer: zero-advantage rollouts are made up for by replay in proportion to
    |A|.

    stored: groups of unequal rewards.   For every fresh rollout with A = 0 one stored one, P(i) in proportion to |A_i|
    L = mean over fresh and drawn rows of GRPO's clipped loss, the drawn rows' A and ratio those of their own group and
      time

    Choices. From the report (the version of June 2025 in SkyworkAI/Skywork-R1V, whose code is evaluation alone):
    samples of non-zero advantage are stored, drawn by weights in proportion to |A|, and come back into updates. It does
    not state how many are drawn, nor the ratio of a stored one: one for each fresh rollout without advantage, over the
    behaviour policy (`objective.ratio_over: behaviour`), are ours. Only the buffer is built: the mixed preference
    optimisation before GRPO, the reward model beside the rules, and the buffer as a filter of prompts beforehand are
    not. Any stored task's rollouts may come back. A is recomputed in the group that it came from, whose other members
    only enter its statistics. The newest 1024 groups are stored (`rollout.max_groups`).
    """,
    cite="chris2025r1v2ssb",
    evidence="paper",
    keys={"rollout": "group_replay", "objective.ratio_over": "behaviour"},
    cost="more trajectories in the update; about 70 bytes of memory for every stored token",
)

# reference answers in the group
gcpo_gold = Definition(
    r"""GCPO: reference (golden) answer in place of one rollout of an all-wrong group, with GSPO's sequence clip.

    max_i r_i = 0:  o_G <- reference answer, r_G <- 1 (what the verifier gives it).  A = GRPO's on the resulting group.
    s_i = exp(mean_t (log pi - log pi_old));  L = mean_i max(-A_i s_i, -A_i clip(s_i, 1 - 3e-4, 1 + 4e-4));  no KL

    The ratio of the reference row. It has no behaviour policy, so its denominator is the policy at the start of the
    step: s = 1 at the first update, and from there it drifts and is clipped like every other row's. The trainer always
    gives that policy. Where a caller gives none, `objective.on_unknown_behaviour: one` holds s at 1, with REINFORCE's
    gradient: exact at the first update and without a bound at later ones.

    Choices. Read in summaries: the clip's width was not found and is GSPO's, whose ratio this is. Which rollout is
    replaced is not said: the last. Groups in which all succeed are left as they are, though the abstract counts them as
    lost too. A group without any failure, or with a success, is GSPO's without KL. Without an accepted reference answer
    a failed group teaches nothing. Not GeometryZero's GCPO.
    """,
    cite="wu2025gcpogold",
    evidence="secondary",
    keys={
        "rollout": "retry",
        "rollout.retry_with": "reference",
        "rollout.keep": "for_last_failure",
        "objective.ratio": "sequence",
        "objective.clip_low": 3e-4,
        "objective.clip_high": 4e-4,
        "objective.on_unknown_behaviour": "one",
    },
    refuses={"objective.aggregate": ("token_mean",)},
    cost="a replaced rollout is sampled too; needs reference answers",
)

luffy = Definition(
    r"""LUFFY: off-policy teacher answer in each group, with policy shaping pi / (pi + 0.1) in place of the ratio.

    Group: G - n samples and n reference answers (n = 1);  A_i = r_i - mean over the whole mixed group, no std
    samples:  l = -A rho, without a clip
    answers:  l = -A f(pi), f(x) = x / (x + 0.1): the behaviour policy is taken to be certain (pi_behaviour = 1).
              The gradient in log pi, -A 0.1 pi / (pi + 0.1)^2, is greatest at pi = 0.1: unlikely tokens are not lost.
    L = mean_i sum_t l / H, H `objective.horizon`

    Choices. As the recipe (`grpo`, mean of the mixed group), not `grpo_split`: `rollout.statistics: policy` takes the
    mean from the samples alone, but gives a lone sample advantage 0 where the reference keeps its reward. As in the
    recipe there is no clip, and the length that sums are divided by is a constant. An answer's own log-probs, where a
    record has them, make it an ordinary row (reference: `target_probs`, a ratio without shaping). The recipe's entropy
    coefficient 0.001 is under `luffy@paper`: there it is added to a sum over the rows of a micro-batch, here to the
    mean over rows, where it weighs as many times more as a micro-batch has rows (`objective.entropy.coef`: 0.001 over
    that number is the same). A group that is all right, the reference answer included, teaches nothing.
    """,
    cite="yan2025luffy",
    evidence="reference-code",
    code="ElliottYan/LUFFY@01f4ae066249e6965ce0d5512ccdf99a12895c74 luffy/verl/verl/mix_src/mix_core_alg.py "
    "luffy/verl/verl/mix_src/mix_actor.py exp_scripts/train.sh",
    keys={
        "rollout": "reference_in_group",
        "credit.scale": "none",
        "objective.surrogate": "unclipped",
        "objective.aggregate": "sequence_sum",
        "objective.on_unknown_behaviour": "shaped",
    },
    paper_defaults={"objective.entropy.coef": 0.001, "optim.lr": 1e-6, "tasks.per_step": 128, "update.minibatches": 2},
    refuses={"objective.ratio": ("sequence",)},
    cost="one sample fewer a group; needs reference answers",
)

tempsamp_r1 = Definition(
    r"""TempSamp-R1: ground truth as a member of the group, with a soft-thresholded reward.

    Group: G - 1 samples and one reference answer
    r~ = 0.8 + 0.01 ln(1 + d) for d = r - 0.8 >= 0, else 0.8 - (e^-d - 1) / (e - 1);   A = GRPO's of r~ over all G

    Choices. The paper's eqs. 2 and 4. Its task is finding moments in videos, scored by overlap; here any score from 0
    to 1: with binary ones the shaping only scales, and std takes that out again. The reference answer's ratio begins at
    1, as theirs: the policy at the start of the step replaces the unknown behaviour policy
    (`objective.on_unknown_behaviour: one`). Its two alternatives (a scaled reward of the reference answer, an advantage
    anchored at 1.2 times the best sample's) and the mix of answers with and without reasoning are not built. It takes
    one update of each batch, where all ratios are 1. A reference answer that the verifier does not accept is left out.
    """,
    cite="li2025tempsampr1",
    evidence="paper",
    keys={
        "rollout": "reference_in_group",
        "reward.shape.soft_threshold": "shape",
        "reward.shape.soft_threshold.function": "soft_threshold",
        "objective.on_unknown_behaviour": "one",
    },
    paper_defaults={"rollout.group_size": 4},
    cost="one sample fewer a group; needs reference answers",
)
