"""Methods that train a second model beside the policy: probes, implicit rewards, step scores."""

from gxpo.parts.definition import Definition

poise = Definition(
    r"""POISE: leave-one-out baseline from a linear probe on the hidden states of sibling rollouts.

    phi_j = [mean hidden state of the last 10 prompt tokens; of the last 10 action tokens; entropy statistics]
    g     = linear regression of the siblings' mean outcome on phi, over the newest rollouts of the steps before
    A_i   = r_i - mean_{j != i} g(phi_j):   nothing that rollout i did is in its baseline, so the gradient is unbiased

    Choices. The paper (its code is announced) has two rollouts a prompt, A_1 = r_1 - g(phi_2); with more, the mean over
    the others. It names three entropy statistics without saying which: mean, standard deviation and maximum. It takes
    layer 19 of 28 or 36 (`signal.value_probe.layer`), here the last, and ridge 0.01 on summed squares, which for n rows
    is `signal.value_probe.ridge: 0.01 / n`; here 0.1 on their mean, since a small buffer has fewer rows than features.
    Predictions stay between the least and largest outcome seen, 0 and 1 in the paper. Until 128 rollouts are in the
    buffer, the baseline is the siblings' mean outcome. A group of one has advantage 0; groups of equal outcomes learn.
    """,
    cite="choi2026poise",
    evidence="paper",
    keys={"credit.center": "baseline", "credit.scale": "none", "signal.value_probe": "value_probe"},
    paper_defaults={"rollout.group_size": 2},
    cost="a forward pass for hidden states and entropies; a closed-form regression; the buffer in the checkpoint",
)

oprl = Definition(
    r"""OPRL (iStar): implicit step rewards from an online preference-trained model, added to the outcome advantage.

    r_t = beta (log phi(a_t) - log pi_old(a_t)), summed over the action's tokens; beta 0.05
    A   = A^E + 1.0 A^S;   A^E = (R - mean_g) / std_g over trajectories, A^S = (r_t - mean_g) / std_g over the group's
      steps
    phi: -log sigmoid(beta (q of the better trajectory - q of the worse)), q the mean over its steps of log phi/pi_old
      of each; a mean over all pairs, one step after every update

    Choices. As in the authors' code, of whose two estimators this is istar_grpo; their scripts take istar_rloo, both
    parts leave-one-out without a std and r_t over the step's largest |r|: `oprl@paper`. Rewards of a step come from phi
    before it has seen that step's outcomes. Where gxpo differs. Their baseline of A^S is over the first row of each
    trajectory that the batch happens to hold, and with that number of trajectories; here over all steps of the group,
    as their comment says. Their pairs are successes (acc > 0) against failures, here different outcomes. Their mean
    over pairs and their largest |r| are a device's, here the step's. The ratio is the token's. Their loss is a token
    mean with the dual clip at 3, and 0.1 is taken off both rewards of an invalid action. With phi = pi_old all step
    rewards are 0, and the advantage is GRPO's. Steps of a group of equal outcomes may differ: it learns.
    """,
    cite="liu2025oprl",
    evidence="reference-code",
    code="Tongyi-ConvAI/Qwen-Character@1de87a220bc06fb8402c7680809f7e5e4b49f4ea "
    "CharacterRL-iStar/istar/core_istar.py CharacterRL-iStar/istar/dp_rm.py "
    "CharacterRL-iStar/istar/rm_utils.py CharacterRL-iStar/examples/istar_trainer/run_webshop.sh",
    keys={
        "credit": "relative",
        "credit.add.process": "relative",
        "credit.add.process.value": "process_reward",
        "credit.add.process.unit": "step",
        "signal.implicit_reward": "implicit_reward",
        "signal.implicit_reward.score": "mean",
        "signal.implicit_reward.loss_unit": "pair",
    },
    paper_defaults={
        "credit.center": "leave_one_out",
        "credit.scale": "none",
        "signal.implicit_reward.scale": "largest",
        "rollout.group_size": 8,
        "tasks.per_step": 16,
        "optim.lr": 5e-7,
        "signal.implicit_reward.lr": 1e-6,
    },
    cost="a second model with an optimiser: a forward pass for the step rewards, a training step of its own",
)

