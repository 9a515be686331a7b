"""Methods that work in another trainer, what each must be given there, and why the others do not.

There is no table: the answers come from the checks that the adapters make before they take a method.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gxpo.adapters import asks, trl_settings
from gxpo.adapters.trl_growth import reads_solutions
from gxpo.adapters.verl_asks import SUCCESS_AT, why_not
from gxpo.base.errors import NoComponent, NoVerdicts, one_of
from gxpo.methods import METHODS
from gxpo.methods.compose import method as compose
from gxpo.methods.method import Method

TRAINERS = ("trl", "verl")
REWARD = "reward"  # name of a user's reward function
LONGEST = {"horizon": 1024.0, "max_length": 1024}  # a trainer's longest completion; its value does not matter here
JUDGE = "gxpo.adapters.standin:scores"  # in place of a user's judge


@dataclass(frozen=True)
class Requirements:
    """Requirements of a method in TRL beside a model, tasks and a reward.

    settings   fields of GRPOConfig with their values; `steps_per_generation` counts gradient_accumulation_steps
    arguments  arguments of gxpo's GRPOTrainer, with an example each
    rewards    names of further reward functions, of weight 0
    overrides  keys of the method that the user has to choose: key -> its alternatives
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    rewards: tuple[str, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)

    def words(self) -> tuple[str, ...]:
        """Return the requirements as phrases, one each."""
        unit = {"steps_per_generation": " x gradient_accumulation_steps"}
        return (
            *(f"{name}={value}{unit.get(name, '')}" for name, value in self.settings.items()),
            *(f"{name}={value!r}" for name, value in self.arguments.items()),
            *(f"a reward function {name} of weight 0" for name in self.rewards),
            *(f"overrides: {' or '.join(choices.split())}" for choices in self.overrides.values()),
        )


@dataclass(frozen=True)
class Row:
    """A method's row in the list of a trainer.

    works   in TRL as a whole; in verl its advantages or its loss, as `parts` says
    given   phrases for what it must be given;   reason: why it does not work, "" where it does
    parts   verl: "advantage" and "loss"; TRL: "method"
    """

    name: str
    works: bool
    given: tuple[str, ...] = ()
    reason: str = ""
    parts: tuple[str, ...] = ()


def available(trainer: str, names: Iterable[str] | None = None) -> list[Row]:
    """List every published method (or the compositions `names`) in "trl" or "verl"; neither has to be installed.

    >>> [row] = available("trl", ["grpo_lead"])
    >>> row.works, row.given
    (True, ('success_at=1.0',))
    """
    one_of("trainer", trainer, TRAINERS)
    row = in_trl if trainer == "trl" else _in_verl
    return [row(name) for name in (METHODS if names is None else names)]


def in_trl(name: str) -> Row:
    """Return the row of one method in TRL's trainer."""
    composed, needs = needs_in_trl(name)
    reasons = why_not_in_trl(composed, needs)
    if reasons:
        return Row(name, False, reason="; ".join(dict.fromkeys(reasons)))
    return Row(name, True, needs.words(), parts=("method",))


def why_not_in_trl(composed: Method, needs: Requirements) -> list[str]:
    """Return the adapter's reasons to refuse a method that is given all its needs."""
    if reasons := trl_settings.declared_refusals(composed):
        return reasons
    reasons = trl_settings.refusals(composed, "success_at" in needs.arguments, (REWARD, *needs.rewards))
    return reasons or trl_settings.update_refusals(composed)


def needs_in_trl(name: str) -> tuple[Method, Requirements]:
    """Return the method, with stand-ins for what a user has to choose, and its requirements."""
    composed = compose(name).fill(**LONGEST)
    overrides: dict[str, str] = {}
    values: dict[str, Any] = {}
    # a signal may need one of several keys, such as a judge that is a function or a model
    for key, part in composed.signals.items():
        if (alternatives := getattr(part, "one_of", ())) and all(getattr(part, n) is None for n in alternatives):
            overrides[f"signal.{key}"] = " ".join(f"signal.{key}.{n}=..." for n in alternatives)
            values[f"signal.{key}.{alternatives[0]}"] = JUDGE
    if values:
        composed = compose(name, values).fill(**LONGEST)
    arguments, rewards = _required_arguments(composed)
    return composed, Requirements(trl_settings.required_settings(composed), arguments, rewards, overrides)


