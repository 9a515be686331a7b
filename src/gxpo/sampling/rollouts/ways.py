"""What is attempted in each round of `again`, by the name of the function.

A function of an `Ask` gives the next round's attempts, none at the end. Keyword-only parameters are options,
`rollout.NAME`. It may have `rounds`, the most that there are, `fits(group_size, *, ...)`, which refuses options,
`check_task(task, solution, *, ...)`, which refuses tasks, and `allows` (see `RolloutPart`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

from annotated_types import Gt, Interval

from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.base import Count, Round
from gxpo.sampling.rollouts.build import Attempts, Draw, Limit, first_best
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.hint import Cut, Solution, hints_of
from gxpo.sampling.rollouts.reference import EXPERTS, demonstrated, reference_of, solutions_of
from gxpo.sampling.rollouts.wording import Wording, check_template

F = TypeVar("F", bound=Callable[..., Any])
TEMPERED = "tempered"  # origin of attempts at another temperature than the run's


class Stored(Protocol):
    """Rollouts of earlier steps, as records."""

    def of(self, task: str) -> list[dict[str, Any]]:
        """Those of a task, oldest first."""
        ...


class Ask(NamedTuple):
    """What a way is asked.

    rounds  so far, none before the first
    draws   those whose groups are to be attempted
    stored  rollouts of earlier steps by task, None where the rollout stores none
    """

    rounds: Sequence[Round]
    draws: Sequence[Draw]
    play: Play
    group_size: int
    stored: Stored | None = None

    def plain(self) -> list[Attempts]:
        """`group_size` attempts at each draw."""
        return [draw.attempts(self.group_size) for draw in self.draws]


def _with(**marks: Any) -> Callable[[F], F]:
    """Decorator: what a way says of itself beside its attempts."""

    def mark(way: F) -> F:
        vars(way).update(marks)
        return way

    return mark


# ---------------------------------------------------------------- plain attempts
@_with(rounds=1)
def once(ask: Ask) -> list[Attempts]:
    """`group_size` attempts, once."""
    return ask.plain()


def _stages_fit(group_size: int, *, stage_size: Count = 4) -> None:
    if stage_size > group_size:
        raise ConfigError(f"rollout.stage_size is {stage_size}; it must be from 1 to rollout.group_size={group_size}")


@_with(fits=_stages_fit)
def more(ask: Ask, *, stage_size: Count = 4) -> list[Attempts]:
    """Stages of `stage_size` attempts, up to `group_size` in all; the last may be smaller.

    A stage draws its random numbers as a task that is drawn again does. Where only unsolved tasks go on, the number of
    attempts depends on how they went: the rate of success of tasks that left early is biased upwards, and tasks of
    all-right first stages still have no contrast. Source: AR3PO, arXiv 2509.25808.
    """
    size = min(stage_size, ask.group_size - len(ask.rounds) * stage_size)
    if size <= 0:
        return []
    anew = ask.play.draws([draw.task for draw in ask.draws]) if ask.rounds else ask.draws
    return [new.attempts(size, group=draw.group) for draw, new in zip(ask.draws, anew, strict=True)]


@_with(rounds=2)
def hotter(ask: Ask, *, more: Count = 20, temperature: Annotated[float, Gt(0)] = 1.2) -> list[Attempts]:
    """`more` attempts at another `temperature`, once (EFRame).

    Their origin is "tempered", and their log-probs and ratios are those of the policy at that temperature, which is
    what is trained of them: on policy, with a slope of 1 / temperature. Source: EFRame, arXiv 2506.22200, and its code.
    """
    if not ask.rounds:
        return ask.plain()
    hot = dataclasses.replace(ask.play.session.sampling, temperature=temperature)
    return [draw.attempts(more, first=ask.group_size, sampling=hot, origin=TEMPERED) for draw in ask.draws]


def _votes(group_size: int, n_votes: int | None) -> int:
    return 2 * group_size if n_votes is None else n_votes


def _voters_fit(group_size: int, *, n_votes: int | None = None) -> None:
    if _votes(group_size, n_votes) < group_size:
        raise ConfigError(
            f"rollout.n_votes={n_votes} must be at least rollout.group_size={group_size}: the attempts that are "
            "trained vote, too"
        )


@_with(fits=_voters_fit, rounds=1)
def voters(ask: Ask, *, n_votes: int | None = None) -> list[Attempts]:
    """`n_votes` attempts that vote, once (None: twice the group size); `keep: numbered` trains `group_size` of them.

    The first `group_size` are the same, token by token, as `Independent(group_size)` samples. With a reward that looks
    at one attempt alone the others are thrown away. Source: TTRL, arXiv 2504.16084, 64 votes for groups of 32.
    """
    return ask._replace(group_size=_votes(ask.group_size, n_votes)).plain()


# ---------------------------------------------------------------- hints
def _hints_fit(group_size: int, *, fractions: tuple[float, ...] = (), template: str = "{prompt}{hint}") -> None:
    if not fractions or not all(0 <= f <= 1 for f in fractions):
        raise ConfigError(f"rollout.fractions are shares of a solution, from 0 to 1, not {fractions!r}")
    check_template("rollout.template", template, ("prompt", "hint"))


def _has_hints(task: Task, solution: Solution, *, fractions: tuple[float, ...] = (), cut: Cut = "words") -> None:
    hints_of(task, solution, fractions, cut)


@_with(fits=_hints_fit, check_task=_has_hints, rounds=2)
def each_hint(
    ask: Ask,
    *,
    fractions: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0),
    template: str = "{prompt}\nHints: {hint}",
    cut: Cut = "words",
) -> list[Attempts]:
    """Once more under each of a task's hints, all in one batch (Scaf-GRPO); for the options see `next_hint`."""
    return _hinted(ask, 1, template, fractions, cut)


