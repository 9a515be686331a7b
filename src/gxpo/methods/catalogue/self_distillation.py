"""Methods that train on the policy's own distribution: self-teachers, inner layers, soft tokens."""

from gxpo.parts.definition import Definition

sdpo_self = Definition(
    r"""SDPO: self-distillation: the averaged policy, shown a correct answer of the group, is the token-level teacher.

    L = mean_t min(rho_t, 2) D_t over the tokens of rollouts that have a right peer in their group; no advantage
    D = (1/2) KL(S || M) + (1/2) KL(T || M), M = (S + T) / 2, over the teacher's top 100 ids and one bucket for the rest
    T = the average of the policy over steps (rate 0.05) under a prompt that shows the peer's right answer;
      S = the policy

    Choices. The right answer is put into the user's message by `signal.self_teacher.template`, without what is between
    think tags, as in the code; the sentence around it is ours. Of episodes, and where a prompt is token ids, the peer's
    whole rollout precedes the prompt. Feedback of the environment is not shown. The buckets are the teacher's top ids:
    the code takes the student's, of each forward pass, and reads the teacher again for each; merged buckets bound D
    from below either way. A rollout that is right is taught too, by another right one. The code's scripts multiply each
    token's loss by min(pi_old / pi_sampler, 2), for the mismatch between sampler and trainer (verl's rollout correction
    by token); weight parts (`tis`) do not touch this loss. `alpha` 0 and 1 are KL(T || S) and KL(S || T), not the
    limits of D there, which are 0. The name is also another method's: `sdpo_segment` is a preference loss.

    A model that never read a solved example before is no teacher: the embedded tiny model forgets its task (held-out
    0.39 to 0.02 in 30 steps, once; with an empty template as well), where `srpo_routing`, which teaches failures in
    addition to GRPO, gains (to 0.80; with an empty template 0.82).
    """,
    cite="hubotter2026sdpoself",
    evidence="reference-code",
    code="lasgroup/SDPO@0e6d5106abe69f578c63bf38a9394e22905c8773 verl/trainer/ppo/core_algos.py "
    "verl/trainer/ppo/ray_trainer.py verl/trainer/config/actor/actor.yaml verl/trainer/config/sdpo.yaml",
    keys={"objective": "distillation", "signal.self_teacher": "self_teacher"},
    refuses={"objective.kl.place": ("reward",)},
    cost="a second model; a forward pass of it over the rollouts that have a right peer",
)

srpo_routing = Definition(
    r"""SRPO: sample routing: GRPO on correct rollouts, self-distillation (SDPO) on wrong ones.

    L = (1 / N) [sum over tokens of routed-to-GRPO rollouts of max(-A rho, -A clip(rho)) +
                 sum over tokens of the others of v_t min(rho_t, 2) D_t],   N = all trainable tokens of the step
    v = exp(-beta H_t) / mean exp(-beta H), H the teacher's entropy;   D and the teacher as in SDPO (`sdpo_self`)
    Wrong rollouts whose group has no right one have no teacher, and stay with GRPO; there their advantage is 0 anyway.

    Choices. From the paper (arXiv 2604.02288v1, section 3 and tables 3 and 7). Advantages are over the whole group,
    before the routing; its equation divides them by the std, its experiments do not (`credit.scale: none`, under
    `srpo_routing@paper`). beta is 1. The mean of v is over the distilled tokens of the optimiser step. It distils over
    the teacher's 100 likeliest tokens; buckets, and the place of the right answer in the prompt, are as in `sdpo_self`.
    Three other methods have the same name (`srpo_history`).
    """,
    cite="li2026srporouting",
    evidence="paper",
    keys={
        "objective.aggregate": "token_mean",
        "objective.add.distillation": "distillation",
        "objective.add.distillation.mean_over": "all",
        "objective.add.distillation.beta": 1.0,
        "weight.untaught": "token_weight",
        "weight.untaught.score": "taught",
        "weight.untaught.curve": "between",
        "weight.untaught.high": 0.0,
        "signal.self_teacher": "self_teacher",
        "signal.self_teacher.rollouts": "failed",
    },
    paper_defaults={
        "credit.scale": "none",
        "objective.clip_high": 0.28,
        "rollout.group_size": 8,
        "tasks.per_step": 32,
        "optim.lr": 5e-6,
    },
    refuses={"objective.aggregate": ("sequence_mean", "sequence_sum")},
    cost="a second model; a forward pass of it over the wrong rollouts that have a right peer",
)

