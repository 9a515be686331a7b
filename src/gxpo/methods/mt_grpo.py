r"""MT-GRPO: turn-level advantages from tool results, added to the outcome advantage.

A_k    = A^O + A^T_k for a turn k that a result follows;   A = A^O for the last turn
A^O    = (R - mean_g) / (std_g + 1e-4);   A^T_k = (r_k - mean) / (std + 1e-4) over the group's turns of number k
r_k    = 0.2 if the tool ran + 0.5 if its result holds the answer

Choices. The paper and its code have two turns with one result between them; K turns, compared by their number, are our
extension, which is theirs for K = 2. The code weighs the turn's part (`credit.turn_weight`), the paper the outcome's;
both weights are 1. A completion without a result has A^O here and is in no statistic of turns; the code gives it the
standardised sum of both rewards, another scale in one batch, and counts its turn reward as 0. Where the first result
comes after several turns, the code gives all of them the turn's part. An answer is in a result wherever its letters
are, as in the code, also 38 in -38: `reward.step.tool_result.whole_words` asks for a word of its own. The code's loss
is a token mean, over two passes of a batch (`@paper`). Turn rewards take the place of the environment's step rewards.
On tasks of one turn this is GRPO. There is another MT-GRPO (multi-task, arXiv 2602.05547).
"""

from gxpo.algorithms.credit import Relative
from gxpo.environments.rewards.tool_result import ToolResult
from gxpo.parts.definition import Definition

mt_grpo = Definition(
    name="mt_grpo",
    doc=__doc__,
    title="Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit Assignment",
    arxiv="2505.11821",
    authors="Zeng, Siliang and Wei, Quan and Brown, William and Frunza, Oana and Nevmyvaka, Yuriy and Hong, Mingyi",
    year=2025,
    formula="A_k = (R - mean_g) / std_g + (r_k - mean) / std over turns of number k; the last turn: first part alone",
    evidence="reference-code",
    keys={
        "credit": Relative,
        "credit.eps": 1e-4,
        "credit.add.turn": Relative,
        "credit.add.turn.value": "return_before_last",
        "credit.add.turn.among": ("turn",),
        "credit.add.turn.discount": 0.0,
        "reward.step.tool_result": ToolResult,
    },
    paper_defaults={
        "rollout.group_size": 21,
        "optim.lr": 1e-6,
        "update.epochs": 2,
        "objective.aggregate": "token_mean",
    },
    code="SiliangZeng/Multi-Turn-RL-Agent@7dbdd08 verifiers/trainers/mt_grpo_env_trainer.py "
    "verifiers/trainers/grpo_env_trainer.py verifiers/rubrics/triviaqa_rubric.py verifiers/rubrics/tool_rubric.py "
    "scripts/run_mt_grpo.sh",
)
