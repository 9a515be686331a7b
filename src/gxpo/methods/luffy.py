r"""LUFFY: off-policy teacher answer in each group, with policy shaping pi / (pi + 0.1) in place of the ratio.

Group: G - n samples and n reference answers (n = 1);  A_i = r_i - mean over the whole mixed group, no std
samples:  l = -A rho, without a clip
answers:  l = -A f(pi), f(x) = x / (x + 0.1): the behaviour policy is taken to be certain (pi_behaviour = 1).
          The gradient in log pi, -A 0.1 pi / (pi + 0.1)^2, is greatest at pi = 0.1: unlikely tokens are not lost.
L = mean_i sum_t l / H, H `objective.horizon`

Choices. As the recipe (`grpo`, mean of the mixed group), not `grpo_split`: `rollout.statistics: policy` takes the mean
from the samples alone, but gives a lone sample advantage 0 where the reference keeps its reward. As in the recipe there
is no clip, and the length that sums are divided by is a constant. An answer's own log-probs, where a record has them,
make it an ordinary row (reference: `target_probs`, a ratio without shaping). The recipe's entropy coefficient 0.001 is
under `luffy@paper`: there it is added to a sum over the rows of a micro-batch, here to the mean over rows, where it
weighs as many times more as a micro-batch has rows (`objective.entropy.coef`: 0.001 over that number is the same). A
group that is all right, the reference answer included, teaches nothing.
"""

from gxpo.algorithms.objectives.surrogate import unclipped
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.reference import ReferenceInGroup

luffy = Definition(
    name="luffy",
    doc=__doc__,
    title="Learning to Reason under Off-Policy Guidance",
    arxiv="2504.14945",
    authors="Yan, Jianhao and Li, Yafu and Hu, Zican and others",
    year=2025,
    formula="A = r - mean_g; L = mean_i sum_t (-A rho on samples, -A pi / (pi + 0.1) on reference answers) / horizon",
    evidence="reference-code",
    code="ElliottYan/LUFFY@01f4ae066249e6965ce0d5512ccdf99a12895c74 luffy/verl/verl/mix_src/mix_core_alg.py "
    "luffy/verl/verl/mix_src/mix_actor.py exp_scripts/train.sh",
    keys={
        "rollout": ReferenceInGroup,
        "credit.scale": "none",
        "objective.surrogate": unclipped,
        "objective.aggregate": "sequence_sum",
        "objective.on_unknown_behaviour": "shaped",
    },
    paper_defaults={"objective.entropy.coef": 0.001, "optim.lr": 1e-6, "tasks.per_step": 128, "update.minibatches": 2},
    refuses={"objective.ratio": ("sequence",)},
    cost="one sample fewer a group; needs reference answers",
)
