r"""HDPO: tool economy as a channel of its own, compared among right attempts alone.

A = z_g(r_outcome) + 0.15 z_{g, right}(1 / (T + 1));   T calls, z over the group, or over its right members (0 for the
others, and where a single one is right)

Choices. As the code: any right attempt qualifies, also one without calls (a docstring asks for a call); eps 1e-6. Other
components of the reward have weight 1, each normalised by itself; the code weighs answer .9 and format .1 in one. The
code adds two clipped losses, the second as a mean over qualifying attempts, which weighs their economy more where few
qualify; here the two advantages are added in one loss. The metric `reward_mean` is of outcomes, in which 1 / (T + 1)
has weight 1: its 0.15 is the advantage's (`credit.weights`). Needs a world whose turns note calls: toolqa, zoom.
"""

from gxpo.algorithms.credit.decoupled import decoupled
from gxpo.environments.rewards.tool_calls import ToolCalls
from gxpo.parts.definition import Definition

hdpo = Definition(
    name="hdpo",
    doc=__doc__,
    title="Act Wisely: Cultivating Meta-Cognitive Tool Use in Agentic Multimodal Models",
    arxiv="2604.08545",
    authors="Yan, Shilin and Tong, Jintao and Xue, Hongwei and Tang, Xiaojun and Wang, Yangyang and Shi, Kunyu and "
    "Zhang, Guannan and Li, Ruixuan and Zou, Yixiong",
    year=2026,
    formula="A = z_g(r_outcome) + 0.15 z_{g, right}(1 / (T + 1))",
    evidence="reference-code",
    keys={
        "credit": decoupled,
        "credit.over": "none",
        "credit.eps": 1e-6,
        "credit.weights": {"*": 1.0, "tool_calls": 0.15},
        "credit.only": {"tool_calls": "success"},
        "reward.add.tool_calls": ToolCalls,
        "reward.add.tool_calls.shape": "inverse",
        "reward.add.tool_calls.reference": "group_min",
        "reward.add.tool_calls.scales": False,
    },
    paper_defaults={"rollout.group_size": 16, "optim.lr": 1e-6, "tasks.per_step": 128},
    code="Accio-Lab/Metis@84fd45e72aa4e4c578cedaa4b8434d524451ba96 verl_tool/trainer/ppo/hdpo_algos.py "
    "verl_tool/workers/reward_manager/metis.py",
)
