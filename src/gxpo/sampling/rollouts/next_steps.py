"""Branching rules of `TurnBranches`, by name: functions that return the next steps of running episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from annotated_types import Interval

from gxpo.sampling.rollouts.attempts import Episode
from gxpo.sampling.rollouts.branching import branch_probability, surprise
from gxpo.sampling.rollouts.build import Count, random_for
from gxpo.sampling.rollouts.tree import AttemptTree


def at_surprise(
    tree: AttemptTree,
    active: Sequence[Episode],
    room: int,
    *,
    beam: Count = 2,
    probability: Annotated[float, Interval(ge=0, le=1)] = 0.5,
    weight: float = 0.2,
    tokens: Count = 20,
) -> Iterator[Episode]:
    """Continue each running episode, and add up to `beam` - 1 branches where its last turn was surprising.

    Each branch comes with probability clip(`probability` + `weight` (H - H_first), 0, 1): H is the mean -log p (nats)
    of the first `tokens` tokens of the turn just taken, H_first that of the episode's first turn (a branch's is its
    base's).

    Source: ARPO, arXiv 2507.19849, and its code. Three choices. -log p of the sampled tokens, whose expectation is the
    entropy, stands for the entropy of the ten likeliest: that is all that every engine returns. It is a mean, where the
    code sums over the 20 tokens and divides by the logarithm of the vocabulary: for 20 tokens and 151 643 entries 1.68
    times ours, for shorter actions less. The first turn's is the episode's own; the code keeps the first one that it
    ever saw in a row of the batch.
    """
    for episode in active:
        surprise_now, surprise_first = (surprise(episode.turns[i], tokens) for i in (-1, 0))
        chance = branch_probability(surprise_now, surprise_first, probability, weight)
        draws = random_for(tree.play.session, episode.name, len(episode.turns), "branch")
        # the episode itself goes on in any case; random numbers are its own, so other episodes change nothing
        yield episode
        yield from (episode for _ in range(beam - 1) if draws.random() < chance)


def uniform(tree: AttemptTree, active: Sequence[Episode], room: int, *, forks: Count = 2) -> list[Episode]:
    """Draw `room` next steps without replacement; every running episode offers `forks` of them.

    The choice does not look at the steps, so only the chosen ones are generated: the distribution is the same, and
    nothing is thrown away but the turns of dropped episodes.

    Source: PORTool, arXiv 2510.26020; the number of forks and how they are chosen are ours.
    """
    steps = [episode for episode in active for _ in range(forks)]
    # all running episodes have taken the same number of turns
    draws = random_for(tree.play.session, tree.draw.name, len(active[0].turns), "choose")
    return draws.sample(steps, min(len(steps), room))


def at_one_turn(tree: AttemptTree, active: Sequence[Episode], room: int) -> Iterator[Episode]:
    """Continue each running episode, and branch it once, before one turn that is drawn for the task.

    The turn is uniform among those that an episode may have; an episode that ends before it has no branch.

    Source: REFUEL, arXiv 2410.04612.
    """
    turn = random_for(tree.play.session, tree.draw.name, "turn").randrange(tree.play.rules.max_turns)
    for episode in active:
        yield episode
        if len(episode.turns) == turn:
            yield episode
