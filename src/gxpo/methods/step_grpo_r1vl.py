r"""StepGRPO (R1-VL): rewards for key steps of the solution, and for reasoning whose parts are there and in order.

R = outcome + 0.1 k / N + [background, steps, answer: all there, in this order];   A as in GRPO, of the trajectory

Choices. From the abstract and general knowledge; 0.1 is a recollection. Despite its name no credit goes to steps. Key
steps are the task's (`info["key_steps"]`, each with its wordings), found as text; the paper has them extracted by a
model and matched softly through the wordings, as here. What begins background, steps and answer are our regular
expressions (`scoring.options.key_steps.parts`). Both come from the built-in reward "key_steps" with weight 0, or from
components of your own. With all key steps and the order right, attempts differ by their answer alone.
"""

from gxpo.keys import Definition
from gxpo.rewards.key_steps import AddedComponent

step_grpo_r1vl = Definition(
    name="step_grpo_r1vl",
    title="R1-VL: Learning to Reason with Multimodal Large Language Models via Step-wise Group Relative Policy "
    "Optimization",
    arxiv="2503.12937",
    authors="Zhang, Jingyi and Huang, Jiaxing and Yao, Huanjin and Liu, Shunyu and Zhang, Xikun and Lu, Shijian and "
    "Tao, Dacheng",
    year=2025,
    idea="a reasoning path is paid for the key steps that it contains and for being complete and in order",
    formula="R = outcome + 0.1 k / N + [complete and in order]; A as GRPO",
    evidence="reconstruction",
    keys={
        "reward.shape.key_step_reward": AddedComponent,
        "reward.shape.order_reward": AddedComponent,
        "reward.shape.order_reward.component": "ordered",
        "reward.shape.order_reward.weight": 1.0,
    },
    paper_defaults={"rollout.group_size": 4},
    choices="0.1 is a recollection; key steps are matched as text in any of their wordings",
)
