"""Methods for masked (diffusion) language models, whose answers are unmasked and have estimated likelihoods."""

from gxpo.parts.definition import Definition

diffu_grpo = Definition(
    r"""diffu-GRPO (d1): GRPO for masked diffusion language models, with a one-step likelihood and a masked prompt.

    log p(y_i) = log softmax(f(x))_{y_i},   x: the answer hidden, each token of the prompt with probability 0.15
    A = r - mean_g;   L = sum_{i,t} max(-A rho, -A clip(rho, 1 - eps, 1 + eps)) / number of tokens

    Choices. One draw of the prompt's mask for each rollout, under the old and the reference policy too; the code draws
    one for each of its 12 updates of a batch. Answers end at their first end token, behind which nothing is trained, as
    in the code. Log-probs are at the sampling temperature (the code's at 1). In the code a KL needs `update.epochs`
    above 1: a variable has no value otherwise.
    """,
    cite="zhao2025d1",
    evidence="reference-code",
    code="dllm-reasoning/d1@837888f22c21a5da91a0af2b0d7b19e81d9b47ec diffu-grpo/diffu_grpo_trainer.py "
    "diffu-grpo/diffu_grpo_config.py diffu-grpo/slurm_scripts/train.yaml",
    keys={"likelihood": "one_step", "credit.scale": "none", "objective.aggregate": "token_mean"},
    paper_defaults={
        "objective.clip_low": 0.5, "objective.clip_high": 0.5, "objective.kl.coef": 0.04, "update.epochs": 12,
        "rollout.group_size": 6, "optim.lr": 3e-6, "sampling.engine_options": {"block": 32, "per_step": 2},
    },
    cost="one forward pass of prompt and answer for each update",
)  # fmt: skip

coupled_grpo = Definition(
    r"""coupled-GRPO (DiffuCoder): GRPO with likelihoods from two complementary masks, which read every token once.

    x_i = 1/2 [log p(y_i | prompt) + w_i log p(y_i | y outside the mask of i)]
    w_i = 1/t where M, drawn with probability t ~ U(0.2, 0.8), hides i, and 1/(1-t) where its complement does
    A = r - mean of the others;   L = sum_{i,t} max(-A rho, -A clip(rho, 1 - eps, 1 + eps)) / number of tokens

    Choices. rho = exp(x_i - x_i^old), with the code's factor: x_i is 1.5 times a log-likelihood on average
    (`likelihood.scale: 1` takes that out, and changes what a clip means). The paper averages whole ELBOs; the code
    weighs tokens, as here. A draw for each rollout, not for each update.
    """,
    cite="gong2025diffucoder",
    evidence="reference-code",
    code="apple/ml-diffucoder@f735e01376b752b70356efe45192f31499bf30dc src/open_r1/coupled_grpo.py "
    "recipes/config_coupled_code.yaml",
    keys={
        "likelihood": "coupled",
        "likelihood.scale": 1.5,
        "credit.center": "leave_one_out",
        "credit.scale": "none",
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"objective.clip_low": 0.5, "objective.clip_high": 0.5, "objective.kl.coef": 0.01,
                    "update.epochs": 2, "rollout.group_size": 10, "optim.lr": 1e-6},
    cost="three forward passes of prompt and answer for each update",
)  # fmt: skip

gdpo_dlm = Definition(
    r"""GDPO (diffusion language models): a sequence ratio of evidence bounds, by Gauss quadrature over masked shares.

    L(y) = sum_n w_n 1/t_n sum_{i hidden} log p(y_i | y visible),  round(t_n |y|) hidden, t_n Gauss-Legendre nodes
    A = r - mean_g;   rho = exp(L(y) - L_old(y));   loss = mean_i 1/|y_i| max(-A rho, -A clip(rho, 1 - eps, 1 + eps))

    Choices. Written as a ratio of every token with its trajectory's value: gradients are those of the formula, the
    value of the loss is |y| times its terms. Two nodes and one mask at each. Rounding biases short answers
    (`likelihood.rule: uniform` does not). KL, where set, is the estimator k3 of each token's share of the bound.
    """,
    cite="rojas2025gdpo",
    evidence="secondary",
    keys={"likelihood": "elbo", "credit.scale": "none", "objective.ratio": "sequence_sum"},
    paper_defaults={"objective.kl.coef": 0.01, "likelihood.points": 3},
    cost="a forward pass of prompt and answer for each node and update",
)

