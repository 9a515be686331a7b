r"""Step-level filtering (WebSTAR): imitation of the steps that a judge finds right, of rollouts that were made before.

phase 1 samples;   phase 2: L = -mean log pi(a_s) over the steps s with score above 0.5, of all attempts, right or wrong

Choices. The authors' code (yifei-he/WebSTAR@f4a4bd2fa5f9 step_eval) grades the steps of another model's rollouts, by
a judge from 0 to 10 where 5 is borderline and more is right; the filter above 5 and the training are not in it. Here
phase 1 (GRPO) makes the rollouts, and a file of records takes its place as `rollout.file` of one phase. The scorer is
a setting, `signal.step_judge.score=prm.py:score`, a judge, or a server, from 0 to 1. A step without a score is left
out. Its rewritten reasoning, of the same judge beside its grades, is not built. The advantage is 1 throughout: the
verdict of the attempt is not read, as there without `--correct-only`.
"""

from gxpo.parts.definition import Definition

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
    "weight.steps.low": 0.5 + 1e-9,
}

step_filter = Definition(
    name="step_filter",
    doc=__doc__,
    title="WebSTAR: Scalable Data Synthesis for Computer Use Agents with Step-Level Filtering",
    arxiv="2512.10962",
    authors="He, Yifei and Chawla, Pranit and Souri, Yaser and others",
    year=2025,
    formula="L = -mean log pi over the steps that a judge scores above 0.5, of logged rollouts",
    evidence="secondary",
    keys={"phases": [{"method": "grpo"}, {"method": "grpo", **_FILTERED}], "trainer.rollouts_every": 1},
    cost="a score for every step, by a model or a judge of your choice",
)
