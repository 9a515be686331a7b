"""Methods with a score for each tool call or step."""

from gxpo.parts.definition import Definition

# turns by their tool calls
matchtir = Definition(
    r"""MatchTIR: turn rewards by bipartite matching of tool calls with a reference; outcome and turn-level advantages.

    S(p, g) = [same tool] (1 + J(argument names) + #equal arguments) / (2 + #arguments of g);
      one-to-one matching of calls
    r_t     = mean of S over the turn's calls, 0 for a call without a partner;
      of an answering turn, F1 of the sets of words
    A       = (z_g(sum_t r_t) + z_t(D_t)) / 2;   D_t = r_t + 0.9 D_{t+1}, z_t over the group's turns of the same number

    Choices. The matching is optimal, as the paper says; the function called Hungarian in its code takes the largest
    pair first (`reward.step.matched_calls.matching: greedy`; soft: `sinkhorn`). Alone at a number, a turn has 0 there;
    the code gives it D_t itself, which pays the longest attempt for length (`credit.singleton: raw`). As in the code,
    words have no punctuation, names of tools no case, and calls of an answering turn take part in no matching. The sum
    of the turns' rewards is what trajectories are compared by: more right calls earn more, whatever the answer. The
    script's KL .001 and entropy bonus .001 are in `@paper`; verl's dual clip at 3 is left out. Needs an environment
    that names the reference's calls, as toolqa.
    """,
    cite="qu2026matchtir",
    evidence="reference-code",
    code="quchangle1/MatchTIR@f614ce1 Code/verl/utils/reward_score/tool.py Code/verl/trainer/ppo/core_algos.py "
    "Scripts/run.sh",
    keys={
        "credit": "relative",
        "credit.value": "turn_rewards",
        "credit.weight": 0.5,
        "credit.add.turn": "relative",
        "credit.add.turn.value": "return",
        "credit.add.turn.group_by": ("turn",),
        "credit.add.turn.discount": 0.9,
        "credit.add.turn.weight": 0.5,
        "reward.step.matched_calls": "matched_calls",
    },
    paper_defaults={
        "objective.kl.coef": 0.001,
        "objective.entropy.coef": 0.001,
        "rollout.group_size": 16,
        "optim.lr": 1e-6,
    },
)

mt_grpo = Definition(
    r"""MT-GRPO: turn-level advantages from tool results, added to the outcome advantage.

    A_k    = A^O + A^T_k for a turn k that a result follows;   A = A^O for the last turn
    A^O    = (R - mean_g) / (std_g + 1e-4);   A^T_k = (r_k - mean) / (std + 1e-4) over the group's turns of number k
    r_k    = 0.2 if the tool ran + 0.5 if its result holds the answer

    Choices. The paper and its code have two turns with one result between them; K turns, compared by their number, are
    our extension, which is theirs for K = 2. The code weighs the turn's part (`credit.turn_weight`), the paper the
    outcome's; both weights are 1. A completion without a result has A^O here and is in no statistic of turns; the code
    gives it the standardised sum of both rewards, another scale in one batch, and counts its turn reward as 0. Where
    the first result comes after several turns, the code gives all of them the turn's part. An answer is in a result
    wherever its letters are, as in the code, also 38 in -38: `reward.step.tool_result.whole_words` asks for a word of
    its own. The code's loss is a token mean, over two passes of a batch (`@paper`). Turn rewards take the place of the
    environment's step rewards. On tasks of one turn this is GRPO. There is another MT-GRPO (multi-task, arXiv
    2602.05547).
    """,
    cite="zeng2025mtgrpo",
    evidence="reference-code",
    code="SiliangZeng/Multi-Turn-RL-Agent@7dbdd08 verifiers/trainers/mt_grpo_env_trainer.py "
    "verifiers/trainers/grpo_env_trainer.py verifiers/rubrics/triviaqa_rubric.py "
    "verifiers/rubrics/tool_rubric.py scripts/run_mt_grpo.sh",
    keys={
        "credit": "relative",
        "credit.eps": 1e-4,
        "credit.add.turn": "relative",
        "credit.add.turn.value": "return_before_last",
        "credit.add.turn.group_by": ("turn",),
        "credit.add.turn.discount": 0.0,
        "reward.step.tool_result": "tool_result",
    },
    paper_defaults={
        "rollout.group_size": 21,
        "optim.lr": 1e-6,
        "update.epochs": 2,
        "objective.aggregate": "token_mean",
    },
)

