"""Methods that weigh groups and answers by difficulty, noise of the verdicts or the policy's confidence."""

from gxpo.parts.definition import Definition

# weights of groups by difficulty and noise
a_grae = Definition(
    r"""A-GRAE: advantages reweighted by prompt difficulty (easy first, hard later); positive ones damped early.

    A' = A ((1 - M) / (2 (1 - sqrt(p))) + M / (2 sqrt(p))), times min(1, M) where A > 0
    p the group's success rate, M the mean of p over the step's groups

    Choices. The easy term is as the code has it; sqrt(1 - p) would be the mirror of sqrt(p)
    (`weight.difficulty_mix.easy: root_of_rest`), and at p = 0.75 the difference is 3.7 times. The branch is guarded in
    the code by a setting that its scripts never reach: as run there, it is GRPO. M is over groups with verdicts and
    counts in full from 1 on (0.5 for geometry and medicine: `weight.difficulty_mix.full`). Groups all right or all
    wrong have weight 1 and advantage 0.
    """,
    cite="yu2026agrae",
    evidence="reference-code",
    code="Yu7-code/A-GRAE@5f129eff8e6a802ea295ae7386a154658c090dce verl/trainer/ppo/core_algos.py "
    "verl/trainer/ppo/ray_trainer.py",
    keys={"weight.difficulty_mix": "group_weight", "weight.difficulty_mix.curve": "difficulty_mix"},
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6},
)

s_grpo = Definition(
    r"""S-GRPO: noise-aware group weights: groups of nearly equal verdicts weigh less, as verdicts may be wrong.

    w = (1 - 2q) t (1 - t) / (sd(p) sd(t)),  p = k / n,  t = clip((p - q) / (1 - 2q), 0, 1),
      sd(x) = sqrt(x (1 - x) + 1e-8)
    A' = w A: with q = 0.1 a lone success of 8 weighs 0.42, an even group 0.8; with q = 0.15 the lone one weighs 0

    Choices. q is 0.10 (0.10 and 0.15 in the scripts). A is the normalised advantage, as in the code, although its flag
    names Dr. GRPO; only the aggregation is Dr. GRPO's (`s_grpo@paper`, with its eps). k counts verdicts; the code:
    rewards above 0. Resampling until some weight is above 0 is off in the scripts and not built.
    """,
    cite="shen2025sgrpo",
    evidence="reference-code",
    code="shenpeijun0212/S-GRPO@75c354075441add65f368b98e858b489471af63d train/train_S-GRPO.py "
    "train/Qwen2.5-math-1.5B_S-GRPO.sh",
    keys={"weight.noise_aware": "group_weight", "weight.noise_aware.curve": "noise_aware"},
    paper_defaults={
        "credit.eps": 1e-8,
        "objective.aggregate": "sequence_sum",
        "rollout.group_size": 8,
        "optim.lr": 1e-6,
    },
)

seed_grpo = Definition(
    r"""SEED-GRPO: advantages scaled down by the semantic entropy of the group's answers.

    SE  = -(1/K) sum_k log p_k over the group's K answers;   A_i = (r_i - mean_g r) w,  w = 1 - alpha SE / log G
    no division by the group's std;   alpha = 1

    Choices. alpha 1: a group in which no two answers agree is not trained. The paper's runs have 0.02, which leaves
    such a group 98 % of its weight, and Dr. GRPO's loss, a sum over tokens by a constant: `seed_grpo@paper`. p_k is the
    share of attempts with answer k; the paper's eq. 5 has the sum of their likelihoods, which is
    `weight.answer_entropy.mass=likelihood` (by mean log-probability of a token), but its largest SE, log G, is that of
    shares. The estimator is eq. 5's, under which 3 answers against 1 are less certain than 2 against 2;
    `estimator=shannon` is eq. 4's entropy. The linear form of f is in a supplement that was not read. Answers are
    compared as strings, as in the paper; an attempt without one is an answer of its own. w weighs the loss, which for
    clips is the same as scaling A. The authors' repository (Dreamer312/SEED-GRPO) has no code yet.
    """,
    cite="chen2025seedgrpo",
    evidence="paper",
    keys={
        "credit.scale": "none",
        "weight.answer_entropy": "group_weight",
        "weight.answer_entropy.statistic": "answer_entropy",
        "weight.answer_entropy.curve": "damped",
        "signal.answer_clusters": "answer_clusters",
    },
    paper_defaults={
        "weight.answer_entropy.alpha": 0.02,
        "objective.aggregate": "sequence_sum",
        "objective.horizon": 3000.0,
        "rollout.group_size": 8,
    },
)

