"""Methods for teams known from abstracts: teams that a policy builds, judges of each agent's turns."""

from gxpo.parts.definition import Definition

mashost = Definition(
    r"""MasHost (mostly ours): the policy decides whom to add to its team, and pays for each after the first.

    A = (R - mean_G R) / (std_G R + eps) + s,   s = -0.1 for each helper beyond the first, on the turn that called it

    Choices. No code was found; from the abstract and summaries: a policy builds a graph of agents and edges, with an
    advantage of the group and a term of each step. Here an agent is added by calling it (`Call`), and its edge is the
    request and the reply; nobody is taken out again, and there is no term for how sensible a role is. Exemption and
    price are ours.
    """,
    cite="yang2025mashost",
    evidence="reconstruction",
    keys={
        "rollout": "team",
        "rollout.graph": "searching",
        "reward.step.price": "turn_utility",
        "reward.step.price.function": "call_price",
        "credit.add.steps": "relative",
        "credit.add.steps.value": "return",
        "credit.add.steps.discount": 0.0,
        "credit.add.steps.unit": "step",
        "credit.add.steps.center": "none",
        "credit.add.steps.scale": "none",
    },
    cost="the helpers' turns",
)

collab_ui = Definition(
    r"""CollabUIAgents: a judge scores every agent at every step, and its scores take the outcome's place.

    s_it in [0, 1]: the judge's score of agent i's turn t;   A = (s - mean) / (std + eps) over the agent's t-th turns
    L as in GRPO

    Choices. The training is not released; the authors' data has the critic's prompt, which asks for a score of each
    agent at each step, 0.5 where it is unsure. There preferences made of the scores, with an adversary's actions as the
    worse ones, train by DPO, and edges of the graph are perturbed; here the scores are compared directly. The judge is
    `signal.step_judge` (`function`, `score` or `server`). The task's outcome is not used: it is the judge's to weigh.
    """,
    cite="he2025collabui",
    evidence="reconstruction",
    keys={
        "rollout": "team",
        "signal.step_judge": "step_judge",
        "credit.value": "step_score",
        "credit.group_by": ("agent", "step_info.call"),
        "credit.unit": "step",
    },
    cost="a judge's answer for each attempt",
)

lca = Definition(
    r"""LCA: a judge's scores of each agent's situation as a potential: what changes it from turn to turn is added.

    F = 0.99 phi(the agent's next turn) - phi(this turn);   A = (R - mean_G R) / (std_G R + eps) + F

    Choices. From the abstract. There a language model ranks pairs of states for each agent, and phi is fitted to the
    rankings of many queries (Bradley-Terry); here phi is the score that the judge gives the turn (`signal.step_judge`),
    asked once: contradictions are not averaged away unless `critiques` are. An agent's last turn has no F. Added to the
    advantage rather than the reward: F is not compared within the group.
    """,
    cite="lin2025lca",
    evidence="reconstruction",
    keys={
        "rollout": "team",
        "signal.step_judge": "step_judge",
        "credit.add.potential": "relative",
        "credit.add.potential.value": "potential_change",
        "credit.add.potential.unit": "step",
        "credit.add.potential.center": "none",
        "credit.add.potential.scale": "none",
    },
    cost="a judge's answer for each attempt",
)
