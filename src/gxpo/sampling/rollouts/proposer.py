"""Self-play of a proposer of tasks and its solver (SSP): the proposer is paid for tasks that are valid and hard."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gxpo.forest.forest import Forest
from gxpo.parts.functions import user_function
from gxpo.parts.protocols import Completion, Request, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count, RolloutPart, action, group_of, name_draws, record, stream
from gxpo.sampling.rollouts.wording import check_template, reword

PROPOSER, SOLVER = "proposer", "solver"


def proposer_reward(rate: float, pays: str = "linear", low: float = 0.0, high: float = 1.0) -> float:
    """Reward of a valid task that the solver solves at this rate: 1 - rate, or the "parabola" 4 (low + rate) (high -
    rate) for rates between 0 and 1 and 0 for the others.

    >>> proposer_reward(0.6), round(proposer_reward(0.6, "parabola"), 6), proposer_reward(1.0, "parabola")
    (0.4, 0.96, 0.0)
    """
    if pays == "linear":
        return 1.0 - rate
    return 4.0 * (low + rate) * (high - rate) if 0.0 < rate < 1.0 else 0.0


def sum_with_answer(text: str, answer: Any) -> str | None:
    """Return the question in a text if it is a sum or difference that has this answer, else None.

    >>> sum_with_answer("37+48=", "85"), sum_with_answer("37+48=", "84"), sum_with_answer("85", "85")
    ('37+48=', None, None)
    """
    question = text.strip().rstrip("=")
    for sign in "+-":
        a, has_sign, b = question.partition(sign)
        if has_sign and a.isdecimal() and b.isdecimal() and len(question) <= 40:
            result = int(a) + int(b) if sign == "+" else int(a) - int(b)
            return f"{question}=" if str(result) == str(answer) else None
    return None


@dataclass
class _Proposal:
    """A text of the proposer, the question in it, and the solver's scores."""

    task: Task
    number: int
    key: StreamKey
    text: Completion | None = None
    question: Task | None = None
    scores: list[float] = field(default_factory=list)


@part("proposer", stage="rollout")
@dataclass(frozen=True)
class Proposer(RolloutPart):
    """A proposed question for the answer of each task, and `group_size` attempts to solve it, both by the policy.

    proposals  questions proposed for each task, a group by themselves
    template   the proposer's prompt, with {answer}, which the question has to have
    question_format  "sum", a sum or difference that has the answer; or FILE.py:NAME, a function of (text, answer) that
               returns the question in a text, or None
    reward_shape  of a valid question: see `proposer_reward`;   penalty  reward of a text without one
    trained_role  "both", or "proposer" or "solver" alone

    The rewards of a question's two sides sum to 1 ("linear"). Component "valid" is 1 for a valid question. A text
    without one gets no attempts: that proposal alone has `penalty`. A question that nobody could score is unscored.
    Held-out tasks are solved as they are, by the solver.
    Source: Search Self-play, arXiv 2510.18821, and its code (1 - rate; 5 attempts).
    """

    group_size: Count = 5
    proposals: Count = 2
    template: str = "{answer}"
    question_format: Any = "sum"
    reward_shape: Literal["linear", "parabola"] = "linear"
    penalty: float = 0.0
    trained_role: Literal["both", "proposer", "solver"] = "both"

    single_turn = True
    samples_prompts = False
    components = ("valid",)

    def __post_init__(self) -> None:
        check_template("rollout.template", self.template, ("answer",), ("prompt",))

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        # 1. questions for the answer of each task
        proposals: list[_Proposal] = []
        for task, name in zip(tasks, name_draws(tasks), strict=True):
            proposal_task = reword(dataclasses.replace(task, prompt=""), self.template, answer=str(task.answer))
            proposals += [_Proposal(proposal_task, i, stream(session, name, i, (0,))) for i in range(self.proposals)]
        texts = self._sample([p.task for p in proposals], [[p.key] for p in proposals], session)
        # 2. attempts at those that are valid
        question_in = (
            sum_with_answer
            if self.question_format == "sum"
            else user_function(self.question_format, "rollout.question_format")
        )
        asking = []
        for proposal, (proposal.text,) in zip(proposals, texts, strict=True):
            question = question_in(session.decode(proposal.text.tokens), proposal.task.answer)
            if question is not None:
                proposal.question = dataclasses.replace(proposal.task, prompt=question)
                asking.append(proposal)
        solutions = self._attempts(asking, session)
        # 3. each side's reward: a question that nobody could score stays unscored
        lines = []
        for proposal in proposals:
            is_valid, rates = proposal.question is not None, proposal.scores
            reward = None if is_valid else self.penalty
            if rates:
                reward = proposer_reward(sum(x > 0 for x in rates) / len(rates), self.reward_shape)
            line = self._record(proposal.task, PROPOSER, proposal.text, proposal.key, "", session)
            lines.append(line | {"reward": reward, "rewards": {"valid": float(is_valid)}, "success": is_valid})
        forests = [Forest.from_records(lines)] if self.trained_role != SOLVER or solutions is None else []
        return Forest.concat(
            [*forests, *([solutions] if solutions is not None and self.trained_role != PROPOSER else [])]
        )

    def _attempts(self, asking: Sequence[_Proposal], session: Session) -> Forest | None:
        """Let the solver attempt these proposals' questions, note its scores there, and return the scored attempts."""
        keys = [
            [dataclasses.replace(p.key, attempt=a, path=(1, p.number)) for a in range(self.group_size)] for p in asking
        ]
        samples = self._sample([p.question for p in asking], keys, session)
        records = [
            self._record(p.question, SOLVER, completion, key, f"/{p.number}", session)
            for p, row, completions in zip(asking, keys, samples, strict=True)
            for key, completion in zip(row, completions, strict=True)
        ]
        if not records:
            return None
        texts = [session.decode(r["turns"][0]["action"]) for r in records]
        scored_forest = session.score(Forest.from_records(records), texts)
        outcomes = iter(scored_forest.outcome.tolist())
        for proposal in asking:
            row = [next(outcomes) for _ in range(self.group_size)]
            proposal.scores = [x for x in row if math.isfinite(x)]
        return scored_forest

    def _sample(
        self, tasks: Sequence[Any], keys: Sequence[Sequence[StreamKey]], session: Session
    ) -> list[list[Completion]]:
        """Sample a completion of each task's prompt under each of its keys."""
        if not tasks:
            return []
        return session.sample([Request(session.encode(t), tuple(k)) for t, k in zip(tasks, keys, strict=True)])

    @staticmethod
    def _record(task: Any, role: str, completion: Any, key: StreamKey, suffix: str, session: Session) -> dict[str, Any]:
        """Build the record of one text."""
        group = f"{group_of(session, key.task)}/{role}{suffix}"
        turn: Mapping[str, Any] = {"agent": role, **action(completion)}
        is_cut = completion.finish == "length"
        prompt = list(session.encode(task))
        return record(
            task, group, f"{group}/{key.attempt}", session.sampling, prompt=prompt, turns=[turn], truncated=is_cut
        )
