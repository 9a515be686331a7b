"""Environments behind something else: a model that is acted in, a rehearsal before each action, a guard."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from gxpo.base.usercode import one_line
from gxpo.forest.forest import Forest
from gxpo.models.chat.messages import messages_of, text_of
from gxpo.parts.protocols import EnvFailure, Envs, Reply, TimeStep

Answer = TimeStep | EnvFailure


def text_of_step(step: TimeStep) -> str:
    """Return the text that an environment shows."""
    return text_of(messages_of(step.observation))


class Prediction(NamedTuple):
    """Predicted answer of a world to an action: the next observation, its reward, and whether the episode has ended."""

    observation: str
    done: bool = False
    success: bool | None = None
    reward: float | None = None

    def step(self) -> TimeStep:
        """Return it as the environment's answer; its state is the observation itself."""
        return TimeStep(self.observation, self.observation, self.reward, self.done, self.success)


Predict = Callable[[str, str], "Prediction | None"]  # (observation, action) -> answer; None: not known


@dataclass
class CountedModel:
    """Table of a world: the most frequent answer to each (observation, action) that was met; never invents one.

    max_pairs  pairs that it holds: those beyond are not learned, and are counted in `refused_count`

    >>> model = CountedModel(1)
    >>> for observation in ("a", "b"): model.add(observation, "left", Prediction("c"))
    >>> model("a", "left"), model("b", "left"), model.refused_count
    (Prediction(observation='c', done=False, success=None, reward=None), None, 1)
    """

    max_pairs: int
    table: dict[str, Counter[str]] = field(default_factory=dict)
    refused_count: int = 0

    def __call__(self, observation: str, action: str) -> Prediction | None:
        answers = self.table.get(json.dumps([observation, action]))
        return None if answers is None else Prediction(*json.loads(answers.most_common(1)[0][0]))

    def add(self, observation: str, action: str, answer: Prediction) -> None:
        """Count an answer that the world gave."""
        key = json.dumps([observation, action])
        if key not in self.table and len(self.table) >= self.max_pairs:
            self.refused_count += 1
            return
        self.table.setdefault(key, Counter())[json.dumps(answer)] += 1


