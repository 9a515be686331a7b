"""Methods that sample again with a hint or a draft, or from a cut."""

from gxpo.parts.definition import Definition

# hints for all-wrong groups
scaf_grpo = Definition(
    r"""Scaf-GRPO: scaffolded hints: in an all-wrong group the least sufficient hint replaces one rollout.

    Rollout, after 50 steps: a group whose attempts are all wrong is tried once under each hint, from the least to the
    most; with L* = min {level : right}, that attempt replaces the group's first. If no hint helps, the group
    stays as it was (A = 0).
    A and L as in GRPO, with rho_t = pi(o_t | q+h, o_<t) / pi_old(o_t | q+h, o_<t) for the hinted attempt: it is
      trained under the prompt it was sampled under. G = 8, one right: A = 7/8 / std = 2.474867, the others -0.353552.

    Choices. Hints are the task's own (tiers of chunks, each chunk shown after those before it, with a space between);
    where it has none, quarters of its solution, cut between words. They are on a separate line after "Hints: "; the
    code repeats the question after "Question: ", and names the tier ("Knowledge Hints: ", "Solution Hints: "): say so
    in `rollout.template` and in the texts. The released code leaves its planning tier out and tries four chunks of each
    other tier, however few there are; here all tiers that a task brings are tried, each chunk once. A group is dead
    when no verdict is positive (the code: all rewards exactly 0, which shaping breaks). The warm-up is a global counter
    as in the code; the paper mentions a diagnosis by problem. `objective.context=trained` is the code's
    `replace_hint_prompt`: the hinted answer under the plain prompt; there the ratio to the proximal policy is 1 and
    hides that it was sampled otherwise, and `objective.ratio_over=behaviour` gives pi(o|q) / pi_old(o|q+h).
    """,
    cite="zhang2025scafgrpo",
    evidence="reference-code",
    code="dvlab-research/Scaf-GRPO@1085db539b929ea6fed5ec3b71e3ea4c48c27612 hint_mix_grpo/trainer/ray_trainer.py "
    "sh/hint_mix_grpo/bs256_6k_mix.sh",
    keys={
        "rollout": "retry",
        "rollout.retry_with": "each_hint",
        "rollout.keep": "right_for_first",
        "rollout.warmup_steps": 50,
        "objective.context": "sampled",
    },
    paper_defaults={"tasks.per_step": 256, "update.minibatches": 4, "optim.lr": 1e-6, "sampling.max_new_tokens": 2048},
    cost="one more rollout for each hint of an all-wrong group",
)

ghpo = Definition(
    r"""GHPO: all-wrong groups are sampled again with a growing prefix of the reference solution as a hint.

    Rollout: while the verdicts of a group are all wrong, all G attempts are sampled again under q + a sentence +
      s[: n], n = round(f |s|), f = 0.25, 0.5, 0.75, s the solution. The newest attempts are the group,
      and are trained under the prompt with the hint. A and L as in GRPO; loss by sequence.

    Choices. The fractions are the code's, which declares `hint_ratio` and never reads it; halves are rounded to the
    even number of characters, as there. A word that would be cut in two is left out; the code cuts it (`rollout.cut:
    characters`). A line with a sentence of ours precedes the hint, as one of theirs does (`rollout.template`). Only
    verdicts decide (the code: its first reward column, accuracy). An all-wrong group in which a format reward differs
    is trained by plain GRPO; here as there it is attempted again. The reference's reward is 1.0 accuracy + 0.5 format:
    say `scoring.weights: {correct: 1.0, format: 0.5}`. Its prompts are cut from the left after the hint is added; here
    nothing is cut.
    """,
    cite="liu2025ghpo",
    evidence="reference-code",
    code="hkgc-1/GHPO@af0a7dd859eafca17531bd7b01c76ccb3e36e0c0 src/ghpo/ghpo_trainer.py "
    "recipes/Qwen2.5-Math-7B/ghpo/config_ghpo.yaml",
    keys={
        "rollout": "retry",
        "rollout.retry_with": "next_hint",
        "rollout.keep": "newest",
        "objective.context": "sampled",
    },
    paper_defaults={"credit.eps": 1e-4, "optim.lr": 1e-6, "sampling.max_new_tokens": 2048},
    cost="up to three more groups for each all-wrong one: their tokens are charged",
)

