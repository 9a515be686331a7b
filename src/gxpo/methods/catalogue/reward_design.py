"""Methods that change the outcome before it is compared: ranks, factors, diversity, levels."""

from gxpo.parts.definition import Definition

# by length and confidence
grpo_lead = Definition(
    r"""GRPO-LEAD: length-dependent reward for correct answers, penalty for wrong ones, difficulty-aware weights.

    R_i = exp(-0.05 z_i) if correct, -1 if wrong;   z_i = (L_i - mean L) / (std L + eps) over the group's correct
      answers
    A'_i = A_i w(rho) if A_i > 0, A_i w(1 - rho) otherwise;   w(p) = 0.4 + 1.1 / (1 + exp(10 (p - 0.75))),  rho = c / G

    Choices. As in the authors' code, the lengths' std and the reward's have one degree of freedom, eps 1e-6 (`ddof: 0`
    for the population's). rho comes from the verdicts, not from the shaped outcome. Alone in its group an answer has 0;
    the code gives it its reward. What the code adds to the paper's formulas is selectable below `reward.shape.concise`:
    lengths count only in groups whose three shortest answers have above 4,000 tokens on average (`longer_than`, in
    `@paper`, whose runs end at 12,288); a failure without a readable answer has reward 0 (`parsed`: the component that
    says whether there is one), a repetitive one of those -2 (`repetitive`). The code drops groups without a success,
    whose advantage is 0 here, from the batch; its loss is a token mean, and verl's entropy bonus of .001 is on (both in
    `@paper`). No KL.
    """,
    cite="zhang2025grpolead",
    evidence="reference-code",
    code="aeroplanepaper/GRPO-LEAD@9344bef verl/verl/trainer/main_ppo.py verl/verl/trainer/ppo/core_algos.py "
    "verl/verl/trainer/ppo/ray_trainer.py deepscaler/rewards/math_reward.py "
    "scripts/train/ds_14b_sft_stage1.sh",
    keys={
        "credit": "difficulty_weighted",
        "reward.shape.concise": "shape",
        "reward.shape.concise.function": "length_relative",
    },
    paper_defaults={
        "reward.shape.concise.longer_than": 4000.0,
        "objective.aggregate": "token_mean",
        "objective.entropy.coef": 0.001,
        "rollout.group_size": 8,
        "optim.lr": 1e-6,
    },
)

lens = Definition(
    r"""LENS: confidence-weighted penalty on wrong answers, so that all-wrong groups have a gradient too.

    p_i = exp(mean_t log old);   r'_i = r_i - (1/G) (1 - r_i) p_i / (D - p_i);   J = J[mixed] + 0.25 J[all-wrong groups]
    D = max(1 / mean_i(r_i / p_i), 2 max_j p_j), without a success 2 max_j p_j;
      all-wrong groups are centred, not scaled

    Choices. Confidence is length-normalised in the whole of D (one equation of the paper has raw probabilities there,
    which underflow). r is the verdict; other rewards stay in the outcome, in addition to the penalty. Rollouts that
    drop groups of equal verdicts would take away what it learns from: refused.
    """,
    cite="feng2025lens",
    evidence="paper",
    keys={"reward.add.confidence_penalty": "confidence_penalty", "credit": "negative_groups"},
    paper_defaults={"rollout.group_size": 16, "tasks.per_step": 32},
)

unlikeliness = Definition(
    r"""Unlikeliness: reward discount for likely correct answers, so that rare ones are reinforced.

    r'_i = r_i (1 - 0.25 rank_i / G);   rank: of the mean log-prob under the sampler within the group,
      0 the least likely

    Choices. Log-probs are length-normalised, as in the code (the paper says probability). Ranks include wrong answers.
    Equal log-probs share their mean rank; the code takes them in some order. Groups in which all are correct stay
    equal, as in the recipe, which drops them before; `reward.shape.likelihood_discount.all_correct: true` lets them
    learn. More epochs are the paper's second remedy, and with its KL they are `unlikeliness@paper`.
    """,
    cite="he2025unlikeliness",
    evidence="reference-code",
    code="AndreHe02/rewarding-unlikely-release@ca1cff05ebdf2cfe9737fd416897da838a93e11a "
    "verl/trainer/ppo/ray_lean_trainer.py examples/lean/grpo.sh",
    keys={
        "reward.shape.likelihood_discount": "shape",
        "reward.shape.likelihood_discount.function": "likelihood_discount",
    },
    paper_defaults={"update.epochs": 2, "objective.kl.coef": 0.1},
)

