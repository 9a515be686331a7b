r"""BuPO: bottom-up policy optimization: train the policy of an inner layer first, then that of the whole model.

pi^k = softmax(head(norm(h_k))), h_k the hidden state after layer k;   rho = pi^k / pi^k at the start of the step
L = GRPO's with that rho for the first 30 steps, with the usual one afterwards; rollouts are the whole model's always

Choices. The head reads the state after the final norm, as it does at the end; the authors' code reads it as it is
(`lm_head(hidden_states[k + 1])`): `bupo@paper`. 0.15 of the depth is layer 5 of 36 (their k = 5, counted from 0, is the
sixth), which any model has: layer 1 of the tiny one's 3 (`objective.layer` and `signal.layer_logprob.layer`, a number
or a share). The inner ratio does not correct for the sampler: no rollout is sampled from pi^k. The paper's runs clip at
10 for A < 0 as well and take the mean over tokens.
"""

from gxpo.algorithms.objectives.inner_layer import InnerLayer
from gxpo.algorithms.objectives.surrogate import DualClip
from gxpo.algorithms.signals.policy_outputs import layer_logprob
from gxpo.parts.definition import Definition

bupo = Definition(
    name="bupo",
    doc=__doc__,
    title="Bottom-up Policy Optimization: Your Language Model Policy Secretly Contains Internal Policies",
    arxiv="2512.19673",
    authors="Tan, Yuqiao and Wang, Minzheng and He, Shizhu and Liao, Huanxuan and Zhao, Chengfeng and Lu, Qiunan and "
    "Liang, Tian and Zhao, Jun and Liu, Kang",
    year=2025,
    formula="rho = pi^k / pi^k_old, pi^k = softmax(head(norm(h_k))), for 30 steps; then GRPO",
    evidence="reference-code",
    keys={"objective": InnerLayer, "signal.layer_logprob": layer_logprob, "signal.layer_logprob.steps": 30},
    paper_defaults={
        "objective.normed": False,
        "signal.layer_logprob.normed": False,
        "objective.surrogate": DualClip,
        "objective.ratio_max": 10.0,
        "objective.aggregate": "token_mean",
        "rollout.group_size": 8,
    },
    refuses={"objective.ratio_over": ("behaviour",)},
    cost="a forward pass for the inner layer's log-probs in each of the first steps; a second pass through the head",
    code="Trae1ounG/BuPO@d3a85c698912d612c1cdb3edaa9011f450d23344 verl/workers/actor/dp_actor.py "
    "verl/models/custom_model/modeling_qwen3.py run_code/BuPO_qwen3.sh",
)
