"""Reconstructed methods that change what is sampled: rollouts, the tasks that are drawn, and phases of a run."""

from gxpo.parts.definition import Definition

# rollouts
portool = Definition(
    r"""PORTool: tree rollouts over tool calls; step advantages among siblings of a fork.

    R(s)   = mean over the attempts i through step s of gamma^(T_i - t) R_i + well_formed,  gamma 0.95,
      t the step's turn
    A(s,i) = w_1 (R_i - mean_g) / std_g + w_2 (R(s) - mean_fork) / std_fork,  w_1 = w_2 = 1
    n first steps; after each turn f forks of every open attempt, of which n less those that are over go on.

    Choices. From summaries; there is no code. f = 2 and equal weights are guesses; the n that go on are drawn
    uniformly. What of a step is well formed pays 0: its size is not known (`credit.well_formed`). The decay counts from
    the attempt's end (`credit.discount_from: begin` from its beginning): the summaries leave it open. The n first steps
    are no fork, so that without forks this is GRPO (`credit.first_steps: true` compares them).
    """,
    cite="wu2025portool",
    evidence="reconstruction",
    keys={
        "credit": "fork_relative",
        "rollout": "turn_branches",
        "rollout.next_steps": "uniform",
        "rollout.initial": "all",
        "rollout.group_size": 8,
    },
    cost="the turns of open attempts that are not chosen; the environment is restored for every fork",
)

mbma = Definition(
    r"""MBMA (mostly ours): many actions per state: at some several are drawn, and each is compared with the state's
    value.

    A(a) = V(s after a) - V(s), V the mean outcome of the leaves below;  4 actions at each of 2 points of a tree

    Choices. The paper's actions beyond the first are played in a learnt dynamics model, with a critic at the end; texts
    have no such model, and answers can be gone on with: these are branches of a tree, played to the end by the policy
    itself, all of them trained. The model-free half alone: a stand-in. Its condition says when that pays: against as
    many tokens spent on more states (`rollout.branches` against `rollout.trees`); in a bandit, a prompt with one
    action, it never does at equal cost.
    """,
    cite="nauman2023mbma",
    evidence="reconstruction",
    keys={"credit": "node_value", "credit.form": "edge", "rollout": "tree", "rollout.branches": 3},
    cost="14 leaves a prompt, their prefixes shared; a sampling call for every prefix length",
)

hi_agent = Definition(
    r"""Hi-Agent (mostly ours): hierarchical planner and executor, both trained by single-step GRPO at an expert's
    states.

    high  G sub-goals g_i at a state, an action a_i ~ pi_low(s, g_i) under each:
          r_i = l1 format_i + l2 [a_i led where the expert's action leads] + l3 r_env;  A_i = z over the G, on g_i only
    low   N actions under one sub-goal of that state: r = l1 format + l2 [as above];
      A = z over the N, on the actions only

    Choices. From the abstract, public reviews and general knowledge: no code was read. States are an expert's, as
    there. l = 0.1, 1, 1, G = N = 8 and the low group under the first sub-goal are ours, and so is that both levels
    learn in every step. Reviewers call it two independent GRPOs of single steps, which is what it is: no credit goes
    from step to step. The paper trains two models: `rollout.policy: per_role` gives each role an adapter of its own.
    """,
    cite="wu2025hiagent",
    evidence="reconstruction",
    keys={"rollout": "subgoal_steps", "reward.shape.noted": "shape", "reward.shape.noted.function": "noted"},
    cost="two short samples for each of G sub-goals and one for each of N actions; needs an expert",
)

erpo = Definition(
    r"""ERPO (mostly ours): tasks that came out all right are sampled hotter next time, and a virtual failure joins
    them.

    T_q = min(T_0 + c_q 0.05, 1.2), c_q the visits in a row at which all of q's group was right
    all right: A = (r - mean+) / (std+ + eps), mean+ and std+ over r_1 ... r_G and a virtual 0; else A as in GRPO

    Choices. Only the abstract and summaries were read; the repository that it names could not be had. It says that
    history and temperature go by prompt, and that ERPO builds on a plain reactivation of such groups, RA; the virtual 0
    is our reading of RA, G = 4 all right have A = 0.447213. Step 0.05, most 1.2 and the reset of c_q (`rollout.reset`)
    are ours. A row is read and trained at the temperature that it was sampled at: at T = 1 its ratio would not begin at
    1. With the virtual failure every all-right group pushes up all that it said; `credit.groups: all` and other
    `credit.value` see `ngrpo`. All-wrong tasks are not heated; `rollout.groups: all_wrong` does that.
    """,
    cite="liu2025erpo",
    evidence="reconstruction",
    keys={
        "rollout": "task_temperature",
        "credit": "pseudo_rollouts",
        "credit.value": 0.0,
        "credit.groups": "all_right",
    },
    cost="a number for each task; pays only where tasks come round again",
)

