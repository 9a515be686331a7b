"""Methods for autoregressive generators of pictures' tokens."""

from gxpo.parts.definition import Definition

ar_grpo = Definition(
    r"""AR-GRPO: GRPO on tokens of pictures, sampled and trained in one distribution of classifier-free guidance.

    l = l_u + s (l_c - l_u),  l_c behind the class, l_u behind the class that is none;   log p = log softmax(l / T), s 2
    A = (r - mean_g) / std_g, r a sum of rewards of unit weight;   PPO's clip;   gradients through l_c and l_u

    Choices. Rewards are the run's own; the paper's sum eight (CLIP, HPSv2, MANIQA, questions to Qwen-VL), none of which
    was run. A picture ends with a token here, and with its length in the code, which samples with logits of one pass if
    s is at most 1 (here any s but 1 mixes). Its sampler can stop guiding after `cfg_interval` tokens, which its trainer
    does not know: not built. KL, where set, is k3 to the reference under the same guidance.
    """,
    cite="yuan2025argrpo",
    evidence="reference-code",
    code="Kwai-Klear/AR-GRPO@65947ad869cae0f36e4009f947b5b9da9e95a469 autoregressive/modeling.py "
    "modified_grpo_trainer.py run_c2i_train.sh",
    keys={"sampling.guidance": 2.0},
    paper_defaults={"objective.kl.coef": 0.1, "rollout.group_size": 8, "optim.lr": 1e-5},
    cost="two forward passes for every token, in sampling and in training",
)
