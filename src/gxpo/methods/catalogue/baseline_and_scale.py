"""Methods that change the baseline or the scale of a group's advantages; the base, GRPO, is the first."""

from gxpo.parts.definition import Definition

# mean and scale of the group
grpo = Definition(
    r"""GRPO: group-normalised advantages, PPO clip, sequence mean; the base of all other methods.

    A_i = (r_i - mean_g r) / (std_g r + 1e-6), one degree of freedom; the same for every token of the trajectory.
    L   = mean_i mean_t max(-A rho, -A clip(rho, 0.8, 1.2)) + coef * k3(policy || reference), coef 0 here.

    Choices. The paper (DeepSeekMath, arXiv 2402.03300, eq. 3 and 4; its code is not public) states neither ddof nor eps
    nor the clip; ddof 1 and 1e-6 are verl's, 0.2 is PPO's. The paper's KL coefficient is 0.04: `grpo@paper`. Its
    reference becomes the policy at every outer iteration; here it stays. Group of one: advantage 0 (verl keeps the raw
    reward).
    """,
    cite="shao2024grpo",
    evidence="paper",
    paper_defaults={"objective.kl.coef": 0.04, "rollout.group_size": 64, "optim.lr": 1e-6},
)

dr_grpo = Definition(
    r"""Dr. GRPO: GRPO without the std (difficulty bias) and without 1/length (length bias).

    A_i = r_i - mean_g r
    L   = mean_i sum_t l_{i,t} / H, H a constant: `objective.horizon`, the longest trainable length a trajectory can
      have (filled by the trainer from sampling.max_new_tokens).

    Choices. As in the authors' code, whose H is the longest answer that may be generated (3000 in their scripts), clip
    0.2, one update, no KL. verl's name for the aggregation (`seq-mean-token-sum-norm`) has meant three different
    things, one of them the padded width of the batch.
    """,
    cite="liu2025drgrpo",
    evidence="reference-code",
    code="sail-sg/understand-r1-zero@dfca49dd460e train_zero_math.py examples/qwen2.5-math-7b.sh",
    keys={"credit.scale": "none", "objective.aggregate": "sequence_sum"},
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6, "objective.horizon": 3000.0},
)

rloo = Definition(
    r"""RLOO: REINFORCE leave-one-out: the baseline is the mean reward of the other rollouts of the group.

    A_i = r_i - mean_{j != i} r_j = G / (G - 1) (r_i - mean_g r)

    Choices. From the article in which the first author presents it ("Putting RL back in RLHF", Huang and Ahmadian,
    2024); the paper's own text and code were not to be had. Only the advantage: its loss is REINFORCE on the whole
    answer as one action, -A sum_t log policy, whose on-policy gradient is that of the base's clip at ratio 1 with
    `objective.aggregate: sequence_sum`, and the reward is the score less beta times the KL (k1) summed over the answer
    (`objective.kl.place: reward`). `rloo@trl` has the loss of the trainer that the article presents, from its first
    version (2024) on: the product of the sequence's ratios, clipped, and KL (k1) in the reward. A group of one has
    advantage 0 (of verl's two implementations one gives 0, the other the raw reward; TRL 0).
    """,
    cite="ahmadian2024rloo",
    evidence="paper",
    keys={"credit.center": "leave_one_out", "credit.scale": "none"},
)

opo = Definition(
    r"""OPO: optimal (length-weighted) reward baseline for exactly on-policy training; no std.

    A_i = r_i - sum_j L_j r_j / sum_j L_j;   mean over tokens

    sum_i L_i A_i = 0: the advantages of a group's tokens sum to 0. With equal lengths this is Dr. GRPO's advantage.
    Exact on policy only: one update a step.

    Choices. The code patches advantages alone; the loss is that of verl 0.2, a mean over tokens, and so it is here: in
    a mean over sequences an answer's score would no longer grow with its length, as the baseline supposes. A group of
    one has advantage 0, as in the authors' code; verl's own port gives it a baseline of 0.
    """,
    cite="hao2025opo",
    evidence="reference-code",
    code="microsoft/LMOps@4f2a9deb5f08e459fd44c2e4792344d78ca89fc3 opo/verl/trainer/ppo/core_algos.py opo/README.md",
    keys={"credit": "length_weighted", "objective.aggregate": "token_mean"},
)

