"""Methods that mask or weigh tokens and rollouts before the loss."""

from gxpo.parts.definition import Definition

# rollouts and tokens that are left out
d3s = Definition(
    r"""D3S: dual down-sampling: rollouts of maximal advantage variance, tokens of largest |A| H (entropy); both relax.

    N of M rollouts: the j smallest and N - j largest A with the greatest variance;   tokens: the top K % by |A_t| H_t
    share at progress p: (1 - p) first + p last

    Choices. From a summary. Rollouts of the whole step compete (the paper has a variant inside groups); A is normalised
    in its group before, and not again, so the kept ones have no mean of 0. Shares 1/2 to 1 for both, and over the whole
    run, are ours. Kept rollouts weigh M / N; dropped tokens stay in the denominators.
    """,
    cite="wang2025d3s",
    evidence="secondary",
    keys={
        "weight.down_sampling": "token_weight",
        "weight.down_sampling.score": "credit",
        "weight.down_sampling.curve": "down_sampling",
    },
    cost="a forward pass for entropies before the update; dropped rows need none with gradient",
)

cppo = Definition(
    r"""CPPO: completion pruning: train only on the completions of largest |A| in each group.

    of each group the k = G (1 - P) completions of largest |A| are trained, the advantages worked out before

    Choices. k of each group, as in the paper; its code for verl takes the top of the whole batch
    (`weight.largest_credit.scope: batch`), where groups of no advantage vanish first. Of equal ones the earlier are
    kept. P is 0.5. They weigh G / k, so the mean is over the kept ones. The paper fills the freed room with more
    questions: set `tasks.per_step` 1 / (1 - P) times as high.
    """,
    cite="lin2025cppo",
    evidence="reference-code",
    code="lzhxmu/CPPO@52faeb37e2ef629da1da3ff1e7d0c9be578c4bdc src/open_r1/grpo_trainer_gsm.py "
    "cppo_verl/recipe/cppo/src/cppo_ray_trainer.py",
    keys={
        "weight.largest_credit": "token_weight",
        "weight.largest_credit.score": "mean_credit",
        "weight.largest_credit.curve": "largest_size",
        "weight.largest_credit.unit": "trajectory",
        "weight.largest_credit.scope": "group",
    },
    paper_defaults={"rollout.group_size": 16, "update.epochs": 2},
    cost="less than the base: pruned completions need no forward pass with gradient",
)

gtpo = Definition(
    r"""GTPO: protect tokens shared by good and bad answers (conflict tokens), mask high-entropy answers; no clip, no
    KL.

    conflict token: in the run of equal tokens at the start, or at the end, of answers with A > 0 and with A < 0
    w = 2 there where A > 0 (4 in both runs), 0 where A < 0;
      answers with mean entropy above 0.7 (about ln 2) have w = 0
    A_i = r_i - mean_g r - 0.1 mean_t H_t;   L = -mean_i mean_t w A log pi: no ratio, no clip, no reference

    Choices. No std: the code's line for it is commented out (`credit.scale: std`). Whose answers are on which side is
    read off A after its entropy cost (the code: before it; of answers that are trained the cost is below 0.07, so that
    rewards of 0 and 1 are on the same side in groups of up to 14), and answers that are left out still count there. The
    code also divides each answer's loss by the number of its conflict tokens, which is left out: an answer that shares
    50 tokens would count a 50th. Its ratio exp(lp - stop lp) is 1 always: the plain policy gradient.
    """,
    cite="simoni2025gtpo",
    evidence="reference-code",
    code="winstonsmith1897/GTPO@5d33811e8ea1cf76c665db65b247cef9d1e436dd gtpo/gtpo_training.py",
    keys={
        "credit.scale": "none",
        "credit.add.entropy_cost": "bonus",
        "credit.add.entropy_cost.value": "certainty",
        "credit.add.entropy_cost.factor": 0.1,
        "weight.shared_affix_mask": "token_weight",
        "weight.shared_affix_mask.score": "credit",
        "weight.shared_affix_mask.curve": "shared_affix",
        "weight.entropy_ceiling": "token_weight",
        "weight.entropy_ceiling.score": "mean_entropy",
        "weight.entropy_ceiling.curve": "between",
        "weight.entropy_ceiling.high": 0.7,
        "objective.surrogate": "log_likelihood",
    },
    cost="a forward pass for entropies before the update",
)

