r"""LC-R1: shorter than the group's longest right answer, and a reward at the end of the thought for stopping in time.

A = R - mean_g R,   R = r_outcome - |o| / max_right |o|;   at </think> of a right answer A += 1 - l / L, or A -= 1
l of the thought's L tokens run up to the first statement of the answer; where it states none, the penalty

Choices. As the code, length counts for every answer of a group with a right one (the paper: for right ones); reward 2
of format and accuracy is the verdict here. The code cuts what follows the statement out of the thought and trains on
the rest, under log-probs computed anew; here nothing is cut: what was sampled is trained. Its extractor is a trained
model; here the first place where the answer stands as a word (`signal.valid_thinking.extract`: a function of yours).
Without </think> in an attempt the second term is 0 (`segment.patterns`, `signal.valid_thinking.close`: another end).
Its script leaves TRL's token mean and KL of 0.04 as they are: `lc_r1@paper`.
"""

from gxpo.algorithms.credit.bonus import Bonus
from gxpo.algorithms.credit.relative import Relative
from gxpo.algorithms.segments.by_text import Spans
from gxpo.algorithms.signals.valid_thinking import valid_thinking
from gxpo.environments.rewards.length import Length
from gxpo.parts.definition import Definition

lc_r1 = Definition(
    name="lc_r1",
    doc=__doc__,
    title="Optimizing Length Compression in Large Reasoning Models",
    arxiv="2506.14755",
    authors="Cheng, Zhengxiang and Chen, Dongping and Fu, Mingyang and Zhou, Tianyi",
    year=2025,
    formula="A = r - |o| / max_right |o| - mean_g; at </think> of a right answer A += 1 - l / L, or A -= 1",
    evidence="reference-code",
    keys={
        "credit": Relative,
        "credit.scale": "none",
        "credit.add.compress": Bonus,
        "credit.add.compress.value": "valid_thinking",
        "credit.add.compress.at": "labelled",
        "signal.valid_thinking": valid_thinking,
        "segment": Spans,
        "segment.patterns": ("</think>",),
        "reward.add.length": Length,
        "reward.add.length.coef": 1.0,
        "reward.add.length.scale": "longest",
        "reward.add.length.of": "all",
    },
    paper_defaults={
        "rollout.group_size": 6,
        "objective.aggregate": "token_mean",
        "objective.kl.coef": 0.04,
        "optim.lr": 3e-6,
        "optim.max_grad_norm": 0.1,
    },
    code="zxiangx/LC-R1@f7333a92b7776a1a4889dd75a11455f23e70b06b trl/trainer/grpo_trainer.py scripts/train.py "
    "trl/trainer/grpo_config.py",
)
