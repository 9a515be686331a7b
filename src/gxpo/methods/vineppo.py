r"""VinePPO: Monte Carlo values of reasoning steps, by continuations from each, instead of a critic.

V(s) = mean outcome of 9 continuations from s;  A_t = r_t + V(s_{t+1}) - V(s_t) for all tokens of step t,
r_t = 0 before the last step, whose V(s_{t+1}) is 0 and whose r_t the outcome;  PPO's clip, a mean over tokens.
The advantages of an attempt add up to its outcome less V(prompt).

Choices. A step is a line (`segment.text`; default changed on 2026-11-28: before, a comma ended a step, as in the
built-in arithmetic). The code also splits the long sentences of a line. V(prompt) is estimated once a group, not once
an attempt. The authors' code whitens advantages over the tokens of the batch, which their formula does not:
`credit.whiten: token`. In environments a step is a turn: `rollout.at: turn`. Their temperature, 0.6 at top_p 0.9, and
learning rate are under `vineppo@paper`, without the KL.
"""

from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.algorithms.segments import Delimiter
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.monte_carlo_values import MonteCarloValues

vineppo = Definition(
    name="vineppo",
    doc=__doc__,
    title="VinePPO: Refining Credit Assignment in RL Training of LLMs",
    arxiv="2410.01679",
    authors="Kazemnejad, Amirhossein and Aghajohari, Milad and Portelance, Eva and Sordoni, Alessandro and Reddy, Siva "
    "and Courville, Aaron and Le Roux, Nicolas",
    year=2024,
    formula="A = r + V(next step) - V(this step), V the mean outcome of 9 continuations",
    evidence="reference-code",
    keys={
        "credit": ValueDelta,
        "rollout": MonteCarloValues,
        "segment": Delimiter,
        "segment.text": "\n",
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"sampling.temperature": 0.6, "sampling.top_p": 0.9, "optim.lr": 1e-6},
    cost="9 continuations from every step of every attempt, generated and discarded",
    code="McGill-NLP/VinePPO@efe7228469f21bad8cc8d4e44a3f688ed8cc6aac "
    "src/treetune/episode_generators/math_episode_generator_with_mc_advantages.py "
    "src/treetune/trainers/ppo_trainer.py",
)
