r"""ARPO: entropy-based adaptive branching of agent rollouts after uncertain turns, with GRPO advantages.

P(branch after turn t) = clip(p_b + w (H_t - H_1), 0, 1),  H_t the mean -log p of the turn's first 20 tokens;
N_0 = 8 of n = 16 attempts begin at the prompt, a turn leaves at most one branch;  A = GRPO's over all n.

Choices. The paper's "soft" advantage, which is all that the code has: every attempt has its own A on its whole path, so
that a turn which m attempts share is pushed by their sum, m times their mean. The "hard" one has that mean in all of
them: up to the clip, and with attempts of one length, the same gradient. H is an estimate from the sampled tokens, a
mean in nats (the code: the sum of 20 tokens' entropies over the top 10, divided by ln of the vocabulary's size, 12 for
Qwen: up to 1.7 times the mean, so that its w is as 0.34 here); it is the turn's own, as in the code, where the paper's
words are of the tokens after a tool's answer, which are the next turn's. P is drawn, as in the code; the paper compares
it with a threshold. The weight is the scripts' 0.2 (the code's default 0.5).
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.branching import TurnBranches

arpo_agentic = Definition(
    name="arpo_agentic",
    doc=__doc__,
    title="Agentic Reinforced Policy Optimization",
    arxiv="2507.19849",
    authors="Dong, Guanting and Mao, Hangyu and Ma, Kai and Bao, Licheng and Chen, Yifei and Wang, Zhongyuan and "
    "Chen, Zhongxia and Du, Jiazhen and Wang, Huiyang and Zhang, Fuzheng and Zhou, Guorui and Zhu, Yutao and "
    "Wen, Ji-Rong and Dou, Zhicheng",
    year=2025,
    formula="P(branch) = clip(p_b + w (H_t - H_1), 0, 1), p_b 0.5, w 0.2; A = (R - mean_g) / std_g over all attempts",
    evidence="reference-code",
    keys={"rollout": TurnBranches},
    cost="fewer generated tokens an attempt: turns before a branch are shared; the environment is restored for each",
    code="dongguanting/ARPO@e257337d1f105ba685057cb662c75e509d1c7b34 "
    "ARPO/verl_arpo_entropy/verl/workers/rollout/vllm_rollout/vllm_rollout_with_tools.py "
    "ARPO/scripts/ARPO_7B_Reasoning_1node.sh",
)