# steps by a model
prorag = Definition(
    r"""ProRAG: step scores of a process reward model, normalised over the group's tokens, added to GRPO's advantage.

    A_t = (R - mean_g R) / (std_g R + 1e-4) + 0.5 z_t;   z_t = (s_t - mu) / (std + 1e-8),
      s_t the score of the token's step, mu and std (population) over all tokens of all attempts of the group,
      so that a long step moves them more

    Choices. The scorer is a setting: `signal.step_judge.score=prm.py:score`, a judge, or a server (the paper's model is
    trained on trees of its own, which is not built). A step is a turn, or a segment where `segment` names a segmenter.
    The reference has 1e-8 inside the root, here it is added to the std; and divides by 1 where a group has one token,
    which is 0 either way. A step without a score has z 0 and is in no statistic. Groups of equal outcomes learn from
    the scores alone. Warm-up and refinement of the policy before the training are other stages.
    """,
    cite="wang2026prorag",
    evidence="reference-code",
    code="lilinwz/ProRAG@c7a64110d0c900561fde4292f234b97dfe633e94 prorag/rl/trainer.py prorag/rl/train.py",
    keys={
        "credit.eps": 1e-4,
        "credit.add.token_normalised": "relative",
        "credit.add.token_normalised.value": "segment_score",
        "credit.add.token_normalised.ddof": 0,
        "credit.add.token_normalised.eps": 1e-8,
        "credit.add.token_normalised.weight": 0.5,
        "signal.step_judge": "step_judge",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-5},
    cost="a score for every step, by a model or a judge of your choice",
)

capo_genprm = Definition(
    r"""CAPO (generative PRM): penalise steps that LLM critiques call wrong; token-level group normalisation.

    R_t = 2 * outcome - 1 * [the token's step is voted wrong];
      A_t = (R_t - mean) / (std + 1e-6), mean and population std over all tokens of all attempts of the group.
      4 critiques; wrong is what all of them call wrong ("intersection")

    Choices. From secondary sources: a reimplementation's table of rewards, and reviews for the normalisation. C = 2 and
    P = 1: the reward of the whole outweighs that of the process, so that a right attempt with wrong steps stays above a
    wrong one; other orders are refused. Steps end with an empty line (`segment=pattern` with `segment.regex` for
    numbered ones). `credit.vote` is intersection, majority or union. Critiques are sampled at temperature 1; the
    paper's is not known to us. The judge (`signal.step_judge.server`, or `.ask`) is yours to name. A step that no
    critique could be read for is not penalised, and counted. Advantages vary between tokens, so a group of one learns
    where it has wrong steps.
    """,
    cite="xie2025capogenprm",
    evidence="secondary",
    keys={
        "credit.value": "penalised_outcome",
        "credit.unit": "token",
        "credit.ddof": 0,
        "segment": "delimiter",
        "signal.step_judge": "step_judge",
        "signal.step_judge.reply_format": "wrong",
        "signal.step_judge.critiques": 4,
        "signal.step_judge.temperature": 1.0,
    },
    cost="4 critiques of every attempt by a judge of your choice",
)

# steps by the reference solution
e_grpo = Definition(
    r"""E-GRPO: partial reward for wrong answers by the share of the solution's entities in the reasoning.

    R = 1 if right; 0.3 * rate / (largest rate of the group) if wrong; 0 if wrong and cut at a limit;   A as in GRPO

    Choices. As in the paper (eq. 1 to 5; 0.3 is the best of 0.1, 0.3 and 0.5). The largest rate is that of the group's
    compared attempts, right ones included. Rates are component "entities" of your reward: the built-in reward of that
    name with weight 0 (`scoring.weights: {correct: 1, entities: 0}`), for tasks whose info names `entities`, or a
    function of your own. The paper matches exact strings in the thoughts alone, the built-in reward in what the attempt
    says, case and spaces aside. An error of format earns 0 there and is not known here. Attempts over a limit are in
    the paper's statistics but not in its loss. It trains without KL, with a wider upper clip and groups of 8.
    """,
    cite="zhao2025egrpo",
    evidence="paper",
    keys={"reward.shape.entity_match": "shape", "reward.shape.entity_match.function": "entity_match"},
    paper_defaults={"rollout.group_size": 8},
)

