"""Values that `Relative` compares, by name, as functions of columns: rewards of tokens or steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.recursion import next_in
from gxpo.algorithms.credit.state_keys import Moves
from gxpo.base.errors import one_of
from gxpo.forest import grouped
from gxpo.parts.functions import checked_by

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


# ---------------------------------------------------------------- graph distance
# Shortest distances in a graph.
@torch.no_grad()
def graph_distance(source: Tensor, target: Tensor, goal: Tensor) -> Tensor:
    """Shortest distance from each node to a goal in edges, [n] float64; inf where there is no path.

    source, target  [E] nodes that each edge joins; goal [n] bool

    A sweep over the edges finds the nodes that are one further, so there are as many sweeps as the longest distance;
    edges out of nodes that are found are left out of the next.

    >>> edges = torch.tensor([[0, 1, 0, 3], [1, 2, 3, 3]])
    >>> graph_distance(*edges, torch.tensor([False, False, True, False])).tolist()
    [2.0, 1.0, 0.0, inf]
    """
    distance = torch.where(goal, 0.0, torch.inf).to(torch.float64)
    sweep = 0
    while len(source):
        # Breadth first: edges out of nodes with a distance are done with.
        is_open = distance[source].isinf()
        source, target = source[is_open], target[is_open]
        reached = source[distance[target] == sweep]
        if not len(reached):
            break
        sweep += 1
        distance[reached] = sweep
    return distance


# ---------------------------------------------------------------- values
def _check_penalty(reward: float, penalty: float, vote: str) -> str | None:
    if penalty <= reward:
        return None
    ends = "else a right attempt with wrong steps falls below a wrong one"
    return f"penalty ({penalty:g}) is at most reward ({reward:g}): {ends}"


@column("P")
@checked_by(_check_penalty)
def penalised_outcome(
    outcome: Tensor,
    segment_score: Tensor,
    *,
    reward: Annotated[float, Gt(0)] = 2.0,
    penalty: Annotated[float, Ge(0)] = 1.0,
    vote: Literal["intersection", "majority", "union"] = "intersection",
) -> Tensor:
    """Step penalties from critiques (CAPO): reward * outcome - penalty * (the token's step is voted wrong), [P].

    segment_score  [P] signal, the share of critiques that find nothing wrong; an unknown one (nan) is no penalty
    reward         C, of the whole attempt, at least `penalty`: a right attempt with wrong steps stays above a wrong one
    penalty        P, of every token of a wrong step
    vote           wrong is where "intersection": all critiques find something; "majority": more than half; "union": any
    """
    one_of("credit.vote", vote, ("intersection", "majority", "union"))
    # nan compares False in all three: an unknown score is no penalty.
    wrong = {"intersection": segment_score <= 0, "majority": segment_score < 0.5, "union": segment_score < 1}[vote]
    return reward * outcome - penalty * wrong.to(torch.float64)


@column("S")
def graph_return(
    moves: Moves,
    group: Tensor,
    correct: Tensor,
    where: Tensor | None = None,
    *,
    discount: Annotated[float, Interval(gt=0, lt=1)] = 0.1,
    form: Literal["distance", "progress"] = "distance",
    worth: Annotated[float, Gt(0)] = 10.0,
) -> Tensor:
    """Step rewards by distance to success in the graph of the group's states (GraphGPO), [S] float64.

    R = worth * discount^d(after), or "progress": worth * discount^(d(after) - d(before) + 1), by which a step was
    nearer than the state it was taken in. d is the distance to success in the graph of the group's steps; from where
    nothing leads there it is one more than the largest of the group (1 without a success: then all are equal).

    moves     steps between states; unknown ones are as far as what leads nowhere
    group     [S] int64 dense ids
    correct   [S] bool, of the trajectory: the verdict, or, where it has none, an outcome above 0. The last step of a
              correct one leads to success itself
    where     [S] bool, compared (default: all): whose steps are edges
    discount  for each step that is left to success: far below 1, so that nearer is better by orders of magnitude
    worth     value of success itself; it matters without scaling

    It is whatever became of the step's own trajectory. `history` tells the groups that are compared, never the nodes.

    Source: GraphGPO, arXiv 2605.26684, and its recipe in verl-agent, whose numbers these are. The paper counts the
    step itself as well, discount^(d(after) + 1), a constant factor that scaling by a std takes out.

    >>> after, following = torch.tensor([1, -1, 2, 3]), torch.tensor([1, -1, 3, -1])
    >>> moves = Moves(torch.tensor([0, 1, 0, 2]), after, following)
    >>> graph_return(moves, torch.zeros(4, dtype=torch.int64), torch.tensor([True, True, False, False])).tolist()
    [1.0, 10.0, 0.010000000000000002, 0.010000000000000002]
    """
    before, after, following = moves
    n_states = int(torch.maximum(before, after).max()) + 1 if len(before) else 0
    n_groups = int(group.max()) + 1 if len(group) else 0
    # Each group has a success node of its own, behind the states; ids of states are of one group already.
    success = n_states + group  # a node of its own for each group, behind the states
    after = torch.where(correct & (before >= 0) & (following < 0), success, after)
    group_of_node = torch.full((n_states + n_groups,), -1)
    group_of_node[n_states:] = torch.arange(n_groups)
    for node in (before, after):
        group_of_node[node[node >= 0]] = group[node >= 0]
    # Steps of compared trajectories from a known state to a known one, or to success.
    is_edge_S = (before >= 0) & (after >= 0) & (torch.ones_like(correct) if where is None else where)
    distance = graph_distance(before[is_edge_S], after[is_edge_S], torch.arange(n_states + n_groups) >= n_states)
    is_reachable = distance.isfinite()
    # Where success can't be reached, the distance is one more than the group's largest: worse, but finite.
    farthest = grouped.max(torch.where(is_reachable, distance, 0.0), group_of_node, is_reachable) + 1
    distance = torch.where(is_reachable, distance, farthest)
    distance_after = torch.where(after >= 0, distance[torch.where(after >= 0, after, success)], farthest[success])
    # Progress: how much nearer the step has come; + 1, so that the best step has the value of success.
    if form == "progress":
        distance_before = torch.where(before >= 0, distance[before.clamp_min(0)], farthest[success])
        distance_after = distance_after - distance_before + 1
    return worth * discount**distance_after


@column("R")
def hint_worth(
    forest: Forest,
    reliance: Tensor,
    *,
    temperature: Annotated[float, Gt(0)] = 0.3,
    leak: float = -0.2,
) -> Tensor:
    """Worth of a hint (HiLL): (1 - p^n - (1 - p)^n) e^(min(D, 0) / temperature), `leak` where it holds the answer.

    p  share right of the n answers under the hint: the first factor is the chance that n such answers differ
    D  mean signal "reliance" of the right ones, so that a hint they would not be likely without is worth less

    Trajectories that no answer names as its "critique" keep their outcome. Source: HiLL and its hinter_utils.py.
    """
    place = {name: r for r, name in enumerate(forest.id)}
    owner = torch.tensor([place.get(info.get("critique", ""), -1) for info in forest.info])
    is_answer = (owner >= 0) & forest.success.isfinite()
    right = is_answer & (forest.success >= 1)

    def total(x: Tensor, where: Tensor) -> Tensor:
        zero = torch.zeros(forest.n_trajectories, dtype=torch.float64)
        return zero.index_add_(0, owner[where], x[where].to(torch.float64))

    n, n_right = total(torch.ones_like(forest.success), is_answer), total(torch.ones_like(forest.success), right)
    rate = n_right / n.clamp_min(1)
    is_read = right & reliance.isfinite()
    mean_reliance = total(reliance, is_read) / total(torch.ones_like(reliance), is_read).clamp_min(1)
    worth = (1 - rate**n - (1 - rate) ** n) * (mean_reliance.clamp_max(0.0) / temperature).exp()
    value = torch.where(n > 0, worth, forest.outcome)
    if "leaks" in forest.component_names:
        is_leak = forest.components[:, forest.component_names.index("leaks")] >= 1
        value = torch.where(is_leak, leak, value)
    return value


@column("S")
def potential_change(
    forest: Forest, step_score: Tensor, *, decay: Annotated[float, Interval(ge=0, le=1)] = 0.99
) -> Tensor:
    """Change of a potential from an agent's turn to its next one: decay * phi(next) - phi(turn), [S].

    step_score  signal phi [S] of each turn, such as a judge's; nan, or a last turn of the agent: unknown

    Summed with powers of `decay`, an agent's changes are those from its first turn to its last: shaping by them leaves
    the best policy as it is. Source: LCA, arXiv 2502.03723.
    """
    phi = step_score.to(torch.float64)
    following = next_in(forest.ids("trajectory", "agent", axis="S"))
    return torch.where(following >= 0, decay * phi[following], torch.nan) - phi


# ---------------------------------------------------------------- trees of answers
@torch.no_grad()
def tree_shaped_scores(score: Tensor, parent: Tensor, sibling: Tensor, gain: float, balance: float) -> Tensor:
    """Scores of a tree's answers against their parents and siblings: s + gain (s - b), [R] float64.

    b is (1 - balance) times the parent's score and balance times the mean of the other children's; the one of the two
    that there is, or s itself where there is neither. All are the unshaped scores.

    parent   [R] row of the answer that it refines, -1 none;   sibling  [R] ids of (tree, parent)

    >>> s, parent = torch.tensor([0, 1, 0.5, 0, 1]), torch.tensor([-1, -1, 0, 0, 2])
    >>> tree_shaped_scores(s, parent, torch.tensor([0, 0, 1, 1, 2]), 0.5, 0.5).tolist()
    [-0.5, 1.5, 0.75, -0.125, 1.25]
    """
    score = score.to(torch.float64)
    is_known = score.isfinite()
    sibling_mean = grouped.leave_one_out(torch.where(is_known, score, 0.0), sibling, is_known)
    has_others = grouped.count(sibling, is_known) > 1
    parent_score = score[parent.clamp_min(0)]
    has_parent = (parent >= 0) & parent_score.isfinite()
    both = (1 - balance) * parent_score + balance * sibling_mean
    baseline = torch.where(has_parent & has_others, both, torch.where(has_parent, parent_score, sibling_mean))
    return torch.where(has_parent | has_others, score + gain * (score - baseline), score)


@column("R")
def tree_shaped(
    forest: Forest,
    *,
    gain: Annotated[float, Ge(0)] = 0.5,
    balance: Annotated[float, Interval(ge=0, le=1)] = 0.5,
) -> Tensor:
    """Outcomes of the answers of a tree (rollout `answer_tree`), shaped by parents and siblings (MARS^2).

    gain     how much an answer's lead over its baseline counts
    balance  share of the siblings in the baseline, the rest is the parent's

    Source: MARS^2 (MARTI's code, gain 0.5), in which all right-hand sides are the unshaped scores.
    """
    place = {name: r for r, name in enumerate(forest.id)}
    parent = torch.tensor([place.get(str(info.get("parent", "")), -1) for info in forest.info], dtype=torch.int64)
    family = [(group, info.get("parent", "")) for group, info in zip(forest.group, forest.info, strict=True)]
    index = {key: i for i, key in enumerate(dict.fromkeys(family))}
    return tree_shaped_scores(forest.outcome, parent, torch.tensor([index[key] for key in family]), gain, balance)
