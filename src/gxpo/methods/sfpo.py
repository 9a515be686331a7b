r"""SFPO: slow-fast updates: K fast steps on one batch, interpolation back to the start, one slow correction.

theta_K = K steps from theta_0;  theta~ = theta_0 + alpha (theta_K - theta_0);  theta_new = one step from theta~.
K = 3, alpha = 0.8. Once the entropy of a step is one standard deviation above the mean of its window of 30 steps, every
later step is one plain step.

Choices. As in the reference: the rise alone counts (not |z|), with the population std of a window that holds the newest
entropy; entropy is that of the correction; Adam's moments are not pulled back. Every step is on the whole batch, where
the reference's can be a pass of minibatches. `update.alpha` was 0.9 for Qwen3-4B.
"""

from gxpo.learning.slow_fast import SlowFast
from gxpo.parts.definition import Definition

sfpo = Definition(
    name="sfpo",
    doc=__doc__,
    title="Slow-Fast Policy Optimization: Reposition-Before-Update for LLM Reasoning",
    arxiv="2510.04072",
    authors="Wang, Ziyan and Wang, Zheng and Qu, Xingwei and Cheng, Qi and Fu, Jie and Tang, Shengpu and Zhang, Minjia "
    "and Huo, Xiaoming",
    year=2025,
    formula="theta~ = theta_0 + 0.8 (theta_3 - theta_0); theta_new = theta~ - lr grad L(theta~)",
    evidence="reference-code",
    keys={"update": SlowFast},
    cost="4 updates a step, and a copy of the parameters",
    code="Urheen/SFPO@e7b765e6bfa2e12baf95315471a1ea0f3d1210e4 Code/SFPO/verl/workers/fsdp_workers.py "
    "Code/SFPO/verl/trainer/ppo/ray_trainer.py",
)
