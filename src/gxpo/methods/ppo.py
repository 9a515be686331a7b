r"""PPO: dual clip, which bounds the loss at ratio_max |A| for negative advantages; objective only, no critic.

The plain PPO clip is the base's gate; there is no critic here, only the objective.
Choices. ratio_max 3.0 (absolute), as in verl and in the code of the authors' group (Tencent's Honor of Kings Arena,
which bounds the ratio of good tokens at 3 too, where the clip is tighter); the gradient is 0 where A < 0 and rho > 3.
The mean is the base's, over sequences; theirs is over frames (`objective.aggregate: token_mean`).
"""

from gxpo.algorithms.objectives import DualClip
from gxpo.parts.definition import Definition

ppo = Definition(
    name="ppo",
    doc=__doc__,
    title="Mastering Complex Control in MOBA Games with Deep Reinforcement Learning (dual clip)",
    arxiv="1912.09729",
    authors="Ye, Deheng and Liu, Zhao and Sun, Mingfei and others",
    year=2020,
    formula="A < 0: l = min(max(-A rho, -A clip(rho, 0.8, 1.2)), -A 3); A >= 0: PPO's clip",
    evidence="reference-code",
    code="tencent-ailab/hok_env@c6e0029a5e4b6e037a049804fdbe23ac74484311 aiarena/1v1/common/algorithm_torch.py",
    keys={"objective.surrogate": DualClip},
)