def _required_arguments(composed: Method) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Find the arguments of the trainer, and further reward functions, that the method's parts stop without."""
    arguments: dict[str, Any] = {}
    rewards: tuple[str, ...] = ()
    if trl_settings.declared_refusals(composed):
        return arguments, rewards
    # one failure at a time: each trial gives what the last one lacked, until it passes or fails for another reason
    while True:
        has_verdicts, names = "success_at" in arguments, (REWARD, *rewards)
        try:
            service_names = asks.services_used(composed, has_verdicts, names, trl_settings.LENDS)
        except asks.Failed as failed:
            if isinstance(failed.error, NoVerdicts) and not has_verdicts:
                arguments["success_at"] = 1.0
            elif isinstance(failed.error, NoComponent) and failed.error.name not in rewards:
                rewards = (*rewards, failed.error.name)
            else:
                return arguments, rewards
        else:
            columns = {"answers": "answer"} if "answers" in service_names else {}
            columns |= {"solutions": "solution"} if reads_solutions(composed.rollout) else {}
            return {**arguments, **columns}, rewards


def _in_verl(name: str) -> Row:
    reasons = {part: why_not(name, part) for part in ("advantage", "loss")}
    parts = tuple(part for part, reason in reasons.items() if reason is None)
    missing = {part: reason for part, reason in reasons.items() if reason is not None}
    reason = "; ".join(f"{part}: {why}" for part, why in missing.items())
    settings: tuple[str, ...] = ()
    if "advantage" in parts and _stops_without_verdicts(compose(name)):
        settings = (f"+algorithm.{SUCCESS_AT}=1.0",)
    return Row(name, bool(parts), settings, reason, parts)


def _stops_without_verdicts(composed: Method) -> bool:
    try:
        asks.facts_read(composed, (), False, ("score",))
    except asks.Failed as failed:
        return isinstance(failed.error, NoVerdicts)
    return False


# ---------------------------------------------------------------- for people and programs
def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Count the methods that work, and those of them that need nothing else; in verl also by part."""
    working = [row for row in rows if row.works]
    totals = {"methods": len(rows), "work": len(working), "as_they_are": sum(not row.given for row in working)}
    by_part = {part: sum(part in row.parts for row in rows) for part in ("advantage", "loss")}
    both = sum({"advantage", "loss"} <= set(row.parts) for row in rows)
    return totals if not any(by_part.values()) else {**totals, **by_part, "both": both}


def as_json(trainer: str, rows: Sequence[Row]) -> str:
    """Return the rows and their counts as JSON text."""
    records = [
        {"name": r.name, "works": r.works, "parts": r.parts, "given": r.given, "reason": r.reason or None} for r in rows
    ]
    return json.dumps({"trainer": trainer, "counts": counts(rows), "methods": records}, indent=1)


def as_text(trainer: str, rows: Sequence[Row]) -> str:
    """Return a table with a line for each method: those that work, then the others with the reason."""
    width = max(len(row.name) for row in rows)
    line = partial(_line, trainer, width)
    n = counts(rows)
    if trainer == "trl":
        head = f"{n['work']} of {n['methods']} methods work in TRL, {n['as_they_are']} of them as they are"
        how = 'GRPOTrainer(model, method="NAME", ...) of gxpo.adapters.trl'
    else:
        head = (
            f"{n['both']} of {n['methods']} methods work in verl as a whole, {n['advantage']} as adv_estimator, "
            f"{n['loss']} as loss_mode"
        )
        how = "algorithm.adv_estimator=gxpo/NAME, actor_rollout_ref.actor.policy_loss.loss_mode=gxpo/NAME"
    good, bad = [row for row in rows if row.works], [row for row in rows if not row.works]
    return "\n".join([f"{head}: {how}", "", *map(line, good), *(["", "not there:", *map(line, bad)] if bad else [])])


def _line(trainer: str, width: int, row: Row) -> str:
    if not row.works:
        return f"  {row.name:<{width}}  {row.reason}"
    phrases = [] if trainer == "trl" else [" and ".join(row.parts)]
    if row.given:
        phrases.append("give " + ", ".join(row.given))
    if row.reason:
        phrases.append(f"no {row.reason}")
    return f"  {row.name:<{width}}  {'; '.join(phrases)}".rstrip()