dmpo_dlm = Definition(
    r"""DMPO (diffusion language models): cross-entropy to the reward-tilted reference, with softmax weights.

    w+-_i = softmax_g(log p_ref(y_i) - log p_old(y_i) +- r_i / alpha);   A_i = w+_i - w-_i,  alpha 0.04
    loss  = -mean_i A_i 1/|y_i| ELBO(y_i),   4 masks, every second one the complement of the one before

    Choices. log p by the same 4 masks as the loss. The masks' sizes are drawn so that the ELBO is unbiased; the code
    hides each token with probability 0.1 + 0.9 u and divides by the number hidden, at least 1. A mean over rollouts,
    where the code sums. `credit.step_size` below 1 is its coefficient c; solving for c by effective sample size is not
    built. Equal rewards give 0.
    """,
    cite="zhu2025dmpo",
    evidence="reference-code",
    code="yuchen-zhu-zyc/DMPO@96af1a47b4a8177e2b1d0e94d669786af4a7ba23 DMPO/dmpo_trainer.py "
    "DMPO/dmpo_train_config.yaml",
    keys={
        "likelihood": "elbo",
        "likelihood.rule": "uniform",
        "likelihood.points": 4,
        "likelihood.antithetic": True,
        "credit": "tilted",
        "objective.surrogate": "log_likelihood",
    },
    paper_defaults={"rollout.group_size": 16, "update.epochs": 8, "optim.lr": 1e-6, "sampling.temperature": 0.2},
    cost="four forward passes of prompt and answer for each update, and for old and reference policy",
)

cj_grpo = Definition(
    r"""CJ-GRPO: each token's ratio in the state and step in which the decoder unmasked it; steps count alike.

    log p(y_i) = log softmax(f(x^(s)))_{y_i},   i unmasked in step s of the decoder, x^(s) the answer before it
    A = r - mean_g;   L = 1/S sum_s mean_{i unmasked in s} max(-A rho_i, -A clip(rho_i, 1 - eps, 1 + eps))

    Choices. The mean of a step is over all rollouts of an update. Tokens behind an answer's end are filled in by rule
    and not trained (the code decodes and trains them). Log-probs are at the sampling temperature (the code's at 1).
    Under `cj_grpo@paper` the decoder has EOSER (`end_from`) and ASS (`schedule: doubling`), the paper's other parts.
    """,
    cite="yang2025cjgrpo",
    evidence="reference-code",
    code="yjyddq/EOSER-ASS-RL@5affb4ec0db9d3819175c2011c94e38c74325624 cj-grpo/cj_grpo_trainer_eoser_ass.py "
    "cj-grpo/cj_grpo_config.py cj-grpo/slurm_scripts/train.yaml",
    keys={
        "likelihood": "trajectory",
        "credit.scale": "none",
        "objective.aggregate": "token_mean",
        "weight.steps": "token_weight",
        "weight.steps.score": "unmasked_at",
        "weight.steps.curve": "equal_values",
    },
    paper_defaults={
        "objective.clip_low": 0.5, "objective.clip_high": 0.5, "objective.kl.coef": 0.04, "update.epochs": 12,
        "rollout.group_size": 6, "optim.lr": 3e-6,
        "sampling.engine_options": {"schedule": "doubling", "end_from": 0.01},
    },
    cost="a forward pass of prompt and answer for each step of the decoder and each update",
)  # fmt: skip
