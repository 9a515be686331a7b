r"""UAV-VL-R1: GRPO in stages by kind of question: attributes, then objects, then space.

stage k: GRPO on questions of kind k, r = [right] + [well-formed], from the policy of stage k - 1

Choices. From the abstract and summaries: the repository that it names (Leke-G/UAV-VL-R1) could not be had. The stages
are those of `shapes`: `colour`; `count`, `same`; `row`, `column`. Other tasks state `phases` of their own, as
`{method: grpo, tasks.options.questions: [...]}` or each with its `task`. Stages share `trainer.steps` equally; the
reference of a KL is `start` there. What is well-formed is the task's component "format". Stand-in: coloured squares,
no aerial pictures, and no fine-tuning on worked reasoning before.
"""

from gxpo.parts.definition import Definition

_STAGES = (["colour"], ["count", "same"], ["row", "column"])

uav_vl_r1 = Definition(
    name="uav_vl_r1",
    doc=__doc__,
    title="UAV-VL-R1: Generalizing Vision-Language Models via Supervised Fine-Tuning and Multi-Stage GRPO for UAV "
    "Visual Reasoning",
    arxiv="2508.11196",
    authors="Guan, Jiajin and Mei, Haibo and Zhang, Bonan and Liu, Dan and Fu, Yuanshuang and Zhang, Yue",
    year=2025,
    formula="GRPO with r = [right] + [well-formed] on attributes, then objects, then space",
    evidence="secondary",
    keys={
        "scoring.weights": {"correct": 1.0, "format": 1.0},
        "phases": [{"method": "grpo", "tasks.options.questions": kinds} for kinds in _STAGES],
    },
)