# by length, entropy and confidence of answers
adora = Definition(
    r"""ADORA: length-based advantage weight: 1 if the longest correct rollout exceeds the mean wrong length, else 0.1.

    w = 1 if max_correct L > mean_wrong L, else 0.1, for the whole group;   A' = w A

    Choices. The rule of the code for texts; wrong answers that were cut off are not in the mean (there: of 4054 tokens
    and more, just below the limit). Without wrong answers w = 1, without correct ones 0.1; the code for images has it
    the other way round, which a centred advantage does not show. The paper's rule by difficulty is in neither code and
    not built.
    """,
    cite="ren2026adora",
    evidence="reference-code",
    code="ShadeCloak/ADORA@c518485324b136e0fea6a7f280c1d224f94d13d5 ADORA/verl/trainer/ppo/core_algos.py "
    "ADORA_VL/openrlhf/trainer/ppo_utils/experience_maker_vl.py",
    keys={
        "weight.length_signal": "group_weight",
        "weight.length_signal.statistic": "long_pays",
        "weight.length_signal.curve": "one_or",
    },
)

edge_grpo = Definition(
    r"""EDGE-GRPO: entropy-driven advantages: divided by the answer's entropy relative to the mean of the step.

    A'_i = A_i H / H_i;   H_i = mean_t entropy of answer i, H = mean_i H_i over the step

    Choices. H_i is over the answer's own tokens and detached: the code averages over padding too, and lets the loss
    flow back through the entropy. The factor is held in [0.1, 10], bounds that the code defines and does not apply:
    without them an answer that was certain throughout has no finite factor (`weight.relative_entropy.min_weight`,
    `.max_weight`). It is applied to the loss after the gate, which for a clip is scaling A. Guided error correction
    (wrong answers continued after an injected doubt, given the answer, or replaced by the solution) is not built: no
    rollout here goes on after an answer's end. So groups of equal outcomes still teach nothing.
    """,
    cite="zhang2025edgegrpo",
    evidence="reference-code",
    code="ZhangXJ199/EDGE-GRPO@cbe13ca8e21af39f7b4c791bc6226348267dbfb2 trl_edge/trainer/grpo_aha_trainer.py",
    keys={
        "weight.relative_entropy": "token_weight",
        "weight.relative_entropy.score": "mean_entropy",
        "weight.relative_entropy.curve": "relative_entropy",
        "weight.relative_entropy.unit": "trajectory",
    },
    paper_defaults={"credit.eps": 1e-4},
    cost="a forward pass over the rollouts before the update, with entropies",
)

progrpo = Definition(
    r"""ProGRPO: advantage shift by confidence: less for confident answers, more for uncertain ones.

    A'_i = A_i + alpha (c(q) - c(o_i)) where the group has a correct answer, A_i where all are wrong;  alpha 0.3
    c = geometric mean of token probabilities: of the prompt over all its tokens,
      of an answer over its least probable 20%

    Choices. From a review that states A' and its case split; no code of the authors could be found. Which tokens the
    confidences are taken over is known from summaries, alpha is ours. Prompt log-probs are at temperature 1 and leave
    out the first token, which nothing predicts; answers' are the sampler's. Wrong answers of a solved group get the
    bonus too, and groups in which all are correct learn. The bonus is added to the base's advantage, and composes with
    any other.
    """,
    cite="li2026progrpo",
    evidence="secondary",
    keys={
        "credit.add.confidence_gap": "bonus",
        "credit.add.confidence_gap.value": "confidence_gap",
        "credit.add.confidence_gap.factor": 0.3,
        "signal.prompt_confidence": "prompt_confidence",
    },
    cost="a forward pass over the distinct prompts",
)

xrpo = Definition(
    r"""XRPO: advantage bonus for correct answers of low likelihood within their group (novelty sharpening).

    s_i = mean_t log policy;  eta_i = exp(s_i - mean_j s_j);  A'_i = A_i + min(max(2.5 (1 - eta_i), 0), 0.5 A_i) if
      correct

    Choices. Only this novelty-aware sharpening is built. The allocation of rollouts by expected shrinkage of a
    confidence interval is known only in outline, and the seeding of unsolved prompts with solved exemplars needs a bank
    of them: neither is here. A wrong answer keeps its advantage (for A < 0 the minimum would deepen it), and so does a
    correct one of advantage 0 or less. As a weight, A' / A, so that it composes with every advantage.
    """,
    cite="bamba2025xrpo",
    evidence="secondary",
    keys={
        "weight.novelty": "token_weight",
        "weight.novelty.score": "rarity",
        "weight.novelty.curve": "bonus",
        "weight.novelty.sign": "positive",
        "weight.novelty.strength": 2.5,
        "weight.novelty.bound": 0.5,
    },
    cost="a forward pass over the rollouts before the update",
)

capo_calibration = Definition(
    r"""CAPO (calibration): logistic AUC surrogate over correct-wrong pairs, masked by reference perplexity.

    A_i = sum over wrong j of s(l_j - l_i) if right, -sum over right j of s(l_i - l_j) if wrong
    s(t) = sigmoid(t/tau) / tau;   l = mean_t log old;   loss = GRPO's with A_i, times m_i
    m_i = [PPL_ref(o_i) <= 2.5] if right, [PPL_ref(o_i) >= 1.05] if wrong

    Choices. tau 0.6 (the paper: 0.6 for 1.5B, 0.5 for 7B parameters). The sum has no normaliser: our source states
    none, and it would only scale the step. Masked rollouts still count in the sums of the others. Bounds of perplexity
    are for a reference that is a capable model of the task; of one trained from nothing, every correct answer may be
    left out.
    """,
    cite="wang2026capocalibration",
    evidence="secondary",
    keys={
        "credit": "pairwise_auc",
        "weight.reference_perplexity": "token_weight",
        "weight.reference_perplexity.score": "perplexity",
        "weight.reference_perplexity.curve": "plausible",
        "weight.reference_perplexity.unit": "trajectory",
    },
    paper_defaults={"rollout.group_size": 8, "tasks.per_step": 128, "optim.lr": 1e-6},
    cost="a reference model and a forward pass of it; pairs within groups",
)

