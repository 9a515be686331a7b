"""Reconstructed methods that grow groups another way: trees, plans, temperatures."""

from gxpo.parts.definition import Definition

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
        "rollout.choose": "uniform",
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
    `credit.value` see `ngrpo`. All-wrong tasks are not heated; `rollout.when: all_wrong` does that.
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