class Between:
    """Environments, as a policy meets them: `answer` decides what an action brings about. Base class.

    newest  text of the newest observation of each episode that the environment, or the model in its place, gave
    """

    concurrent = False

    def __init__(self, inner: Envs) -> None:
        self.inner = inner
        self.name, self.instructions, self.tools = inner.name, inner.instructions, inner.tools
        self.max_turns, self.provides = inner.max_turns, tuple(p for p in inner.provides if p != "snapshots")
        self.newest: dict[str, str] = {}

    def stand(self, play: Any) -> None:
        """Stand between a play and its environments, which then act one turn at a time."""
        play.envs, play.concurrent = self, False

    def reset(self, seeds: Mapping[str, int]) -> dict[str, Answer]:
        return self._remember(self.inner.reset(seeds))

    def step(self, actions: Mapping[str, Reply]) -> dict[str, Answer]:
        passed_actions, answers = dict(actions), dict[str, Answer]()
        for name, reply in actions.items():
            # an error of a model or of a check costs the episode in which it happens, and the action is not carried out
            try:
                answer = self.answer(name, reply)
            except Exception as error:
                answer = self.failure_of("raised", f"{type(error).__name__}: {one_line(str(error))}")
            if answer is not None:
                answers[name] = answer
                del passed_actions[name]
        before = {name: self.newest.get(name, "") for name in passed_actions}
        real = self.inner.step(passed_actions) if passed_actions else {}
        for name, answer in real.items():
            self.observe(before[name], passed_actions[name].content, answer)
        # in the order of the actions, and closed inside where an episode is over here alone
        ended_names = [n for n, a in answers.items() if isinstance(a, EnvFailure) or a.done]
        self.inner.finish(ended_names)
        self._remember(real)
        return {name: answers[name] if name in answers else real[name] for name in actions}

    def answer(self, name: str, reply: Reply) -> Answer | None:
        """Return the answer to an action; None: the environment itself is asked."""
        raise NotImplementedError

    def observe(self, observation: str, action: str, answer: Answer) -> None:
        """Record an answer of the environment itself."""

    def failure_of(self, kind: str, message: str) -> EnvFailure:
        """Return a failure, counted among the environment's."""
        counts, messages = getattr(self.inner, "counts", None), getattr(self.inner, "messages", None)
        if counts is not None and messages is not None:
            counts[kind] += 1
            messages.setdefault(kind, f"environment {self.name}: {message}")
        return EnvFailure(kind, message)

    def finish(self, names: Sequence[str]) -> None:
        for name in names:
            self.newest.pop(name, None)
        self.inner.finish(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # what else an environment provides

    def _remember(self, answers: dict[str, Answer]) -> dict[str, Answer]:
        for name, answer in answers.items():
            if isinstance(answer, TimeStep):
                self.newest[name] = text_of_step(answer)
        return answers


@dataclass
class Rules:
    """Limits of a model's predictions: see `Imagined`."""

    judge: Callable[[str, str], float] | None = None
    threshold: float = 0.82
    max_state: int = 10_000
    unknown: str = "unscored"

    def check(self, first: str, prediction: Prediction | None, action: str) -> Prediction | str:
        """Return the prediction with the judge's verdict, or why it can't be used."""
        if prediction is None:
            return f"the model knows no answer to {one_line(action)!r} here"
        if not isinstance(prediction, Prediction):
            return f"the model gave a {type(prediction).__name__}, not a Prediction"
        if len(prediction.observation) > self.max_state:
            return (
                f"the model's state has {len(prediction.observation)} characters, rollout.max_state is {self.max_state}"
            )
        if self.judge is None:
            return prediction
        is_success = self.judge(first, prediction.observation) >= self.threshold
        return prediction._replace(done=is_success or prediction.done, success=is_success)


class Modelled(Between):
    """Episodes in a model: they begin in the environment, and every answer is the model's.

    Where the model can't answer, that episode fails and stays unscored.
    """

    def __init__(self, inner: Envs, predict: Predict, rules: Rules) -> None:
        super().__init__(inner)
        self.predict, self.rules = predict, rules
        self.first: dict[str, str] = {}

    def reset(self, seeds: Mapping[str, int]) -> dict[str, Answer]:
        answers = super().reset(seeds)
        self.inner.finish(list(seeds))
        self.first |= {name: self.newest[name] for name in seeds if name in self.newest}
        return answers

    def answer(self, name: str, reply: Reply) -> Answer:
        prediction = self.predict(self.newest[name], reply.content)
        answer = self.rules.check(self.first[name], prediction, reply.content)
        if isinstance(answer, str):
            failure = self.failure_of("nonsense", answer)
            lost_step = TimeStep(self.newest[name], None, done=True, success=False, info={"unknown": answer})
            return failure if self.rules.unknown == "unscored" else lost_step
        self.newest[name] = answer.observation
        return answer.step()


class Rehearsed(Between):
    """Each action is proposed first: the policy reads what the model predicts, then acts in the environment."""

    def __init__(self, inner: Envs, predict: Predict, rules: Rules, template: str, learn: CountedModel | None) -> None:
        super().__init__(inner)
        self.predict, self.rules, self.template, self.learn = predict, rules, template, learn
        self.max_turns = 2 * inner.max_turns
        self.proposal_names: set[str] = set()  # episodes whose next action is carried out

    def answer(self, name: str, reply: Reply) -> Answer | None:
        if name in self.proposal_names:
            self.proposal_names.discard(name)
            return None
        self.proposal_names.add(name)
        observation = self.newest[name]
        prediction = self.rules.check(observation, self.predict(observation, reply.content), reply.content)
        predicted_text = "unknown" if isinstance(prediction, str) else prediction.observation
        return TimeStep(
            self.template.format(observation=observation, predicted=predicted_text), f"proposal: {observation}"
        )

    def observe(self, observation: str, action: str, answer: Answer) -> None:
        learn_step(self.learn, observation, action, answer)


class Learned(Between):
    """The environment itself, whose answers a table counts."""

    def __init__(self, inner: Envs, learn: CountedModel) -> None:
        super().__init__(inner)
        self.learn = learn

    def answer(self, name: str, reply: Reply) -> None:
        return None

    def observe(self, observation: str, action: str, answer: Answer) -> None:
        learn_step(self.learn, observation, action, answer)


def learn_step(model: CountedModel | None, observation: str, action: str, answer: Answer) -> None:
    """Count one answer of the world in the table."""
    if model is not None and isinstance(answer, TimeStep):
        model.add(observation, action, Prediction(text_of_step(answer), answer.done, answer.success, answer.reward))


class Guarded(Between):
    """Actions that a check refuses are not carried out: the policy reads why, and has used the turn.

    refusals  of each episode, by name
    """

    def __init__(self, inner: Envs, check: Callable[[str, str], str | None], on_refusal: str) -> None:
        super().__init__(inner)
        self.check, self.on_refusal = check, on_refusal
        self.refusals: Counter[str] = Counter()

    def answer(self, name: str, reply: Reply) -> Answer | None:
        observation = self.newest[name]
        reason = self.check(observation, reply.content)
        if not reason:
            return None
        self.refusals[name] += 1
        reward = 0.0 if "step_rewards" in self.provides else None
        if self.on_refusal == "end":
            return TimeStep(f"Refused: {reason}", observation, reward, True, False, "illegal")
        return TimeStep(f"Refused: {reason}\n{observation}", observation, reward, action_error="illegal")


def with_component(forest: Forest, name: str, values: Sequence[float]) -> Forest:
    """Return the forest with one more component [R], which nothing is paid for; nan: unknown."""
    columns = {n: forest.components[:, i] for i, n in enumerate(forest.component_names)}
    columns[name] = torch.tensor(values, dtype=torch.float64)
    return forest.with_rewards(forest.outcome, components=columns, success=forest.success)