# by position in the answer
tw_grpo = Definition(
    r"""TW-GRPO: token weights by position: larger where the answers of a group diverge.

    w_t = 1 + 0.4 (D_t - min D) / (max D - min D);   loss = GRPO's times w_t
    D_t = mean_i sum_v (e^d - d - 1), d = mean_j l_jtv - l_itv held in [-11, 11]
    l_it = log-softmax of answer i at its t-th token, uniform past its end

    Choices. D as in the code: a sum over the vocabulary that is not weighted by probability, so no Kullback-Leibler
    divergence, and rare words dominate; w does not change the denominator. The code lets the gradient through w; here
    it is detached. It weighs a KL term, too, which its scripts do not use; here w is on the policy's term alone. The
    largest weight is 1.4, the trainer's default (its function's own is 1.5). Soft rewards for answer sets and
    question-answer inversion are rewards and data of multiple-choice video tasks: not built.
    """,
    cite="dang2025twgrpo",
    evidence="reference-code",
    code="longmalongma/TW-GRPO@aa529ffca7ae408e4f3df7ba71cb0dc58544c6b7 src/open_r1/trainer/grpo_trainer.py",
    keys={
        "weight.disagreement": "token_weight",
        "weight.disagreement.score": "disagreement",
        "weight.disagreement.curve": "stretched",
        "weight.disagreement.scope": "group",
        "signal.disagreement": "disagreement",
    },
    paper_defaults={"objective.aggregate": "token_mean", "objective.clip_high": 0.28, "credit.eps": 1e-4},
    cost="two forward passes over the rollouts before the update, one with the head on every vocabulary id",
)

# weights of groups by their rewards
vital_dgrpo = Definition(
    r"""DGRPO (VITAL): difficulty-aware GRPO: groups of high mean reward weigh less.

    w = 1/2 + 1/2 clamp((easy - D) / (easy - hard), 0, 1), D = the group's mean outcome;   loss = GRPO's times w
    with `vital_dgrpo@paper` also S = clamp((IoU - low) / (high - low), 0, 1) in place of IoU

    Choices. The paper multiplies the rewards by w and then normalises by the group's std, which takes w out again: here
    w weighs the loss. Its rewards sum to 3 (answer, format, tool), hard = 1 and easy = 2 (`vital_dgrpo@paper`); for
    outcomes from 0 to 1 the same thirds are 1/3 and 2/3. The bounds low and high, a pair for each task, are not given:
    they are 0 and 1, which change nothing, until you set `reward.shape.rescaled.low` and `.high`.
    """,
    cite="zhang2025vitaldgrpo",
    evidence="secondary",
    keys={
        "weight.mean_outcome": "group_weight",
        "weight.mean_outcome.statistic": "mean_outcome",
        "weight.mean_outcome.curve": "ramp",
    },
    paper_defaults={
        "weight.mean_outcome.hard_rate": 1.0,
        "weight.mean_outcome.easy_rate": 2.0,
        "reward.shape.rescaled": "shape",
        "reward.shape.rescaled.function": "rescaled",
        "rollout.group_size": 8,
        "optim.lr": 1e-6,
    },
)

grpo_s = Definition(
    r"""GRPO-S (DR-IRL): group weights by difficulty: distance to a demonstration and reward gap to it.

    w = s(d_g) / s(mean d) * s(mean of the gaps that are no outliers) / s(mean gap), s the logistic;
      loss = GRPO's times w
    d_g = 1 - mean cos(e_i, e_demonstration);   gap_g = r_demonstration - mean_g r;   means over the step's groups

    Choices. From two detailed summaries, which agree; no code was found. The paper compares within a category of harm,
    one reward model for each: here within a step. It takes cosines clause by clause with a text encoder, the nearest
    clause for each: here e is the policy's mean hidden state. Gaps further than 2 standard deviations from their mean
    are outliers (the paper's threshold is not known), so that with few groups the second factor is 1. The
    demonstrations are those that the rollout brings (`grpo_s+luffy`); without one, a group's right attempts take its
    place in d, and in the gap a reward of 1. The reward models that they learn by inverse reinforcement learning are
    yours to bring, as `reward`.
    """,
    cite="cheng2025grpos",
    evidence="secondary",
    keys={
        "weight.hardness": "group_weight",
        "weight.hardness.statistic": "dissimilarity",
        "weight.hardness.curve": "hardness",
        "signal.mean_hidden": "mean_hidden",
    },
    cost="a forward pass over the rollouts before the update",
)