two_grpo = Definition(
    r"""2-GRPO: groups of two rollouts, a contrastive pair as in DPO.

    A = (r - mean) / (std + 1e-6) with the population's std: (1, -1) where the two differ, (0, 0) where they do not.
    With ratios rho, o_1 the better: J = 1/2 [ mean_t min(rho_1, 1.2) - mean_t max(rho_2, 0.8) ]

    Choices. Only the order of two real-valued rewards counts, not how far they are apart. The std has no degree of
    freedom taken off: with one, as in the base, A is 0.707107 and the step 0.7071 times as long. A pair of equal
    rewards (a share p^2 + (1 - p)^2 of them at rate p) has no gradient, so spend the saved rollouts on more tasks:
    `--set tasks.per_step=...`.
    """,
    cite="wu2025twogrpo",
    evidence="paper",
    keys={"credit.ddof": 0, "rollout.group_size": 2},
    cost="none beyond the base; an eighth of the rollouts of groups of 16",
)

mc_grpo = Definition(
    r"""MC-GRPO: median-centred advantages for small groups, scaled by the median absolute deviation.

    m = median of the group of G + 1;   d = median |r - m|;   A_i = (r_i - m) / (d + 1e-3)
    The median rollout itself has advantage 0 and is left out of the loss: G are trained.

    Choices. Of an even group the lower median, as the code takes it. With rewards 0 and 1 most rollouts agree, so d is
    0 and the minority has A = +-1000 (the code's numbers); the clip on the gradient's norm is what keeps such a step in
    bounds: with `credit.eps: 1.0` it is +-1. The rollout is dropped by weight 0, and the others' weight n / (n - 1)
    makes up for its place in the mean over trajectories; a KL term would still see it. One of the two released trainers
    also scales by n / (number of advantages other than 0); not here.
    """,
    cite="kim2026mcgrpo",
    evidence="reference-code",
    code="lotusroot-kim/MC-GRPO@da077455d4cb53c715e194c5334abc63d2fd41f2 src/open_r1/grpo_trainer_math.py "
    "src/open_r1/grpo_trainer_gsm.py",
    keys={
        "credit.center": "lower_median",
        "credit.scale": "median_absolute",
        "credit.eps": 1e-3,
        "weight.drop_median": "token_weight",
        "weight.drop_median.score": "outcome",
        "weight.drop_median.curve": "drop_median",
        "weight.drop_median.unit": "trajectory",
        "weight.drop_median.scope": "group",
    },
    paper_defaults={"rollout.group_size": 9, "objective.kl.coef": 0.04, "update.epochs": 2, "optim.lr": 2e-6},
    cost="one rollout more a task",
)

maxrl = Definition(
    r"""MaxRL: maximum-likelihood RL: centred rewards divided by the group mean instead of the std.

    A_i = (r_i - mean_g r) / (mean_g r + 1e-6): for rewards 0 and 1, (1 - p) / p for a success and -1 for a failure.

    Its sum over a group is 0. A rare success has a far larger advantage than under GRPO: 1 of 8 has 7 against 2.47.

    Choices. For outcomes >= 0; a group whose mean is not above 0 (all wrong) has 0. The code's main estimator: another
    of its switches by the same name divides by the std, too, and a clipped one holds the mean above 0.125; neither is
    here. It gives a group of one its reward over 1 + eps, here 0. The paper's gradient is of whole answers; the code's
    loss, verl's default, is a mean over tokens (`maxrl@paper`), here the base's over sequences. One update a step, so
    that no clip binds.
    """,
    cite="tajwar2026maxrl",
    evidence="reference-code",
    code="tajwarfahim/maxrl@c0698ebb439a81ae1c6b01a842df3f2541816b4d verl/trainer/ppo/core_algos.py "
    "verl/trainer/config/ppo_trainer.yaml maze/maze_17.sh qwen3_experiments/run_qwen3_training.sh",
    keys={"credit.scale": "mean"},
    paper_defaults={"objective.aggregate": "token_mean"},
)

