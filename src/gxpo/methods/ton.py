r"""TON: a format reward that an empty thought satisfies, so that the policy may learn not to think.

r += [the attempt is <think>...</think><answer>...</answer>, the thought may be empty]

Choices. The half that is a reward. The other half comes before: fine-tuning on examples whose thought is emptied with
probability 0.5, without which an empty thought is hardly ever sampled; it is no part of this library. What then favours
short attempts is `sequence_mean`, under which a token of a short one weighs more: there is no term of length.
"""

from gxpo.environments.rewards.feature import Feature
from gxpo.parts.definition import Definition

ton = Definition(
    name="ton",
    doc=__doc__,
    title="Think or Not? Selective Reasoning via Reinforcement Learning for Vision-Language Models",
    arxiv="2505.16854",
    authors="Wang, Jiaqi and Lin, Kevin Qinghong and Cheng, James and Shou, Mike Zheng",
    year=2025,
    formula="r += [the attempt is <think>...</think><answer>...</answer>, the thought may be empty]",
    evidence="reference-code",
    keys={
        "reward.add.thought": Feature,
        "reward.add.thought.pattern": r"\A<think>.*?</think>\s*<answer>.*?</answer>\Z",
    },
    code="kokolerk/TON@22102c281b004cd1c286c368c578ced5b37c4572 src/r1-v/src/open_r1/grpo.py",
)