# by diversity within the group
dra_grpo = Definition(
    r"""DRA-GRPO: diversity-aware reward adjustment: semantically similar rollouts share their reward.

    r'_i = r_i / sum_{j in g} cos(e_i, e_j);   A as in GRPO (or, with dr_grpo, as in Dr. GRPO) over r'

    Choices. Similarities are inside the group, as in the paper; the code mixes the prompts of a local batch. Sums below
    1 (others that point away) are held at 1, so that no reward grows or changes sign. e is the mean of the policy's own
    last hidden states over the answer; the authors' is a sentence encoder (jina, nomic): give your own as a signal part
    that provides "embedding", in the place of `signal.mean_hidden`.
    """,
    cite="chen2025dragrpo",
    evidence="reference-code",
    code="xiwenc1/DRA-GRPO@088266167eb844482be2f0b98b5a60f7951b7050 src/open_r1/trl/trainer/grpo_trainer.py "
    "recipes/dra_grpo.yaml",
    keys={"credit": "diversity_adjusted", "signal.mean_hidden": "mean_hidden"},
    paper_defaults={"credit.eps": 1e-4, "rollout.group_size": 6, "optim.lr": 1e-6, "sampling.temperature": 0.7},
    cost="a forward pass over the rollouts before the update",
)

# partial and factored rewards
fgrpr = Definition(
    r"""FGRPR: graded (fuzzy) reward for numeric answers by relative error.

    R = (1.5 - gap if gap < 0.5 else 0) + format;   gap = |y - y'| / |y|;   A as in GRPO over R

    Choices. The reward falls from 1.0 to 0 at a gap of 1/2, as in the code. Its answers are strings of digits, and y =
    0 earns nothing; here signs, decimals, fractions and thousands are read, and of y = 0 only 0 is near. Format is the
    task's own component "format", or gxpo's, where the task has none. The verdict is the task's verifier's and is not
    paid. `scoring.options: {numeric: {pattern: ...}}` says where the answer is.
    """,
    cite="wang2025fgrpr",
    evidence="reference-code",
    code="yeyimilk/CrowdVLM-R1@2ef4f31aa5e9c2560054c928c13aaa77af0dd703 "
    "VLM-R1/src/open-r1-multimodal/src/open_r1/grpo_rec.py",
    keys={"scoring.weights": {"numeric": 1.0, "format": 1.0, "correct": 0.0}},
)

spectral_po = Definition(
    r"""SPO (later SGPO): partial reward in all-wrong groups by the position of the first wrong step.

    RTS = steps before the first error / steps;   r = 1 if right;
      1 / (1 + exp(-5 (RTS - 1/2))) if all of the group are wrong; else 0;   A as in GRPO

    Choices. RTS is component "correct_prefix" of your reward (weight 0): a step judge's (`scoring.weights: {correct: 1,
    judge: 0}` with `scoring.options: {judge: {mode: first_error, ...}}`) or a function's. Without one the method is
    refused. Steepness and middle are not known to us; 5 and 1/2 are a port's, which has the sign the other way round.
    `reward.shape.correct_prefix.groups=all` pays wrong attempts in every group.
    """,
    cite="chen2025spectralpo",
    evidence="secondary",
    keys={"reward.shape.correct_prefix": "shape", "reward.shape.correct_prefix.function": "correct_prefix"},
    cost="a judge's answer for each attempt",
)

multirole = Definition(
    r"""MultiRole-R1: lexical diversity of a reasoning beside its correctness.

    r = .9 [correct] + .1 D, D the mean of eight signals of lexical diversity;   A as in GRPO

    Choices. From the paper (arXiv 2507.20187v4, section 3.2, appendices B.2 and F). D counts in every group, right or
    wrong alike: where all are right, D .4, .6, .5 gives A -1, 1, 0, noise at full scale;
    `reward.shape.diversity.groups: mixed` adds it in groups with a success and a failure alone. The paper normalises D
    by length in a way that it does not state; here a text of fewer than 20 words is paid less in proportion
    (`min_words`). The signals are easily gamed. Its supervised part on texts of several roles, and its accuracy as a
    mean over roles, are left out.
    """,
    cite="wang2025multirole",
    evidence="paper",
    keys={
        "scoring.weights": {"correct": 0.9, "match": 0.0},
        "scoring.options": {"match": {"metric": "lexical_diversity", "pattern": None}},
        "reward.shape.diversity": "shape",
        "reward.shape.diversity.function": "added_component",
        "reward.shape.diversity.component": "match",
    },
)

