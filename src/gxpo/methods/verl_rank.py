r"""VERL: advantage bonus by the effective rank of hidden states, its velocity and its acceleration.

ER  = exp(-sum p ln p), p = singular values of the centred states over their sum
ERV = mean over prefixes of ER_j - mean(ER_1..ER_(j-1)), every 40 tokens;   ERA = mean of its differences
dev X = (X - usual X) / |usual X|, held in [-5, 5];   beta = sigmoid(2 dev ERA)
Phi = beta tanh(dev ER) + (1 - beta) tanh(dev ERV);   A' = A + min(max(Phi, 0), |A| / 2)

Choices. Usual is an average over the steps before, begun with the first step's means (rate 0.3, as the script; yaml:
0.7); the code begins it at 0 and moves it a step late, so that all deviations of its second step are +-5. Every token
of an answer has the bonus, as the paper says; the code adds it to the last token alone (`credit.add.bonus.at: last`).
The last layer's states. Answers shorter than 80 tokens have ERV = ERA = 0. Nothing to do with the framework verl.
"""

from gxpo.algorithms.credit.bonus import Bonus
from gxpo.algorithms.signals.effective_rank import effective_rank
from gxpo.parts.definition import Definition

verl_rank = Definition(
    name="verl_rank",
    doc=__doc__,
    title="Beyond the Exploration-Exploitation Trade-off: A Hidden State Approach for LLM Reasoning in RLVR",
    arxiv="2509.23808",
    authors="Huang, Fanding and Huang, Guanbo and Fan, Xiao and He, Yi and Liang, Xiao and Chen, Xiao and "
    "Jiang, Qinting and Khan, Faisal Nadeem and Jiang, Jingyan and Wang, Zhi",
    year=2025,
    formula="A' = A + min(relu(Phi), |A| / kappa), Phi = beta tanh(dev ER) + (1 - beta) tanh(dev ERV)",
    evidence="reference-code",
    keys={
        "credit.add.bonus": Bonus,
        "credit.add.bonus.low": 0.0,
        "credit.add.bonus.kappa": 2.0,
        "signal.effective_rank": effective_rank,
    },
    cost="a forward pass for hidden states; a symmetric eigenvalue problem for every 40 tokens of an answer",
    code="hf618/VERL@3de68f16e447647d3f80d11fdbe5816137b515aa verl/trainer/reward_manager_versions.py "
    "verl/trainer/ppo/ray_trainer.py verl/trainer/metrics_utils.py train.sh",
)
