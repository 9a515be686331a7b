"""Ways of `again` to attempt tasks in each round: functions that the option `how` names.

A way is a function of an `Ask` that returns the next round's attempts, none at the end. Its keyword-only parameters are
options, `rollout.NAME`. It may have the attributes `rounds`, the most rounds, `fits(group_size, *, ...)`, which refuses
options, `check_task(task, solution, *, ...)`, which refuses tasks, and `allows` (see `RolloutPart`).
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
from gxpo.sampling.rollouts.attempts import Attempts, Draw
from gxpo.sampling.rollouts.base import Count, Round
from gxpo.sampling.rollouts.build import Limit, first_best
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.reference import EXPERTS, demonstrated, reference_of, solutions_of
from gxpo.sampling.rollouts.wording import Cut, Solution, Wording, check_template, hints_of

F = TypeVar("F", bound=Callable[..., Any])
TEMPERED = "tempered"  # origin of attempts at another temperature than the run's


class Stored(Protocol):
    """Protocol of a store of earlier rollouts, as records."""

    def of(self, task: str) -> list[dict[str, Any]]:
        """Return the records of a task, oldest first."""
        ...


class Ask(NamedTuple):
    """Argument of a way: the draws to attempt, and the rounds so far.

    rounds  rounds so far, none before the first
    draws   draws whose groups are to be attempted
    stored  rollouts of earlier steps by task, None if the rollout stores none
    """

    rounds: Sequence[Round]
    draws: Sequence[Draw]
    play: Play
    group_size: int
    stored: Stored | None = None

    def plain(self) -> list[Attempts]:
        """Request `group_size` attempts at each draw."""
        return [draw.attempts(self.group_size) for draw in self.draws]


def _with(**marks: Any) -> Callable[[F], F]:
    """Decorator that sets a way's attributes, such as `rounds`."""

    def mark(way: F) -> F:
        vars(way).update(marks)
        return way

    return mark


# ---------------------------------------------------------------- plain attempts
@_with(rounds=1)
def once(ask: Ask) -> list[Attempts]:
    """Attempt each task `group_size` times, once."""
    return ask.plain()


def _stages_fit(group_size: int, *, stage_size: Count = 4) -> None:
    if stage_size > group_size:
        raise ConfigError(f"rollout.stage_size is {stage_size}; it must be from 1 to rollout.group_size={group_size}")


@_with(fits=_stages_fit)
def more(ask: Ask, *, stage_size: Count = 4) -> list[Attempts]:
    """Attempt in stages of `stage_size`, up to `group_size` in all; the last stage may be smaller.

    A further stage has the random streams of a further draw of the task. If only unsolved tasks go on, the number of
    attempts depends on their outcomes: the success rate of tasks that stop early is biased upwards, and tasks whose
    first stage is all right still have no contrast. Source: AR3PO, arXiv 2509.25808.
    """
    # the number of rounds so far is the number of stages, whichever tasks were in them
    size = min(stage_size, ask.group_size - len(ask.rounds) * stage_size)
    if size <= 0:
        return []
    # another draw of the task gives new streams; its attempts join the task's own group
    stage_draws = ask.play.draws([draw.task for draw in ask.draws]) if ask.rounds else ask.draws
    return [
        stage_draw.attempts(size, group=draw.group) for draw, stage_draw in zip(ask.draws, stage_draws, strict=True)
    ]


@_with(rounds=2)
def hotter(ask: Ask, *, more: Count = 20, temperature: Annotated[float, Gt(0)] = 1.2) -> list[Attempts]:
    """Add `more` attempts at another `temperature`, once (EFRame).

    Their origin is "tempered", and their log-probs and ratios are those of the policy at that temperature, which they
    train: on policy, with a slope of 1 / temperature. Source: EFRame, arXiv 2506.22200, and its code.
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
    """Attempt `n_votes` times for a vote (None: twice the group size); `keep: numbered` trains `group_size` of them.

    The first `group_size` are the same, token by token, as samples of `Independent(group_size)`. The others matter only
    to a reward that compares attempts, such as a vote. Source: TTRL, arXiv 2504.16084, 64 votes for groups of 32.
    """
    return ask._replace(group_size=_votes(ask.group_size, n_votes)).plain()


# ---------------------------------------------------------------- hints
def _hints_fit(group_size: int, *, fractions: tuple[float, ...] = (), template: str = "{prompt}{hint}") -> None:
    if not fractions or not all(0 <= f <= 1 for f in fractions):
        raise ConfigError(f"rollout.fractions must be shares of a solution, from 0 to 1, not {fractions!r}")
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
    """Attempt once under each of a task's hints, all in one batch (Scaf-GRPO); for the options see `next_hint`."""
    return _hinted(ask, 1, template, fractions, cut)


