r"""SLATE: step-level groups: k candidates for each step from one prefix, each scored separately.

A_j = (r_j - mean_k r) / (std_k r + 1e-6) over the k candidates of a step, one degree of freedom (eq. 5)
the episode goes on from candidate j with probability softmax(A / eta)_j;  k = 5, eta = 0.7

Choices. Every candidate is a trajectory of one turn, and a step's are a group: advantage and objective are GRPO's. So a
step is judged by its score alone, nothing that comes later. The score is the environment's reward for the step; the
paper's judge, which gives thought, query and answer -1, 0 or 1 and early answers 0.1 more, is a function of yours:
`rollout.score: FILE.py:NAME`. Candidates count alike in the loss, whatever step they are of (eq. 7 sums over steps, the
code divides by them). No answer is forced when the turns are used up. The paper's KL coefficient: `slate@paper`. The
reference's trainer trains none of this.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.step_candidates import StepCandidates

slate = Definition(
    name="slate",
    doc=__doc__,
    title="Truncated Step-Level Sampling with Process Rewards for Retrieval-Augmented Reasoning",
    arxiv="2602.23440",
    authors="Samarinas, Chris and Chang, Haw-Shiuan and Zamani, Hamed",
    year=2026,
    formula="A_j = (r_j - mean) / (std + eps) over k candidates of a step; go on from j ~ softmax(A / 0.7)",
    evidence="reference-code",
    keys={"rollout": StepCandidates},
    paper_defaults={"objective.kl.coef": 1e-3, "optim.lr": 1e-6},
    cost="k actions a step; a score of each; the environment is restored for each candidate",
    code="algoprog/SLATE@cbab153124ea5031e3fd2129b44771346003f450 slate/training/step_level_algos.py "
    "slate/agent_loops/slate_agent_loop.py configs/slate.yaml",
)
