"""Preference losses over pairs and sets of answers, sampled or logged."""

from gxpo.parts.definition import Definition

# pairs of answers
simpo = Definition(
    r"""SimPO: pairs by mean log-prob, without a reference model, with a target margin.

    s_i = mean_t log policy;   l = -log sigmoid(beta (s_better - s_worse) - gamma),   beta 2, gamma 0.5
    L = mean over groups of the mean over the group's pairs of l

    Choices. gamma is `objective.margin`, outside beta as in the paper; the code has gamma / beta (0.25 there). Its
    scripts range from beta 2 to 10 and gamma / beta from 0.1 to 0.8. Length counts: of two answers that share their
    beginning, that beginning does not cancel. `objective.form: hinge` and `objective.nll` (the code's sft_weight) are
    there. Pairs are made of the step's own rollouts by verdict, or come with the data (rollout `logged`).
    """,
    cite="meng2024simpo",
    evidence="reference-code",
    code="princeton-nlp/SimPO@15c4ff89188e81a921e58377e2c988c173e60764 scripts/simpo_trainer.py",
    keys={
        "objective": "preference_pairs",
        "objective.reference": "none",
        "objective.length_mean": True,
        "objective.beta": 2.0,
        "objective.margin": 0.5,
    },
    refuses={"objective.kl.place": ("reward",)},
)

ipo = Definition(
    r"""IPO: pairs whose margin is regressed to a finite target, so that certain labels push no further.

    s_i = sum_t (log policy - log reference);   h = s_better - s_worse;   l = (h - 1 / (2 beta))^2,   beta 0.1
    L = mean over groups of the mean over the group's pairs of l

    Choices. DPO with another loss of the pair (`dpo` with `objective.form: ipo`). beta is the paper's tau. Log-probs
    are summed, as in the paper; TRL takes means over tokens, which it says the authors intended:
    `objective.length_mean: true`. Pairs are made of the step's own rollouts by verdict, or come with the data (rollout
    `logged`). Another IPO, of the same acronym, moves intermediate steps of diffusion.
    """,
    cite="azar2023ipo",
    evidence="paper",
    keys={"objective": "preference_pairs", "objective.form": "ipo"},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)