mapo = Definition(
    r"""MAPO: mixed advantages: z-score for uncertain groups, percent deviation from the mean for certain ones.

    l = 1 - 4 p (1 - p), p = share of the group that is right
    A_i = (1 - l) (r_i - mean) / (std + eps) + l (r_i - mean) / (mean + eps)

    At p = 1/2 this is GRPO, towards p = 0 and 1 it is MaxRL, whose advantage the second term is.

    Choices. As in the code: sample std (`credit.ddof: 0` is the population's, which the closed forms in p need), eps
    1e-6 on both. Its loss is a token mean: `mapo@paper`. There p counts rewards equal to 1; here it comes from the
    verdicts. Its clip is EasyR1's, 0.2 and 0.3 with a dual clip at 3, and its scripts for GRPO add a KL loss of 0.01:
    neither is the method's. Not the dialogue method of the same name (arXiv 2603.06194).
    """,
    cite="huang2025mapo",
    evidence="reference-code",
    code="WenkeHuang/MAPO@debcfd3fe97f48200bfefb5fea65c8febc4788d6 code/verl/trainer/core_algos.py "
    "code/verl/trainer/ray_trainer.py code/verl/workers/actor/config.py",
    keys={"credit": "mixed_scale"},
    paper_defaults={"objective.aggregate": "token_mean"},
)

# groups without signal, and hard prompts
asymre = Definition(
    r"""AsymRE: off-policy REINFORCE with a baseline slightly below the group mean.

    A_i = r_i - (mean_g r + delta), delta = -0.1

    Its sum over a group is -G delta > 0: off policy, a baseline below the mean keeps the policy from collapsing, one
    above it does not; delta = 0 is Dr. GRPO's advantage. A group of equal outcomes has -delta = 0.1 each.

    Choices. The advantage only, with a port's delta: the paper's loss is -A log pi without a ratio, which on policy has
    the base's gradient. A group of one has 0. `asymre@trinity` is a port's: the raw reward for a group of one, -A log
    pi, a mean over tokens. QAE (arXiv 2509.22611), which moves the baseline to a quantile instead, is
    `{"credit.center": "quantile"}` of the base.
    """,
    cite="arnal2025asymre",
    evidence="secondary",
    keys={"credit.scale": "none", "credit.shift": -0.1},
)

ngrpo = Definition(
    r"""NGRPO: virtual maximum-reward rollout in each group, so that all-wrong groups learn; asymmetric clip.

    mean+, std+ over r_1 ... r_G and r_max (one degree of freedom);   A_i = (r_i - mean+) / (std+ + 1e-6)
    L = mean over tokens of max(-A rho, -A clip(rho, 1 - 0.16, 1 + 0.24))

    A group of G equal rewards below r_max has A = -1 / sqrt(G + 1) each; one of rewards r_max has 0.

    Choices. r_max is `credit.value`, 1: set it to the best outcome there can be where rewards are shaped or summed. The
    code drops all-correct groups before the loss; here they stay, with advantage 0, in the token mean's denominator. A
    group of one is measured against the virtual rollout (the code gives it its raw reward).
    """,
    cite="nan2025ngrpo",
    evidence="reference-code",
    code="nangongrui-ngr/NGRPO@e7a380415a64cd8ac102504c38a5f86069022f35 verl/trainer/ppo/core_algos.py "
    "train_scripts/train_qwen2.5-math-7b_ngrpo.sh",
    keys={
        "credit": "pseudo_rollouts",
        "objective.clip_low": 0.16,
        "objective.clip_high": 0.24,
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6},
)

