r"""SPA-RL: stepwise progress attribution: a learned estimator redistributes the outcome over turns; GAE.

c_t = E(hidden state at the last token of turn t),   E: minimise (sum_t c_t - R)^2 over trajectories
r_t = c_t + 0.5 [the action was carried out],   A by GAE over turns;   L = PPO's clip + 0.5 mean (V - target)^2 / 2

Choices. E is a small network on the policy's own hidden states, trained as the policy goes, on the newest attempts; the
paper's is a language model of its own, fitted before the policy is trained, and then fixed. The shares of a step are
those of E before it has seen the step's outcomes; until it has seen 128 attempts the outcome is paid at the end. At
zero loss the shares of an attempt add up to its outcome, which is not paid in addition to them. The last action counts
as carried out. discount 1 and lambda 1: over many turns the bonus outweighs the outcome, and pays for going on (at 40
turns 20 against 1); lower `credit.bonus` there. The released WebShop script pays neither: it gives every turn the
outcome less the mean of the group's others (plus the bonus), which is RLOO spread over turns; this is the paper's. Its
PPO is TRL's of the time: lambda 0.95, advantages whitened over tokens; here neither (`credit.lam`, `credit.whiten`).
"""

from gxpo.algorithms.credit.gae import Gae
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.algorithms.signals.progress_estimator import ProgressEstimator
from gxpo.parts.definition import Definition

spa_rl = Definition(
    name="spa_rl",
    doc=__doc__,
    title="SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution",
    arxiv="2505.20732",
    authors="Wang, Hanlin and Leong, Chak Tou and Wang, Jiashuo and Wang, Jian and Li, Wenjie",
    year=2025,
    formula="r_t = c_t + 0.5 grounded_t, c fitted so that sum_t c_t = R; GAE over turns",
    evidence="reference-code",
    keys={
        "credit": Gae,
        "credit.level": "turn",
        "credit.reward": "progress",
        "credit.bonus": 0.5,
        "objective.add.value": ValueRegression,
        "signal.progress_estimator": ProgressEstimator,
    },
    paper_defaults={"optim.lr": 3e-6},
    cost="forward passes for hidden states and values; a small network with its optimiser",
    code="WangHanLinHenry/SPA-RL-Agent@ed200874d726ef25d52851bd47f12f2b1408b545 prm/train_our_progress_model.py "
    "prm/rl_data_org.py ppo/step_ppotrainer.py",
)
