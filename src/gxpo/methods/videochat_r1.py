r"""VideoChat-R1: one policy on several tasks of perception, each with the reward of its kind, and format.

r = [form] + IoU [interval, box], the option [choice], exact match [number];   A as in GRPO
[form]: the whole attempt is <think>...</think> <answer>...</answer>

Choices. As the code, for an answer of one kind (`info.kind`): an interval that ends before it begins earns 0, and of a
choice the first letter from A to G counts ("B. a red ball"; where the reference is no letter, the text). Form and these
since 2026-11-28; before, form was the task's component "format". There an interval is the last "x to y" of the answer,
a track is eight boxes and their mean IoU; a question about a video has a choice and intervals, and earns both; unions
of intervals count: here one box, one answer, one interval of two numbers. The recall of events in captions, by a judge,
is in the paper and not in the code, and is left out. On `shapes` and `charts` an answer is the whole text
(`scoring.options.match.pattern: null`) and form the component "format" (`reward.add.form.coef: 0`, and "format" in
`scoring.weights`). Its KL, TRL's 0.04, is `videochat_r1@paper`. Stand-in: pictures, no video.
"""

from gxpo.environments.rewards.feature import Feature
from gxpo.parts.definition import Definition

_METRICS = {
    "interval": {"metric": "interval_iou", "ordered": True},
    "box": {"metric": "box_iou"},
    "choice": {"metric": "choice"},
    "number": {"metric": "exact"},
}

videochat_r1 = Definition(
    name="videochat_r1",
    doc=__doc__,
    title="VideoChat-R1: Enhancing Spatio-Temporal Perception via Reinforcement Fine-Tuning",
    arxiv="2504.06958",
    authors="Li, Xinhao and Yan, Ziang and Meng, Desen and Dong, Lu and Zeng, Xiangyu and He, Yinan and others",
    year=2025,
    formula="r = [form] + IoU of intervals and boxes, option of choices, exact match of numbers, by the task's kind",
    evidence="reference-code",
    keys={
        "scoring.weights": {"match": 1.0, "correct": 0.0},
        "scoring.options": {"match": {"by": "info.kind", "route": _METRICS}},
        "reward.add.form": Feature,
        "reward.add.form.pattern": r"\A\s*<think>.*?</think>\s*<answer>.*?</answer>\s*\Z",
    },
    paper_defaults={"rollout.group_size": 8, "objective.kl.coef": 0.04, "credit.eps": 1e-4},
    code="OpenGVLab/VideoChat-R1@73b2ea9ac83ad5c0bcd893bffd1cbb2e7c167068 src/open_r1/grpo_tasks.py "
    "src/open_r1/trainer/grpo_tasks_trainer.py training_scripts/run_grpo_video_task.sh",
)