dgpo_math = Definition(
    r"""DGPO: difficulty-balanced advantages (mean absolute deviation), and a softmax weight that favours hard prompts.

    A_i = G (r_i - mean) / (sum_j |r_j - mean| + 1e-4):   sum_i |A_i| = G in every mixed group;
      GRPO gives most at p = 1/2
    w_q = S softmax_q(-p_q / 2) over the S mixed groups of the step, p_q the share that is right (all wrong counts as 1)
    L   = mean over the tokens of mixed groups

    Choices. Tokens of groups without advantage are taken out of the mean by a factor on the others, as in the code; its
    further factor for the balance of processes is 1 here, where a step is one batch. p comes from the verdicts,
    whatever else is in the reward. The paper's rewriting of questions is data, not method: not here.
    """,
    cite="dai2026dgpomath",
    evidence="reference-code",
    code="AMAP-ML/MathForge@83edda024759f052a4a715eb2c2e553fb9da25ca trl-0.20.0/trl/trainer/grpo_trainer.py",
    keys={
        "credit.scale": "mean_absolute",
        "credit.eps": 1e-4,
        "weight.difficulty_softmax": "group_weight",
        "weight.difficulty_softmax.curve": "difficulty_softmax",
        "objective.aggregate": "token_mean",
    },
)

# baselines beside the group: a greedy answer, a reference model, a value
remax = Definition(
    r"""ReMax: REINFORCE with the reward of the greedy answer as baseline.

    A_i = r_i - r(greedy answer to the same prompt);   the same for every token, nothing is scaled

    Choices. Paper and code have one sample a prompt (`remax@paper`); more are measured against the one greedy answer,
    each on its own. The greedy answer is scored like any other and shaped like any other, but is not compared, not
    trained and in no denominator. The loss is the base's: at one update a step its ratio is 1 and its gradient that of
    -A log pi, in the mean over an answer's tokens. The code's is a mean over the tokens of a device's batch: one answer
    in the script for Llama 2, which is the base's mean, four in that for OPT (`objective.aggregate: token_mean`); the
    paper sums them (`sequence_sum`). The code also clips r_i - r(greedy) to [-5, 5], takes it times 0.99 for each token
    up to the answer's end, and adds 0.05 (log reference - log pi) of the token itself. Here the KL in the reward is
    `objective.kl.place: reward`, the baseline has none subtracted, and nothing is discounted. Groups of equal rewards
    learn unless the greedy answer has the same reward.
    """,
    cite="li2023remax",
    evidence="reference-code",
    code="liziniu/ReMax@536ba49cc2f9a1a76941045388a44757e2533e75 step3_rlhf_finetuning/remax_trainer.py "
    "step3_rlhf_finetuning/training_scripts/llama2/run_llama2_7b.sh",
    keys={
        "credit.center": "baseline",
        "credit.scale": "none",
        "rollout": "baseline_rollouts",
        "rollout.temperature": 0.0,
        "signal.rollout_baseline": "rollout_baseline",
    },
    paper_defaults={"rollout.group_size": 1},
    cost="one more generated answer a prompt, not trained on",
)

pvpo = Definition(
    r"""PVPO: fixed per-prompt baseline: the reference model's mean reward, measured once.

    V(q) = (1 / M) sum_j r(o_j), o_j from the reference;   A_i = r_i - V(q), not scaled;   then PPO's clip as in GRPO

    Choices. The paper (version 3) measures before training begins; here a task's M reference answers are drawn at its
    first visit, which is the same while the reference does not move; V is kept with the checkpoint. M is the base's 8:
    the paper has as many as rollouts, 5 or 16. Every 500 of its 1,000 steps it renews the reference; a later version
    does not, nor does this. Sampling from the reference takes adapters (`learner.lora_rank`); with `rollout.policy:
    current` the policy of a task's first visit is measured instead. The data filter (tasks that the reference always
    solves left out; in groups of tasks that it never solves a larger model's right answer in the place of one rollout,
    its ratio over that model) is not part of this. As the policy gets better than V, advantages drift upwards. Its
    objective has a KL; the coefficient is not given.
    """,
    cite="feng2025pvpo",
    evidence="paper",
    keys={
        "credit.center": "baseline",
        "credit.scale": "none",
        "rollout": "baseline_rollouts",
        "rollout.policy": "reference",
        "rollout.baselines": 8,
        "rollout.cache": True,
        "signal.rollout_baseline": "rollout_baseline",
    },
    paper_defaults={"rollout.baselines": 16, "rollout.group_size": 16, "tasks.per_step": 32, "optim.lr": 1e-6},
    cost="M more answers for every task, once; one number a task in the checkpoint; needs learner.lora_rank",
)

