"""Selections of `retry`: functions of the rounds, the play and the group size that return the step's rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.base import Round
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.reference import DEMONSTRATION, accept_references
from gxpo.sampling.rollouts.replay_buffer import drop_rows, last_failed, side_by_side


def everything(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """Keep all attempts, those of a task as one group."""
    return side_by_side(Forest.concat([r.scored for r in rounds]))


def numbered(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """Keep the first `group_size` of each group, not the best; they keep the scores that they got among all of it."""
    is_trained_R = torch.tensor([e.key.attempt < group_size for e in rounds[0].episodes], dtype=torch.bool)
    return rounds[0].scored.select(is_trained_R)


def newest(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """Keep the attempts of each group's newest round, right or wrong."""
    # every group was attempted again, so the newest round is all there is to keep
    if len(rounds) == 1 or set(rounds[-1].groups) == set(rounds[0].groups):
        return rounds[-1].forest
    newest_round = {e.group: r for r in rounds for e in r.episodes}
    is_newest = [(e.group, newest_round[e.group] is r) for r in rounds for e in r.episodes]
    # in the order in which the groups first appeared, whichever round each one stopped in
    group_order = {group: i for i, group in enumerate(newest_round)}
    newest_rows = sorted(
        (i for i, (_, last) in enumerate(is_newest) if last), key=lambda i: group_order[is_newest[i][0]]
    )
    return Forest.concat([r.scored for r in rounds]).select(newest_rows)


def but_references(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """Keep all attempts but the reference answers, each in its own group; nobody has sampled these."""
    forest = Forest.concat([r.scored for r in rounds])
    kept_rows = [r for r, origin in enumerate(forest.origin) if origin != DEMONSTRATION]
    play.session.budget.discarded -= forest.n_trajectories - len(kept_rows)
    return forest.select(kept_rows)


def right_for_first(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """Put the second round's first success in the place of each group's first attempt; without one change nothing."""
    if len(rounds) == 1:
        return rounds[0].forest
    forest, second = (r.scored for r in rounds)
    right_rows: dict[str, int] = {}
    for i, (group, verdict) in enumerate(zip(second.group, second.success.tolist(), strict=True)):
        if verdict > 0:
            right_rows.setdefault(group, forest.n_trajectories + i)
    first_rows = {group: row for row, group in reversed(list(enumerate(forest.group)))}
    rows = [right_rows.get(g, i) if i == first_rows[g] else i for i, g in enumerate(forest.group)]
    return Forest.concat([forest, second]).select(rows)


def for_last_failure(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """Put the second round's attempt in the place of each group's last failure; it stays unscored if it can't serve."""
    forest = rounds[0].forest
    if len(rounds) == 1:
        return forest
    references = rounds[1].forest
    failed_rows = [last_failed(forest, group) for group in references.group]
    others = drop_rows(forest, [row for row in failed_rows if row is not None])
    references = references.replace(id=[f"{group}/reference" for group in references.group])
    return accept_references(side_by_side(Forest.concat([others, references])), play.session)
