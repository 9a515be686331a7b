r"""Step-level filtering (WebSTAR): imitation of the steps that a judge finds right, of rollouts that were made before.

phase 1 samples;   phase 2: L = -mean log pi(a_s) over the steps s with score >= 0.5, of all attempts, right or wrong

Choices. The authors' code makes a data set from another model's rollouts; here phase 1 (GRPO) makes them, and a file of
records takes its place as `rollout.file` of one phase. The scorer is a setting, `signal.step_judge.score=prm.py:score`,
a judge, or a server. The paper keeps scores above 5 of 10. A step without a score is left out. Its rewritten reasoning
is not built. The advantage is 1 throughout: the verdict of the attempt is not read.
"""

from gxpo.definition import Definition

_FILTERED = {
    "rollout": "logged",
    "rollout.file": "previous",
    "credit": "constant_advantage",
    "credit.origin": "logged",
    "objective.surrogate": "log_likelihood",
    "signal.step_judge": "step_judge",
    "weight.steps": "token_weight",
    "weight.steps.by": "segment_score",
    "weight.steps.keep": "between",
    "weight.steps.low": 0.5,
}

step_filter = Definition(
    name="step_filter",
    doc=__doc__,
    title="WebSTAR: Scalable Data Synthesis for Computer Use Agents with Step-Level Filtering",
    arxiv="2512.10962",
    authors="He, Yifei and Chawla, Pranit and Souri, Yaser and others",
    year=2025,
    formula="L = -mean log pi over the steps that a judge scores 0.5 or more, of logged rollouts",
    evidence="secondary",
    keys={"phases": [{"method": "grpo"}, {"method": "grpo", **_FILTERED}], "trainer.rollouts_every": 1},
    cost="a score for every step, by a model or a judge of your choice",
)