carl = Definition(
    r"""CaRL: one reward for progress, multiplied by soft penalties; an infraction ends the attempt, and progress.

    r = outcome * product of factors, and terminal added if failed;   A as in GRPO

    The outcome is progress from 0 to 1; `speed` and `comfort` are components from 0 to 1 and `failed` one of 0 or 1,
    each of reward weight 0, from your reward or environment (`reward.shape.factored.factors`, `.fail` name others).

    Choices. The product is of a whole rollout, in the code of each step's progress. An infraction keeps what was paid
    before it, as there (`reward.shape.factored.kept: 0` voids it; default changed on 2026-11-28, before it all was
    void); terminal is 0, as there, but -0.01 of a route for a collision or a red light
    (`reward.shape.factored.terminal`). PPO there, group statistics here. Stand-in: no driving.
    """,
    cite="jaeger2025carl",
    evidence="reference-code",
    code="autonomousvision/CaRL@5abef66c1bedefaf0a6cd65ed8925efe72dc5845 team_code_roach/reward/simple_reward.py "
    "team_code_roach/rl_config.py",
    keys={
        "reward.shape.factored": "shape",
        "reward.shape.factored.function": "factored",
        "reward.shape.factored.factors": ("speed", "comfort"),
        "reward.shape.factored.fail": "failed",
    },
)

dpa = Definition(
    r"""DPA (directional preference alignment): the prompt states a direction between two rewards, which then pays.

    theta drawn for each group, the prompt states 100 (cos theta, sin theta);   r = cos theta r_1 + sin theta r_2
    L = mean over tokens with A > 0 of -log pi,   A = r - the second largest of the group's 8: the best is imitated

    Choices. Only the README is public. The direction is the same in a group, else its members would be compared under
    different objectives. -15 degrees of (0.7, 0.4) pay 0.57262. The seven angles and the sentence are ours
    (`rollout.angles`, `rollout.template`); the rewards are components of yours (`reward.shape.direction.components`).
    Rejection sampling is in turns with sampling there, here in each step; with another group size than 8 set
    `credit.quantile` to (size - 1) / size. Held-out tasks are attempted without a direction.
    """,
    cite="wang2024dpa",
    evidence="secondary",
    keys={
        "rollout": "retry",
        "rollout.retry_if": "always",
        "rollout.retry_with": "stated_direction",
        "rollout.keep": "newest",
        "reward.shape.direction": "shape",
        "reward.shape.direction.function": "directed",
        "credit.center": "quantile",
        "credit.quantile": 0.875,
        "credit.scale": "none",
        "objective": "positive_likelihood",
        "objective.coef": 1.0,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="none",
)

arspo = Definition(
    r"""ARSPO (OmniVL-Guard): an exponential reward for hard kinds of tasks, and weights of kinds by their progress.

    r = e^(3 x) of a hard kind's score x, x of an easy one's;   A as in GRPO;   w_k multiplies the loss of kind k
    w_k <- 1.1 w_k if the kind is below its best or is the lowest, 1 + 0.9 (w_k - 1) if mastered, up to 4; min_k w_k = 1

    Choices. From notes of the paper; its repository has no code. Standardising leaves only the shape of e^(3 x): x =
    .2, .4, .6, .8 have A = -.922639, -.552263, .122606, 1.352297, against +-1.161891 and +-.387297 of x itself. What a
    kind counts is the work of w. 1.1, 0.9, and mastered at 0.9 are ours. Kinds are components of the reward, of which
    a task has one (`weight.progress.kinds`); "iou" is the hard one (`reward.shape.hard.component`). Stand-in: no
    forged pictures or films.
    """,
    cite="shen2026arspo",
    evidence="secondary",
    keys={
        "reward.shape.hard": "shape",
        "reward.shape.hard.function": "exponential",
        "weight.progress": "task_progress",
        "weight.progress.kinds": ["exact", "iou"],
    },
    cost="two numbers for each kind in the checkpoint",
)