v05 = Definition(
    r"""V0.5: shrinkage baseline between the group mean and a value prior, weighted by the variance of the mean.

    w   = min(1, (v / n) / (mean - V)^2), v = 1/4 the most that the variance of one reward can be, n rollouts
    A_i = r_i - (w V + (1 - w) mean)

    A prediction within one standard error of the mean replaces it, one that the rollouts contradict is given up; groups
    of equal rewards learn.

    Choices. From a detailed summary; the code of V0 is public, this one's was not found. There rewards are -1 and 1,
    and the variance of a mean of n is 1 / n: 1/4 for 0 and 1 (`credit.variance: prior` is V (1 - V), never more). The
    paper's prediction is a pretrained value model's (V0), which gxpo does not have; here V is the task's discounted
    mean reward of earlier steps, drawn towards the mean over all tasks (`signal.task_mean`); any signal "baseline" can
    take its place, such as `value_probe`. `credit.variance: sample` takes the group's own variance, which is 0 where
    all rewards are equal. Rewards from 0 to 1; nothing is divided by a standard deviation. Until anything has been seen
    the baseline is the mean. The mean holds the rollout's own reward, as GRPO's. The sequential budget (from 4 up to 16
    rollouts, as long as one more takes 0.0039 off the expected square error) is not built: a stop that looks at rewards
    biases the mean.
    """,
    cite="zhang2026v05",
    evidence="secondary",
    keys={"credit": "shrinkage_baseline", "credit.variance": "bound", "signal.task_mean": "task_mean"},
    paper_defaults={"rollout.group_size": 4},
    cost="two numbers a task in the checkpoint; useful only where tasks repeat",
)

aapo = Definition(
    r"""AAPO: group advantage plus the clipped reward gap to the reference model (advantage momentum); no ratio, no
    clip.

    A_i = (r_i - mean) / (std + eps) + clip(r_i - r'_i, -0.2, 0.28), r'_i of the i-th of G answers of the reference
    L   = - sum_it A_i log pi(o_it) / tokens

    Choices. As in the authors' code; "momentum" is its word for the gap, nothing is carried over from step to step. The
    loss is -A rho without a bound, whose gradient is that of -A log pi as long as a step has one update (rho = 1).
    Sampling from the reference takes adapters (`learner.lora_rank`). Its configuration sets a KL coefficient of 0.1
    that the loss does not read: there is none here. eps is 1e-4 in the code (`aapo@paper`). An answer whose partner
    could not be scored has no gap. Groups of equal rewards learn where the reference's rewards differ.
    """,
    cite="xiong2025aapo",
    evidence="reference-code",
    code="JianxXiong/AAPO@b8aac37cf06d26c9308fa5f86e9e03eb085dc322 open-rs/trainer/AAPOTrainer.py "
    "open-rs/configs/AAPO.yaml",
    keys={
        "credit.add.clipped_gap": "bonus",
        "credit.add.clipped_gap.value": "gap",
        "credit.add.clipped_gap.low": -0.2,
        "credit.add.clipped_gap.high": 0.28,
        "rollout": "baseline_rollouts",
        "rollout.policy": "reference",
        "rollout.baselines": 0,
        "signal.rollout_baseline": "rollout_baseline",
        "signal.rollout_baseline.paired": True,
        "objective.surrogate": "unclipped",
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 6, "credit.eps": 1e-4, "optim.lr": 1e-6},
    cost="as many answers of the reference as of the policy: twice the generation; needs learner.lora_rank",
)