# drafts and cuts
igrpo = Definition(
    r"""iGRPO: iterative GRPO: the best of N drafts goes into the prompt, and its refinements are trained.

    d* = argmax_j r(d_j) over N drafts d_j ~ pi_old(.|q), the first on ties; q' = template(q, d*)
    o_i ~ pi_old(.|q'), i = 1..G; A and L as in GRPO, with pi(.|q'). Drafts get no gradient.
      Held-out tasks are attempted once, without a draft.

    Choices. The paper halves a budget of 8: 4 drafts and 4 refinements (`igrpo@paper`), which costs what GRPO's 8 do;
    here the 4 drafts are in addition to the base's 8. Where the refinements' std is 0 all A are 0, as in the paper. No
    KL, its coefficient. A draft that could not be scored is below all others; where all drafts are wrong the first is
    shown. The wording of the template is ours: the paper's is in a supplement that was not read.
    """,
    cite="hatamizadeh2026igrpo",
    evidence="paper",
    keys={
        "rollout": "retry",
        "rollout.retry_if": "always",
        "rollout.retry_with": "best_draft",
        "rollout.keep": "newest",
    },
    paper_defaults={"rollout.group_size": 4, "optim.lr": 1e-6},
    cost="n_drafts more rollouts a group, and a prompt longer by the draft",
)

search_r2 = Definition(
    r"""Search-R2: actor and refiner: cut the attempt at its first flawed step, then regenerate the rest.

    y ~ pi; the refiner accepts y or names step k; y' = y_{<k} + suffix, suffix ~ pi(. | q, y_{<k}); at most M times
    R = R_out (1 + R_proc); A as in GRPO over the final trajectories, shared by the actor's and the refiner's tokens,
      each with the log-prob under which its author wrote it.

    Choices. R, A and M = 1 are the paper's (eq. 1, 2; it tries M up to 4, with groups of 5 and 4 turns of search). Its
    discriminator accepts where its probability reaches a threshold, and a trimmer, called again, names the step: here
    both are one turn, the refiner answers with a step's number, 0 accepts; what can't be read accepts. Steps end with
    `rollout.delimiter`. A policy too small to write a step's number can cut at a random step (`rollout.cut_at=uniform`)
    or at its least probable one (`low_probability`): both are ours, and cut always. R_proc, the share of retrieved
    chunks that a judge finds useful, needs that judge: `search_r2@paper` adds `reward.shape.process`, which reads
    component "process" of your reward; without it R = R_out. In an environment the steps are turns. Held-out tasks are
    attempted by the actor alone.
    """,
    cite="he2026searchr2",
    evidence="paper",
    keys={"rollout": "cut_and_regenerate"},
    paper_defaults={
        "reward.shape.process": "shape",
        "reward.shape.process.function": "process_bonus",
        "rollout.group_size": 5,
    },
    cost="a refiner's turn for each attempt, and a suffix for each that is cut: cut attempts are charged as discarded",
)

# hints by difficulty, hints that are learnt, other prompts
adhint = Definition(
    r"""ADHint: half of a group begins with part of the reference answer: the harder the task, the more.

    w = 0.8 (1 - p) + 0.1, p the success rate of the plain half;   hint = the answer's first floor(w L) tokens
    A as in GRPO, among the plain half and among the hinted half apart;   L as in GRPO, and on the hint's tokens
    l = -e^(-|H_t - mean H of own tokens|) A f(pi) for A >= 0, else 0,   f(x) = x / (x + 0.1)

    Choices. From notes of the paper's source; no code was found. With p = 1/4, w = 0.7. With groups apart a success
    without the hint counts more, and a failure with it is punished more, as the paper wants: for verdicts the advantage
    of a success is the root of (1 - p) / p of its half. The form of the weight, 0.1 and 0.9 are the notes' example; the
    noise on w is 0 (`rollout.noise`). Nobody sampled the hint, so its ratio is LUFFY's. A reference answer that the
    reward does not accept, or that is too long, gives no hint. Held-out tasks have none.
    """,
    cite="zhang2025adhint",
    evidence="secondary",
    keys={
        "rollout": "retry",
        "rollout.retry_if": "always",
        "rollout.retry_with": "hint_by_rate",
        "rollout.keep": "but_references",
        "objective.on_unknown_behaviour": "shaped",
        "weight.hint": "token_weight",
        "weight.hint.score": "hint_strangeness",
        "weight.hint.curve": "exponential",
    },
    refuses={"objective.ratio": ("sequence",)},
    cost="none in samples; needs reference answers",
)

