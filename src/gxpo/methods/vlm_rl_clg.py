r"""VLM-RL: contrasting language goals: nearer to what is wanted than to what is not.

r = cos(answer, goal) - cos(answer, negative goal);   A as in GRPO

The goal is the task's answer, the negative goal its `info.negative`; embeddings of sentences.
Choices. As in the code, unscaled: differences are small (.1), so prefer advantages that are not standardised, or add a
reward that knows the task. The observation is the text itself here, in the paper a camera's picture, and its second
reward by the vehicle's state is left out. Stand-in: no pictures, no driving.
"""

from gxpo.parts.definition import Definition

vlm_rl_clg = Definition(
    name="vlm_rl_clg",
    doc=__doc__,
    title="VLM-RL: A Unified Vision Language Models and Reinforcement Learning Framework for Safe Autonomous Driving",
    arxiv="2412.15544",
    authors="Huang, Zilin and Sheng, Zihao and Qu, Yansong and You, Junwei and Chen, Sikai",
    year=2024,
    evidence="reference-code",
    keys={
        "reward": "match",
        "scoring.options": {"match": {"metric": "embedding", "pattern": None, "contrast": "info.negative"}},
    },
    code="zihaosheng/VLM-RL@1f3ea684009b3682f0c093769cee3bc23b51701e clip/clip_reward_model.py",
)