spa_rl = Definition(
    r"""SPA-RL: stepwise progress attribution: a learned estimator redistributes the outcome over turns; GAE.

    c_t = E(hidden state at the last token of turn t),   E: minimise (sum_t c_t - R)^2 over trajectories
    r_t = c_t + 0.5 [the action was carried out],   A by GAE over turns;   L = PPO's clip + 0.5 mean (V - target)^2 / 2

    Choices. E is a small network on the policy's own hidden states, trained as the policy goes, on the newest attempts;
    the paper's is a language model of its own, fitted before the policy is trained, and then fixed. The shares of a
    step are those of E before it has seen the step's outcomes; until it has seen 128 attempts the outcome is paid at
    the end. At zero loss the shares of an attempt add up to its outcome, which is not paid in addition to them. The
    last action counts as carried out. discount 1 and lambda 1: over many turns the bonus outweighs the outcome, and
    pays for going on (at 40 turns 20 against 1); lower `credit.bonus` there. The released WebShop script pays neither:
    it gives every turn the outcome less the mean of the group's others (plus the bonus), which is RLOO spread over
    turns; this is the paper's. Its PPO is TRL's of the time: lambda 0.95, advantages whitened over tokens; here neither
    (`credit.lam`, `credit.whiten`).
    """,
    cite="wang2025sparl",
    evidence="reference-code",
    code="WangHanLinHenry/SPA-RL-Agent@ed200874d726ef25d52851bd47f12f2b1408b545 prm/train_our_progress_model.py "
    "prm/rl_data_org.py ppo/step_ppotrainer.py",
    keys={
        "credit": "gae",
        "credit.level": "turn",
        "credit.reward": "progress",
        "credit.bonus": 0.5,
        "objective.add.value": "value_regression",
        "signal.progress_estimator": "progress_estimator",
    },
    paper_defaults={"optim.lr": 3e-6},
    cost="forward passes for hidden states and values; a small network with its optimiser",
)

hrm = Definition(
    r"""HRM: hierarchical reward model trained on single steps and merged step pairs, scoring steps for the advantage.

    f: probe on hidden states, examples (step, V) and (step before + step as one, V); V = mean outcome after the step
    r_k = f(step_k)
    A   = A^E + A^S;   A^E = (R - mean_g) / std_g over attempts, A^S = (r_k - mean_g) / std_g over all steps of the
      group

    Choices. The authors train a language model as reward model, on labels of PRM800K or of a tree search, and pick
    steps with it at inference; the policy is trained by supervision alone. Taken from their code are the label (right
    ends below a node over all ends below it) and the merging: a pair of steps is one more example, with the label of
    its second step, so that an error which is put right is none. As there the reward is that of the single step
    (`signal.merged_steps.score_unit: blend` takes pairs in). The reward model is a linear probe on the policy, fitted
    on the rollouts of earlier steps; all are examples, where theirs are drawn to balance scores, and some pairs (one in
    two by chance) take the place of their second step in the tree. A^S as in OPRL. A step is a segment (`segment`), or
    a turn.
    """,
    cite="wang2025hrm",
    evidence="reference-code",
    code="tengwang0318/hierarchial_reward_model@cc638d02c9bf self-training/construct_hrm_train_data.py "
    "self-training/best_of_n_math500.py self-training/sft_rm.py",
    keys={
        "credit": "relative",
        "credit.add.process": "relative",
        "credit.add.process.value": "piece_reward",
        "credit.add.process.unit": "segment",
        "signal.merged_steps": "merged_steps",
    },
    cost="a forward pass for hidden states; a closed-form regression; the buffer in the checkpoint",
)

steporlm = Definition(
    r"""StepORLM: weighted DPO (W-DPO) on pairs of the group, by their difference in outcome and process quality.

    a right attempt is better than a wrong one, w = 1; of two right or two wrong ones, the one whose process a judge
    finds better, w = |q_better - q_worse|, q the outcome: verdict plus the judge's reward (`reward`)
    s_i = sum_t log policy;   l = -w log sigmoid(beta (s_better - s_worse)), beta 0.1
    L = mean over groups of the mean over the group's pairs of l

    Choices. Equation 1, Algorithm 1 and section 4.1 of the paper (ICLR 2026); of its code, which it calls public,
    nothing was to be had. Equation 1 has no reference model (default changed on 2026-11-28: before, a frozen policy, as
    in DPO: `objective.reference: start`), so that nothing holds log-probs. q is the share of steps that the judge finds
    right, there. The paper draws 4 trajectories a question (`steporlm@paper`), of those that its warm-up does not solve
    5 times of 5; it does not say which pairs of them it takes: here all of different quality, and the weights of a
    group's pairs are not normalised. Without a judge among the rewards the quality is the verdict, and pairs are those
    of verdicts. Left out: the warm-up, and the generative process reward model that judges and is refined by what the
    solver finds; a judge set in the run's configuration takes its place. Advantages are not read.
    """,
    cite="zhou2025steporlm",
    evidence="paper",
    keys={
        "objective": "preference_pairs",
        "objective.pairs": "ordered",
        "objective.weight_by_gap": True,
        "objective.verdict_first": True,
        "objective.reference": "none",
    },
    paper_defaults={"rollout.group_size": 4},
    refuses={"objective.kl.place": ("reward",)},
)
