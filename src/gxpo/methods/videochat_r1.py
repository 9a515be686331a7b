r"""VideoChat-R1: one policy on several tasks of perception, each with the reward of its kind, and format.

r = [form] + IoU [interval, box], exact match [choice, number];   A as in GRPO

Choices. As the code, for an answer of one kind (`info.kind`). There a track is eight boxes and their mean IoU; a
question about a video has a choice and intervals, and earns both; unions of intervals count: here one box, one answer,
one interval. The recall of events in captions, by a judge, is in the paper and not in the code, and is left out. Form
is the task's component "format", or gxpo's. On `shapes` and `charts` an answer is the whole text
(`scoring.options.match.pattern: null`). Its KL, TRL's 0.04, is `videochat_r1@paper`. Stand-in: pictures, no video.
"""

from gxpo.definition import Definition

_METRICS = {"interval": "interval_iou", "box": "box_iou", "choice": "exact", "number": "exact"}

videochat_r1 = Definition(
    name="videochat_r1",
    doc=__doc__,
    title="VideoChat-R1: Enhancing Spatio-Temporal Perception via Reinforcement Fine-Tuning",
    arxiv="2504.06958",
    authors="Li, Xinhao and Yan, Ziang and Meng, Desen and Dong, Lu and Zeng, Xiangyu and He, Yinan and others",
    year=2025,
    formula="r = [form] + IoU of intervals and boxes, exact match of choices and numbers, by the task's kind of answer",
    evidence="reference-code",
    keys={
        "scoring.weights": {"match": 1.0, "format": 1.0, "correct": 0.0},
        "scoring.options": {"match": {"by": "info.kind", "route": {k: {"metric": m} for k, m in _METRICS.items()}}},
    },
    paper_defaults={"rollout.group_size": 8, "objective.kl.coef": 0.04, "credit.eps": 1e-4},
    code="OpenGVLab/VideoChat-R1@73b2ea9ac83ad5c0bcd893bffd1cbb2e7c167068 src/open_r1/grpo_tasks.py "
    "src/open_r1/trainer/grpo_tasks_trainer.py training_scripts/run_grpo_video_task.sh",
)
