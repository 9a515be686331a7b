r"""OPRL (iStar): implicit step rewards from an online preference-trained model, added to the outcome advantage.

r_t = beta (log phi(a_t) - log pi_old(a_t)), summed over the action's tokens; beta 0.05
A   = A^E + 1.0 A^S;   A^E = (R - mean_g) / std_g over trajectories, A^S = (r_t - mean_g) / std_g over the group's steps
phi: -log sigmoid(beta (q of the better trajectory - q of the worse)), q the mean over its steps of log phi/pi_old of
     each; a mean over all pairs, one step after every update

Choices. As in the authors' code, of whose two estimators this is istar_grpo; their scripts take istar_rloo, both parts
leave-one-out without a std and r_t over the step's largest |r|: `oprl@paper`. Rewards of a step come from phi before it
has seen that step's outcomes. Where gxpo differs. Their baseline of A^S is over the first row of each trajectory that
the batch happens to hold, and with that number of trajectories; here over all steps of the group, as their comment
says. Their pairs are successes (acc > 0) against failures, here different outcomes. Their mean over pairs and their
largest |r| are a device's, here the step's. The ratio is the token's. Their loss is a token mean with the dual clip at
3, and 0.1 is taken off both rewards of an invalid action. With phi = pi_old all step rewards are 0, and the advantage
is GRPO's. Steps of a group of equal outcomes may differ: it learns.
"""

from gxpo.algorithms.credit import Relative
from gxpo.algorithms.signals.implicit_reward import ImplicitReward
from gxpo.parts.definition import Definition

oprl = Definition(
    name="oprl",
    doc=__doc__,
    title="Agentic Reinforcement Learning with Implicit Step Rewards",
    arxiv="2509.19199",
    authors="Liu, Xiaoqian and Wang, Ke and Wu, Yuchuan and Huang, Fei and Li, Yongbin and Zhang, Junge and "
    "Jiao, Jianbin",
    year=2025,
    formula="r_t = beta log phi/pi_old; A = (R - mean_g) / std_g + (r_t - mean_g) / std_g over the group's steps",
    evidence="reference-code",
    code="Tongyi-ConvAI/Qwen-Character@1de87a220bc06fb8402c7680809f7e5e4b49f4ea CharacterRL-iStar/istar/core_istar.py "
    "CharacterRL-iStar/istar/dp_rm.py CharacterRL-iStar/istar/rm_utils.py "
    "CharacterRL-iStar/examples/istar_trainer/run_webshop.sh",
    keys={
        "credit": Relative,
        "credit.add.process": Relative,
        "credit.add.process.value": "process_reward",
        "credit.add.process.unit": "step",
        "signal.implicit_reward": ImplicitReward,
        "signal.implicit_reward.score": "mean",
        "signal.implicit_reward.alike": "pair",
    },
    paper_defaults={
        "credit.center": "leave_one_out",
        "credit.scale": "none",
        "signal.implicit_reward.scale": "largest",
        "rollout.group_size": 8,
        "tasks.per_step": 16,
        "optim.lr": 5e-7,
        "signal.implicit_reward.lr": 1e-6,
    },
    cost="a second model with an optimiser: a forward pass for the step rewards, a training step of its own",
)
