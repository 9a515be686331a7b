"""Requirements of a method on another trainer's rollouts: what its parts declare, and what trying them shows.

A part of a user's own, or one that reads columns by name, declares little. So the parts are run on small synthetic
forests in which one fact at a time is changed: a part whose result changes reads that fact.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo.adapters.sessions import rows_of
from gxpo.adapters.standin import StandIn, TrialSession
from gxpo.algorithms.segments import SegmentTools
from gxpo.algorithms.signals import BUILT_IN, SignalPart, Signals, SignalTools
from gxpo.base.errors import GxpoError, NoVerdicts
from gxpo.forest.forest import Forest
from gxpo.learning.base import Epochs
from gxpo.methods.method import Method, with_inner
from gxpo.parts.definition import show
from gxpo.parts.protocols import Output, PolicyTokens
from gxpo.sampling.rollouts.rounds import Independent

# facts that a trainer may know of its rollouts besides rewards, groups and lengths -> their words in error messages
FACTS: Mapping[str, str] = {
    "logprobs": "log-probs of the sampled tokens",
    "ids": "token ids",
    "components": "named rewards",
    "truncated": "which rollouts were cut off",
    "step": "the number of the step",
}

VERDICTS: Mapping[str, str] = {  # how a user of each trainer passes verdicts
    "TRL": "give success_at, the reward from which on an answer is right",
    "verl": "set +algorithm.gxpo_success_at, the score from which on an answer is right",
}

# services that a trainer may lend to signals and segmenters -> the reason for a refusal where it does not
SERVICES: Mapping[str, str] = {
    "model": "it works with the model itself",
    "texts": "it reads what was written",
    "answers": "it reads the tasks' reference answers",
    "prompts": "it asks the tasks in other words",
}


def trial_tools(step: int, lends: Collection[str] = (), used_names: set[str] | None = None) -> SignalTools:
    """Make stand-ins for the services that a trainer lends to signals (names of SERVICES), to try a method with.

    used  collects the names of the services that were used
    """

    def ask(name: str) -> None:
        if name not in lends:
            raise GxpoError(SERVICES[name])
        if used_names is not None:
            used_names.add(name)

    # any public attribute counts as work with the model: signals use it in too many ways to list
    class Learner(StandIn):
        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_"):
                ask("model")
            return super().__getattribute__(name)

    def decode(tokens: Sequence[int]) -> str:
        ask("texts")
        return " ".join(map(str, tokens))

    def encode(text: str) -> list[int]:
        ask("texts")
        return [1 + ord(c) % 59 for c in text]

    def answers(forest: Forest) -> list[str | None]:
        ask("answers")
        return [str(len(task)) for task in forest.task]

    def reword(task: str, template: str, values: Mapping[str, str]) -> None:
        ask("prompts")

    return SignalTools(Learner(), decode, 0, step, 0, encode=encode, answers=answers, reword=reword)


def parts_of(method: Method) -> Iterator[tuple[str, Any]]:
    """Yield (key, part) for the parts that read rollouts, in the order of the stages; the objective's are last."""
    yield from ((f"reward.shape.{k}", v) for k, v in method.shapes.items())
    yield from ((f"reward.step.{k}", v) for k, v in method.step_rewards.items())
    yield from ((f"reward.add.{k}", v) for k, v in method.rewards.items())
    if method.kl_reward is not None:
        yield "objective.kl", method.kl_reward
    yield from ((f"signal.{k}", v) for k, v in method.signals.items())
    yield "credit", method.credit
    yield from ((f"weight.{k}", v) for k, v in method.weights.items())
    for name, term in method.terms.items():
        yield ("objective" if name == "policy" else f"objective.{name}"), term


def without_guidance(method: Method, trainer: str) -> list[str]:
    """Return the reason why a method that samples under guidance can't be used."""
    guidance = method.run_keys.get("sampling.guidance")
    return [] if guidance is None else [f"sampling.guidance={guidance.value:g}: {trainer} reads logits of one pass"]


def causal_only(method: Method, trainer: str) -> str:
    """Return the reason why an objective on a masked model's likelihood can't be used."""
    return f"likelihood={show(method.likelihood)}: {trainer} reads log-probs of causal models, from left to right"