@_with(fits=_hints_fit, check_task=_has_hints)
def next_hint(
    ask: Ask,
    *,
    fractions: tuple[float, ...] = (0.25, 0.5, 0.75),
    template: str = "{prompt}\nThe solution begins like this; you may go on from here:\n{hint}",
    cut: Cut = "words",
) -> list[Attempts]:
    """Attempt a whole group under the first hint, then under the second, and so on (GHPO).

    fractions  shares of the worked solution, by length, for tasks without hints of their own (see `hints_of`)
    template   puts the hint into the prompt; of a chat, into the last user message. Use "{prompt}{hint}" for a policy
               that continues a text and reads no instructions, as the tiny model
    cut        where a solution is cut, see `prefix`

    An attempt has origin "hint" and its hint's level, from 1, as info["hint"]. It is trained under the task's own
    prompt unless `objective.context` is "sampled". In an environment the hint is in the message that begins each
    context, and the solution is its expert's actions, a line each, of which whole ones are shown.
    """
    return _hinted(ask, ask.group_size, template, fractions, cut, only_level=len(ask.rounds))


def _hinted(
    ask: Ask, samples: int, template: str, fractions: tuple[float, ...], cut: Cut, only_level: int | None = None
) -> list[Attempts]:
    """Request `samples` attempts under every hint, or under that of one level; their stream has the path (level,)."""
    if not ask.rounds:
        return ask.plain()
    # an environment's expert plays only for tasks without hints of their own
    solution = solutions_of([d.task for d in ask.draws if "hints" not in d.task.info], ask.play.session)
    solution_cut = "lines" if ask.play.world else cut  # no half of an action
    return [
        draw.attempts(
            samples, path=(level,), label=f"hint{level}", wording=Wording(template, {"hint": hint}), hidden=True,
            origin="hint", info={"hint": level},
        )
        for draw in ask.draws
        for level, hint in enumerate(hints_of(draw.task, solution, fractions, solution_cut), 1)
        if only_level in (None, level)
    ]  # fmt: skip


# ---------------------------------------------------------------- references
def _two_or_more(group_size: int) -> None:
    if group_size < 2:
        raise ConfigError(f"rollout.group_size is {group_size}; it must be 2 or more")


@_with(fits=_two_or_more, check_task=reference_of, allows=EXPERTS, rounds=2)
def reference(ask: Ask) -> list[Attempts]:
    """Add the reference answer, once; in an environment its expert plays. Source: GCPO, arXiv 2510.07790."""
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
    """Sample `n_drafts` drafts, then `group_size` attempts with the best one, by outcome, in the prompt (iGRPO).

    The attempts are trained under the context with the draft; their info holds its text and outcome. Draft i has the
    stream (seed, step, draw, i, path (0,)). With `n_drafts` 0 this is independent sampling. Held-out tasks are
    attempted without a draft. In an environment the draft is an episode: its actions and what came of each.

    template  puts the draft into the prompt; of a chat, into the last user message
    """
    if not n_drafts:
        return [] if ask.rounds else ask.plain()
    # drafts have a path of their own, so that the attempts' streams are those of independent sampling
    if not ask.rounds:
        return [draw.attempts(n_drafts, path=(0,), label="drafts") for draw in ask.draws]
    drafts, out = ask.rounds[0], []
    # an unscored draft is chosen only if its group has no scored one
    outcome = drafts.scored.outcome.tolist()
    for draw in ask.draws:
        draft_rows = [r for r, episode in enumerate(drafts.episodes) if episode.group == draw.group]
        best = draft_rows[first_best([outcome[r] for r in draft_rows])]
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
    """Attempt `group_size` times, and as often with a stored failure in the prompt if the task went badly (R^3).

    below     success rate of the task's newest stored group below which a failure is shown
    template  puts the newest stored failure into the prompt; of a chat, into the last user message

    Attempts with a failure are a group of their own, "GROUP/reflect", trained under the prompt with it, and are not
    stored; info["reflects_on"] is the failure's id. Held-out tasks are attempted without one. Source: R^3, arXiv
    2601.19620.
    """
    if ask.stored is None:
        raise ConfigError("rollout.how=reflect reads stored failures: set rollout=replay, which stores them")
    out = ask.plain()
    for draw in ask.draws:
        # the task went badly if its newest stored group did
        records = [r for r in ask.stored.of(draw.task.id) if r.get("success") is not None]
        newest_verdicts = [float(r["success"]) for r in records if r["group"] == records[-1]["group"]]
        failures = [r for r in records if not r["success"]]
        if failures and fmean(newest_verdicts) < below:
            wording = Wording(template, {"attempt": _transcript(failures[-1], ask.play)})
            out.append(
                draw.attempts(
                    ask.group_size, first=ask.group_size, group=f"{draw.group}/reflect", home=f"{draw.group}/reflect",
                    wording=wording, info={"reflects_on": failures[-1]["id"]},
                )
            )  # fmt: skip
    return out


def _transcript(record: dict[str, Any], play: Play) -> str:
    """Return the text of a stored attempt: its actions, with the observations between them."""
    lines: list[str] = []
    for i, turn in enumerate(record["turns"]):
        lines += [turn.get("observation_text") or ""] * (i > 0) + [play.session.decode(turn["action"])]
    return "\n".join(line for line in lines if line)
