"""Losses over groups and pairs of rollouts in the policy gradient's place."""

from gxpo.parts.definition import Definition

# regression on rewards
gvpo = Definition(
    r"""GVPO: regression of group-centred log-ratios (implicit rewards) on group-centred rewards; no ratio, no clip.

    D_i = sum_t (log policy - log old);   L_g = (1/2) sum_i [beta (D_i - mean D) - (r_i - mean r)]^2 / (G - 1)
    The only optimum is the policy that maximises reward - beta KL(policy || old); no ratio, no clip, any sampler.

    Choices. `old` is the policy at the start of the step; `objective.ratio_over: reference` fixes the anchor. The group
    mean of D is taken as a constant: exact, because residuals sum to 0. No std; beta is 0.1, L a mean over groups. At D
    = 0 it is REINFORCE with the group's mean as baseline, times beta / (G - 1). Advantages are not read.
    """,
    cite="zhang2025gvpo",
    evidence="reference-code",
    code="jszkc/GVPO@627aa25e32acdaaa2c374946ccc703a7848ec8c1 GVPO/gvpo_core_algos.py GVPO/gvpo_dp_actor.py "
    "GVPO/gvpo_actor_config.py",
    keys={"objective": "group_variance"},
    refuses={"objective.kl.place": ("reward",)},
)

reg_grpo = Definition(
    r"""Reg-GRPO: regression of group-normalised log-ratios on group-normalised rewards; no clip.

    D_i = sum_t (log policy - log old);   z(D)_i = 10 (D_i - mean D) / max(1, std of 10 D);
      A_i = (r_i - mean r) / std r
    L = mean_g (1/2) sum_i (z(D)_i - A_i)^2 / (G - 1)

    Choices. The paper divides D by its std, which is 0 on the first update after sampling (0 / 0, in code the square
    root's infinite slope). Here log-ratios are divided by no less than 1 / beta = 0.1 nats: below that the loss is
    GVPO's with A for r, whose gradient at D = 0 is -beta A_i / (G - 1); beyond it the loss is 1 - corr(r, D), as in the
    paper. That part knows no scale of D, so it is no trust region; `objective.beta` moves the border. Stds have one
    degree of freedom. The paper's loss is the mean over members, 2 (G - 1) / G times this, and it adds KL to the
    reference (`objective.kl.coef`). Its augmentation by difficulty changes videos and prompts and is not here.
    Advantages are not read.
    """,
    cite="park2025reggrpo",
    evidence="paper",
    keys={"objective": "group_variance", "objective.standardise": True, "objective.beta": 10.0},
    refuses={"objective.kl.place": ("reward",)},
)

opmd = Definition(
    r"""OPMD: online policy mirror descent (Kimi k1.5): group-mean baseline and a squared log-ratio penalty.

    D_i = sum_t (log policy - log old);   L = mean_i -(r_i - mean_g r) D_i + (tau / 2) D_i^2,   tau 0.1

    Its gradient is that of the regression [r - tau log Z - tau D]^2 / (2 tau), the condition of optimality of reward -
    tau KL(policy || old), with the group's mean for tau log Z.

    Choices. From the report (arXiv 2501.12599v4, eqs. 2 and 3); Kimi's code is not public. tau is not stated there:
    ROLL's. The baseline is the mean, which the report finds effective; `objective.baseline: log_mean_exp` is its first
    estimate of tau log Z. Not done: the optimiser is reset at every iteration there, and its length reward and its
    samplers are left out. Sums over the sequence, as in the report; ROLL and verl (`dro`) have `objective.level:
    token`, which lacks the products of different tokens; Trinity-RFT's `opmd` has no square: -(r - mean) log pi over 1
    + tau, a mean over tokens. REBEL's regression over pairs is GVPO's: see `group_variance`. Advantages are not read.
    """,
    cite="team2025opmd",
    evidence="paper",
    keys={"objective": "squared_log_ratio"},
    refuses={"objective.kl.place": ("reward",)},
)

