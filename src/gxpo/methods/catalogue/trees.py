"""Methods that grow groups as trees, by branching or search."""

from gxpo.parts.definition import Definition

# advantages over a tree of answers
tree_grpo = Definition(
    r"""Tree-GRPO: tree rollouts; advantages normalised within the tree and over all trees of the prompt.

    A_i = z_prompt(R_i) + z_tree(R_i),  z(x) = (x - mean) / (std + 1e-6), one degree of freedom;
      the same for every token of the leaf's whole path, inherited ones included,
      so a token that m leaves share is trained with the sum of m credits.
    M = 2 trees, each a chain and then N = 2 branches at points drawn uniformly among the prompt and the ends of steps.

    Choices. A tree of one leaf adds 0 (the reference adds its raw reward). A step is a turn, as in the paper, where the
    task has an environment; the answer to a prompt has lines instead (`rollout.delimiter`). A branch's environment is
    restored, or its actions are replayed. `rollout.token_budget` and `rollout.call_budget` bound a prompt's tokens and
    calls; the paper compares at equal budgets, its code has no such bound. The paper's KL coefficient is 0.001:
    `tree_grpo@paper`.
    """,
    cite="ji2025treegrpo",
    evidence="reference-code",
    code="AMAP-ML/Tree-GRPO@90b170995d996d772d68117e0c7bd0b8fe00d393 verl/trainer/ppo/ray_trainer_ts.py "
    "verl/trainer/ppo/core_algos.py search_r1/llm_agent/tree_node.py",
    keys={
        "credit": "relative",
        "credit.add.tree": "relative",
        "credit.add.tree.group_by": ("info.tree",),
        "rollout": "tree",
    },
    paper_defaults={"objective.kl.coef": 1e-3},
    cost="fewer generated tokens an attempt: prefixes are shared; a sampling call for every prefix length",
)

tree_rl = Definition(
    r"""TreeRL: tree search branched at high-surprisal tokens; process reward from global and local node advantages.

    V(s) = mean outcome of the leaves below node s;  GA = V(s) - V(root), LA = V(s) - V(parent);
    A(token of s) = (GA + LA) / sqrt(leaves below s);  6 trees, each branching twice at the 2 tokens of largest -log p.

    Choices. The paper's formula; `credit.form: released` is what the authors' script runs (`--use_weighted_value
    --weighted_value_style sqrt --use_state_value_reward`, nothing centred): leaves scored leave-one-out, each node's
    value divided by the root of its leaves before the difference to its parent is taken, 2 V(s) / sqrt(n_s) - V(p) /
    sqrt(n_p); a node that changed nothing has its predecessor's difference. The script trains 16 of the 30 leaves, has
    values from all and counts the 16 below the root sign; here all are trained (`rollout.keep` drops leaves before
    values are made); it sets the reward of repetitive answers to -1. The tokens of largest -log p are taken, each once;
    temperature 1.2 and the learning rate are under `tree_rl@paper`. TreePO, which averages a leaf's advantages over the
    groups below all its ancestors, is `tree_po`.
    """,
    cite="hou2025treerl",
    evidence="reference-code",
    code="THUDM/TreeRL@f0edbea6f2f6392c46d297f83fb4929a9524266e scripts/treerl-qw14b.sh train_reinforce_ray.py "
    "openrlhf/trainer/ppo_utils/tree_node.py openrlhf/trainer/ppo_utils/parallel_mcts.py",
    keys={
        "credit": "node_value",
        "rollout": "tree",
        "rollout.branch_at": "surprisal",
        "rollout.trees": 6,
        "rollout.branches": 2,
    },
    paper_defaults={"sampling.temperature": 1.2, "optim.lr": 1.5e-6},
    cost="30 leaves a prompt, their prefixes shared; a sampling call for every prefix length",
)

tree_po = Definition(
    r"""TreePO: leaf advantages averaged over the subtrees of all ancestors, weighted by subtree size.

    A_i = sum_d |G_d| (R_i - mean over G_d) / sum_d |G_d|, G_d the leaves below its d-th ancestor, the prompt's first;
    then (A - mean) / sqrt(var + 1e-8) over the tokens of the batch; the same for all tokens of the leaf's path

    Choices. As the authors' code at its defaults: weights by size, groups of equal outcomes counted
    (`credit.drop_equal`); their training script asks for the plain mean (`tree_po@paper`, `credit.weight: equal`). An
    ancestor counts once however many segments lie before the next branch; in the code every segment does. Its trees are
    of segments of a fixed length and branch by budget; here branches leave at ends of steps, two rounds of them, so
    that there are ancestors of two depths.
    """,
    cite="li2025treepo",
    evidence="reference-code",
    code="multimodal-art-projection/TreePO@f05552394e734ea2838cf9e3b8191f5093319dcf "
    "verl/trainer/ppo/core_algos.py recipe/treepo/run_treepo_train.sh",
    keys={"credit": "ancestor_groups", "rollout": "tree", "rollout.rounds": 2},
    paper_defaults={"credit.weight": "equal"},
    cost="fewer generated tokens an attempt: prefixes are shared; a sampling call for every prefix length",
)