def update_refusals(method: Method, trainer: str, fields: Sequence[str]) -> list[str]:
    """Return reasons why the trainer can't take the method's optimiser steps, each with the key that avoids it.

    fields  of the plain update (`Epochs`) that the trainer does not have
    """
    update, plain = method.update, Epochs()
    if type(update) is not Epochs:
        return [f"update={show(update)}: {trainer} steps itself (update=epochs takes the rest)"]
    settings_by_name = {n: (show(getattr(update, n)), show(getattr(plain, n))) for n in fields}
    return [
        f"update.{n}={value}: {trainer} steps itself (update.{n}={default} takes the rest)"
        for n, (value, default) in settings_by_name.items()
        if value != default
    ]


def stateful_keys(method: Method) -> list[str]:
    """Return the keys of parts with state: their next values depend on earlier steps."""
    return [k for key, part in parts_of(method) for k, inner in with_inner(key, part) if has_state(inner)]


def has_state(part: Any) -> bool:
    """Return True if a part has state for a checkpoint."""
    # the base class of signals has both methods, so only an override of one means state
    if isinstance(part, SignalPart):
        return any(getattr(type(part), n) is not getattr(SignalPart, n) for n in ("state_dict", "tensors"))
    return hasattr(part, "state_dict") and getattr(part, "remembers", True)


def with_signal_parts(method: Method, forest: Forest, values: Mapping[str, Any], services: SignalTools) -> Signals:
    """Return the signals `values` together with the outputs of the method's own signal parts, detached."""
    # in order: a signal part may read what an earlier one has computed
    values_by_name = dict(values)
    for part in method.signals.values():
        outputs = part.compute(forest, Signals.of(forest, values_by_name, method.axes), services)
        values_by_name |= {name: x.detach() if isinstance(x, Tensor) else x for name, x in outputs.items()}
    return Signals.of(forest, values_by_name, method.axes)


def declared_refusals(
    method: Method,
    trainer: str,
    signals: Collection[str] = (),
    objective: bool = True,
    outputs: Collection[str] = ("logprob", "entropy"),
    lends: Collection[str] = (),
    grows: Collection[str] = (),
) -> list[str]:
    """Return reasons why an external trainer can't use this method, "KEY=PART: reason", by its parts' declarations.

    signals    built-in signals that the trainer computes ("reference_logprob", "entropy", ...)
    objective  True if gxpo's objective is used, False for advantages and weights alone
    outputs    kinds of the policy's outputs that the objective may read;   lends: names of SERVICES
    grows      names of the rollout parts that it can sample by
    """
    reasons = []
    # stages that the trainer keeps for itself: sampling, the task's rewards, phases, drawing of tasks
    segmenter = method.segmenter if "texts" in lends else None
    provides = list(getattr(segmenter, "provides", ()))
    if type(method.rollout) is not Independent:
        if show(method.rollout) not in grows:
            reasons.append(
                f"rollout={show(method.rollout)}: {trainer} samples the groups itself (rollout=independent takes the "
                "rest)"
            )
        elif getattr(method.rollout, "team", ""):
            reasons.append(f"rollout.team={show(method.rollout.team)}: {trainer} samples for one agent")  # type: ignore[attr-defined]
        else:
            provides += getattr(method.rollout, "provides", ())
    reward_key = next((key for key in ("reward", "scoring.weights") if key in method.run_keys), None)
    if reward_key is not None and not method.shapes:  # a shape may read such rewards from the trainer's own
        reasons.append(f"{reward_key}={method.run_keys[reward_key].value}: {trainer} pays by reward functions of yours")
    if "phases" in method.run_keys:
        reasons.append(f"phases: {trainer} runs one method; train with those of the phases one after the other")
    if (optimiser := method.run_keys.get("learner.optimiser")) is not None:
        reasons.append(f"learner.optimiser={optimiser.value}: {trainer} steps with its own optimiser; choose it there")
    if objective:
        reasons += without_guidance(method, trainer)
    if objective and method.likelihood is not None:
        reasons.append(causal_only(method, trainer))
    if method.sampler is not None:
        reasons.append(f"tasks.sampler={show(method.sampler)}: {trainer} draws the tasks itself")
    # what each part declares to need, against what the trainer gives. A KL in the reward counts with the advantages.
    for key, part in parts_of(method):
        if not objective and key.startswith("objective") and part is not method.kl_reward:
            continue
        if key.startswith("reward.step."):
            reasons.append(f"{key}={show(part)}: it reads what came back to each turn, which {trainer} does not give")
        for name in getattr(part, "requires", ()):
            # a segmenter that reads texts gives what environments give elsewhere, such as steps
            if name in provides:
                continue
            reasons.append(f"{key}={show(part)}: it requires {name}, which {trainer} does not have")
        for name in getattr(part, "needs", ()):
            if name in BUILT_IN and name not in (*signals, "behaviour_logprob"):
                reasons.append(
                    f"{key}={show(part)}: it reads {name} ({BUILT_IN[name][1]}), which {trainer} does not give"
                )
        for name in getattr(part, "outputs", ()):
            if Output(name).kind not in outputs:
                reasons.append(f"{key}={show(part)}: it reads the policy's {name}, which {trainer} does not give")
    return reasons