# tasks that are drawn
craft_gui = Definition(
    r"""CRAFT-GUI (mostly ours): curriculum by level: the first one not mastered, with a fifth of the draws over all
    levels.

    P(level) = 1/5 / levels + 4/5 [level = l],  l the first whose newest 3 success rates have a mean below 0.7;
      A: GRPO's

    Choices. From the abstract and a summary: levels are lengths of trajectories, and the mix moves on. The threshold,
    the 3 visits and the fifth are ours (`tasks.sampler.mastery_rate`, `window`, `uniform`). Levels are a column of the
    tasks called "level" (`tasks.sampler.key`), or an option of a source that generates them, with
    `tasks.sampler.levels`. Of `task: buttons` with `tasks.options.pool` they are the numbers of actions asked for. Its
    reward of rules and a judge is the task's: `scoring.weights`. Stand-in: toy screens, where the level is exact; the
    paper's are lengths of recorded ways.
    """,
    cite="nong2025craftgui",
    evidence="reconstruction",
    keys={"tasks.sampler": "first_unmastered", "tasks.sampler.key": "level", "tasks.sampler.uniform_share": 0.2},
    cost="none in samples; a few numbers a level in the checkpoint; only where tasks have levels",
)

videorl_select = Definition(
    r"""Temporal-RLT (mostly ours): data selection: tasks whose repeated answers are neither all wrong nor all right
    stay.

    tasks of epoch 2 and later = those with 0.1 <= p <= 0.9 in what was seen of them, 0.25 being the largest p (1 - p)

    Choices. The paper selects before training, by repeated inference; its release (appletea233/Temporal-R1) has no
    selection, and its threshold is not known to us. The first epoch of training takes the place of that inference;
    `gxpo filter-tasks` does it before, and writes a file. Its temporal IoU reward is user code; no video: a stand-in on
    tasks of text.
    """,
    cite="li2025videorlselect",
    evidence="reconstruction",
    keys={"tasks.sampler": "band", "tasks.sampler.epochs": True, "tasks.sampler.prior": 0.0},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)

favchat_degrpo = Definition(
    r"""DE-GRPO (FaVChat; mostly ours): tasks drawn by how far the rewards and the likelihoods of their answers differ.

    P(q) ~ std of the outcomes of q's group * std of its answers' mean log-probs, discounted over visits;  A as in GRPO

    Choices. Not the released gate, which multiplies A by tanh(delta (mean gap - baseline)): its utility, a geometric
    mean over pairs, is near 0 wherever two rewards are equal, so delta and nearly all advantages are 0, and where it is
    on, a gap below the baseline turns their sign round (see docs/errata/methods.md). What is left is its measure of a
    task, as a chance to be drawn. A task that was not seen counts as the largest known. Video is not part of this: a
    stand-in on tasks of text.
    """,
    cite="zhao2025favchatdegrpo",
    evidence="reconstruction",
    keys={"tasks.sampler": "disagreement", "tasks.sampler.uniform_share": 0.1},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)

# phases of a run
mixed_po = Definition(
    r"""Mixed PO (MPO): DPO on pairs far apart in reward, then online RL with the policy that DPO has made as reference.

    phase 1: L_DPO over pairs with r_w - r_l >= tau;   phase 2: GRPO - beta KL(pi || pi_1),
      pi_1 the policy after phase 1

    Choices. No code was found. The paper splits a data set of pairs by the gap of a reward model; here pairs are of the
    step's own rollouts (`rollout: logged` reads a data set) and tau is `objective.min_gap`: with verdicts every pair
    is 1 apart. The paper's second stage is PPO on the prompts of close pairs; here it is GRPO on the run's tasks
    (`tasks.sampler: hardest` prefers the hard ones of a data file). Both phases share `trainer.steps` equally.
    """,
    cite="gou2024mixedpo",
    evidence="reconstruction",
    keys={
        "phases": [
            {"method": "dpo", "objective.pairs": "outcome", "objective.min_gap": 0.5},
            {"method": "grpo", "reference": "previous", "objective.kl.coef": 0.05},
        ]
    },
    cost="a frozen copy of the policy, made anew at the boundary",
)