# where trees branch
arpo_agentic = Definition(
    r"""ARPO: entropy-based adaptive branching of agent rollouts after uncertain turns, with GRPO advantages.

    P(branch after turn t) = clip(p_b + w (H_t - H_1), 0, 1),  p_b 0.5, w 0.2,  H_t the mean -log p of the turn's first
      20 tokens;   N_0 = 8 of n = 16 attempts begin at the prompt, a turn leaves at most one branch
    A = GRPO's over all n

    Choices. The paper's "soft" advantage, which is all that the code has: every attempt has its own A on its whole
    path, so that a turn which m attempts share is pushed by their sum, m times their mean. The "hard" one has that mean
    in all of them: up to the clip, and with attempts of one length, the same gradient. H is an estimate from the
    sampled tokens, a mean in nats (the code: the sum of 20 tokens' entropies over the top 10, divided by ln of the
    vocabulary's size, 12 for Qwen: up to 1.7 times the mean, so that its w is as 0.34 here); it is the turn's own, as
    in the code, where the paper's words are of the tokens after a tool's answer, which are the next turn's. P is drawn,
    as in the code; the paper compares it with a threshold. The weight is the scripts' 0.2 (the code's default 0.5).
    """,
    cite="dong2025arpoagentic",
    evidence="reference-code",
    code="dongguanting/ARPO@e257337d1f105ba685057cb662c75e509d1c7b34 "
    "ARPO/verl_arpo_entropy/verl/workers/rollout/vllm_rollout/vllm_rollout_with_tools.py "
    "ARPO/scripts/ARPO_7B_Reasoning_1node.sh",
    keys={"rollout": "turn_branches"},
    cost="fewer generated tokens an attempt: turns before a branch are shared; the environment is restored for each",
)

slate = Definition(
    r"""SLATE: step-level groups: k candidates for each step from one prefix, each scored separately.

    A_j = (r_j - mean_k r) / (std_k r + 1e-6) over the k candidates of a step, one degree of freedom (eq. 5)
    the episode goes on from candidate j with probability softmax(A / eta)_j;  k = 5, eta = 0.7

    Choices. Every candidate is a trajectory of one turn, and a step's are a group: advantage and objective are GRPO's.
    So a step is judged by its score alone, nothing that comes later. The score is the environment's reward for the
    step; the paper's judge, which gives thought, query and answer -1, 0 or 1 and early answers 0.1 more, is a function
    of yours: `rollout.score: FILE.py:NAME`. Candidates count alike in the loss, whatever step they are of (eq. 7 sums
    over steps, the code divides by them). No answer is forced when the turns are used up. The paper's KL coefficient:
    `slate@paper`. The reference's trainer trains none of this.
    """,
    cite="samarinas2026slate",
    evidence="reference-code",
    code="algoprog/SLATE@cbab153124ea5031e3fd2129b44771346003f450 slate/training/step_level_algos.py "
    "slate/agent_loops/slate_agent_loop.py configs/slate.yaml",
    keys={"rollout": "step_candidates"},
    paper_defaults={"objective.kl.coef": 1e-3, "optim.lr": 1e-6},
    cost="k actions a step; a score of each; the environment is restored for each candidate",
)

rose = Definition(
    r"""ROSE: tree rollouts branched at uncertain tokens; advantages are value differences between branch points.

    A(tokens from branch point j to j + 1) = V(j + 1) - V(j), and R - V of the last point for the rest;
    V(j) = mean outcome of the answers through point j. 8 answers: with probability 0.5 a new one begins at the prompt,
      else at the token of largest -log p so far. Loss: the sum over an answer's tokens over the longest length.

    Choices. The paper branches where likely tokens differ most in meaning: -(|sum p_i e_i|^2 - sum p_i^2) H over the
    top 20 tokens and their embeddings e. Engines return the sampled token's log-prob alone, so its -log p is used
    instead: a branch is uncertain here, not known to be diverse. A token is branched at once; the code, which retires
    none, returns to the same point until a new answer has a larger value. V belongs to the point of the tree; the code
    pools points of a prompt at equal positions (`credit.branch_key: position`). The length penalty is off, as in the
    script: `credit.length_power`. There an answer also has its parent's branch point where it left the parent before
    that point; here only points that it came through. The script also drops groups of equal outcomes; here they are
    left in, at 0.
    """,
    cite="zhao2026rose",
    evidence="reference-code",
    code="ZiqiZhao1/ROSE-rl@2142dc79ceabea43e195dc64b54e150c7b228a4b verl/trainer/ppo/core_algos.py "
    "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py example.sh",
    keys={
        "credit": "value_delta",
        "credit.value": "branch_points",
        "rollout": "tree",
        "rollout.branch_at": "surprisal",
        "rollout.trees": 1,
        "rollout.rounds": 7,
        "rollout.expansions": 1,
        "rollout.root_probability": 0.5,
        "objective.aggregate": "sequence_sum",
    },
    paper_defaults={"objective.kl.coef": 1e-3, "optim.lr": 1e-6},
    cost="a sampling call for each of 8 answers of a prompt; their prefixes are shared",
)