def refusals(
    method: Method,
    trainer: str,
    *,
    signals: Collection[str] = (),
    facts: Collection[str] = (),
    verdicts: bool = False,
    components: Sequence[str] = ("first", "second"),
    objective: bool = True,
    outputs: Collection[str] = ("logprob", "entropy"),
    lends: Collection[str] = (),
    grows: Collection[str] = (),
) -> list[str]:
    """Return reasons why an external trainer can't use this method: those declared, else those found by trying.

    facts       names of FACTS that the trainer knows;   verdicts: True if it knows which rollouts are right
    components  names of the rewards that it knows
    The other arguments are those of `declared_refusals`.
    """
    # a part that lacks a declared need would fail in the trial too, with a worse message
    if reasons := declared_refusals(method, trainer, signals, objective, outputs, lends, grows):
        return reasons
    method = _filled_copy(method)
    parts = dict(parts_of(method))
    try:
        fact_readers = facts_read(method, [f for f in FACTS if f not in facts], verdicts, components, lends)
        if objective:
            list(_stages(method, _rollouts(method, verdicts, components), trial_tools(1, lends), objective=True))
    except Failed as failed:
        why = str(failed)
        parts |= {"rollout": method.rollout}
        if isinstance(failed.error, NoVerdicts):  # reward functions of other trainers return scores alone
            why = f"{failed.error.reader} needs verdicts: {VERDICTS.get(trainer, 'say which answers are right')}"
        return [f"{failed.key}={show(parts.get(failed.key, method.segmenter))}: {why}"]
    return [
        f"{key}={show(parts[key])}: it reads {FACTS[f]}, which {trainer} does not give"
        for f, key in fact_readers.items()
    ]


def facts_read(
    method: Method,
    facts: Collection[str] = tuple(FACTS),
    verdicts: bool = False,
    components: Sequence[str] = ("first", "second"),
    lends: Collection[str] = (),
) -> dict[str, str]:
    """Return the facts of rollouts that a method reads: fact -> key of the first part whose result changes with it.

    Raises `Failed` where a part can't work without something that the synthetic rollouts do not have.
    """
    method = _filled_copy(method)
    plain_values = dict(_stages(method, _rollouts(method, verdicts, components), trial_tools(1, lends)))
    # a rollout that is grown knows ids, steps and cuts by itself
    if type(method.rollout) is not Independent:
        facts = [f for f in facts if f in ("components", "logprobs")]
    # one fact at a time differs from the plain rollouts: a key whose values then differ has read it
    readers = {}
    for fact in facts:
        step = 2000 if fact == "step" else 1
        other_values = dict(_stages(method, _rollouts(method, verdicts, components, fact), trial_tools(step, lends)))
        changed_keys = [key for key, x in plain_values.items() if not _same(x, other_values[key])]
        if changed_keys:
            readers[fact] = changed_keys[0]
    if "logprobs" in facts and "logprobs" not in readers:
        try:  # a part may not depend on their values here and still refuse rollouts without them
            list(_stages(method, _rollouts(method, verdicts, components, "no logprobs"), trial_tools(1, lends)))
        except Failed as failed:
            readers["logprobs"] = failed.key
    return readers


def services_used(method: Method, verdicts: bool, components: Sequence[str], lends: Collection[str]) -> set[str]:
    """Return the names of SERVICES that the method's parts use, found by trying it on synthetic rollouts."""
    service_names: set[str] = set()
    forest = _rollouts(method, verdicts, components)
    list(_stages(_filled_copy(method), forest, trial_tools(1, lends, service_names), objective=True))
    if any(Output(name).kind not in ("logprob", "entropy") or Output(name).at for name in method.outputs):
        service_names.add("model")
    return service_names


