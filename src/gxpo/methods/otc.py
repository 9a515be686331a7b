r"""OTC: the reward of a right answer times the economy of its tool calls.

r = r_outcome sin(pi m / (m + n)), or r_outcome cos(pi m / (2 m + c)) where n = 0;   m calls, n the fewest of any right
attempt at the task so far, c 4

Choices. OTC-GRPO, eqs. 6 and 7 of the paper (arXiv 2504.14870v2) with its alpha 1; no training code is public. c is the
most calls that are allowed, 4 in its search and 3 in its code runs: `reward.shape.tool_calls.smooth`. n is remembered
over steps, as its global approximation is, in the checkpoint; it is lowered by a step's own right attempts before they
are scored: fewer calls than n would be punished else. Wrong attempts keep their reward, 0; a reward for form, which the
paper's product would scale too, is not scaled. Needs an environment that notes the calls of turns, as toolqa, or
`count: turns`.
"""

from gxpo.environments.rewards.tool_calls import ToolCalls
from gxpo.parts.definition import Definition

otc = Definition(
    name="otc",
    doc=__doc__,
    title="OTC: Optimal Tool Calls via Reinforcement Learning",
    arxiv="2504.14870",
    authors="Wang, Hongru and Qian, Cheng and Zhong, Wanjun and Chen, Xiusi and Qiu, Jiahao and Huang, Shijue and "
    "Jin, Bowen and Wang, Mengdi and Wong, Kam-Fai and Ji, Heng",
    year=2025,
    formula="r = r_outcome sin(pi m / (m + n)), or r_outcome cos(pi m / (2 m + c)) where n = 0",
    evidence="paper",
    keys={"reward.shape.tool_calls": ToolCalls, "reward.shape.tool_calls.smooth": 4.0},
)
