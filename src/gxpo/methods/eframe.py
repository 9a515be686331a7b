r"""EFRame: twenty hotter attempts where all fail, a filter on |A|, replay of the rollouts with a large |A|.

n = 5 at T = 1; all wrong: 20 at T = 1.2 in their place, A = GRPO's among them. Trained: |A| > 0.05, of the twenty
|A| > 1, no truncated row with A > 0. Every 5 steps: also stored rows with |A| > 1, over the log-probs of their time

Choices. The code recomputes log-probs of the hot rows at T = 1, so that their ratio of 1 hides who sampled them; here
they are read, trained and replayed at 1.2. Its test for "all wrong", score < 0.01, a format reward switches off; here
verdicts decide. It repeats the first hard prompts until their number is a multiple of 32, and fixes the upper clip at
0.2 whatever is configured: not here. It gathers kept rows until they fill a batch, of two at most, and trains on whole
ones; here a row left out keeps its place in the denominator. Replay there is an update of its own, of the newest two
batches of stored rows, or of whole batches drawn while there are fewer; here its rows join the step's, two for each
fresh one at most. No dual clip (code: 3). KL 0.01 is `eframe@paper`'s. Kept advantages do not add up to 0.
"""

from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.stored_groups import GroupReplay

eframe = Definition(
    name="eframe",
    doc=__doc__,
    title="EFRame: Deeper Reasoning via Exploration-Filter-Replay Reinforcement Learning Framework",
    arxiv="2506.22200",
    authors="Wang, Chen and Wei, Lai and Zhang, Yanzhi and Shao, Chenyang and Dan, Zedong and Huang, Weiran and others",
    year=2025,
    formula="all wrong: 20 at T = 1.2; train |A| > 0.05 (hot: 1), A <= 0 if truncated; replay |A| > 1 every 5 steps",
    evidence="reference-code",
    keys={
        "rollout": GroupReplay,
        "rollout.when": "all_wrong",
        "rollout.how": "hotter",
        "rollout.keep": "newest",
        "rollout.choice": "largest",
        "rollout.fill": 2.0,
        "rollout.every": 5,
        "weight.informative": TokenWeight,
        "weight.informative.by": "credit",
        "weight.informative.keep": "informative",
        "weight.informative.unit": "trajectory",
        "objective.ratio_over": "behaviour",
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 5, "objective.kl.coef": 0.01, "sampling.top_p": 0.99, "optim.lr": 1e-6},
    cost="20 more samples of a task that failed, and up to three times the trajectories in every fifth update",
    code="597358816/EFRame@173b698f3202156769b29c36a762e94d11c69327 verl/trainer/ray_trainer.py verl/trainer/buffer.py",
)
