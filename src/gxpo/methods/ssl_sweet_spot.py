r"""SSL (mostly ours): tiered progress rewards in addition to the verdict, with growing steps (sweet-spot learning).

R = C + alpha S;   C = 1 if solved, else 0;   S = v_k for progress s in [t_k, t_{k+1}), 0 = v_0 < v_1 < ... < 1, steps
never shrink;   A: GRPO's

Choices. Reconstructed from the abstract, summaries and a review, which has C + alpha S, so that solved attempts differ
by their tiers too (`reward.shape.tiered.solved: flat` pays each 1). Four zones, for matching tasks by quartiles (t =
1/4, 1/2, 3/4); their values and alpha are not known to us, so v = 0.1, 0.25, 0.5 and alpha 1. Progress is component
"progress" of your reward (weight 0): the share of steps that are right, or how near a click is. Without one the method
is refused. Other names: `reward.shape.tiered.component`.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

ssl_sweet_spot = Definition(
    name="ssl_sweet_spot",
    doc=__doc__,
    title="SSL: Sweet Spot Learning for Differentiated Guidance in Agentic Optimization",
    arxiv="2601.22491",
    authors="Wu, Jinyang and Yang, Changpeng and Shen, Yuhao and Xu, Fangzhi and Ni, Bolin and Liao, Chonghua and "
    "Liu, Yuchen and Wang, Hongzhen and Nie, Shuai and Zhang, Shuai and Luo, Haoran and Xu, Jiaming",
    year=2026,
    formula="R = [solved] + alpha v_k, s in [t_k, t_{k+1}), v_{k+1} - v_k not shrinking; A as GRPO",
    evidence="reconstruction",
    keys={"reward.shape.tiered": Shape, "reward.shape.tiered.function": "tiered"},
)
