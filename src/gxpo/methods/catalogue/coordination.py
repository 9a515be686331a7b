"""Agents that act at once: independent and central critics, steps agent by agent, conflicts, choice of partners."""

from gxpo.parts.definition import Definition

ippo = Definition(
    r"""IPPO: every agent its own PPO on what it observes, with the team's reward; no critic that sees all.

    A_t of each agent by GAE on its own trajectory, lambda 0.95, with V of its own observations;   the team's reward
    L = PPO's clip + 0.5 mean max of the clipped and the plain value loss - 0.001 entropy, 4 passes

    Choices. From a third party's code (uoe-agents/epymarl@cbc38c09 ppo_learner.py), which has 5-step returns in the
    place of GAE. One policy and one head in all seats, and the agent's name in what it reads; heads for each role are
    `credit.roles`, with a `value_regression` of `head: ROLE` for each; policies for each are `rollout.policy:
    per_role`. The team's reward is the mean of all agents' sums, paid with the last action (`rollout.reward_scope`).
    """,
    cite="dewitt2020ippo",
    evidence="secondary",
    keys={
        "rollout": "seats",
        "rollout.reward_scope": "team",
        "credit": "gae",
        "credit.lam": 0.95,
        "objective.add.value": "value_regression",
        "objective.add.value.clip": 0.2,
        "objective.entropy.coef": 0.001,
        "update.epochs": 4,
    },
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)

maddpg = Definition(
    r"""MADDPG: actors that see their own observation, and a critic that knows all observations and the others' actions.

    A_i = r_i - b(o_1..n, a_{-i});   L = -mean A_i log policy(a_i | o_i)

    Choices. Of the method its critic is taken: b is a linear probe on the policy's hidden states, of the agent's own
    observation and of the others' observations and actions (`signal.critic: central_value`); without `acts` it is that
    of MAPPO. It leaves out the agent's own action, so it is a baseline. The continuous actions, the replay and the
    targets of the critic (polyak 0.99) have no counterpart here. The authors' policy loss adds 0.001 mean logits^2,
    which is not in the paper and not here. Stand-in.
    """,
    cite="lowe2017maddpg",
    evidence="reference-code",
    code="openai/maddpg@3ceefa0 maddpg/trainer/maddpg.py",
    keys={
        "rollout": "seats",
        "signal.critic": "central_value",
        "signal.critic.include_actions": True,
        "credit.center": "baseline",
        "credit.scale": "none",
        "objective.surrogate": "log_likelihood",
    },
    cost="a forward pass for the hidden states; a linear probe",
)

hasac = Definition(
    r"""HASAC, HAPPO's factor: agents are updated one after another; each weighs what those before it have changed.

    order at random;   M = 1;   agent k maximises M A + alpha entropy;   M <- clip(M exp(mean log pi_new / pi_old))

    Choices. From the HARL code: the sequential update with the factor of HAPPO, and HASAC's entropy for each agent. The
    product over a text's tokens explodes: M is the sequence ratio, over all that the agents before have written in the
    episode, clipped to 0.8 and 1.2. Parameters are shared unless `rollout.policy: per_role`, so an agent has moved a
    little before its turn, and pi_old is the policy at the start of the step. Soft Q functions are left out: A is
    GRPO's, of each role.
    """,
    cite="liu2023hasac",
    evidence="reference-code",
    code="PKU-MARL/HARL@d539bad2 harl/runners/on_policy_ha_runner.py",
    keys={
        "rollout": "seats",
        "update": "turns_reversed",
        "update.unit": "agent",
        "update.old_policy": "step",
        "objective.entropy.coef": 0.01,
    },
    cost="an optimiser step and a forward pass for each role",
)

parco = Definition(
    r"""PARCO: all agents act in parallel; of those that claim the same the most probable action is carried out.

    kept = argmax over the agents with one claim of policy(a);   the others stay;   A = R - mean_g R, R the team's
    L = -mean A log policy(a) over the actions that were carried out

    Choices. Authors' code, but for one thing: there the log-probs of overridden actions are trained with the reward of
    what they did not do; here they have no gradient. `rollout.conflict_rule` has its other rules (first, random,
    closest); a world says what is claimed (`claims`; cells in `paths`). Its decoder is an architecture of its own.
    """,
    cite="berto2024parco",
    evidence="reference-code",
    code="ai4co/parco@ebd0c1f6bf4c052a1961c96dc49f8d3523932d9f parco/models/agent_handlers.py",
    keys={
        "rollout": "seats",
        "rollout.conflict_rule": "priority",
        "rollout.reward_scope": "team",
        "credit.scale": "none",
        "objective.surrogate": "log_likelihood",
    },
)

casec = Definition(
    r"""CASEC: each agent sees the partners whose actions change its payoff most; few edges of the graph are kept.

    zeta_ij = max_{a_i} Var_{a_j} q_ij(a_i, a_j);   the pairs of highest zeta are edges;   i reads j's action, then acts

    Choices. Of the method its choice of edges is taken: q_ij is the mean of what both were paid in the end when they
    did a_i and a_j, over all episodes so far, by the words of the actions (`rollout.share` of the pairs, 0.1 there).
    Agents act in order, so an edge leads from earlier to later ones. Its Q-learning, max-sum and losses for sparseness
    have no counterpart here. Its worlds: `hallway` is one. Stand-in.
    """,
    cite="wang2021casec",
    evidence="reference-code",
    code="TonghanWang/CASEC-MACO-benchmark@60687c1a src/controllers/casec_controller.py src/envs/hallway.py",
    keys={
        "rollout": "seats",
        "rollout.observed_roles": "partner",
        "rollout.share": 0.1,
        "rollout.reward_scope": "team",
    },
    cost="a call of the engine for each agent of a step of the world",
)
