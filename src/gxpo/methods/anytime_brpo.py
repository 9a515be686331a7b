r"""BRPO (AnytimeReasoner): dense rewards from thinking truncated at several budgets; budget-relative baseline.

score_s = mean of the A answers after budget s;   R_s = sum_{j >= s} P_j score_j
V1_s = (sum_{j<s} 2^j score_j / sum_{j<s} 2^j) sum_{j>=s} P_j,   V2_s = group mean of R_s
A(thinking between budgets s-1 and s) = R_s - (s V1_s + (S - s) V2_s) / S
A(answer) = score - mean of the answers to its cut

Choices. No std anywhere; a thinking alone in its group has 0 (`credit.singleton: raw`: V2 = 0, the code's). A shared
token counts once (`dedup_shared_tokens`), under a constant divisor (the code: rows times the padded length of the
micro-batch). S = 4 budgets, evenly spaced; A = 4, P uniform. Answers have 8 tokens, which suits small models: set
rollout.summary_tokens.
"""

from gxpo.algorithms.credit.budget_relative import by_budgets
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.thinking_budgets import ThinkingBudgets

anytime_brpo = Definition(
    name="anytime_brpo",
    doc=__doc__,
    title="Optimizing Anytime Reasoning via Budget Relative Policy Optimization",
    arxiv="2505.13438",
    authors="Qi, Penghui and Liu, Zichen and Pang, Tianyu and Du, Chao and Lee, Wee Sun and Lin, Min",
    year=2025,
    formula="A_s = R_s - (s V1_s + (S - s) V2_s) / S; R_s = sum_{j>=s} P_j score_j; answers: score - mean of the cut",
    evidence="reference-code",
    keys={
        "rollout": ThinkingBudgets,
        "credit": by_budgets,
        "objective.aggregate": "sequence_sum",
        "objective.dedup_shared_tokens": True,
    },
    cost="S A answers a thinking, each a short continuation of a shared prefix",
    code="sail-sg/AnytimeReasoner@7e3f5bb3e0617dbc8c3c522937bab1974b444982 verl/verl/trainer/ppo/brpo.py "
    "verl/verl/trainer/ppo/core_algos.py run_experiments.sh",
)