kto = Definition(
    r"""KTO: single answers, each labelled good or bad, valued against a reference point by a bounded function.

    s_i = sum_t (log policy - log reference);   z0 = max(0, mean of s over the step), a constant
    l = lambda_D (1 - sigmoid(beta (s - z0))) of a good answer, lambda_U (1 - sigmoid(beta (z0 - s))) of a bad one
    L = mean over groups of the mean over their answers of l,   beta 0.1

    Choices. Authors' code, but for z0: there it is the mean log-ratio of answers under other questions than their own,
    which costs a forward pass and is a biased estimate of the KL; here that of the step's own answers.
    `objective.unpaired_against: zero` leaves it out. lambda_D and lambda_U are `objective.success_weight` and
    `objective.failure_weight`; the paper asks for lambda_D n_D / (lambda_U n_U) from 1 to 4/3. Labels are verdicts of
    the step's own rollouts, or come with the data (rollout `logged`, columns `completion` and `label`). The code's mean
    is over answers; here questions count alike, however many answers they have. `weight.NAME: group_weight` with
    `statistic: size` and a curve of yours that divides it by its mean counts answers alike.
    """,
    cite="ethayarajh2024kto",
    evidence="reference-code",
    code="ContextualAI/HALOs@192a6e84253c78cd3aca0b7f68773d217c32c21f trainers.py",
    keys={
        "objective": "preference_pairs",
        "objective.pairs": "none",
        "objective.form": "prospect",
        "objective.unpaired_against": "batch",
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)

orpo = Definition(
    r"""ORPO: likelihood of the better answer, and the log of the odds ratio of the two, without a reference model.

    p_i = exp(mean_t log policy);   odds_i = p_i / (1 - p_i);
      l = -mean_t log policy(better) - lambda log sigmoid(log odds ratio),   lambda 0.1
    L = mean over groups of the mean over the group's pairs of l

    Choices. lambda is `objective.pair_weight` (the paper's main runs: 0.1; the code's default: 1). The likelihood is a
    mean over an answer's tokens, and then over pairs; in the authors' code and TRL it is one mean over all tokens of
    the better texts of a batch, the prompt's among them (the code's option --disable_prompt_loss leaves these out).
    Pairs are made of the step's own rollouts by verdict, or come with the data (rollout `logged`).
    """,
    cite="hong2024orpo",
    evidence="reference-code",
    code="xfactlab/orpo@0f0abfec65410537945c2c945924df88efb6bf17 src/orpo_trainer.py",
    keys={
        "objective": "preference_pairs",
        "objective.form": "odds",
        "objective.reference": "none",
        "objective.length_mean": True,
        "objective.beta": 1.0,
        "objective.pair_weight": 0.1,
        "objective.nll": 1.0,
    },
    refuses={"objective.kl.place": ("reward",)},
)

group_robust_po = Definition(
    r"""GR-DPO (group-robust preference optimization): DPO on the worst-off population, by mirror ascent on weights.

    l_k = mean over the pairs of population k of DPO's loss;   w_k <- w_k e^(rate l_k) / sum, rate 0.01
    L = sum_k w_k l_k

    Choices. The authors call it GRPO; no kin of group-relative policy optimization. A population is what the column
    `population` of the data says (`objective.population: info.KEY`), never the group of rollouts. Weights move before
    they are applied, as in the code, once a step (there in each micro-batch and on each rank by itself); l_k is a mean,
    where the code's default divides the sum by the population's size in the data. `objective.form: ipo` is GR-IPO. A
    population that a step lacks loses weight, as there. The code knows all of the data's populations and weighs them
    from the first step on; here one is known from its first pairs on, and begins with the mean weight of those before
    it.
    """,
    cite="ramesh2024grouprobustpo",
    evidence="reference-code",
    code="rsshyam/Group-robust-preference-optimization@0833ecd72ee474247cf9684d026792a2867e82ca "
    "src/trainers/grouptrainer.py",
    keys={"objective": "robust_pairs", "objective.population": "info.population"},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)

mnpo = Definition(
    r"""MNPO: margins against a mixture of the reference and the policy's own past, regressed to a target.

    s_i = mean_t (log policy - m),   m = rho log reference + (1 - rho) mean_j log policy_j,   rho 1/3,
      the last 2 policies
    L = mean over groups of the mean over their pairs of (s_better - s_worse - 1 / (2 eta))^2,   eta 0.0075

    Choices. As the authors' code computes it, which never reads the weights of the policies that it is configured with,
    and leaves their share of m out while there are none (`signal.opponents.initial_opponent: reference` gives it to the
    reference). The target of 66.7 is out of reach of a mean of log-probs, so that the gradient is nearly a linear
    loss's. Their equations have sums over tokens: `objective.length_mean: false`, `objective.beta: 0.1` to go with
    them. There the past policies are those of earlier rounds over the data, and of a prompt's answers a reward model's
    best and worst are a pair; here a policy is kept every 10 steps (`signal.opponents.every`), and the pairs are the
    step's highest and lowest outcomes.
    """,
    cite="wu2025mnpo",
    evidence="reference-code",
    code="smiles724/MNPO@b8317e91a80df71f8a5fddca0959bc8a14f98e7b mnpo_scripts/mnpo_trainer.py "
    "mnpo_scripts/mnpo_config.py training_configs/gemma-2-9b-it-mnpo-iter2.yaml",
    keys={
        "objective": "preference_pairs",
        "objective.form": "ipo",
        "objective.beta": 0.0075,
        "objective.length_mean": True,
        "objective.pairs": "outcome",
        "objective.reference": "opponents",
        "signal.opponents": "opponents",
        "signal.opponents.initial_opponent": "nothing",
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a forward pass for each policy kept, and their parameters, beside the reference's",
)

# pairs of steps and episodes
step_apo = Definition(
    r"""Step-APO (CPL, critical plan step learning): pairs of steps that begin at one state, offset by their values.

    s_j = sum_t (log policy - log reference) over the step;   V_j the value of the state that it leads to
    l = -log sigmoid(beta (s_better - s_worse) - (V_better - V_worse)),   V_better > V_worse,   beta 0.3
    L = mean over the states of the mean over their pairs of l

    Choices. The loss is the authors' code's, where V is a value in [-1, 1] that a search over plans of 200 iterations
    has found for a step. Here a step's value is its score (`rollout.score`: the world's reward for the step, or
    FILE.py:NAME); `rollout: search` with `rollout.group_unit: siblings` and `rollout.values: mean` takes V from a
    search, and `rollout: logged` reads groups of siblings with their values as rewards. Every two steps of different
    value are a pair; theirs are those of values above and below 0 (`objective.pairs: verdict`, `objective.success_at:
    1e-9`), for the final solutions the best and the worst alone, at .3 of their values. Where all steps of a state have
    one value there is no pair, and nothing to learn: after ten such steps of a run a warning says so, and the score is
    to be looked at. Contrastive preference learning, also CPL, is `cpl_contrastive`.
    """,
    cite="wang2024stepapo",
    evidence="reference-code",
    code="keesh0410/CPL-Reasoning@61b99b45010ae3881fc0300a24e4421eb48f7d2a "
    "apo/LLaMA-Factory-0.8.3/src/llamafactory/train/dpo/trainer.py "
    "apo/LLaMA-Factory-0.8.3/my_scripts/policy_model_round1_apo.yaml "
    "gen_data/gen_policy_model_round1_apo_data.py",
    keys={
        "objective": "preference_pairs",
        "objective.pairs": "ordered",
        "objective.beta": 0.3,
        "objective.gap_margin": 1.0,
        "rollout": "step_candidates",
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="k actions a step and a score of each; a frozen reference model",
)

cpl_contrastive = Definition(
    r"""CPL (contrastive preference learning): preferences as regret, so that log-probs alone are compared, the worse
    less.

    s_i = alpha sum_t log policy;   l = -log sigmoid(s_better - lambda s_worse),   alpha 0.1, lambda 0.5
    L = mean over groups of the mean over the group's pairs of l

    Choices. alpha is `objective.beta`, lambda `objective.bias`; 1 is the paper's CPL without conservatism. The paper
    discounts steps of a segment, its code does not, and neither does this. `objective.nll` is a behaviour-cloning term
    on the better one (theirs: a coefficient on all or on the better, and steps of it alone at first). Segments of
    continuous control are whole answers here. Pairs by verdict of the step's own rollouts, or of the data (rollout
    `logged`). Critical plan step learning, also CPL, is `step_apo`.
    """,
    cite="hejna2023cplcontrastive",
    evidence="reference-code",
    code="jhejna/cpl@b4f197307a88eef8df46ee0342d5d64a6b59b4a6 research/algs/cpl.py",
    keys={"objective": "preference_pairs", "objective.reference": "none", "objective.bias": 0.5},
    refuses={"objective.kl.place": ("reward",)},
)

dmpo = Definition(
    r"""DMPO (multi-turn): DPO of whole episodes with a discount of turns that takes the length out.

    phi(t, T) = gamma^t (1 - gamma^(T - t)) / (1 - gamma^T),   t = 0 .. T - 1,   gamma 0.7
    s_i = sum over turns of phi(t, T_i) sum of (log policy - log reference);
      l = -log sigmoid(beta (s_better - s_worse))

    Choices. beta 0.1. The authors' code leaves the first turn of a conversation at 1 and counts from the second one,
    whose t is 0, so that of T turns T - 1 are discounted (in its data the first one only agrees to the task); here t is
    0 in the first. Its token-wise variant counts from a wrong index. Pairs are episodes of one task by verdict, or come
    with the data (rollout `logged`: answers of several messages). Distribution matching for diffusion language models,
    also DMPO, is another method.
    """,
    cite="shi2024dmpo",
    evidence="reference-code",
    code="swt-user/DMPO@64f484515aea7a6e0232b3bf1847eb485a2effb0 fastchat/train/dmpo_trainer_efficient.py",
    keys={"objective": "preference_pairs", "objective.turns": "turns", "objective.gamma": 0.7},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)

sdpo_segment = Definition(
    r"""SDPO (segment-level): DPO on segments of equal length that begin where the episodes part.

    e the first turn in which the members of the group differ, k the least number of turns that one has from e on
    s_i = sum over turns e .. e + k - 1 of (log policy - log reference);   l = -log sigmoid(beta (s_better - s_worse))

    Choices. beta 0.1. In the paper a language model names the turn of a bad episode that went wrong, five episodes are
    sampled anew from there and the best is taken, and it names the end of the segment; the loss is DPO with the other
    tokens masked. Here a second episode leaves the first before a turn drawn at random among those it may have, and e
    is that turn (default changed on 2026-11-28: before, rollouts were independent, `rollout: independent`); k is as
    long as both go on. In pairs that come with the data (`rollout: logged`), and among independent episodes, e is where
    histories part. Groups of more than two share one e and k. Pairs by verdict. Self-distillation, also SDPO, is
    `sdpo_self`.
    """,
    cite="kong2025sdposegment",
    evidence="reference-code",
    code="AlibabaResearch/DAMO-ConvAI@e0cc87a13bd330474cd5e48a6821a4334cd732cb "
    "SDPO/LLaMA-Factory/src/llamafactory/train/dpo/trainer.py",
    keys={
        "objective": "preference_pairs",
        "objective.turns": "segment",
        "rollout": "turn_branches",
        "rollout.next_steps": "at_one_turn",
        "rollout.group_size": 2,
        "rollout.initial": 1,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="the turns before e are generated once for both; a frozen reference model",
)

# policy gradients on differences
p3o = Definition(
    r"""P3O (pairwise PPO): policy gradient on the difference of the rewards of two answers, whole answers' ratios
    clipped.

    A_1 = (r_1 - r_2) / 2 = -A_2;   rho_i = prod_t policy / old;   L = -mean_i min(rho_i A_i, clip(rho_i, 0.8, 1.2) A_i)

    Choices. From the article of its first two authors ("Rethinking the Role of PPO in RLHF", BAIR blog, 2023): the
    gradient is that of (r_1 - r_2) log(policy(y_1) / policy(y_2)) / 2, answers come from an old policy with importance
    ratios, and version 1 clips each answer's ratio; the width and the form of the clip are ours. Here the two answers
    are averaged, half of that sum. Version 2 clips the joint ratio of the two, by a surrogate that we could not verify,
    and is not built. What a prompt adds to all rewards cancels. For pairs this is GRPO without the standard deviation
    and with the ratio of the sequence, so groups of more than two work alike. The reward less beta log(policy /
    reference) is `objective.kl.place: reward`. A circulated form of the gradient has the product of the two
    probabilities in place of their ratio; its expectation is 0. The loss is one term an answer (changed on 2026-11-28:
    before, the figure `loss` counted it once a token, with the same gradient). Two other methods are called P3O.
    """,
    cite="wu2023p3o",
    evidence="paper",
    keys={"credit.scale": "none", "objective.ratio": "sequence_product", "rollout.group_size": 2},
    cost="none beyond the base's",
)

refuel = Definition(
    r"""REFUEL: two continuations from one turn on; the log-ratio of that turn is regressed on the difference of
    returns.

    a turn h is drawn, an episode leaves another before it, both go on to the end;
      D_i = sum over turn h of log policy - log old;   L = mean ((D_1 - D_2) / eta - (R_1 - R_2))^2 / 4,   eta 1

    Choices. 1 / eta is `objective.beta`; the code has (D_1 - D_2 - eta (R_1 - R_2))^2, eta^2 times as much, the 4
    apart. h is uniform over the turns that an episode may have, and the prompt where it ended before. Two equal actions
    in turn h have D_1 = D_2, whatever comes later, as in the code (changed on 2026-11-28: before, a later turn was
    taken). The authors make all rollouts of a round before they train; here each step has its own. On a task of one
    turn this is REBEL; without forks (`rollout: independent`) it regresses the first turn in which the episodes differ.
    A KL penalty in the returns is `objective.kl.place: reward` in methods that read advantages, not here.
    """,
    cite="gao2024refuel",
    evidence="reference-code",
    code="ZhaolinGao/REFUEL@8b3c67dfa503da883a3c44667179d07ba620f3da setting_one/refuel.py",
    keys={
        "objective": "group_variance",
        "objective.beta": 1.0,
        "objective.turns": "parting",
        "rollout": "turn_branches",
        "rollout.next_steps": "at_one_turn",
        "rollout.group_size": 2,
        "rollout.initial": 1,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="the turns before h are generated once for both",
)