_VERIPO_PAIRS = {"rollout": "logged", "rollout.file": "previous", "reference": "previous"}

veripo = Definition(
    r"""VerIPO (mostly ours): GRPO, then DPO on pairs that a verifier makes of GRPO's own rollouts, in turns.

    repeat: GRPO for n steps;   pairs (right, wrong) of these steps' groups;   DPO on them against the policy after GRPO

    Choices. The authors have released no training code. Their verifier asks small models whether an answer's reasoning
    is consistent with it and prefers long ones among these; here the run's verdict makes the pairs (a judge as a
    reward, and `objective.pairs: outcome`, is its place). DPO reads what the phase before has sampled (`rollout.file:
    previous`), so that it costs no sampling. Two turns; the four phases share `trainer.steps` equally.
    """,
    cite="li2025veripo",
    evidence="reconstruction",
    keys={
        "phases": [{"repeat": 2, "phases": [{"method": "grpo"}, {"method": "dpo", **_VERIPO_PAIRS}]}],
        "trainer.rollouts_every": 1,
    },
    cost="a frozen copy of the policy; the rollouts of every step on the disk",
)

_BFS_PROVER_V2_IMITATE = {"method": "grpo", "objective": "positive_likelihood", "objective.coef": 1.0}
_BFS_PROVER_V2_POOL = {"rollout": "logged", "rollout.file": "earlier", "weights": "reset"}

bfs_prover_v2 = Definition(
    r"""BFS-Prover-V2 (its training; mostly ours): expert iteration, and the base model retrained on what all rounds
    found.

    repeat: imitate the step's own right attempts;   then, from the base model: imitate all right attempts so far

    Choices. The training is not released, and nothing of the prover (Lean, best-first search, planner) is here: a
    stand-in for the schedule. An attempt is imitated where it is right and others of its group are not, which filters
    what is too easy (the paper filters tactics by perplexity: `weight.NAME: token_weight`). The second phase starts
    from the weights that the run began with (`weights: reset`) and reads the rollouts of the phases that sample
    (`rollout.file: earlier`).
    """,
    cite="xin2025bfsproverv2",
    evidence="reconstruction",
    keys={
        "phases": [
            {"repeat": 2, "phases": [_BFS_PROVER_V2_IMITATE, {**_BFS_PROVER_V2_IMITATE, **_BFS_PROVER_V2_POOL}]}
        ],
        "trainer.rollouts_every": 1,
    },
    cost="the rollouts of every step on the disk",
)

# repair at the first error
glore = Definition(
    r"""GLoRe, its local half: find the first step that no continuation can save, and imitate the repair.

    label of the first i steps = 1 if any of 8 continuations of them is right; a 1 makes all labels before it 1
    the failed attempt is cut before the first step with label 0 and goes on from there
    L = mean over tokens with A > 0 of -log policy;   A as in GRPO over the group with its repaired members

    Choices. From reading notes of the paper; there is no code. There a stepwise outcome model (SORM) is trained on
    these labels and a refiner on pairs of a wrong prefix, marked [BAD], and a right continuation; here the labels
    themselves say when (the attempt failed) and where, and the policy imitates the right continuation under the plain
    prompt, as any right attempt whose group has wrong ones. A label is of the best that the policy could do, not of its
    average: a prefix that succeeds once in ten has label 1 with probability .57. Left out: the global refiner, which
    rewrites a draft as a whole (`igrpo` trains one), and the choice among draft, local and global rewrite by an outcome
    model at inference.
    """,
    cite="havrilla2024glore",
    evidence="reconstruction",
    keys={
        "rollout": "cut_and_regenerate",
        "rollout.cut_at": "continuations",
        "rollout.keep": "right",
        "objective": "positive_likelihood",
        "objective.coef": 1.0,
    },
    cost="8 continuations after each step of a failed attempt",
)

