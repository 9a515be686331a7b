r"""LPO: distance of a click from its target as reward, where the kind of action is right.

r = [same action] max(0, 1 - distance / 50 pixels);   A as in GRPO

Choices. One action an answer; the paper's mean over several is left out. Left out, too, is its factor by the grey-level
entropy of the window that was clicked: it pays for clicking where the picture is busy, right or wrong. `frame: unit` or
`thousand` with `size: info.size` reads answers in shares of the picture. `lpo_gui@paper` has its clip and KL. `task:
buttons` with `tasks.options: {style: bare, steps: [1], max_turns: 1}` asks for one click and knows its target, the
middle of a button; on its 64 pixels 50 pay half for the middle of the screen (`scoring.options.match.most: 16` does
not). Stand-in: toy screens, and no supervised training on real ones before.
"""

from gxpo.parts.definition import Definition

lpo_gui = Definition(
    name="lpo_gui",
    doc=__doc__,
    title="LPO: Towards Accurate GUI Agent Interaction via Location Preference Optimization",
    arxiv="2506.09373",
    authors="Tang, Jiaqi and Xia, Yu and Wu, Yi-Feng and others",
    year=2025,
    evidence="secondary",
    keys={
        "reward": "match",
        "scoring.options": {"match": {"metric": "point_distance", "pattern": None, "typed": True, "most": 50.0}},
    },
    paper_defaults={"objective.clip_high": 0.28, "objective.kl.coef": 1e-4},
)
