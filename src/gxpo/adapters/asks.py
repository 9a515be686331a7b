"""Requirements of a method on another trainer's rollouts, from its parts' declarations and from trying them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo.adapters.standin import StandIn
from gxpo.algorithms.segments import SegmentTools
from gxpo.algorithms.signals import BUILT_IN, SignalPart, Signals, SignalTools
from gxpo.base.errors import GxpoError, NoVerdicts
from gxpo.forest.forest import Forest
from gxpo.learning.base import Epochs
from gxpo.methods.method import Method, with_inner
from gxpo.parts.definition import show
from gxpo.parts.protocols import Output, PolicyTokens
from gxpo.sampling.rollouts.independent import Independent

# What a trainer may know of its rollouts besides rewards, groups and lengths, by its name in error messages.
FACTS: Mapping[str, str] = {
    "logprobs": "log-probs of the sampled tokens",
    "ids": "token ids",
    "components": "named rewards",
    "truncated": "which rollouts were cut off",
    "step": "the number of the step",
}


VERDICTS: Mapping[str, str] = {  # how each trainer passes verdicts
    "TRL": "give success_at, the reward from which on an answer is right",
    "verl": "set +algorithm.gxpo_success_at, the score from which on an answer is right",
}


# What a trainer may lend to signals and segmenters, by what is said where it does not.
SERVICES: Mapping[str, str] = {
    "model": "it works with the model itself",
    "texts": "it reads what was written",
    "answers": "it reads the tasks' reference answers",
    "prompts": "it asks the tasks in other words",
}


def tools(step: int, lends: Collection[str] = (), used: set[str] | None = None) -> SignalTools:
    """Stand-ins for the services that a trainer lends to signals (names of SERVICES), to try a method with.

    used  takes the names of what was asked for
    """

    def ask(name: str) -> None:
        if name not in lends:
            raise GxpoError(SERVICES[name])
        if used is not None:
            used.add(name)

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

    def asked(task: str, template: str, said: Mapping[str, str]) -> None:
        ask("prompts")

    return SignalTools(Learner(), decode, 0, step, 0, encode=encode, answers=answers, asked=asked)


def parts_of(method: Method) -> Iterator[tuple[str, Any]]:
    """(key, part) of every part that reads rollouts before the objective does, then of the objective."""
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


def update_refusals(method: Method, trainer: str, fields: Sequence[str]) -> list[str]:
    """Why the trainer can't take the method's optimiser steps, and what takes the rest of the method.

    without  settings of the plain update that the trainer does not have
    """
    update, plain = method.update, Epochs()
    if type(update) is not Epochs:
        return [f"update={show(update)}: {trainer} steps itself (update=epochs takes the rest)"]
    changed = {n: (show(getattr(update, n)), show(getattr(plain, n))) for n in fields}
    return [
        f"update.{n}={value}: {trainer} steps itself (update.{n}={default} takes the rest)"
        for n, (value, default) in changed.items()
        if value != default
    ]


def stateful_keys(method: Method) -> list[str]:
    """Keys of stateful parts: their next values depend on earlier steps."""
    return [k for key, part in parts_of(method) for k, inner in with_inner(key, part) if _has_state(inner)]


def _has_state(part: Any) -> bool:
    """Whether it has state for a checkpoint: signal parts all can, and most have none."""
    if isinstance(part, SignalPart):
        return any(getattr(type(part), n) is not getattr(SignalPart, n) for n in ("state_dict", "tensors"))
    return hasattr(part, "state_dict") and getattr(part, "remembers", True)


def with_signal_parts(method: Method, forest: Forest, values: Mapping[str, Any], lent: SignalTools) -> Signals:
    """`values` and the outputs of the method's own signal parts on the rollouts."""
    values_by_name = dict(values)
    for part in method.signals.values():
        outputs = part.compute(forest, Signals.of(forest, values_by_name, method.axes), lent)
        values_by_name |= {name: x.detach() if isinstance(x, Tensor) else x for name, x in outputs.items()}
    return Signals.of(forest, values_by_name, method.axes)


