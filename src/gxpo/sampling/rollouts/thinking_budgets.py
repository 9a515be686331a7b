"""Thinking budgets (AnytimeReasoner): thinking cut at several lengths, with an answer forced at each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Sampling, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import (
    Count,
    RolloutPart,
    Text,
    action,
    group_of,
    name_draws,
    record,
    requests,
    stream,
)


@dataclass(eq=False)
class _Thinking:
    """One thinking about a drawn task, its cuts, and the answers at each cut."""

    task: Task
    draw: str
    number: int
    prompt: tuple[int, ...]
    completion: Completion
    cuts: list[int]  # tokens up to each cut; the last is all of it, and stands for all later budgets
    closing: list[tuple[int, ...]]  # tokens put after each cut
    answers: list[list[Completion]] = dataclasses.field(default_factory=list)


@part("thinking_budgets", stage="rollout")
@dataclass(frozen=True)
class ThinkingBudgets(RolloutPart):
    """`group_size` thinkings of each task, each cut at `budgets` lengths, with `summaries` answers at each cut.

    group_size      thinkings a task
    budgets         S: with B tokens for the thinking, it is cut after B s / S of them (rounded up), s = 1 .. S
    summaries       A, answers at each cut
    summary_tokens  longest answer; B is the rest of `sampling.max_new_tokens`
    end_text        text that ends a thinking: sampled, it is part of it; after a cut it is inserted, untrained

    All of a task's answers are one group "s{step}/{task}", each a trajectory of two turns: the thinking up to the cut
    and the answer, which alone is judged. A thinking is stored once; cuts are declared forks of it, and its segments
    end at the budgets. A thinking that ends by itself is cut at the budgets before its end, and the whole of it stands
    for all later ones. info: "thinking" (its number), "budget" (the first that the cut stands for, from 0), "covers"
    (how many).

    Thinking i has the stream (seed, step, task, i); answer a at cut s the same with path (s, a) and turn 1. Held-out
    tasks are attempted by one uncut thinking and one answer. Tasks with one answer only.

    Source: AnytimeReasoner, arXiv 2505.13438. Budgets are evenly spaced, as there.
    """

    group_size: Count = 8
    budgets: Count = 4
    summaries: Count = 4
    summary_tokens: Count = 8
    end_text: Text = "</think>"

    provides = ("forks",)
    single_turn = True

    def evaluation(self, samples: int) -> ThinkingBudgets:
        """Return the rollout for held-out tasks: `samples` uncut thinkings of each, with one answer."""
        return dataclasses.replace(self, group_size=samples, budgets=1, summaries=1)

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise ConfigError if actions leave too few tokens to think."""
        if sampling.max_new_tokens - self.summary_tokens < self.budgets:
            raise ConfigError(
                f"sampling.max_new_tokens={sampling.max_new_tokens} less rollout.summary_tokens={self.summary_tokens} "
                f"leaves fewer tokens to think than rollout.budgets={self.budgets}: raise the first or lower "
                "one of the others"
            )

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        self.check_sampling(session.sampling)
        thinkings = self._sample_thinkings(tasks, session.sampling.max_new_tokens - self.summary_tokens, session)
        self._sample_answers(thinkings, session)
        forest = Forest.from_records([row for t in thinkings for row in _records(t, self.budgets, session)])
        judged_answers = [answer for t in thinkings for cut_answers in reversed(t.answers) for answer in cut_answers]
        return session.score(forest, [session.decode(answer.tokens) for answer in judged_answers])

    # ------------------------------------------------------------ sampling
    def _sample_thinkings(self, tasks: Sequence[Task], room: int, session: Session) -> list[_Thinking]:
        """Sample the thinkings, and place their cuts."""
        draws, prompts = name_draws(tasks), [session.encode(task) for task in tasks]
        thinking_requests = requests(prompts, draws, self.group_size, session)
        sampling = dataclasses.replace(
            session.sampling, max_new_tokens=room, stop=(*session.sampling.stop, self.end_text)
        )
        closing, thinkings = session.tokenize(self.end_text, markup=True), []
        limits = [-(-room * s // self.budgets) for s in range(1, self.budgets + 1)]
        for task, draw, prompt, completions in zip(
            tasks, draws, prompts, session.sample(thinking_requests, sampling), strict=True
        ):
            # a thinking that ended within a budget is whole there: the later budgets would cut nothing off
            for i, completion in enumerate(completions):
                cuts = [limit for limit in limits if limit < len(completion.tokens)] + [len(completion.tokens)]
                closes_itself = self.end_text in session.decode(completion.tokens)
                closings = [closing] * (len(cuts) - 1) + [() if closes_itself else closing]
                thinkings.append(_Thinking(task, draw, i, prompt, completion, cuts, closings))
        return thinkings

    def _sample_answers(self, thinkings: Sequence[_Thinking], session: Session) -> None:
        """Sample the answers at every cut, all in one call."""
        places = [(t, s) for t in thinkings for s in range(len(t.cuts))]
        answer_requests = []
        for t, s in places:
            keys = (stream(session, t.draw, t.number, (s, a), 1) for a in range(self.summaries))
            answer_requests.append(Request((*t.prompt, *t.completion.tokens[: t.cuts[s]], *t.closing[s]), tuple(keys)))
        sampling = dataclasses.replace(session.sampling, max_new_tokens=self.summary_tokens)
        for (t, _), cut_answers in zip(places, session.sample(answer_requests, sampling), strict=True):
            t.answers.append(cut_answers)


def _records(t: _Thinking, budgets: int, session: Session) -> Iterator[dict[str, Any]]:
    """Yield the records of a thinking's answers: first those after all of it, from which the others fork."""
    group, last = group_of(session, t.draw), len(t.cuts) - 1
    name = f"{group}/{t.number}"
    for s in reversed(range(len(t.cuts))):
        for a, answer in enumerate(t.answers[s]):
            # the very first answer stores the thinking; the rest leave it at its end, or within it at their cut
            turn = {"observation": list(t.closing[s]) or None, **action(answer)}
            columns: dict[str, Any] = {"fork": {"of": f"{name}.{last}.0", "turn": 0, "token": None}, "turns": [turn]}
            if s < last:
                columns["fork"]["token"] = t.cuts[s]
                columns["turns"] = [{"action": [], "finish": "length"}, turn]
            elif a == 0:
                begins = [0, *t.cuts[:-1]] if t.completion.tokens else []
                thinking_turn = {**action(t.completion), "state": t.task.id, "segments": begins}
                columns = {"prompt": list(t.prompt), "turns": [thinking_turn, turn]}
            yield record(
                t.task,
                group,
                f"{name}.{s}.{a}",
                session.sampling,
                truncated=answer.finish == "length",
                info={"thinking": t.number, "budget": s, "covers": budgets - s if s == last else 1},
                **columns,
            )
