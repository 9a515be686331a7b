r"""OPRL (iStar): step rewards from a second model, trained as the policy goes to prefer its better trajectories.

r_t = beta (log phi(a_t) - log pi_old(a_t)), summed over the action's tokens; beta 0.05
A   = A^E + 1.0 A^S;   A^E = (R - mean_g) / std_g over trajectories, A^S = (r_t - mean_g) / std_g over the group's steps
phi: -log sigmoid(beta (log phi/pi_old of the better trajectory - that of the worse)), one step after every update

Choices. Our source is a summary; beta and the weight of A^S are recollections, not verified. Where it is open: all
pairs of different outcomes of a group are preferences, each group counting the same, and the rewards of a step come
from phi before it has seen that step's outcomes. The ratio is the step's, as in the summary, here the geometric mean
over the step's tokens (`objective.ratio: token` for the usual one). With phi = pi_old all step rewards are 0, and the
credit is GRPO's. Steps of a group of equal outcomes may differ: it learns.
"""

from gxpo.credit.step_reward import StepReward
from gxpo.keys import Definition
from gxpo.signals.implicit_reward import ImplicitReward

oprl = Definition(
    name="oprl",
    title="Agentic Reinforcement Learning with Implicit Step Rewards",
    arxiv="2509.19199",
    authors="Liu, Xiaoqian and Wang, Ke and Wu, Yuchuan and Huang, Fei and Li, Yongbin and Zhang, Junge and "
    "Jiao, Jianbin",
    year=2025,
    idea="a model trained to prefer the better trajectories rewards each step by how much likelier it finds it",
    formula="r_t = beta log phi/pi_old; A = (R - mean_g) / std_g + (r_t - mean_g) / std_g over the group's steps",
    evidence="secondary",
    keys={"credit": StepReward, "signal.implicit_reward": ImplicitReward, "objective.ratio": "turn"},
    choices="the step's ratio as a geometric mean; all pairs of a group; beta 0.05 and weight 1 unverified",
    cost="a second model with an optimiser: a forward pass for the step rewards, a training step of its own",
)
