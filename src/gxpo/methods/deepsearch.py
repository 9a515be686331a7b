r"""DeepSearch: Monte Carlo tree search inside training, with node-level Q values as advantages.

terminal: v = 1 right, -1 wrong; one of an expansion is backed up, a right one before a wrong one, of these the most
confident node d of a path of D pieces: Q_d = sum w_d over successes below, else - sum w_d over failures; w_d = max((d +
1) / (D + 1), 0.1) search: a child by softmax of q + 2 sqrt(ln N_parent / N), q = Q / N; after a terminal, the node
without children of largest 0.4 tanh(q_parent) + 0.01 sqrt(d / d_max) A_t = (s_t - mean s_end) / (std s_end + eps) over
the tree's attempts; s_t = tanh(Q_d), on the last piece v

Choices. As the code: Q is a sum, not divided by visits, in the advantage; std over the population. Its children are
chosen by `rollout.greedy`, the paper samples. There all attempts of a tree may fail, and everything but last pieces is
divided by eps: here such a group has advantage 0. Pieces are 1/8 of the longest answer (32 in the paper's long
answers), 4 children a node (the code: as many as attempts, unless set). Solutions of tasks that are hard are cached
between rounds of training in the paper, and replace failures: `rollout: search_replay` does so during training, with
its own log-probs; off here. The overlong penalty is left out. Shaped rewards do not enter the credit. Since a success
is backed up before a failure, a tree is better than the policy: on tasks that are often solved, all of it succeeds, and
teaches nothing.
"""

from gxpo.algorithms.credit.search_value import searched
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.search import Search

deepsearch = Definition(
    name="deepsearch",
    doc=__doc__,
    title="DeepSearch: Overcome the Bottleneck of Reinforcement Learning with Verifiable Rewards via Monte Carlo Tree "
    "Search",
    arxiv="2509.25454",
    authors="Wu, Fang and Xuan, Weihao and Qi, Heli and Lu, Ximing and Tu, Aaron and Li, Li Erran and Choi, Yejin",
    year=2025,
    formula="A_t = (tanh Q_d - mean v) / std v over the tree; Q_d = sum max((d+1)/(D+1), .1) over successes below d, "
    "without any - over failures",
    evidence="reference-code",
    keys={"credit": searched, "rollout": Search},
    paper_defaults={"rollout.chunks": 32},
    refuses={"objective.kl.place": ("reward",)},
    cost="every expansion samples 4 pieces, of which most lead to no attempt; a sampling call for every piece",
    code="smiles724/DeepSearch@daf9067b87cf4229f364bd1ccd9136a6e8b68072 deepsearch/utils/mcts.py "
    "deepsearch/reward_manager/advantage_fn.py deepsearch/rollout/sglang_mcts_wrapper.py",
)
