r"""ARPO (of GUI agents): in a group without a success a stored success of the task takes the place of one attempt.

B_q: the newest 8 successes of task q. All of q's group failed and B_q is not empty: one of B_q, at random, for one row.
r = verdict + 0.5 format; A, L as in GRPO, clip 0.2 / 0.3, no KL. Verdicts 0, formats 1 1 0 1 1 1 1 0 (eps 1e-6):
A = .540059 x 6, -1.620178 x 2 without replay, 2.160242, 0, -1.080121, 0, 0, 0, 0, -1.080121 with it

Choices. The code's `enable_replay` is read nowhere: replay is always on. It recomputes log-probs of what it replays, so
that a ratio of 1 hides how old it is; here the ratio is over the log-probs of its time. Its test for a dead group is a
std of the verdicts below 0.05 and a mean below 0.2, before the format reward is added; here no verdict is a success. It
replaces the first row, here the last that failed. No dual clip (code: 3). Tasks were chosen beforehand by the base
model's success, for which there is `gxpo filter-tasks`; 0.5 format is `scoring.weights`. It shares its name with
another, `arpo_agentic`.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.again import Again

arpo_gui = Definition(
    name="arpo_gui",
    doc=__doc__,
    title="ARPO: End-to-End Policy Optimization for GUI Agents with Experience Replay",
    arxiv="2505.16282",
    authors="Lu, Fanbin and Zhong, Zhisheng and Liu, Shu and Fu, Chi-Wing and Jia, Jiaya",
    year=2025,
    formula="all failed: a stored success of the task for one row; A = GRPO's of verdict + 0.5 format; clip 0.2 / 0.3",
    evidence="reference-code",
    keys={
        "rollout": Again,
        "rollout.how": "once",
        "rollout.reuse": True,
        "rollout.coef": 1.0,
        "objective.clip_high": 0.3,
        "objective.aggregate": "token_mean",
        "objective.ratio_over": "behaviour",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6, "env.max_turns": 15},
    cost="about 70 bytes of memory for every stored token; pays only where tasks come round again",
    code="dvlab-research/ARPO@7489ae309e90d8b3b9e823f495b63e5116434060 verl/trainer/ray_trainer.py "
    "verl/trainer/replay_buffer.py",
)
