r"""RiskPO: risk-sensitive advantages (CVaR and RVaR of the lower tail) over bundles of prompts.

S_j = sum of the j-th attempts at the 5 tasks of a bundle;   q_a, q_b tracked quantiles of S, a = 0.2, b = 0.9
A_S = (1.5 CVaR / a + RVaR / (b - a)) / 2.5 / std S,   CVaR = -(q_a - S)+, RVaR = (S - q_a)+ - (S - q_b)+ - (q_b - q_a)
A_i = A_S / std_g r;   q <- q + 0.1 (level - share of S below q)

Choices. Those of the script for MATH: with the term q_b - q_a no advantage is positive, all is learned from failures.
The script for DAPO-Math has b = 0.8 and leaves that term out (`credit.zero: low`), and shares A_S by r - mean_g r (not
built: the shares have a pole). Quantiles are tracked as the paper says; in the code they are noted on a batch whose
advantages have been taken, and the next step's batch is a new one. A std of 0 counts as 1 (code: 1e-6). Bundles are
consecutive groups; a remainder makes some bundles larger. The scripts leave verl's loss as it is: a mean over tokens
(`riskpo@paper`) with a dual clip at 3 (`objective.surrogate: dual_clip`).
"""

from gxpo.algorithms.credit.risk_bundle import RiskBundle
from gxpo.parts.definition import Definition

riskpo = Definition(
    name="riskpo",
    doc=__doc__,
    title="RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training",
    arxiv="2510.00911",
    authors="Ren, Tao and Jiang, Jinyang and Yang, Hui and others",
    year=2025,
    formula="A = (1.5 CVaR_a(S) / a + RVaR_ab(S) / (b - a)) / 2.5 / (std S std_g r), S summed over a bundle",
    evidence="reference-code",
    code="RTkenny/RiskPO@65ec40c935f5726aa2d80160d9056b1236d5551e verl/trainer/ppo/core_algos.py "
    "verl/trainer/ppo/ray_trainer.py scripts/run_qwen2.5_1.5b_MVaR_math.sh",
    keys={"credit": RiskBundle},
    paper_defaults={
        "objective.aggregate": "token_mean",
        "rollout.group_size": 5,
        "tasks.per_step": 1024,
        "update.minibatches": 2,
        "optim.lr": 1e-6,
    },
)