def rehearse(method: Method, forest: Forest, services: SignalTools) -> None:
    """Run the parts on a forest such as `synthetic` makes; `Failed` for one that can't work with the lent services."""
    list(_stages(_filled_copy(method), forest, services, objective=True))


def _filled_copy(method: Method) -> Method:
    """Copy a method to try it: with lengths of the synthetic rollouts, and without a trace in the original's memory."""
    return method.fill(horizon=8.0, max_length=8, total_steps=10)


class Failed(GxpoError):
    """Error of a part in a trial; `key` is the part's, `error` the original."""

    def __init__(self, key: str, error: Exception) -> None:
        super().__init__(str(error))
        self.key, self.error = key, error


def _stages(
    method: Method, forest: Forest, services: SignalTools, *, objective: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Run a method stage by stage, as a trainer would; yield (key, values) of every part.

    objective  True: evaluate the objective too
    Any exception is raised as `Failed` with the part's key.
    """
    key = ""
    try:
        if method.segmenter is not None:
            key = "segment"
            forest = method.segmenter(forest, SegmentTools(services.decode, services.learner))
        # rewards one by one, so that an error has its part's key; `shaped` then applies them as a trainer does
        outcome = forest.outcome
        for name, part in method.shapes.items():
            key = f"reward.shape.{name}"
            outcome = part(forest.replace(outcome=outcome))
            yield key, outcome
        for name, part in method.step_rewards.items():
            key = f"reward.step.{name}"
            yield key, part(forest.replace(outcome=outcome))
        for name, part in method.rewards.items():
            key = f"reward.add.{name}"
            components = part(forest)
            yield (
                key,
                torch.stack(
                    [x.double() for x in ([components] if isinstance(components, Tensor) else components.values())]
                ),
            )
        forest = method.shaped(forest)
        # other policies' log-probs differ from the sampler's, or a part that compares them would see nothing
        values: dict[str, Any] = {"proximal_logprob": forest.path_behaviour_logprob * 1.1}
        values["reference_logprob"] = forest.path_behaviour_logprob * 0.9
        values["entropy"] = -forest.path_behaviour_logprob
        if "hidden" in method.needs:
            key = "credit"
            values["hidden"] = services.learner.hidden(forest)
        for name, part in method.signals.items():
            key = f"signal.{name}"
            part.bind(services)
            outputs = part.compute(forest, Signals.of(forest, values, method.axes), services)
            values |= outputs
            yield key, torch.cat([x.double().flatten() for x in outputs.values() if isinstance(x, Tensor)] or [outcome])
        key = "credit"
        credit = method.advantages(forest, values, services.step)
        yield key, credit
        known_signals = Signals.of(forest, values, method.axes)
        for name, part in method.weights.items():
            key = f"weight.{name}"
            yield key, part(forest, credit, known_signals, services.step)
        if objective:
            key = "objective"
            yield key, _loss(method, forest, credit, Signals.of(forest, values, method.axes), services.step)
    except Exception as error:
        raise Failed(key, error) from error


def _loss(method: Method, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
    """Evaluate the objective of a policy that has not moved, with weights of 1."""
    signals = Signals.of(forest, {**signals, **method.targets(forest, signals, step)}, signals.axes)
    target_values = {n: signals[n] for term in method.terms.values() for n in getattr(term, "constants", ())}
    policy_outputs = StandIn().outputs(forest, (*method.outputs, "entropy"), constants=target_values)
    policy = PolicyTokens(
        policy_outputs["logprob"],
        forest.path_behaviour_logprob,
        signals.get("reference_logprob"),
        policy_outputs["entropy"],
        proximal_logprob=policy_outputs["logprob"],
        outputs=policy_outputs,
    )
    return method.objective(forest, policy, credit, torch.ones_like(credit), signals, step)


def _same(a: Tensor, b: Tensor) -> bool:
    """Return True for bitwise equal tensors, nan being equal to nan."""
    return a.shape == b.shape and bool(torch.equal(torch.nan_to_num(a, nan=-7.5), torch.nan_to_num(b, nan=-7.5)))


def _rollouts(method: Method, verdicts: bool, components: Sequence[str], changed_fact: str = "") -> Forest:
    """Make the rollouts to try a method with: synthetic ones, or those that its rollout grows in a third step of such.

    Raises `Failed` with NoVerdicts where the rollout grows others with verdicts, and there are none.
    """
    if type(method.rollout) is Independent:
        return synthetic(verdicts, components, changed_fact)
    try:
        forest = _grown(method, verdicts, components, changed_fact)
        if not verdicts and not _is_alike(forest, _grown(method, True, components, changed_fact)):
            raise NoVerdicts(f"rollout {show(method.rollout)}")
        forest = forest.in_context(method.context)
        rows_of(forest)
    except Exception as error:
        raise Failed("rollout", error) from error
    return forest


_TRIALS: dict[str, Forest] = {}


def _grown(method: Method, verdicts: bool, components: Sequence[str], changed_fact: str) -> Forest:
    """Grow rollouts of synthetic tasks in three steps, so that memories fill; return those of the third."""
    # a trial depends on these alone, and several questions ask for the same one
    key = repr((method.rollout, method.segmenter, verdicts, tuple(components), changed_fact))
    if key in _TRIALS:
        return _TRIALS[key]
    method = _filled_copy(method)
    # what begins after some steps would begin after the trial
    start_settings = {"warmup_steps": 0} if hasattr(method.rollout, "warmup_steps") else {}
    rollout = dataclasses.replace(method.rollout, **start_settings) if start_settings else method.rollout  # type: ignore[type-var]
    method = dataclasses.replace(method, rollout=rollout)
    forests = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a rollout says of these synthetic tasks is none of the user's
        for step in range(1, 4):
            session = TrialSession(
                step, verdicts=verdicts, components=components, changed_fact=changed_fact, segmenter=method.segmenter
            )
            forests.append(session.score(session.segment(rollout.grow(session.draw(4), session))))
            method.observe(forests[-1])
    if len(_TRIALS) >= 64:
        _TRIALS.clear()
    _TRIALS[key] = forests[-1]
    return forests[-1]


def _is_alike(first: Forest, second: Forest) -> bool:
    """Return True for the same attempts, whatever their scores."""
    return (first.id, first.sampling, first.info) == (second.id, second.sampling, second.info) and torch.equal(
        first.token, second.token
    )


def synthetic(
    verdicts: bool, components: Sequence[str], changed_fact: str = "", prompt_prefix: Sequence[int] = ()
) -> Forest:
    """Make 4 groups of 4 synthetic rollouts: mixed, all wrong, all right, and of graded rewards.

    changed  the fact of FACTS that differs from the plain forest (not "step", which rollouts do not hold), or
             "no logprobs"
    before   ids that every prompt begins with
    """
    # each kind of group that methods tell apart is there, and lengths differ within a group
    rewards = [[1.0, 0.0, 1.0, 0.0], [0.0] * 4, [1.0] * 4, [0.2, 0.9, 0.4, 0.0]]
    lengths = [[2 + (3 * i + g) % 5 for i in range(4)] for g in range(4)]
    order, offset = (5 if changed_fact == "logprobs" else 3), (7 if changed_fact == "ids" else 0)

    def ids(i: int, n: int) -> list[int]:
        return [1 + (5 * i + 3 * j + offset * (i + 1) * (j + 1)) % 59 for j in range(n)]

    def logprobs(i: int, n: int) -> list[float]:
        return [-0.1 - 0.05 * ((order * i + 2 * j) % 7) for j in range(n)]

    outcome = torch.tensor(rewards, dtype=torch.float64).flatten()
    cut = torch.arange(outcome.numel()) % 4 == (2 if changed_fact == "truncated" else 1)
    forest = Forest.from_completions(
        [[*prompt_prefix, 7 + g, 8] for g in range(4)],
        [[ids(i, n) for i, n in enumerate(group)] for group in lengths],
        rewards,
        logprobs=None
        if changed_fact == "no logprobs"
        else [[logprobs(i, n) for i, n in enumerate(g)] for g in lengths],
        truncated=cut,
        success=(outcome >= 1).double() if verdicts else None,
    )
    first = outcome.flip(0) if changed_fact == "components" else outcome
    columns = {name: torch.roll(first, k) for k, name in enumerate(components)}
    return forest.with_rewards(outcome, components=columns)