bupo = Definition(
    r"""BuPO: bottom-up policy optimization: train the policy of an inner layer first, then that of the whole model.

    pi^k = softmax(head(norm(h_k))), h_k the hidden state after layer k;   rho = pi^k / pi^k at the start of the step
    L = GRPO's with that rho for the first 30 steps, with the usual one afterwards;
      rollouts are the whole model's always

    Choices. The head reads the state after the final norm, as it does at the end; the authors' code reads it as it is
    (`lm_head(hidden_states[k + 1])`): `bupo@paper`. 0.15 of the depth is layer 5 of 36 (their k = 5, counted from 0, is
    the sixth), which any model has: layer 1 of the tiny one's 3 (`objective.layer` and `signal.layer_logprob.layer`, a
    number or a share). The inner ratio does not correct for the sampler: no rollout is sampled from pi^k. The paper's
    runs clip at 10 for A < 0 as well and take the mean over tokens.
    """,
    cite="tan2025bupo",
    evidence="reference-code",
    code="Trae1ounG/BuPO@d3a85c698912d612c1cdb3edaa9011f450d23344 verl/workers/actor/dp_actor.py "
    "verl/models/custom_model/modeling_qwen3.py run_code/BuPO_qwen3.sh",
    keys={"objective": "inner_layer", "signal.layer_logprob": "layer_logprob", "signal.layer_logprob.steps": 30},
    paper_defaults={
        "objective.final_norm": False,
        "signal.layer_logprob.final_norm": False,
        "objective.surrogate": "dual_clip",
        "objective.ratio_max": 10.0,
        "objective.aggregate": "token_mean",
        "rollout.group_size": 8,
    },
    refuses={"objective.ratio_over": ("behaviour",)},
    cost="a forward pass for the inner layer's log-probs in each of the first steps; a second pass through the head",
)

soft_grpo = Definition(
    r"""SofT-GRPO: GRPO for soft thinking (mixtures of tokens), by the density of the Gumbel noise.

    p on its top-k/top-p support;  y = log p + g,  g ~ Gumbel held in [-1.5, 3];  input = softmax(y / 0.1) @ embeddings
    log pi(step) = mean over ids with log p > -3 of (-g' - e^{-g'}),  g' = y - log p_theta held in [-1.5, 3]
    rho = exp(new - old) of these, of log-probs after </think>; GRPO's loss

    Choices. As in the reference: the mean over ids, where a density is a sum; the bounds, beyond which there is no
    gradient. p_theta is renormalised on the old support, and the counted ids are those of the sampler's p, so that the
    ratio compares one quantity. Noise at a bound keeps its gradient, whatever the rounding.
    """,
    cite="zheng2025softgrpo",
    evidence="reference-code",
    code="zz1358m/SofT-GRPO-master@2b9d8ec6d8f022f2aefe7a1c2512dcb9924cddfe "
    "verl-0.4.x/verl/utils/torch_functional.py verl-0.4.x/verl/workers/actor/dp_actor.py",
    keys={"rollout": "soft_thinking"},
    paper_defaults={"objective.kl.coef": 0.001},
    cost="as sampling and training with stored support; mixtures of K embeddings",
)

