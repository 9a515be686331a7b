r"""Mobile-R1: GRPO on single actions at an expert's states, then GRPO on whole episodes.

phase 1: r = [the action leads where the expert's leads] + [it could be read], one action at a state of the expert's way
phase 2: r = the world's verdict on an episode;   A, L as in GRPO in both

Choices. From the abstract and reviews: no code was found. There an action is right where a click is within the expert's
box, or what is typed is the same: both lead to one state here. The paper's judge of whole trajectories, a large model,
is the world's verdict, and its format reward of trajectories is left out, as is fine-tuning on annotated actions
before. Both phases share `trainer.steps` equally. Stand-in: `task: buttons`, toy screens, no phone and no history.
"""

from gxpo.parts.definition import Definition

mobile_r1 = Definition(
    name="mobile_r1",
    doc=__doc__,
    title="Mobile-R1: Towards Interactive Reinforcement Learning for VLM-Based Mobile Agent via Task-Level Rewards",
    arxiv="2506.20332",
    authors="Gu, Jihao and Ai, Qihang and Wang, Yingyao and Bu, Pi and Xing, Jingxuan and others",
    year=2025,
    formula="r = [as the expert's] + [readable] at single states of an expert, then r = verdict on episodes",
    evidence="secondary",
    keys={
        "phases": [
            {
                "method": "grpo",
                "rollout": "expert_steps",
                "rollout.compares": "state",
                "reward.shape.noted": "shape",
                "reward.shape.noted.function": "noted",
                "reward.shape.noted.weights": {"format": 1.0},
            },
            {"method": "grpo"},
        ]
    },
    cost="needs an expert",
)
