"""What of all rounds of `again` is the step's rollouts: functions of the rounds, the play and the group size."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.base import Round
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.reference import accepted
from gxpo.sampling.rollouts.replay import last_failed, side_by_side, without


def everything(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """All attempts, as one group a task."""
    return side_by_side(Forest.concat([r.scored for r in rounds]))


def numbered(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """The first `group_size` of each group, not the best; their scores are those among all of it."""
    first = torch.tensor([e.key.attempt < group_size for e in rounds[0].episodes], dtype=torch.bool)
    return rounds[0].scored.select(first)


def newest(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """Of each group the attempts of its newest round, right or wrong."""
    if len(rounds) == 1 or set(rounds[-1].groups) == set(rounds[0].groups):
        return rounds[-1].forest
    newest = {e.group: r for r in rounds for e in r.episodes}
    rows = [(e.group, newest[e.group] is r) for r in rounds for e in r.episodes]
    place = {group: i for i, group in enumerate(newest)}
    kept = sorted((i for i, (_, last) in enumerate(rows) if last), key=lambda i: place[rows[i][0]])
    return Forest.concat([r.scored for r in rounds]).select(kept)


def right_for_first(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """In each group the second round's first right attempt in the place of the first one; without any as it was."""
    if len(rounds) == 1:
        return rounds[0].forest
    forest, second = (r.scored for r in rounds)
    right: dict[str, int] = {}
    for i, (group, verdict) in enumerate(zip(second.group, second.success.tolist(), strict=True)):
        if verdict > 0:
            right.setdefault(group, forest.n_trajectories + i)
    first = {group: row for row, group in reversed(list(enumerate(forest.group)))}
    rows = [right.get(g, i) if i == first[g] else i for i, g in enumerate(forest.group)]
    return Forest.concat([forest, second]).select(rows)


def for_last_failure(rounds: Sequence[Round], play: Play, group_size: int) -> Forest:
    """In each group the second round's attempt in the place of the last failure; one that can't serve is unscored."""
    forest = rounds[0].forest
    if len(rounds) == 1:
        return forest
    given = rounds[1].forest
    failed = [last_failed(forest, group) for group in given.group]
    kept = without(forest, [row for row in failed if row is not None])
    given = given.replace(id=[f"{group}/reference" for group in given.group])
    return accepted(side_by_side(Forest.concat([kept, given])), play.session)
