r"""StepGRPO (R1-VL): rewards for key steps of the solution and for complete, ordered reasoning.

R = outcome + 0.1 k / N + [four headings there, steps numbered 1, 2, ..., the answer after them];   A as in GRPO

Choices. As in the authors' code: k of the task's N key steps (`info["key_steps"]`, each with its wordings) are found,
case aside, below a heading "### Step n:"; 0 without key steps. The headings are "### Image Description:", "###
Rationales:", "### Step 1:" and "### The final answer is:", and the prompt has to ask for them. The paper also wants the
background before the steps, which the code does not check. Parts of your own, in order:
`scoring.options.key_steps.parts`. Both numbers come from the built-in reward "key_steps" with weight 0, or from
components of your own. Despite its name no step has an advantage of its own. With all key steps and the form right,
attempts differ by their answer alone. The trainer is TRL's of that time (`@paper`: eps 1e-4, KL .04).
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

step_grpo_r1vl = Definition(
    name="step_grpo_r1vl",
    doc=__doc__,
    title="R1-VL: Learning to Reason with Multimodal Large Language Models via Step-wise Group Relative Policy "
    "Optimization",
    arxiv="2503.12937",
    authors="Zhang, Jingyi and Huang, Jiaxing and Yao, Huanjin and Liu, Shunyu and Zhang, Xikun and Lu, Shijian and "
    "Tao, Dacheng",
    year=2025,
    evidence="reference-code",
    keys={
        "reward.shape.key_step_reward": Shape,
        "reward.shape.key_step_reward.function": "added_component",
        "reward.shape.order_reward": Shape,
        "reward.shape.order_reward.function": "added_component",
        "reward.shape.order_reward.component": "ordered",
        "reward.shape.order_reward.weight": 1.0,
    },
    paper_defaults={
        "rollout.group_size": 4,
        "sampling.temperature": 1.2,
        "credit.eps": 1e-4,
        "objective.kl.coef": 0.04,
    },
    code="jingyi0000/R1-VL@679be5c src/r1-vl/src/open_r1/grpo.py src/r1-vl/src/open_r1/trainer/grpo_trainer.py "
    "src/r1-vl/run_grpo_7b.sh",
)
