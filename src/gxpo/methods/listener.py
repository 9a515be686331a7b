r"""Listener: a frozen model reads the reasoning, and its probability of the right answer is part of the reward.

r = format + 0.5 correct + 0.5 p_listener(right answer | task, reasoning);   A as in GRPO

Choices. From a summary; the preprint is recorded as withdrawn in its third version. The listener is a checkpoint of the
section `teacher`, as `teacher.models={listener: {role: judge, model: DIR}}`: a server gives no log-probs of a text. The
probability is of all the answer's tokens together, among `info["choices"]` where a task has some. What it reads is all
of the attempt, the answer too, unless `scoring.options.judge.until` says where the answer begins: leave it out, and the
listener copies what it is told. A listener that reads pictures is shown the task's.
"""

from gxpo.parts.definition import Definition

listener = Definition(
    name="listener",
    doc=__doc__,
    title="Listener-Rewarded Thinking in VLMs for Image Preferences",
    arxiv="2506.22832",
    authors="Gambashidze, Alexander and Pengyi, Li and Skripkin, Matvey and Galichin, Andrey and Gusarov, Anton and "
    "Sobolev, Konstantin and Kuznetsov, Andrey and Oseledets, Ivan",
    year=2025,
    evidence="secondary",
    keys={
        "scoring.weights": {"format": 1.0, "correct": 0.5, "judge": 0.5},
        "scoring.options": {"judge": {"mode": "confidence"}},
    },
    cost="a frozen model's forward pass over every attempt",
)
