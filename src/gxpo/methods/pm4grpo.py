r"""PM4GRPO: a reward for a reasoning whose steps conform with a teacher's, by process mining; GSPO without std.

r = r_format + r_answer + 2 f p / (f + p);   A = r - mean_g r;   s_i = exp(mean_t log rho), clipped
f, p: fitness and precision of the teacher's events on the Petri net that the attempt's events give

Choices. As the code, the attempt is mined and the teacher replayed (the abstract has it the other way round), by
pm4py's inductive miner and alignments; earlier versions of the code paid 0.7 F1 + 0.3 fitness. What is mined is what
precedes `</think>`, or the whole attempt without one (`scoring.options.conformance.thought`; default changed on
2026-11-28: before, always the whole). A language model turns texts into events there; here a regular expression does,
the first word of each line by default (`scoring.options.conformance.pattern`): the teacher's events are the task's
`events`, or those of its `solution`. An attempt that permits any order has fitness 1; precision alone stops that. No
events: 0. Bounds as GSPO's; its own are not in the code.
"""

from gxpo.parts.definition import Definition

pm4grpo = Definition(
    name="pm4grpo",
    doc=__doc__,
    title="Reasoning-Aware GRPO using Process Mining",
    arxiv="2510.25065",
    authors="Park, Taekhyun and Lee, Yongjae and Bae, Hyerim",
    year=2025,
    formula="r = r_format + r_answer + F1(fitness, precision); A = r - mean_g r; GSPO's ratio",
    evidence="reference-code",
    keys={
        "scoring.weights": {"correct": 1.0, "format": 1.0, "conformance": 1.0},
        "credit.scale": "none",
        "objective.ratio": "sequence",
        "objective.clip_low": 3e-4,
        "objective.clip_high": 4e-4,
    },
    cost="an alignment of every attempt with the reference, in milliseconds to seconds by its length",
    code="Thrillcrazyer/THIP@dcc193a4ad8f2a0106506fd5de8efd52ba9fd933 reward/reward_func.py pm/checker.py pm/miner.py",
)