@_with(fits=_hints_fit, check_task=_has_hints)
def next_hint(
    ask: Ask,
    *,
    fractions: tuple[float, ...] = (0.25, 0.5, 0.75),
    template: str = "{prompt}\nThe solution begins like this; you may go on from here:\n{hint}",
    cut: Cut = "words",
) -> list[Attempts]:
    """A whole group under the first hint, then under the second, and so on (GHPO).

    fractions  shares of the worked solution, by length, where a task brings no hints of its own (see `hints_of`)
    template   where the hint goes; of a chat, in the user's last message. "{prompt}{hint}" for a policy that goes on
               with what it finds, as the tiny model, and reads no instructions
    cut        of a solution, see `prefix`

    An attempt has origin "hint" and its hint's level, from 1, as info["hint"]. It is trained under the task's own
    prompt unless `objective.context` is "sampled". In an environment the hint is in the message that begins each
    context, and the solution is its expert's actions, a line each, of which whole ones are shown.
    """
    return _hinted(ask, ask.group_size, template, fractions, cut, at=len(ask.rounds))


def _hinted(
    ask: Ask, samples: int, template: str, fractions: tuple[float, ...], cut: Cut, at: int | None = None
) -> list[Attempts]:
    """`samples` attempts under every hint, or that `at` a level: attempt i has the stream (..., i, path (level,))."""
    if not ask.rounds:
        return ask.plain()
    solution = solutions_of([d.task for d in ask.draws if "hints" not in d.task.info], ask.play.session)
    whole = "lines" if ask.play.world else cut  # no half of an action
    return [
        draw.attempts(
            samples, path=(level,), label=f"hint{level}", wording=Wording(template, {"hint": hint}), hidden=True,
            origin="hint", info={"hint": level},
        )
        for draw in ask.draws
        for level, hint in enumerate(hints_of(draw.task, solution, fractions, whole), 1)
        if at in (None, level)
    ]  # fmt: skip


# ---------------------------------------------------------------- references
def _two_or_more(group_size: int) -> None:
    if group_size < 2:
        raise ConfigError(f"rollout.group_size is {group_size}; it is 2 or more")


@_with(fits=_two_or_more, check_task=reference_of, allows=EXPERTS, rounds=2)
def reference(ask: Ask) -> list[Attempts]:
    """The reference answer, once; in an environment its expert plays. Source: GCPO, arXiv 2510.07790."""
    if not ask.rounds:
        return ask.plain()
    return [demonstrated(draw, 1, ask.play, ask.group_size, "reference") for draw in ask.draws]