# pass@k, and rewards without a baseline
passk = Definition(
    r"""Pass@k training: analytic advantages of the pass@k reward over all sets of k rollouts of the group.

    R = 1 - C(n-c, k) / C(n, k),  s = sqrt(R (1 - R))
    A = (1 - R) / s if correct,  (1 - R - C(n-c-1, k-1) / C(n-1, k-1)) / s if wrong;
      sum_i A_i = 0; k = 1 is GRPO, ddof 0

    Choices. k is 2; the code has no default. Large k wants large groups: easy ones (n - c < k) and those of at most k
    attempts have no credit. Rewards are verdicts. `pkpo` is another estimator with the same aim; the paper's earlier
    variants, which draw sets, are not built.
    """,
    cite="chen2025passk",
    evidence="reference-code",
    code="RUCAIBox/Passk_Training@c3ba575ecb31f47fd9f5c43b18c081d4a295f783 code/passk_adv.py",
    keys={"credit": "pass_at_k"},
)

pkpo = Definition(
    r"""PKPO: unbiased policy gradient of pass@k (leave-one-out maximum).

    A_i = k mean_J (max(r_i, max_J r) - max_J r),   J: all sets of k - 1 of the group's other attempts
    rewards 0 and 1: A_i = k C(n-c, k-1) / C(n-1, k-1) for a success, 0 for a failure

    The mean of A_i d log pi(y_i) is the gradient of the expected best of k rewards, without bias. No A is below 0.

    Choices. The estimator that the paper recommends (arXiv 2505.15201), s^(loo-1) of eq. 33, times n since attempts are
    averaged here; no code is public but the paper's listing. It takes graded rewards as they are, shaping included. k
    is 2; k = 1, where eq. 33 has no set to compare with, is RLOO. `credit.kind: leave_one_out` is the `pkpo` of MaxRL's
    code: verdicts, without the factor k, and the mean of the others' advantages taken off once more, which is biased:
    1.05, 1.43 and 4.86 times the gradient at p = .1, .5 and .9 (n 8, k 4). Where `passk` normalises by the spread of
    the sets' results, this does not scale: its size falls with the success rate.
    """,
    cite="walder2025pkpo",
    evidence="paper",
    keys={"credit": "pass_at_k", "credit.kind": "sloo_minus_one"},
)

psr_nsr = Definition(
    r"""W-REINFORCE: correct answers weigh 0.1, wrong ones -1, no baseline; PSR and NSR train one kind only.

    A = lambda if right, -1 if wrong; lambda = 0.1;   L = mean over tokens
    PSR: `--set weight.by_sign.positive=1 --set weight.by_sign.negative=0`;   NSR: `weight.by_sign.positive=0`

    Pushing wrong answers down leaves the others' odds among themselves as they are, so that pass@k keeps up; every
    group learns, the all-right and the all-wrong ones, too.

    Choices. As in the authors' code: 1 times lambda for a score of 1, -1 for one of 0, clip 0.2, token mean. The
    outcome becomes 1 or -1 by the verdict and lambda is a weight, which under the clip is the same as scaling A. PSR
    and NSR leave the other rows out of their batch before the mean over tokens; here these weigh 0 and stay in its
    denominator, which scales a step. Their released configuration has an entropy bonus of 1e-3 (`psr_nsr@paper`), which
    is not a default here.
    """,
    cite="zhu2025psrnsr",
    evidence="reference-code",
    code="TianHongZXY/RLVR-Decomposed@a5d4e7c1df60 verl/trainer/ppo/core_algos.py verl/trainer/ppo/ray_trainer.py "
    "verl/trainer/config/ppo_trainer.yaml",
    keys={
        "reward.shape.signed": "shape",
        "reward.shape.signed.function": "signed",
        "credit.center": "none",
        "credit.scale": "none",
        "weight.by_sign": "token_weight",
        "weight.by_sign.score": "credit",
        "weight.by_sign.curve": "by_sign",
        "weight.by_sign.positive": 0.1,
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6, "objective.entropy.coef": 1e-3},
)