# teachers, and contexts that are taken away
dgpo_distill = Definition(
    r"""DGPO (distillation-guided): PPO in which wrong answers, and they alone, pay for differing from a teacher.

    r = score - 0.001 sum_t (log pi_old - log pi_teacher)_t where the score is 0, else score;   A, L as in GAE

    Choices. From the authors' code, in which each token has its own term of the sum, and a row is wrong whose scores
    are all below 0.1; here the verdict says what is wrong, and the sum is on the last token: without a discount the
    return of a token differs by what came before it. The estimate is signed: what the teacher likes more is a bonus.
    The student starts from a cold start on the teacher's answers, which is a run of its own (`model`). The teacher is
    `teacher.model`, with the policy's tokenizer. `dgpo_math` and others have the same name.
    """,
    cite="kotoge2025dgpodistill",
    evidence="reference-code",
    code="omron-sinicx/dgpo@97b78163b6c00e6c3970a4edc17d0ff58fbcacd4 verl/trainer/ppo/ray_trainer.py "
    "scripts/train_dgpo.sh",
    keys={
        "credit": "gae",
        "objective.add.value": "value_regression",
        "signal.teacher": "teacher_model",
        "signal.teacher.top_k": 1,
        "objective.kl.place": "reward",
        "objective.kl.to": "teacher",
        "objective.kl.rollouts": "wrong",
        "objective.kl.estimator": "k1",
        "objective.kl.coef": 0.001,
    },
    paper_defaults={"optim.lr": 1e-6, "tasks.per_step": 512, "update.minibatches": 2},
    cost="a second model; a forward pass of it over all rollouts",
)

rpd = Definition(
    r"""RPD (refined policy distillation): PPO plus a distance to what a teacher would do in the policy's own states.

    L = L_PPO + lambda mean_t KL(teacher || pi)_t, lambda 1

    Choices. From the authors' code, where actions are those of a robot and the distance is the squared difference of
    two means: for means (0, 0.5) and (0.2, 0.1) it is 0.1. Tokens have no mean; its other choice, the negative log-prob
    of the teacher's action, is KL(teacher || pi) up to a constant when averaged over actions. Stand-in: text, no robot.
    The cosine of the code, 1 to 0, is `objective.add.distil.coef: {schedule: cosine, from: 1, to: 0, over: STEPS}`.
    The value head is trained as in `gae`; its lambda of 0.9 and discount of 0.8 are a robot's. The teacher is
    `teacher.model`, with the policy's tokenizer.
    """,
    cite="julg2025rpd",
    evidence="reference-code",
    code="Refined-Policy-Distillation/RPD@10becdf8683e80a1f475d1deebc7e6687a1e3fb6 src/rpd/ppo_rgb_rpd.py train.py",
    keys={
        "credit": "gae",
        "objective.add.value": "value_regression",
        "signal.teacher": "teacher_model",
        "objective.add.distil": "distillation",
        "objective.add.distil.alpha": 0.0,
        "objective.add.distil.ratio_max": None,
    },
    cost="a second model; a forward pass of it over all rollouts",
)

policy_rollout = Definition(
    r"""PolicyRollout (TriMPI): half of a group reads a document in its prompt; all are trained without it.

    o_1 .. o_G ~ pi_old(. | q),  o_G+1 .. o_2G ~ pi_old(. | q, document);   A as in GRPO over all 2G
    L as in GRPO with rho = pi(o | q) / pi_old(o | q) for both halves

    Choices. From an equation in notes of the paper. No weight corrects that half of a group was sampled under another
    prompt, as there (`objective.ratio_over: behaviour` does). A success with the document beside a failure without has
    A = +-0.707, where the failure alone had 0. The document is the task's `info["hints"]`, a list of one text; without
    it, its worked solution. Its first two stages, pre-training on documents and fine-tuning on reasoning, are left out.
    """,
    cite="wang2025trimpi",
    evidence="secondary",
    keys={
        "rollout": "retry",
        "rollout.retry_if": "always",
        "rollout.retry_with": "each_hint",
        "rollout.keep": "everything",
        "rollout.fractions": (1.0,),
        "rollout.template": "{hint}\n\n{prompt}",
        "rollout.samples": 8,
    },
    cost="8 more rollouts a group, and the document in half of the prompts",
)
