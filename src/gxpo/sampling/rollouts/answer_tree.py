"""Trees of answers by several policies: a search chooses the answer to refine, and who does it (MARS^2, TOA)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.build import random_for
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.wording import Wording, check_template

ROOT = -1


@dataclass
class Answers:
    """Search tree of the answers to one task; nodes are numbered as they come, the root is -1.

    policies  who may answer
    parent, policy, score   of each answer
    """

    policies: Sequence[str]
    parent: list[int] = field(default_factory=list)
    policy: list[str] = field(default_factory=list)
    score: list[float] = field(default_factory=list)

    def children(self, node: int) -> list[int]:
        return [i for i, parent in enumerate(self.parent) if parent == node]

    def below(self, node: int) -> list[float]:
        """Scores of an answer and of all that refine it, at any depth."""
        return [self.score[node], *(x for child in self.children(node) for x in self.below(child))]

    def thompson(self, chance: random.Random) -> tuple[int, str]:
        """Draw the node to go on from and who answers there (AB-MCTS-A): at each node a draw of every policy's new
        answer, and of every child, from Beta(1 + successes, 1 + failures); the largest wins."""
        node = ROOT
        while True:
            draws: list[tuple[float, int, str]] = []
            for policy in self.policies:
                policy_scores = [self.score[i] for i in self.children(node) if self.policy[i] == policy]
                draws.append((beta(policy_scores, chance), ROOT, policy))
            draws += [(beta(self.below(child), chance), child, "") for child in self.children(node)]
            _, child, policy = max(draws)
            if policy:
                return node, policy
            node = child

    def uct(self, explore: float) -> tuple[int, str]:
        """Choose by mean + explore sqrt(log(visits of the parent) / visits): at each node a new answer of the policy
        that has answered least there, until every policy has, then the best child."""
        node = ROOT
        while True:
            children = self.children(node)
            counts = {p: sum(self.policy[i] == p for i in children) for p in self.policies}
            rarest = min(self.policies, key=counts.__getitem__)
            if not counts[rarest]:
                return node, rarest
            total = sum(len(self.below(child)) for child in children)
            node = max(children, key=lambda child: uct_bound(self.below(child), total, explore))


def beta(scores: Sequence[float], chance: random.Random) -> float:
    """Draw from the posterior of a success rate after these scores in [0, 1]."""
    finite_scores = [min(max(x, 0.0), 1.0) for x in scores if math.isfinite(x)]
    return chance.betavariate(1 + sum(finite_scores), 1 + len(finite_scores) - sum(finite_scores))


def uct_bound(scores: Sequence[float], total: int, explore: float) -> float:
    """Upper confidence bound of a node's mean.

    >>> round(uct_bound([0.2, 0.2, 0.2], 10, 2.0), 6)
    1.952174
    """
    finite_scores = [x for x in scores if math.isfinite(x)]
    mean = sum(finite_scores) / len(finite_scores) if finite_scores else 0.0
    return mean + explore * math.sqrt(math.log(max(1, total)) / len(scores))


@part("answer_tree", stage="rollout")
@dataclass(frozen=True)
class AnswerTree(Rollout):
    """A tree of `group_size` answers to each task, one after another: new ones, or ones that refine another's answer.

    choice     where the next answer is put, and who gives it: "thompson" (`Answers.thompson`) or "uct"
    exploration  of "uct"
    players    names of the policies, each an adapter of its own (`learner.lora_rank`); none: one policy
    template   shows the answer that is refined, {answer}, and its {score}

    The group is the tree. `info` has the "parent" of an answer (its id), "node" and "player"; `credit.value:
    tree_shaped` reads the parents. Held-out tasks are attempted independently. Costs a call of the engine for each
    answer of a tree, for all tasks together. Source: AB-MCTS (arXiv 2503.04412) as in MARS^2; UCT as in TOA.
    """

    group_size: Count = 8
    choice: Literal["thompson", "uct"] = "thompson"
    exploration: Annotated[float, Ge(0)] = 1.4
    players: tuple[str, ...] = ()
    template: str = "{prompt}\n\nAn earlier answer (score {score}):\n{answer}\n\nGive a better answer.\n"

    single_turn = True
    samples_prompts = False

    def __post_init__(self) -> None:
        check_template("rollout.template", self.template, ("prompt", "answer"), ("score",))
        if len(set(self.players)) < len(self.players):
            raise ConfigError("rollout.players names a policy twice: a policy is one adapter")

    @property
    def policies(self) -> dict[str, str]:
        """Policy name -> "trained"."""
        return dict.fromkeys(self.players or ("main",), "trained")

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        return [self._next(draw, [], play) for draw in draws]

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts]:
        return [] if len(rounds) == self.group_size else [self._next(draw, rounds, play) for draw in play.step_draws]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        return Forest.concat([r.scored for r in rounds]) if len(rounds) > 1 else rounds[0].forest

    def _next(self, draw: Draw, rounds: Sequence[Round], play: Play) -> Attempts:
        """Request the next answer of a tree."""
        place = play.step_draws.index(draw)
        tree, attempts = Answers(list(self.policies)), [r.episodes[place] for r in rounds]
        for r, attempt in zip(rounds, attempts, strict=True):
            tree.parent.append(attempt.info["node_parent"])
            tree.policy.append(attempt.info["player"])
            tree.score.append(float(r.scored.outcome[place]))
        if self.choice == "thompson":
            node, policy = tree.thompson(random_for(play.session, draw.name, "tree", len(rounds)))
        else:
            node, policy = tree.uct(self.exploration)
        info = {"node": len(rounds), "node_parent": node, "player": policy}
        wording = None
        if node != ROOT:
            text = play.transcript(attempts[node])
            wording = Wording(self.template, {"answer": text, "score": f"{tree.score[node]:g}"})
            info["parent"] = attempts[node].id
        return draw.attempts(1, first=len(rounds), policy=policy, wording=wording, info=info)