def declared_refusals(
    method: Method,
    trainer: str,
    signals: Collection[str] = (),
    objective: bool = True,
    outputs: Collection[str] = ("logprob", "entropy"),
    lends: Collection[str] = (),
) -> list[str]:
    """Why an external trainer can't use this method, "KEY=PART: reason" each, by its parts' declarations.

    signals    built-in signals that it computes ("reference_logprob", "entropy", ...)
    objective  whether the objective is used, or advantages and weights alone
    outputs    kinds of the policy's outputs that the objective may read;   lends: names of SERVICES
    """
    reasons = []
    segmenter = method.segmenter if "texts" in lends else None
    if type(method.rollout) is not Independent:
        reasons.append(
            f"rollout={show(method.rollout)}: {trainer} samples the groups itself (rollout=independent takes the rest)"
        )
    paid = next((key for key in ("reward", "scoring.weights") if key in method.run_keys), None)
    if paid is not None and not method.shapes:  # a shape may read such rewards from the trainer's own
        reasons.append(f"{paid}={method.run_keys[paid].value}: {trainer} pays by reward functions of yours")
    if "phases" in method.run_keys:
        reasons.append(f"phases: {trainer} runs one method; train with those of the phases one after the other")
    if method.sampler is not None:
        reasons.append(f"tasks.sampler={show(method.sampler)}: {trainer} draws the tasks itself")
    for key, part in parts_of(method):
        if not objective and key.startswith("objective") and part is not method.kl_reward:
            continue
        if key.startswith("reward.step."):
            reasons.append(f"{key}={show(part)}: it reads what came back to each turn, which {trainer} does not give")
        for name in getattr(part, "requires", ()):
            if name in getattr(segmenter, "provides", ()):
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
) -> list[str]:
    """`declared`, and if that finds nothing, the results of trying the parts on synthetic rollouts.

    facts       names of FACTS that the trainer knows;   verdicts: whether it knows which rollouts are right
    components  names of the rewards that it knows
    """
    if reasons := declared_refusals(method, trainer, signals, objective, outputs, lends):
        return reasons
    method = _filled_copy(method)
    parts = dict(parts_of(method))
    try:
        fact_readers = facts_read(method, [f for f in FACTS if f not in facts], verdicts, components, lends)
        if objective:
            list(_stages(method, synthetic(verdicts, components), tools(1, lends), objective=True))
    except Failed as failed:
        why = str(failed)
        if isinstance(failed.error, NoVerdicts):  # a reward function of theirs can't return a verdict with the score
            why = f"{failed.error.what} needs verdicts: {VERDICTS.get(trainer, 'say which answers are right')}"
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
    """Rollout fact -> key of the first part whose result changes with it, on synthetic rollouts.

    GxpoError where a part can't work without something that is not there.
    """
    method = _filled_copy(method)
    plain = dict(_stages(method, synthetic(verdicts, components), tools(1, lends)))
    readers = {}
    for fact in facts:
        step = 2000 if fact == "step" else 1
        other = dict(_stages(method, synthetic(verdicts, components, fact), tools(step, lends)))
        changed = [key for key, x in plain.items() if not _same(x, other[key])]
        if changed:
            readers[fact] = changed[0]
    if "logprobs" in facts and "logprobs" not in readers:
        try:  # one that stops where they are unknown
            list(_stages(method, synthetic(verdicts, components, "no logprobs"), tools(1, lends)))
        except Failed as failed:
            readers["logprobs"] = failed.key
    return readers


def services_used(method: Method, verdicts: bool, components: Sequence[str], lends: Collection[str]) -> set[str]:
    """Names of SERVICES that the method's parts ask for, on synthetic rollouts."""
    used: set[str] = set()
    list(_stages(_filled_copy(method), synthetic(verdicts, components), tools(1, lends, used), objective=True))
    if any(Output(name).kind not in ("logprob", "entropy") or Output(name).at for name in method.outputs):
        used.add("model")
    return used


def rehearse(method: Method, forest: Forest, lent: SignalTools) -> None:
    """Try the parts on rollouts, as those of `synthetic`; `Failed` where one can't work with what it is lent."""
    list(_stages(_filled_copy(method), forest, lent, objective=True))