# truncated thoughts
anytime_brpo = Definition(
    r"""BRPO (AnytimeReasoner): dense rewards from thinking truncated at several budgets; budget-relative baseline.

    score_s = mean of the A answers after budget s;   R_s = sum_{j >= s} P_j score_j
    V1_s = (sum_{j<s} 2^j score_j / sum_{j<s} 2^j) sum_{j>=s} P_j,   V2_s = group mean of R_s
    A(thinking between budgets s-1 and s) = R_s - (s V1_s + (S - s) V2_s) / S
    A(answer) = score - mean of the answers to its cut

    Choices. No std anywhere; a thinking alone in its group has 0 (`credit.singleton: raw`: V2 = 0, the code's). A
    shared token counts once (`dedup_shared_tokens`), under a constant divisor (the code: rows times the padded length
    of the micro-batch). S = 4 budgets, evenly spaced; A = 4, P uniform. Answers have 8 tokens, which suits small
    models: set rollout.summary_tokens.
    """,
    cite="qi2025anytimebrpo",
    evidence="reference-code",
    code="sail-sg/AnytimeReasoner@7e3f5bb3e0617dbc8c3c522937bab1974b444982 verl/verl/trainer/ppo/brpo.py "
    "verl/verl/trainer/ppo/core_algos.py run_experiments.sh",
    keys={
        "rollout": "thinking_budgets",
        "credit": "budget_relative",
        "objective.aggregate": "sequence_sum",
        "objective.dedup_shared_tokens": True,
    },
    cost="S A answers a thinking, each a short continuation of a shared prefix",
)

# search
deepsearch = Definition(
    r"""DeepSearch: Monte Carlo tree search inside training, with node-level Q values as advantages.

    terminal: v = 1 right, -1 wrong; one of an expansion is backed up, a right one before a wrong one,
      of these the most confident
    node d of a path of D pieces: Q_d = sum w_d over successes below, else - sum w_d over failures;
      w_d = max((d + 1) / (D + 1), 0.1)
    search: a child by softmax of q + 2 sqrt(ln N_parent / N), q = Q / N; after a terminal, the node without children of
      largest 0.4 tanh(q_parent) + 0.01 sqrt(d / d_max)
    A_t = (s_t - mean s_end) / (std s_end + eps) over the tree's attempts; s_t = tanh(Q_d), on the last piece v

    Choices. As the code: Q is a sum, not divided by visits, in the advantage; std over the population. Its children are
    chosen by `rollout.greedy`, the paper samples. There all attempts of a tree may fail, and everything but last pieces
    is divided by eps: here such a group has advantage 0. Pieces are 1/8 of the longest answer (32 in the paper's long
    answers), 4 children a node (the code: as many as attempts, unless set). Solutions of tasks that are hard are cached
    between rounds of training in the paper, and replace failures: `rollout: search_replay` does so during training,
    with its own log-probs; off here. The overlong penalty is left out. Shaped rewards do not enter the credit. Since a
    success is backed up before a failure, a tree is better than the policy: on tasks that are often solved, all of it
    succeeds, and teaches nothing.
    """,
    cite="wu2025deepsearch",
    evidence="reference-code",
    code="smiles724/DeepSearch@daf9067b87cf4229f364bd1ccd9136a6e8b68072 deepsearch/utils/mcts.py "
    "deepsearch/reward_manager/advantage_fn.py deepsearch/rollout/sglang_mcts_wrapper.py",
    keys={"credit": "search_value", "rollout": "search"},
    paper_defaults={"rollout.chunks": 32},
    refuses={"objective.kl.place": ("reward",)},
    cost="every expansion samples 4 pieces, of which most lead to no attempt; a sampling call for every piece",
)