step_grpo_r1vl = Definition(
    r"""StepGRPO (R1-VL): rewards for key steps of the solution and for complete, ordered reasoning.

    R = outcome + 0.1 k / N + [four headings there, steps numbered 1, 2, ..., the answer after them];   A as in GRPO

    Choices. As in the authors' code: k of the task's N key steps (`info["key_steps"]`, each with its wordings) are
    found, case aside, below a heading "### Step n:"; 0 without key steps. The headings are "### Image Description:",
    "### Rationales:", "### Step 1:" and "### The final answer is:", and the prompt has to ask for them. The paper also
    wants the background before the steps, which the code does not check. Parts of your own, in order:
    `scoring.options.key_steps.parts`. Both numbers come from the built-in reward "key_steps" with weight 0, or from
    components of your own. Despite its name no step has an advantage of its own. With all key steps and the form right,
    attempts differ by their answer alone. The trainer is TRL's of that time (`@paper`: eps 1e-4, KL .04).
    """,
    cite="zhang2025stepgrpor1vl",
    evidence="reference-code",
    code="jingyi0000/R1-VL@679be5c src/r1-vl/src/open_r1/grpo.py src/r1-vl/src/open_r1/trainer/grpo_trainer.py "
    "src/r1-vl/run_grpo_7b.sh",
    keys={
        "reward.shape.key_step_reward": "shape",
        "reward.shape.key_step_reward.function": "added_component",
        "reward.shape.order_reward": "shape",
        "reward.shape.order_reward.function": "added_component",
        "reward.shape.order_reward.component": "ordered",
        "reward.shape.order_reward.weight": 1.0,
    },
    paper_defaults={
        "rollout.group_size": 4,
        "sampling.temperature": 1.2,
        "credit.eps": 1e-4,
        "objective.kl.coef": 0.04,
    },
)

# items of a list
rank_grpo = Definition(
    r"""Rank-GRPO: return, advantage and importance ratio per item of a list, compared rank by rank in the group.

    r_k   = [item k is among the reference's]        (`credit.decay: log`: sum_{j>=k} r_j / log2(j + 2), j from 0)
    A_k   = (r_k - mean_g r_k) / (std_g r_k + 1e-4), the mean over the same rank of the group's lists
    rho_k = exp(mean over the item's tokens of logp - logp^old);   loss over tokens, clip 0.06 and 0.08

    Choices. From the authors' code. The newline belongs to the item before it, an item beyond the 20th has advantage 0,
    and a list without a rank has 0 there. Here a token with several newlines ends one item (there it skips ranks), what
    follows the 20th item is items of their own (there one bin), and the end-of-text token belongs to the last item
    (there it is paid apart, if at all: rewards for lists of the right length are left out). An answer that can't be
    parsed has 0 at all ranks there; here each line stands for itself. The reference is the task's answer, a line each.
    """,
    cite="zhu2025rankgrpo",
    evidence="reference-code",
    code="yaochenzhu/Rank-GRPO@0808d82c0807396c07b4f4815a6f9bd9c4f03ae8 libs/trl/rank_grpo_trainer.py "
    "libs/reward_funcs.py train_rank_grpo.py",
    keys={
        "segment": "delimiter",
        "segment.text": "\n",
        "signal.item_hits": "item_hits",
        "credit": "rank_relative",
        "objective.ratio": "segment",
        "objective.aggregate": "token_mean",
        "objective.clip_low": 0.06,
        "objective.clip_high": 0.08,
    },
    paper_defaults={"objective.kl.coef": 1e-3, "sampling.max_new_tokens": 1024, "optim.lr": 1e-6},
)
