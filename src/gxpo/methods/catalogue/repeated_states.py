"""Methods that compare steps which begin in the same state of the environment."""

from gxpo.parts.definition import Definition

gigpo = Definition(
    r"""GiGPO: trajectory-level group advantage plus step-level advantage among steps from the same (anchor) state.

    A^E = (R_i - mean_g R) / (std_g R + eps)            over trajectories (eq. 3)
    A^S = (G_t - mean_s G) / (std_s G + eps)            over the steps of the group in the same state s (eq. 7)
    A   = A^E + 1.0 A^S, the same for every token of the step; G_t the return with discount 0.95 (eq. 5)

    Choices. Both levels with std, ddof 1, eps 1e-6, as in the reference's ALFWorld scripts (its yaml default is the
    mean alone: `credit.scale: none`). A^E is over trajectories, as in the paper's eq. 3 and in the authors' later
    repository, which is the one named; their first, verl-agent, takes it over steps, so that long trajectories weigh
    more (`credit.unit: step`). States visited once, and groups of one, have 0 (the reference keeps a lone trajectory's
    raw score: `credit.singleton: raw`). States are equal where their ids are; `credit.add.state.state: observation`
    goes by texts, `credit.add.state.min_similarity: 0.95` by their likeness, `credit.add.state.history` by the states
    before as well.
    """,
    cite="feng2025gigpo",
    evidence="reference-code",
    code="langfengQ/DrMAS@3b556f2c0373fe23d6b637cbd3673c076713aebe gigpo/core_gigpo.py",
    keys={"credit": "relative", "credit.add.state": "state_relative"},
    paper_defaults={"objective.kl.coef": 0.01, "rollout.group_size": 8, "optim.lr": 1e-6},
)

hgpo = Definition(
    r"""HGPO: hierarchical step groups: advantages averaged over groups that share the last one, two, three states.

    key_h(t) = (s_{t-h}, ..., s_t),  h = 0..K, K = 2;   G_t the return with discount 0.95
    A_h = (G_t - mean) / (std + eps) over the group's steps with the same key_h, std over all of them (ddof 0)
    A   = sum_h w_h A_h / sum_h w_h,  w_h = (h + 1)^alpha, alpha 1, over the levels with another step;
      0 where there is none

    Choices. Only states are compared, not actions, as in the authors' code. Weights 1, 2, 3 as in the paper; the recipe
    in verl-agent (read in a fork of it) has 2, 3, 4 (`credit.offset: 2`). The code leaves out levels whose advantage is
    exactly 0, so that a step which is average by floating point is judged by the other levels alone (`credit.ignore:
    zero`); here levels are left out at which all returns are equal, and there is nothing to compare. No level of whole
    trajectories, as by default there. K is the window of history that the policy sees.
    """,
    cite="he2026hgpo",
    evidence="reference-code",
    code="zzj1111/alfworldauto@37aec781da7f377874516e22d7f32c1932215eb4 recipe/hgpo/core_hgpo.py",
    keys={"credit": "history_groups"},
    paper_defaults={"objective.kl.coef": 0.01, "rollout.group_size": 8, "optim.lr": 1e-6},
)

salt = Definition(
    r"""SALT: step-level advantages by trajectory graph: steps shared by several rollouts get their mean advantage.

    A_i    = (R_i - mean_g) / (std_g + eps)
    A'_it  = mean of A_j over all steps (j, k) of the group that are the same edge as (i, t)
    edge   = (history, state, action, next state)

    Shared steps are neutral where the rollouts through them differ in outcome; a step of a single rollout keeps its
    advantage.

    Choices. From an overview and from what GRAFT's authors write about it (arXiv 2609.28963, appendix A.3: the
    transitions (s, a, s') that are equal share the mean of their advantages); there is no code. How much history must
    be equal is tuned in the paper, and its values are not known: here the state before the step (`credit.history: 1`; 0
    merges more). Actions are equal token by token. RLOO as the base: `credit.center: leave_one_out`, `credit.scale:
    none`.
    """,
    cite="li2025salt",
    evidence="secondary",
    keys={"credit": "shared_edges"},
)

graph_gpo = Definition(
    r"""GraphGPO: step-level advantage by shortest distance to success in the group's state graph, added to GRPO's.

    d(s) = fewest steps from s to success in the union of the group's trajectories;
      largest + 1 where nothing leads there
    R_t  = 10 * 0.1^d(s_{t+1})
    A    = z_group(outcome) + z_state(R_t),  z(x) = (x - mean) / (std + 1e-6), ddof 1;
      z_state over the steps in one state

    A step of a failed trajectory counts as much as the same step of a successful one.

    Choices. The recipe's R_t; the paper's is 10 * 0.1^(d + 1), which is a tenth of it and the same after scaling. Steps
    are compared with multiplicity, as in the recipe (verl-agent's, read in a fork of it). A^E over trajectories (the
    recipe: over steps, `credit.unit: step`); a state visited once and a group of one have 0. Where no attempt succeeds
    all R_t are equal, and this is GRPO. With `credit.add.graph.form: progress` R_t = 10 * 0.1^(d(s_{t+1}) - d(s_t) +
    1).
    """,
    cite="cheng2026graphgpo",
    evidence="reference-code",
    code="zzj1111/alfworldauto@37aec781da7f377874516e22d7f32c1932215eb4 recipe/GraphGPO/core_graph.py "
    "recipe/GraphGPO/graphgpo_ray_trainer.py",
    keys={
        "credit": "relative",
        "credit.add.graph": "state_relative",
        "credit.add.graph.value": "graph_return",
        "credit.add.graph.discount": 0.1,
    },
)

graft = Definition(
    r"""GRAFT: state graph merged from the group's trajectories; step advantages are TD errors of its Bellman values.

    V(s)    = mean over the steps that left s of r + 0.99 V(s'), solved over the whole graph (Bellman); 0 at the end
    delta_t = r_t + 0.99 V(s_{t+1}) - V(s_t);   A_t = delta_t / std of the deltas of the steps out of s_t
    rho     = geometric mean over the step's tokens, clipped at 1 +- 0.2 (the paper's eq. 4)

    A failed trajectory's step into a state from which others succeed has an advantage above 0.

    Choices. After the paper; its code was announced and is not there. Its Graph GAE (eq. 9) adds (0.99 lambda)^k times
    the mean delta of the steps k further on: under these values that mean is 0 at every state, so lambda (0.95, 0.8,
    0.6 in the paper) changes nothing, and `credit.lam` is 0; above 0 it is GAE along each trajectory. A step that is
    alone at its state is given its sign in the paper: its delta is 0. The std has one degree of freedom. The paper
    averages over steps, here over trajectories. States are equal by the environment's word (`credit.min_similarity`
    merges texts).
    """,
    cite="yao2026graft",
    evidence="paper",
    keys={
        "credit": "graph_values",
        "credit.discount": 0.99,
        "credit.lam": 0.0,
        "credit.scale": "std",
        "objective.ratio": "turn",
    },
)
