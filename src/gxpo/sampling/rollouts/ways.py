"""Ways of `retry` to attempt tasks in each round: functions that the option `retry_with` names.

A way is a function of an `Ask` that returns the next round's attempts, none at the end. Its keyword-only parameters are
options, `rollout.NAME`. It may have the attributes `rounds`, the most rounds, `fits(group_size, *, ...)`, which refuses
options, `check_task(task, solution, *, ...)`, which refuses tasks, and `allows` (see `RolloutPart`).
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

from annotated_types import Ge, Gt, Interval

from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Episode, Fork
from gxpo.sampling.rollouts.base import Count, Round
from gxpo.sampling.rollouts.build import Limit, first_best, random_for
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.reference import DEMONSTRATION, EXPERTS, demonstrate, reference_of, solutions_of
from gxpo.sampling.rollouts.wording import Cut, Solution, Wording, check_template, hints_of

F = TypeVar("F", bound=Callable[..., Any])
Share = Annotated[float, Interval(ge=0, le=1)]
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
    samples: Count = 1,
) -> list[Attempts]:
    """Attempt under each of a task's hints, all in one batch (Scaf-GRPO); for the other options see `next_hint`.

    samples  attempts under each hint
    """
    return _hint_attempts(ask, samples, template, fractions, cut)


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
    return _hint_attempts(ask, ask.group_size, template, fractions, cut, only_level=len(ask.rounds))


def _hint_attempts(
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
            samples, path=(level,), label=f"hint{level}", wording=Wording(template, {"hint": hint}), hides_wording=True,
            origin="hint", info={"hint": level},
        )
        for draw in ask.draws
        for level, hint in enumerate(hints_of(draw.task, solution, fractions, solution_cut), 1)
        if only_level in (None, level)
    ]  # fmt: skip


# ---------------------------------------------------------------- hints by difficulty
def _hints_by_rate_fit(group_size: int, *, min_hint: Share = 0.1, max_hint: Share = 0.9) -> None:
    if min_hint > max_hint:
        raise ConfigError(
            f"rollout.min_hint is {min_hint:g} and rollout.max_hint {max_hint:g}: the least must be at most the largest"
        )
    _two_or_more(group_size)


@_with(fits=_hints_by_rate_fit, check_task=reference_of, rounds=2)
def hint_by_rate(
    ask: Ask, *, min_hint: Share = 0.1, max_hint: Share = 0.9, noise: Annotated[float, Ge(0)] = 0.0
) -> list[Attempts | Fork]:
    """Attempt plainly, then as often from a first part of the reference answer: the harder, the longer (ADHint).

    The part is the first w of the answer's tokens, w = (max_hint - min_hint) (1 - p) + min_hint, p the success rate of
    the plain half; `noise`: the std of what is added to w. It begins the attempt's own action, so it is trained,
    without a log-prob under its sampler (`objective.on_unknown_behaviour`). These attempts are a group of their own,
    GROUP/hint, of origin "hint"; info["hint"] is w, and info["hint_tokens"] how many tokens it is. Groups are halved:
    the first half is plain. Answers to prompts only. Source: ADHint, arXiv 2512.13095.
    """
    if ask.play.world:
        raise ConfigError(
            "rollout.retry_with=hint_by_rate begins an answer with a part of another: these tasks are episodes"
        )
    n, session = ask.group_size // 2, ask.play.session
    if not ask.rounds:
        plain: list[Attempts | Fork] = [draw.attempts(ask.group_size - n) for draw in ask.draws]
        return plain + [_reference_to_leave(draw, ask.play) for draw in ask.draws]
    # verdicts of the plain half, and the reference answers that the hints are taken from
    first, verdicts = ask.rounds[0], dict[str, list[float]]()
    for group, success in zip(first.scored.group, first.scored.success.tolist(), strict=True):
        verdicts.setdefault(group, []).extend([] if math.isnan(success) else [success])
    references = {e.group: e for e in first.episodes if e.spec is not None and e.spec.origin == DEMONSTRATION}
    forks: list[Attempts | Fork] = []
    reasons: list[str] = []
    for draw in ask.draws:
        base = references[f"{draw.group}/hint"]
        tokens, limit = base.action_tokens(0), session.sampling.max_new_tokens
        # an answer that does not serve gives no hints: its task has its plain half alone
        if len(tokens) > limit or verdicts[base.group] != [1.0]:
            reason = (
                f"{len(tokens)} tokens, of at most {limit}" if len(tokens) > limit else "not accepted by the reward"
            )
            reasons.append(f"that of task {draw.task.id!r}: {reason}")
            continue
        w = hint_ratio(fmean(verdicts[draw.group] or [0.0]), min_hint, max_hint)
        w += noise * random_for(session, draw.name, "hint").gauss(0.0, 1.0) if noise else 0.0
        # at least the last token is the policy's own
        at = max(1, min(int(max(w, 0.0) * len(tokens) + 1e-9), len(tokens) - 1))
        forks += [
            Fork(base, 0, dataclasses.replace(base.key, attempt=ask.group_size - n + i, path=(1,)),
                 f"{draw.name}/hint/{i}", at, {"hint": round(w, 6), "hint_tokens": at}, origin="hint")
            for i in range(n)
        ]  # fmt: skip
    if reasons:
        warnings.warn(
            f"{len(reasons)} of {len(references)} reference answers give no hints; first {reasons[0]}", stacklevel=2
        )
    return forks


def hint_ratio(rate: float, min_hint: float, max_hint: float) -> float:
    """Share of the reference answer that is given as a hint: (max_hint - min_hint) (1 - rate) + min_hint.

    >>> hint_ratio(0.25, 0.1, 0.9)
    0.7000000000000001
    """
    return (max_hint - min_hint) * (1.0 - rate) + min_hint


def _reference_to_leave(draw: Draw, play: Play) -> Attempts:
    """Request the reference answer as an attempt that forks leave, which `keep` leaves out."""
    spec = demonstrate(draw, 1, play, 0, "reference")
    return dataclasses.replace(spec, group=f"{draw.group}/hint", home=f"{draw.group}/hint")


# ---------------------------------------------------------------- other prompts
_DECOMPOSE = """{prompt}