# contrast within the group
copg = Definition(
    r"""CoPG: contrastive policy gradient: leave-one-out baseline on KL-regularised rewards, off policy without ratios.

    R_i = r_i - beta D_i, D_i = sum_t (log policy - log reference), of the policy as it is now
    gradient = -mean_i (R_i - mean_{j != i} R_j) grad log policy(o_i), the bracket held fixed;   beta 0.1

    Its only optimum is the policy that maximises reward - beta KL(policy || reference), whichever policy sampled: no
    ratio to it. At beta 0 it is RLOO; with two samples it is IPO's regression.

    Choices. From the paper (arXiv 2406.19185, eqs. 7 to 19); no code of the authors could be found. It trains on pairs
    of a data set; groups give leave-one-out means, the mean of its loss over the pairs of a group, half of it for the
    two members of a pair. Loss and gradient are means over trajectories. The gradient of a group is 1 / beta times
    GVPO's with `objective.ratio_over: reference`. The paper sweeps beta and finds .03 to .1 stable, .06 best:
    `copg@paper`. Advantages are not read.
    """,
    cite="fletberliac2024copg",
    evidence="paper",
    keys={"objective": "squared_log_ratio", "objective.baseline": "others", "objective.ratio_over": "reference"},
    paper_defaults={"objective.tau": 0.06},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)

disco = Definition(
    r"""DisCO: discriminative objective (correct scores against log-sum-exp of wrong ones) under a KL constraint.

    s_i = mean_t log policy;   J_g = mean_P s - tau log mean_N e^(s/tau);   D = mean_t (log old - log policy)
    L = -mean_g J_g + (beta / 2) max(0, D - delta)^2,   tau 10, delta 1e-4, beta 1e3

    Choices. The score is the log-likelihood; `objective.score: ratio` is the other one (tau 1), `objective.tau: .inf`
    is DisCO-b. D is over the tokens of all groups, as coded, or, with `objective.constrained: contrasted`, of those
    with both labels, which alone have to be run then. It is one number for the optimiser step (the code: for each
    micro-batch of all devices); with one update per rollout it is 0, and the scripts make four. Where no group of the
    step has both labels nothing is done (the code: D still pulls). The code's L-ratio branch calls another function
    with an argument that it does not have. Groups without both labels have J = 0 and count in the mean. Advantages are
    not read.
    """,
    cite="li2025disco",
    evidence="reference-code",
    code="Optimization-AI/DisCO@bd2b078129347a87c10fbb64df12ed50dce59947 verl/verl/trainer/ppo/core_algos.py "
    "verl/verl/workers/actor/dp_actor.py scripts/train/run_disco_logL_1.5b_8k.sh",
    keys={"objective": "discriminative"},
    paper_defaults={"rollout.group_size": 8, "tasks.per_step": 128, "update.minibatches": 4, "optim.lr": 2e-6},
    refuses={"objective.kl.place": ("reward",)},
    cost="groups without both labels are run too",
)

real = Definition(
    r"""REAL: rewards as labels: logistic classification loss per group on mean log-ratios.

    s_i = mean_t (log policy - log old)
    L = sum over groups with both labels [log(1 + sum_N e^(s/tau)) + log(1 + sum_P e^(-s/tau))] / all groups,   tau 0.5

    Gradient weights lie in (0, 1/tau): no trajectory dominates.

    Choices. The label is the verifier's verdict; the code takes rewards equal to 1 and 0, and drops the others without
    a word. Groups without both labels are not run and stay in the denominator, as in the code. Its product form and its
    cross-entropy variant are not here. Advantages are not read.
    """,
    cite="zhai2026real",
    evidence="reference-code",
    code="Red-RL/REAL@1c30726a1c7606e717091b4b8cf1fc156a06039f verl/verl/trainer/ppo/core_algos.py "
    "scripts/train/1.5b_real.sh",
    keys={"objective": "classification"},
    paper_defaults={"rollout.group_size": 8, "optim.lr": 2e-6},
    refuses={"objective.kl.place": ("reward",)},
)

dpo = Definition(
    r"""DPO: direct preference optimization on all pairs of a correct and a wrong rollout of the same group.

    s_i = sum_t (log policy - log reference);   h = s_better - s_worse;   l = -log sigmoid(beta h),   beta 0.1
    L = mean over groups of the mean over the group's pairs of l

    Choices. The loss of a pair is the authors' code's, label smoothing and IPO included. They train on given pairs;
    here pairs are made of the step's own rollouts by verdict, again in each step (`objective.pairs: outcome`: the
    highest against the lowest outcomes). The unit is the group: one with many pairs weighs as much as one with few, one
    without any counts as 0. `objective.label_smoothing` is cDPO, `objective.form: ipo` IPO. Not importance weighted: it
    needs no sampler's log-probs. Advantages are not read.
    """,
    cite="rafailov2023dpo",
    evidence="reference-code",
    code="eric-mitchell/direct-preference-optimization@f8b8c0f49dc9 trainers.py config/loss/dpo.yaml",
    keys={"objective": "preference_pairs"},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)