scope = Definition(
    r"""SCOPE: keep the steps of a failed attempt before its first error, and have a teacher write the rest.

    k = first step with u_k < 0.5, u a process reward model's scores;  y' = y_{<k} + teacher's rest, in y's place if
      right;   A as in GRPO over the group with its repaired members
    own tokens:  the base's clipped ratio;   teacher's tokens:  l = -A f(pi), f(x) = x / (x + 0.1)

    Choices. From the abstract and a summary; no code was found. The threshold is ours, and so is the weight of the
    teacher's tokens, LUFFY's: with k = 1 a repair is a whole answer of the teacher. All failed attempts are tried
    (`rollout.cut`), and one stays as it was where the repair is wrong or too long. Scorer and teacher are settings,
    functions of yours: `rollout.score=prm.py:score` as for `signal.step_judge`, and `rollout.writer=teacher.py:rest`,
    which gets the task and the text before the cut. Steps end with `rollout.delimiter`.
    """,
    cite="ren2026scope",
    evidence="reconstruction",
    keys={
        "rollout": "cut_and_regenerate",
        "rollout.cut_at": "judge",
        "rollout.cut": "failed",
        "rollout.keep": "right",
        "rollout.writer": "teacher",
        "objective.on_unknown_behaviour": "shaped",
    },
    refuses={"objective.ratio": ("sequence",)},
    cost="scores of a failed attempt's steps and the rest of its answer, by models of your choice",
)

# critics and other writers whose reader is frozen
refcritic = Definition(
    r"""RefCritic: train a critic by its verdict and by what a frozen solver makes of its critique.

    R = [verdict on the attempt right] * mean_m [refinement m right];   A, L as in GRPO over critiques of one attempt

    Choices. From the abstract, which names both rewards and not how they are joined: a product, so that neither a
    right verdict without help nor help behind a wrong verdict pays. The sum that pays repairs of attempts rightly
    called wrong, [verdict right] (1 + mean_m [refinement m right] [attempt wrong]), is `reward.shape.critique.pays:
    repair` with `reward.shape.critique.bonus: 1`. 4 refinements are ours. A critic can tell the answer instead of
    what is wrong. Voting among attempts that the critic accepts is inference and left out.
    """,
    cite="tang2025refcritic",
    evidence="reconstruction",
    keys={
        "rollout": "critique",
        "reward.shape.critique": "shape",
        "reward.shape.critique.function": "critique_reward",
    },
    cost="an attempt of the solver for each group, and `refinements` for each critique; adapters (learner.lora_rank)",
)

sentinel = Definition(
    r"""Sentinel (mostly ours): train a writer of short prefixes under which a frozen model's answer passes a judge.

    R = safe (1 - 0.1 len / 30), len the tokens of the prefix;   A, L as in GRPO over prefixes of one prompt

    Choices. From the abstract: prefixes of fewer than 30 tokens, a target that stays as it is. The price and the
    product are ours. `safe` is the task's reward of the target's answer, so a judge of safety is yours to name
    (`scoring.options.judge`); the reader is the model that the run starts from. The paper trains an adversary that
    writes the prompts, in turns, with PPO and a shared value head; neither is built.
    """,
    cite="liu2024sentinel",
    evidence="reconstruction",
    keys={
        "rollout": "critique",
        "rollout.roles": ["sentinel", "target"],
        "rollout.attempts": 0,
        "rollout.refinements": 1,
        "rollout.template": "{prompt}",
        "rollout.refine_template": "{critique}\n{prompt}",
        "reward.shape.price": "shape",
        "reward.shape.price.function": "priced_length",
    },
    cost="an answer of the frozen model for each prefix; adapters (learner.lora_rank)",
)

# repairs that are compared
fate = Definition(
    r"""FATE (mostly ours): the policy repairs its failures, and what no other attempt dominates is preferred.

    y' ~ pi(. | q, failed y);   w: not dominated in (safe, useful) by any of the group, l: dominated
    L = mean over pairs (w, l) of a group of -log sigmoid(0.1 h),   h = log pi / pi_ref of w less that of l, under q

    Choices. From the abstract. Of (1, .2), (.6, .9), (.5, .5), (1, .1) the first two are the front. G repairs, all of
    the newest failure, are compared with all first attempts; there verifiers also say what was wrong, and filter for
    over-refusal and for form: put what they say into `rollout.templates`, and add components. Its optimiser (PFPO:
    supervised warm-up, then Pareto-aware steps) is a preference loss here. "safe" and "useful" are components of your
    reward, of which `success` says what a failure is (`reward.shape.front.components`). Stand-in: no agent's tools.
    """,
    cite="yin2026fate",
    evidence="reconstruction",
    keys={
        "rollout": "retry",
        "rollout.retry_if": "always",
        "rollout.retry_with": "next_prompt",
        "rollout.templates": ("{prompt}\n\nThis answer failed:\n{attempt}\n\nRepair it from its first mistake on.\n",),
        "rollout.keep": "everything",
        "reward.shape.front": "shape",
        "reward.shape.front.function": "pareto_front",
        "objective": "preference_pairs",
        "objective.pairs": "outcome",
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a repair for each attempt of a group with a failure",
)