# ---------------------------------------------------------------- drafts
def _draft_fits(group_size: int, *, template: str = "") -> None:
    check_template("rollout.template", template, ("prompt", "draft"))


@_with(fits=_draft_fits, rounds=2)
def best_draft(
    ask: Ask,
    *,
    n_drafts: Limit = 4,
    template: str = "{prompt}\n\nAn earlier attempt:\n{draft}\n\nCheck it, and give a better answer.\n",
) -> list[Attempts]:
    """`n_drafts` drafts; then the best, by outcome, goes into the prompt of `group_size` attempts (iGRPO).

    The attempts are trained under the context with the draft; their info holds its text and outcome. Draft i has the
    stream (seed, step, draw, i, path (0,)). With `n_drafts` 0 this is independent sampling. Held-out tasks are
    attempted without a draft. In an environment the draft is an episode: its actions and what came of each.

    template  where the draft goes; of a chat, in the user's last message
    """
    if not n_drafts:
        return [] if ask.rounds else ask.plain()
    if not ask.rounds:
        return [draw.attempts(n_drafts, path=(0,), label="drafts") for draw in ask.draws]
    drafts, out = ask.rounds[0], []
    outcome = drafts.scored.outcome.tolist()
    for draw in ask.draws:
        rows = [r for r, episode in enumerate(drafts.episodes) if episode.group == draw.group]
        best = rows[first_best([outcome[r] for r in rows])]
        text = ask.play.transcript(drafts.episodes[best])
        noted = {"draft": text, "draft_outcome": None if math.isnan(outcome[best]) else outcome[best]}
        out.append(draw.attempts(ask.group_size, wording=Wording(template, {"draft": text}), info=noted))
    return out


# ---------------------------------------------------------------- stored failures
def _reflection_fits(group_size: int, *, template: str = "") -> None:
    check_template("rollout.template", template, ("prompt", "attempt"))


@_with(fits=_reflection_fits, rounds=1)
def reflect(
    ask: Ask,
    *,
    below: Annotated[float, Interval(gt=0, le=1)] = 0.5,
    template: str = "{prompt}\n\nAn earlier answer, which is wrong:\n{attempt}\n\nFind the mistake, and answer anew.\n",
) -> list[Attempts]:
    """`group_size` attempts, and as many with a stored failure in the prompt, where a task went badly before (R^3).

    below     the share of right ones in the task's newest stored group, below which it is asked with a failure
    template  where the newest stored failure goes; of a chat, in the user's last message

    Attempts with a failure are a group of their own, "GROUP/reflect", trained under what they were shown, and are not
    stored; info["reflects_on"] is the failure's id. Held-out tasks are attempted without. Source: R^3, arXiv
    2601.19620.
    """
    if ask.stored is None:
        raise ConfigError("rollout.how=reflect reads stored failures: set rollout=replay, which stores them")
    out = ask.plain()
    for draw in ask.draws:
        known = [r for r in ask.stored.of(draw.task.id) if r.get("success") is not None]
        newest = [float(r["success"]) for r in known if r["group"] == known[-1]["group"]]
        failed = [r for r in known if not r["success"]]
        if failed and fmean(newest) < below:
            wording = Wording(template, {"attempt": _said(failed[-1], ask.play)})
            out.append(
                draw.attempts(
                    ask.group_size, first=ask.group_size, group=f"{draw.group}/reflect", home=f"{draw.group}/reflect",
                    wording=wording, info={"reflects_on": failed[-1]["id"]},
                )
            )  # fmt: skip
    return out


def _said(record: dict[str, Any], play: Play) -> str:
    """What was said in a stored attempt, and in an environment what it was told before each action but the first."""
    lines: list[str] = []
    for i, turn in enumerate(record["turns"]):
        lines += [turn.get("observation_text") or ""] * (i > 0) + [play.session.decode(turn["action"])]
    return "\n".join(line for line in lines if line)