Split this into smaller questions, answer each of them, and put their answers together. End with the answer.
"""
_REFLECT = """{prompt}

An earlier answer, which is wrong:
{attempt}

Find the mistake, and answer anew. End with the answer.
"""


def _prompts_fit(group_size: int, *, templates: tuple[str, ...] = (_DECOMPOSE, _REFLECT)) -> None:
    if not templates:
        raise ConfigError("rollout.templates is empty: give one for each further round")
    for template in templates:
        check_template("rollout.templates", template, ("prompt",), ("attempt",))


@_with(fits=_prompts_fit)
def next_prompt(ask: Ask, *, templates: tuple[str, ...] = (_DECOMPOSE, _REFLECT)) -> list[Attempts]:
    """Attempt a whole group under the first of other prompts, then under the second, and so on (Cog-Rethinker).

    templates  each puts the task's prompt, {prompt}, into other words; {attempt} is the newest failed attempt of the
               group, without which it is left alone. They may ask to split the task, or to find the mistake

    An attempt has origin "hint", its place in `templates`, from 1, as info["hint"], and, if it was shown a failure,
    the failure's id as info["reflects_on"]. It is trained under the task's own prompt unless `objective.context` is
    "sampled". Source: Cog-Rethinker, arXiv 2510.15979.
    """
    if not ask.rounds:
        return ask.plain()
    level = len(ask.rounds)
    if level > len(templates):
        return []
    template, out = templates[level - 1], []
    for draw in ask.draws:
        fields, info = {}, {"hint": level}
        if "{attempt}" in template:
            failed_attempt = _newest_failure(ask.rounds, draw.group)
            if failed_attempt is None:
                continue
            fields, info = {"attempt": ask.play.transcript(failed_attempt)}, info | {"reflects_on": failed_attempt.id}
        out.append(
            draw.attempts(
                ask.group_size, path=(level,), label=f"prompt{level}", wording=Wording(template, fields),
                hides_wording=True, origin="hint", info=info,
            )
        )  # fmt: skip
    return out


def _newest_failure(rounds: Sequence[Round], group: str) -> Episode | None:
    """Return the newest attempt of a group that is a known failure; None without one."""
    for played_round in reversed(rounds):
        success_R = played_round.scored.success.tolist()
        failures = [e for e, x in zip(played_round.episodes, success_R, strict=True) if e.group == group and x < 1]
        if failures:
            return failures[-1]
    return None


# ---------------------------------------------------------------- what is wanted, in the prompt
def _directions_fit(group_size: int, *, angles: tuple[float, ...] = (0.0,), template: str = "{prompt}") -> None:
    if not angles:
        raise ConfigError("rollout.angles is empty: give at least one, in degrees")
    check_template("rollout.template", template, ("prompt", "first", "second"))


@_with(fits=_directions_fit, rounds=1)
def stated_direction(
    ask: Ask,
    *,
    angles: tuple[float, ...] = (-45.0, -30.0, -15.0, 0.0, 15.0, 30.0, 45.0),
    template: str = "Weigh the first quality by {first} and the second by {second}.\n{prompt}",
) -> list[Attempts]:
    """Attempt each task under a direction between two rewards that its prompt states, one direction a group (DPA).

    angles    in degrees: one is drawn for each group, uniformly, and info["direction"] is its (cos, sin), for
              `reward.shape.NAME.function: directed`
    template  {first} and {second} are 100 cos and 100 sin, rounded

    Held-out tasks are attempted under their own prompts. Source: Directional Preference Alignment, arXiv 2402.18571.
    """
    requests = []
    for draw in ask.draws:
        angle = math.radians(random_for(ask.play.session, draw.name, "direction").choice(angles))
        direction = [math.cos(angle), math.sin(angle)]
        first, second = (f"{100 * x:.0f}" for x in direction)
        wording = Wording(template, {"first": first, "second": second})
        requests.append(draw.attempts(ask.group_size, wording=wording, info={"direction": direction}))
    return requests


# ---------------------------------------------------------------- references
def _two_or_more(group_size: int) -> None:
    if group_size < 2:
        raise ConfigError(f"rollout.group_size is {group_size}; it must be 2 or more")


@_with(fits=_two_or_more, check_task=reference_of, allows=EXPERTS, rounds=2)
def reference(ask: Ask) -> list[Attempts]:
    """Add the reference answer, once; in an environment its expert plays. Source: GCPO, arXiv 2510.07790."""
    if not ask.rounds:
        return ask.plain()
    return [demonstrate(draw, 1, ask.play, ask.group_size, "reference") for draw in ask.draws]


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
        info = {"draft": text, "draft_outcome": None if math.isnan(outcome[best]) else outcome[best]}
        out.append(draw.attempts(ask.group_size, wording=Wording(template, {"draft": text}), info=info))
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
        raise ConfigError("rollout.retry_with=reflect reads stored failures: set rollout=replay, which stores them")
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
