r"""RePO: replay-enhanced GRPO: a group of replayed rollouts of each prompt in addition to the fresh group.

B_q: the newest 16 rollouts of task q with the log-probs that they were sampled with. From 16 stored on, K = 8 of them
are drawn each time q is sampled.
A_i = GRPO's, over the G fresh rows and over the K replayed rows separately ("split")
L   = mean over all rows of c_i mean_t max(-A rho, -A clip(rho, 0.8, 1.2)), c = 1 for fresh rows and `rollout.coef` for
      replayed ones; rho over the behaviour policy

Choices. The paper has a mean over the G fresh rows plus a mean over the K replayed ones. The reference divides both
sums by all rows, so that replay takes weight from the fresh rows (their loss is G / (G + K) of GRPO's where every task
has replays); so does this. Fresh rows, too, have the sampler's log-probs in the ratio, which differ from the learner's
by rounding, so their first ratio is 1 to about 1e-6 and not exactly. The reference selects by the unweighted sum of its
reward functions; here the outcome decides, in the task's own weights and before any shaping. Of equal outcomes the
newest is replayed. With `objective.kl.coef` the KL is taken on replayed rows as well (reference: fresh rows only). A
task without enough stored rollouts has no replayed rows. "highest" soon finds groups that are right throughout and
teach nothing: `rollout.choice: max_variance` does not.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.replay import Replay

repo_replay = Definition(
    name="repo_replay",
    doc=__doc__,
    title="RePO: Replay-Enhanced Policy Optimization",
    arxiv="2506.09340",
    authors="Li, Siheng and Zhou, Zhanhui and Lam, Wai and Yang, Chao and Lu, Chaochao",
    year=2025,
    formula="L = mean over G + K rows of c_i mean_t max(-A rho, -A clip(rho)), A over fresh and replayed rows apart",
    evidence="reference-code",
    keys={"rollout": Replay, "objective.ratio_over": "behaviour"},
    paper_defaults={"credit.eps": 1e-4, "sampling.top_k": 50, "optim.lr": 1e-6},
    cost="K more trajectories a task in the update; about 70 bytes of memory for every stored token",
    code="SihengLi99/RePO@119fef699104b52adf915ca630b8b03400b0e0ea src/replay_grpo_trainer.py "
    "scripts/train_replay_grpo.slurm",
)
