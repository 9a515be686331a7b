r"""BFS-Prover-V2 (its training; mostly ours): expert iteration, and the base model retrained on what all rounds found.

repeat: imitate the step's own right attempts;   then, from the base model: imitate all right attempts so far

Choices. The training is not released, and nothing of the prover (Lean, best-first search, planner) is here: a stand-in
for the schedule. An attempt is imitated where it is right and others of its group are not, which filters what is too
easy (the paper filters tactics by perplexity: `weight.NAME: token_weight`). The second phase starts from the weights
that the run began with (`weights: reset`) and reads the rollouts of the phases that sample (`rollout.file: earlier`).
"""

from gxpo.parts.definition import Definition

_IMITATE = {"method": "grpo", "objective": "positive_likelihood", "objective.coef": 1.0}
_POOL = {"rollout": "logged", "rollout.file": "earlier", "weights": "reset"}

bfs_prover_v2 = Definition(
    name="bfs_prover_v2",
    doc=__doc__,
    title="Scaling up Multi-Turn Off-Policy RL and Multi-Agent Tree Search for LLM Step-Provers",
    arxiv="2509.06493",
    authors="Xin, Ran and Zheng, Zeyu and Nie, Yanchen and Yuan, Kun and Xiao, Xia",
    year=2025,
    formula="(-log pi of right attempts, then the same from the base model over all rounds) x 2",
    evidence="reconstruction",
    keys={
        "phases": [{"repeat": 2, "phases": [_IMITATE, {**_IMITATE, **_POOL}]}],
        "trainer.rollouts_every": 1,
    },
    cost="the rollouts of every step on the disk",
)
