"""Methods of several agents known from abstracts: taxes, hidden identities, order and visibility, trees of models."""

from gxpo.parts.definition import Definition

_AI_ECONOMIST = {"method": "grpo", "rollout": "seats", "credit.value": "return", "credit.group_by": ("agent",)}

ai_economist = Definition(
    r"""The AI Economist: workers learn under the taxes of a frozen planner, then both learn, each by its own outcome.

    worker: change of utility, u(c) - labour;   planner: change of welfare, equality times productivity
    phase 1: workers alone;   phase 2: planner and workers

    Choices. The authors' reward code was read (with eta 1 it raises a TypeError; `taxes` has log c there), not their
    training: PPO, whose taxes are annealed in the first phase; here the untrained planner sets them. Advantages are
    GRPO's of returns, each role among its own. The world is `taxes`, far smaller than theirs: stand-in.
    """,
    cite="zheng2021aieconomist",
    evidence="reconstruction",
    keys={"phases": [{**_AI_ECONOMIST, "rollout.frozen_roles": ["planner"]}, _AI_ECONOMIST]},
)

conscientia = Definition(
    r"""CONSCIENTIA: navigators and drivers with hidden identities talk; each side learns by KTO from its own outcomes.

    L = KTO's, over the texts of each side, good where its own outcome is a success

    Choices. From the abstract. The world is `directions`: a walker, and two guides of whom one lies; theirs is a map of
    New York, trained in rounds of recorded episodes, side by side; here every step is a round. Stand-in.
    """,
    cite="sinha2026conscientia",
    evidence="reconstruction",
    keys={
        "rollout": "seats",
        "objective": "preference_pairs",
        "objective.pairs": "none",
        "objective.form": "prospect",
        "objective.unpaired_against": "batch",
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)

local_opt_marl = Definition(
    r"""Multi-agent PPO by local optimisation: each agent, knowing the actions before it, steps by its own advantage.

    pi_i <- argmax_pi E[A_i(s, a_{1:i-1}, a_i)] - (1 / beta) KL(pi || pi_i);   A(s, a) = sum_i A_i telescopes

    Choices. From the abstract, a theory of softmax policies on tables. Agents act in order and read the actions before
    (`rollout.observed_roles: earlier`); A_i is the group-relative one of its role, not the localised action value, for
    which one would average over those after it.
    """,
    cite="zhao2023localopt",
    evidence="reconstruction",
    keys={
        "rollout": "seats",
        "rollout.observed_roles": "earlier",
        "objective.surrogate": "unclipped",
        "objective.add.step": "mirror_kl",
        "objective.add.step.min_step": 1.0,
        "update.epochs": 2,
    },
    cost="a call of the engine for each agent of a step of the world",
)

dpo_decentralised = Definition(
    r"""Decentralized Policy Optimization: each agent's surrogate, less the root and the value of its own step's KL.

    L_i = -mean A_i rho_i + beta_i (sqrt(KL_i) + KL_i);   beta_i doubles above the target, halves below it

    Choices. From the abstract. KL_i is the mean over the role's tokens, to the policy before the step; both terms have
    one coefficient for each role (`role_kl`, `control: per_role`), tolerance 1.5. Not Direct Preference Optimization.
    """,
    cite="su2022decentralized",
    evidence="reconstruction",
    keys={
        "rollout": "seats",
        "objective.surrogate": "unclipped",
        "objective.add.step": "role_kl",
        "objective.add.step.control": "per_role",
        "update.epochs": 4,
    },
)

bayes_net_marl = Definition(
    r"""Bayesian-network actor-critic: agents see the actions of their parents in a graph, and at the end of none.

    policy(a | s) = prod_i policy_i(a_i | s, a_{parents(i)});   A = R - mean_g R;   no edges after the last such step

    Choices. From the abstract, in which the graph is learned through a soft mask and annealed away. Here it is given:
    everybody before (`rollout.observed_roles: earlier`), or any graph without a circle (`rollout.observed_roles: {b:
    [a]}`), up to step `rollout.last_observed_step`, from which on all act at once.
    """,
    cite="chen2023bayesnet",
    evidence="reconstruction",
    keys={
        "rollout": "seats",
        "rollout.observed_roles": "earlier",
        "rollout.last_observed_step": 50,
        "rollout.reward_scope": "team",
        "credit.scale": "none",
    },
    cost="a call of the engine for each agent of a step of the world, while they see one another",
)

toa = Definition(
    r"""TOA: a tree search over which model answers or refines next makes data; the better answers are imitated.

    next = argmax mean + c sqrt(log n / n_child), new answers of each model first
    L = mean of -log policy(answer) over answers with A > 0

    Choices. From the abstract, in which a reward model scores and the data train other models. Here the task's reward
    does, and the policies themselves learn from the answers above the mean of their tree. `rollout.players` names
    several policies.
    """,
    cite="ye2024toa",
    evidence="reconstruction",
    keys={
        "rollout": "answer_tree",
        "rollout.choice": "uct",
        "objective": "positive_likelihood",
        "objective.coef": 1.0,
    },
)