hill = Definition(
    r"""HiLL: a second policy learns to write hints for all-wrong tasks, paid by whether the hinted groups are mixed.

    p = share right of n = 8 answers under the hint,  D = mean log pi(o | q) - log pi(o | q, h), a token, of right ones
    r_h = (1 - p^n - (1 - p)^n) e^(min(D, 0) / 0.3);   r_h = -0.2 if the hint holds the answer
    A, L as in GRPO over 4 hints of a task, over its 8 attempts, and over the 8 answers under each hint

    Choices. p = 1/4 without reliance is worth 0.899872, with D = -0.15 it is 0.545800. In the code the answers under
    the best hint replace the all-wrong group; here those under each hint are trained, as a group of their own, and two
    adapters of one model stand for two models. A hint is the hinter's whole text, there what is between tags. A longer
    answer leaks as a whole word or number (there anywhere, so that 1000 states 100). Both prompts are ours.
    """,
    cite="xia2026hill",
    evidence="reference-code",
    code="Andree-9/HiLL@195d94ebee446504db6477606914d5c87fc13c30 verl/trainer/ppo/hinter_utils.py "
    "verl/trainer/ppo/hill_ray_trainer.py scripts/run_hill.sh",
    keys={
        "rollout": "critique", "rollout.roles": ["hinter", "reasoner"], "rollout.solver": "trained",
        "rollout.attempts": 8, "rollout.group_size": 4, "rollout.refinements": 8,
        "rollout.critique": "all_wrong", "rollout.leak_check": "answer",
        "rollout.right_pattern": "", "rollout.wrong_pattern": "",
        "rollout.template": "{prompt}\n\nA failed attempt:\n{attempt}\n\nThe solution:\n{solution}\n\n"
        "Write a short hint that helps to find the way, without numbers and without the answer.\n",
        "rollout.refine_template": "{prompt}\n\n{critique}",
        "signal.reliance": "hint_reliance",
        "credit.value": "hint_worth",
    },
    paper_defaults={"objective.clip_high": 0.28, "optim.lr": 1e-6, "tasks.per_step": 128, "update.minibatches": 2},
    cost="4 hints and 32 answers for each all-wrong task, and a second reading of these; adapters (learner.lora_rank)",
)  # fmt: skip

cog_rethinker = Definition(
    r"""Cog-Rethinker: all-wrong tasks are attempted again, split into questions, then against their own mistake.

    while a group is all wrong: G attempts under "split it", then G under "here is a wrong answer; find the mistake"
    A, L as in GRPO over each group's newest attempts, plus 0.1 mean over tokens with A > 0 of -log pi(. | q)

    Choices. From the abstract and public reviews; no code was found. There each stage is trained under its own prompt
    and its right answers are imitated under the task's own one; here both terms read the task's own prompt, under which
    it is tested (`objective.context: sampled` is the stage's own for both). The weight of the imitation is ours, and so
    are both prompts (`rollout.templates`). There the first is followed by solved examples from a growing store, the
    second by past right rewritings, and groups without signal are drawn anew (`+dapo`); left out. Without an all-wrong
    group a step is GRPO's, and the imitation of its right answers.
    """,
    cite="sun2025cogrethinker",
    evidence="secondary",
    keys={
        "rollout": "retry",
        "rollout.retry_with": "next_prompt",
        "rollout.keep": "newest",
        "objective.add.imitation": "positive_likelihood",
        "objective.add.imitation.coef": 0.1,
    },
    cost="up to two more groups for each all-wrong one",
)

ipo_safety = Definition(
    r"""IPO (safety, intervened preference optimization): compliance is cut off, refused, gone on from, and preferred.

    y' = y up to its first phrase of compliance + trigger + the policy's rest;   of (y, y') the better by the reward, w
    L = -log sigmoid(0.1 h) - 0.1 mean_t log pi(y_w),   h = log pi / pi_ref of w less that of the other

    Choices. From summaries; no code was found. What both answers share cancels in h, so the pair is as good as one
    from the point of divergence: h = 0.8 is a loss of 0.653947 either way; only the likelihood term sees the whole
    answer. The reward decides which is better, so name one that judges safety. Phrases and trigger are ours, in English
    (`rollout.phrases`, `rollout.insert`). Attempts without such a phrase are left out of a step that has others. The
    name is another method's: `ipo` regresses margins.
    """,
    cite="zhang2025iposafety",
    evidence="secondary",
    keys={
        "rollout": "cut_and_regenerate",
        "rollout.cut_at": "phrase",
        "rollout.phrases": [r"(?i)\b(sure|of course|certainly)\b", r"(?i)\bi (can|will|should) (help|provide|explain)"],
        "rollout.insert": "Wait. This could do harm, so I should not help with it. ",
        "rollout.keep": "pairs",
        "objective": "preference_pairs",
        "objective.pairs": "outcome",
        "objective.nll": 0.1,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="the rest of each attempt that complies",
)