trpa = Definition(
    r"""TRPA: online preference loss (DPO form) over reward levels, with a KL trust region to the old policy.

    z_i = mean_t (log policy - log reference);   l = -log sigmoid(0.1 c (z_better - z_worse)),
      c = 2.5 if better is right
    L = mean over groups of the mean over pairs of l + 0.001 mean KL(policy || old)

    Without two levels in the group: l = -log sigmoid(z) of a right answer, -log sigmoid(-z) of a wrong one.

    Choices. The code has four levels: right; wrong in good format; incomplete; bad format. Here a level is a distinct
    outcome, so the reward makes them (a tiered one, or correctness and format added); the factor 2.5 depends on the
    verdict; on the loss in place of beta it is `objective.success_weight`. The unit is the group, then its pairs (the
    code: all pairs of a micro-batch, and single answers only where that has no pair). KL(policy || old) is estimated
    from the old policy's samples by rho log rho - rho + 1 (the code: k3), and 0 on the first update. The code asks for
    a KL to the reference too, but only logs it. Advantages are not read.
    """,
    cite="su2025trpa",
    evidence="reference-code",
    code="XueruiSu/Trust-Region-Preference-Approximation@f372585ed6ec230aa354feb9c8e24e970b615846 "
    "verl/trainer/ppo/core_algos.py verl/workers/actor/dp_actor.py main_TRPA.sh",
    keys={
        "objective": "preference_pairs",
        "objective.pairs": "ordered",
        "objective.length_mean": True,
        "objective.success_slope": 2.5,
        "objective.unpaired": True,
        "objective.unpaired_beta": 1.0,
        "objective.add.mirror_kl": "mirror_kl",
        "objective.add.mirror_kl.coef": 0.001,
        "objective.add.mirror_kl.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 16, "optim.lr": 4e-7},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)

# implicit policies and values
nft = Definition(
    r"""NFT: negative-aware fine-tuning: likelihood on correct answers, an implicit negative policy on wrong ones.

    Of a group with success rate q, old = q positive + (1 - q) negative; the policy is trained as the positive one:
    success: l_t = -log rho_t;   failure: l_t = -log max((1 - q rho_t) / (1 - q), 1), the floor on the value alone
    L = mean_i sum_t w(q) l_t / horizon,   w = 1 - q, q held in [0.02, 0.98]

    On policy a failure's gradient is q / (1 - q) of a success's. With `objective.emphasis: root_odds`, w = sqrt((1 - q)
    / q), that is GRPO with population std.

    Choices. w = 1 - q as in the code's script for 7B models. The floor is 1: rho beyond 1 weighs q rho / (1 - q),
    without a pole; below, a floor of 0.01 would let one token weigh a hundred times more. Ratios of tokens; the code
    has ratios of sequences too. Its constant divisor, 1000, is `objective.horizon`, here the longest length unless set.
    Groups of equal verdicts count in the mean; the script filters them. Advantages are not read.
    """,
    cite="chen2025nft",
    evidence="reference-code",
    code="NVlabs/NFT@b358faeb691391b500bfdabe667f9450aab6e70f dp_actor.py train_7B.sh",
    keys={"objective": "implicit_negative"},
    paper_defaults={"rollout.group_size": 16, "optim.lr": 1e-6, "objective.horizon": 1000.0},
    refuses={"objective.kl.place": ("reward",)},
)

rover = Definition(
    r"""ROVER: random policy valuation: Bellman regression of log-ratios on values of the uniform policy.

    Q_t = log policy - log old;   y_t = r_i - mean_g r + u_{t+1}, u = change of mean_v log policy(v | s) since the old
      one
    L = mean over tokens of (Q_t - stop(y_t))^2, u = 0 after the last token

    In a tree with rewards of 0 and 1 at its leaves, the best action under the uniform policy's values is optimal; the
    mean over the vocabulary of log policy is what that policy expects of Q in a state.

    Choices. `old` is the policy at the start of the step, for log-probs and for u alike; on the first update Q and u
    are 0 and the gradient is REINFORCE's, times 2. Rewards are centred only, as in the code for Countdown (its code for
    mathematics takes z-scores). The next state is that of the trajectory's next trained token, across turns too. The
    code's optional forms, by response and clipped, are not here. Advantages are not read.
    """,
    cite="he2025rover",
    evidence="reference-code",
    code="tinnerhrhe/ROVER@b0fa5878a0c7a29a9d18205b19d024b779b0609c Countdown/verl/trainer/ppo/core_algos.py "
    "Countdown/verl/workers/actor/dp_actor.py Countdown/verl/utils/torch_functional.py",
    keys={"objective": "uniform_value", "signal.mean_logprob": "mean_logprob"},
    refuses={"objective.kl.place": ("reward",)},
    cost="a forward pass over the rollouts before the update",
)