tree_opo = Definition(
    r"""Tree-OPO: completions of tree-search prefixes; advantages by a quadratic program with prefix-order constraints.

    a = argmin |a - (r - mean r)|^2 / 2   with sum a = 0, |a|^2 <= n, and a_i + 0.01 <= a_j for
      (i, j): i failed, j succeeded, prefix i is a proper prefix of prefix j
      (i, j): both failed at sibling prefixes, a success extends prefix i and none prefix j

    Choices. From secondary notes; there is no code. `credit.variant: expectation`, `optimistic` or `pessimistic` are
    the heuristics, a_i = r_i - 0.5 V(prefix i), centred; 0.5 is a recollection. No division by the std, as recommended:
    it would undo what prefixes of different difficulty say. The prefixes are a teacher's (`rollout.tree`: its
    rollouts); without one the policy searches for them in every step. The second rule favours the branch that is not
    proven yet, for the sake of exploration. Both lead from rows whose prefix some success extends to rows of which that
    is not so, so constraints that go round in a circle do not come up.
    """,
    cite="huang2025treeopo",
    evidence="secondary",
    keys={"credit": "prefix_ordered", "rollout": "prefixes"},
    cost="without a file, a search for prefixes in every step; a small quadratic program a group",
)

alphamath = Definition(
    r"""AlphaMath: imitation of MCTS rollouts weighted by outcome, plus a value head fitted to the tree's state values.

    V(s) = mean outcome of the search's attempts through the state after a step
    L = mean over attempts and tokens of -r log policy  +  0.5 mean over steps of (value(step's last token) - V)^2 / 2

    Choices. The search is the authors' code's: from the root down by q + 1.5 p sqrt(N) / (1 + n), p the geometric mean
    of the probabilities of the step's tokens, 5 candidates a step, every end scored and backed up as +-1. There a step
    that is no end is backed up with the value head's estimate and the next selection begins at the root; here that
    estimate is not used, and the search goes on below the step. They train between rounds of search, by the mean of
    -log policy over the tokens of right solutions and a mean squared error of tanh of a linear head to q; here in every
    step, on the attempts of its own search, -r log policy with r the outcome (0: not imitated, but counted), and a
    linear head in units of the outcome, where q is 2 V - 1. A step is 1/8 of the longest answer (theirs: a line, with
    code that is run). Left out: the head in the search, beam search by steps at inference.
    """,
    cite="chen2024alphamath",
    evidence="reference-code",
    code="MARIO-Math-Reasoning/Super_MARIO@c11d2f2f974c mcts_math/nodes/mcts_node.py mcts_math/agents/mcts.py "
    "implementation_details.md",
    keys={
        "credit.center": "none",
        "credit.scale": "none",
        "credit.add.tree_progress": "value_delta",
        "credit.add.tree_progress.value": "pieces",
        "credit.add.tree_progress.factor": 0.0,
        "credit.add.tree_progress.target": "last",
        "rollout": "search",
        "rollout.values": "mean",
        "rollout.backup": "all",
        "rollout.resume_at": "root",
        "rollout.selection": "puct",
        "rollout.exploration": 1.5,
        "rollout.width": 5,
        "rollout.greedy": True,
        "objective.surrogate": "log_likelihood",
        "objective.add.value": "value_regression",
    },
    cost="a sampling call for every piece of the search; a value head",
)

masprm = Definition(
    r"""MASPRM: tree search over the calls of a multi-agent team; each call's advantage is its value difference.

    V(s) = mean outcome of the search's attempts through the state after a call
    A = V(after the call) - V(before it) for every token of it
    L = clip loss + 0.5 mean over calls of (value(call's last token) - V)^2 / 2

    Choices. The authors train a separate value model and use it to guide search at inference, which is left out; taken
    from their code is the search (all ends scored and backed up as +-1, down from the root by q + 2 sqrt(ln N / max(n,
    1)), 4 candidates a call, on with one of them where none is an end) and its target, the mean return below. There an
    end may be visited, and counted, again, and trees whose root is beyond +-0.7 teach nothing. That the same values
    give the advantages of the agents' calls is ours: over an attempt they add up to outcome - mean outcome. The head is
    linear in units of the outcome and reads the policy's hidden states; theirs is fitted to atanh of q (by default with
    a cross-entropy for targets in [0, 1]).
    """,
    cite="yazdani2025masprm",
    evidence="reference-code",
    code="milad1378yz/MASPRM@9480f7422ffb src/mcts.py src/train/preprocess_data.py src/train/trainer.py",
    keys={
        "credit": "value_delta",
        "credit.value": "pieces",
        "credit.target": "last",
        "rollout": "team_search",
        "rollout.values": "mean",
        "rollout.backup": "all",
        "rollout.resume_at": "root",
        "rollout.selection": "uct_counted",
        "rollout.greedy": True,
        "objective.add.value": "value_regression",
    },
    cost="4 candidates for every call that the search goes on from; a value head",
)