capo_curvature = Definition(
    r"""CAPO (curvature): mask tokens by a second-order model of the update (Hessian and Fisher of the last layer).

    g = A (e_a - p) h^T in the head's weights, D = lr sign(g):  m_H = g.D + D.H.D / 2,  m_F = D.F.D / 2
    keep where low <= m_H <= high and m_F <= most;   H.D.D = A [((e_a - p).Dh)^2 - Dh.(diag p - p p^T).Dh]

    Choices. With this step both depend on the sampled token's probability, |h|_1 and A alone, so no logits are needed.
    The authors' thresholds are fixed and tuned so that fewer than 8 % of tokens go: |m_H| < 5e-4 and m_F < 1e-3 with
    Dr. GRPO, 0.01 and 1e-4 with GRPO without a std, at lr 1.5e-5 (`weight.curvature.max_gain` and `.max_shift`;
    `@paper` has the latter). Here they are quantiles of the step, a third of 8 % beyond each, and the lower one is
    never above 0. Where gxpo differs from their code. Their D is lr times Adam's direction, from running moments of the
    head's gradient rows that they keep in addition to the optimiser's (the gradient itself until there are any), over
    the top 50 tokens; D here is what Adam does at its first step. They predict at the policy of every update, here at
    the start of the step, and their learning rate follows its schedule: `weight.curvature.lr` is to be the update's.
    With GRPO their masked tokens leave the denominator too, here they stay, as with their Dr. GRPO.
    """,
    cite="melo2025capocurvature",
    evidence="reference-code",
    code="luckeciano/stable-pg-llm@933fe0176b140ffa4390e021feb6e8d7da1bd735 src/open_r1/grpo_entropy_trainer.py "
    "src/open_r1/sparse_optim_models/sparse_adam_model.py src/open_r1/dr_grpo_trainer.py",
    keys={
        "weight.curvature": "token_weight",
        "weight.curvature.score": "credit",
        "weight.curvature.curve": "curvature",
        "weight.curvature.sign": "nonzero",
        "signal.state_norm": "state_norm",
    },
    paper_defaults={
        "weight.curvature.max_gain": 0.01,
        "weight.curvature.max_shift": 1e-4,
        "weight.curvature.lr": 1.5e-5,
        "optim.lr": 1.5e-5,
        "credit.scale": "none",
    },
    cost="a forward pass for hidden states before the update",
)

# tokens whose advantage is shaped
aspo = Definition(
    r"""ASPO (tool-integrated reasoning): advantage shaping for early code use, clipped to a share of |A|.

    right answers of a group that use code:  A_i += clip(delta (p_i - mean p) / mean L, -k |A_i|, k |A_i|)
    p the token at which the code begins, L the answer's length, delta = -2, k = 0.7: the sign of A never turns

    Choices. The paper trains by DAPO: `aspo+dapo`. Its text has delta -2 with k 0.7 (and -2.5 with 0.9), the legends of
    its figures -1.5 with 0.7 (and -2 with 0.9): the text's are taken. The bonus is a weight on the loss, w A = A +
    bonus: the same for clips. Code is found by a regular expression in the decoded answer
    (`signal.first_match.pattern`). Means are over the group's right answers with code. With A of 0, as in a group of
    right answers only, there is no bonus.
    """,
    cite="lin2025aspo",
    evidence="paper",
    keys={
        "weight.early_use": "token_weight",
        "weight.early_use.score": "lateness",
        "weight.early_use.curve": "bonus",
        "weight.early_use.strength": -2.0,
        "weight.early_use.bound": 0.7,
        "signal.first_match": "first_match",
    },
    paper_defaults={"rollout.group_size": 8, "tasks.per_step": 96},
)