def _filled_copy(method: Method) -> Method:
    """The method with lengths of the synthetic rollouts where it has none; it is not to remember that it was tried."""
    return method.fill(horizon=8.0, max_length=8, total_steps=10)


class Failed(GxpoError):
    """A part that could not be tried."""

    def __init__(self, key: str, error: Exception) -> None:
        super().__init__(str(error))
        self.key, self.error = key, error


def _stages(
    method: Method, forest: Forest, lent: SignalTools, *, objective: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """(key, values) of every part before the objective, and of that."""
    key = ""
    try:
        if method.segmenter is not None:
            key = "segment"
            forest = method.segmenter(forest, SegmentTools(lent.decode, lent.learner))
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
        values: dict[str, Any] = {"proximal_logprob": forest.path_behaviour_logprob * 1.1}
        values["reference_logprob"] = forest.path_behaviour_logprob * 0.9
        values["entropy"] = -forest.path_behaviour_logprob
        if "hidden" in method.needs:
            key = "credit"
            values["hidden"] = lent.learner.hidden(forest)
        for name, part in method.signals.items():
            key = f"signal.{name}"
            part.bind(lent)
            outputs = part.compute(forest, Signals.of(forest, values, method.axes), lent)
            values |= outputs
            yield key, torch.cat([x.double().flatten() for x in outputs.values() if isinstance(x, Tensor)] or [outcome])
        key = "credit"
        credit = method.advantages(forest, values, lent.step)
        yield key, credit
        known_signals = Signals.of(forest, values, method.axes)
        for name, part in method.weights.items():
            key = f"weight.{name}"
            yield key, part(forest, credit, known_signals, lent.step)
        if objective:
            key = "objective"
            yield key, _loss(method, forest, credit, Signals.of(forest, values, method.axes), lent.step)
    except Exception as error:
        raise Failed(key, error) from error


def _loss(method: Method, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
    """The objective of a policy that has not moved, with weights of 1."""
    signals = Signals.of(forest, {**signals, **method.targets(forest, signals, step)}, signals.axes)
    target_values = {n: signals[n] for term in method.terms.values() for n in getattr(term, "given", ())}
    policy_outputs = StandIn().outputs(forest, (*method.outputs, "entropy"), given=target_values)
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
    return a.shape == b.shape and bool(torch.equal(torch.nan_to_num(a, nan=-7.5), torch.nan_to_num(b, nan=-7.5)))


def synthetic(verdicts: bool, components: Sequence[str], changed: str = "", before: Sequence[int] = ()) -> Forest:
    """Groups of right, wrong and mixed answers, to prompts that begin with the ids `before`.

    changed  one of FACTS that is other than usual (but "step", which rollouts do not hold), or "no logprobs"
    """
    rewards = [[1.0, 0.0, 1.0, 0.0], [0.0] * 4, [1.0] * 4, [0.2, 0.9, 0.4, 0.0]]
    lengths = [[2 + (3 * i + g) % 5 for i in range(4)] for g in range(4)]
    order, offset = (5 if changed == "logprobs" else 3), (7 if changed == "ids" else 0)

    def ids(i: int, n: int) -> list[int]:
        return [1 + (5 * i + 3 * j + offset * (i + 1) * (j + 1)) % 59 for j in range(n)]

    def logprobs(i: int, n: int) -> list[float]:
        return [-0.1 - 0.05 * ((order * i + 2 * j) % 7) for j in range(n)]

    outcome = torch.tensor(rewards, dtype=torch.float64).flatten()
    cut = torch.arange(outcome.numel()) % 4 == (2 if changed == "truncated" else 1)
    forest = Forest.from_completions(
        [[*before, 7 + g, 8] for g in range(4)],
        [[ids(i, n) for i, n in enumerate(group)] for group in lengths],
        rewards,
        logprobs=None if changed == "no logprobs" else [[logprobs(i, n) for i, n in enumerate(g)] for g in lengths],
        truncated=cut,
        success=(outcome >= 1).double() if verdicts else None,
    )
    first = outcome.flip(0) if changed == "components" else outcome
    columns = {name: torch.roll(first, k) for k, name in enumerate(components)}
    return forest.with_rewards(outcome, components=columns)
