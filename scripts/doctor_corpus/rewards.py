"""Reward functions of the corpus, right ones and ones with the bugs that people make. All have TRL's signature.

`build(name, **settings)` returns a fresh function, since some keep a state over the run.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from typing import Any

Reward = Callable[..., list[Any]]


def text(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def final(completion: Any) -> str:
    """The answer: behind the last '#', or the whole text without one."""
    return text(completion).split("#")[-1].strip()


def right(completions: list[Any], answer: list[str]) -> list[float]:
    return [float(final(c) == a) for c, a in zip(completions, answer, strict=True)]


def _with_name(name: str, f: Reward) -> Reward:
    f.__name__ = name
    return f


def _accuracy(
    log: bool = False, scale: float = 1.0, marked: bool = False, first_line: bool = False, start: bool = False
) -> Reward:
    def accuracy_reward(completions, answer, log_extra=None, **_):
        if log:
            log_extra("answer", list(answer))
        message = [text(c).split("\n")[0] for c in completions] if first_line else completions
        r = right(message, answer)
        if start:
            r = [float(text(c).startswith(a)) for c, a in zip(completions, answer, strict=True)]
        if marked:
            r = [x * ("#" in text(c)) for x, c in zip(r, completions, strict=True)]
        return [scale * x for x in r]

    return accuracy_reward


def _partial(log: bool = False) -> Reward:
    """Share of right characters."""

    def match_reward(completions, answer, **_):
        out = []
        for c, a in zip(completions, answer, strict=True):
            s = final(c)
            out.append(sum(x == y for x, y in zip(s, a, strict=False)) / max(len(a), len(s), 1))
        return out

    return match_reward


def _finished(eos: int = 1, log: bool = False) -> Reward:
    """Only finished answers count; the check needs the token ids."""

    def accuracy_reward(completions, answer, completion_ids, log_extra=None, **_):
        if log:
            log_extra("answer", list(answer))
        return [r * float(i[-1] == eos) for r, i in zip(right(completions, answer), completion_ids, strict=True)]

    return accuracy_reward


def _format(pattern: str = "#", name: str = "format_reward", scale: float = 1.0, full: bool = False) -> Reward:
    match = re.compile(pattern, re.S).fullmatch if full else re.compile(pattern).search
    return _with_name(name, lambda completions, **_: [scale * float(bool(match(text(c)))) for c in completions])


def _constant(value: float = 1.0, name: str = "language_reward") -> Reward:
    return _with_name(name, lambda completions, **_: [value] * len(completions))


def _length(per: float = 40.0, most: float = 1.0, name: str = "reasoning_reward", sign: float = 1.0) -> Reward:
    return _with_name(name, lambda completions, **_: [sign * min(len(text(c)) / per, most) for c in completions])


def _word(word: str = "ok", most: int = 4, name: str = "style_reward") -> Reward:
    return _with_name(name, lambda completions, **_: [min(text(c).count(word), most) / most for c in completions])


def _cached() -> Reward:
    """A cache whose key is the prompt alone."""
    score_by_prompt: dict[str, float] = {}

    def accuracy_reward(prompts, completions, answer, **_):
        out = []
        for p, r in zip(prompts, right(completions, answer), strict=True):
            out.append(score_by_prompt.setdefault(str(p), r))
        return out

    return accuracy_reward


def _judge_of_the_prompt() -> Reward:
    """A judge that is given the question where the answer should be."""

    def judge_reward(prompts, completions, **_):
        return [round((zlib.crc32(str(p).encode()) % 1000) / 1000, 2) for p in prompts]

    return judge_reward


def _strict(form: str = "{}.0", log: bool = True, split: str | None = None) -> Reward:
    """Compares texts though the references are written in another form, or cuts the answer out wrongly."""

    def accuracy_reward(completions, answer, log_extra=None, **_):
        if log:
            log_extra("answer", list(answer))
        if split:
            return [
                float(text(c).split(split)[0].strip() == a.strip()) for c, a in zip(completions, answer, strict=True)
            ]
        return [float(final(c) == form.format(a)) for c, a in zip(completions, answer, strict=True)]

    return accuracy_reward


def _negative(log: bool = False) -> Reward:
    """An error count where a reward is asked for, without the minus."""

    def error_reward(completions, answer, log_extra=None, **_):
        if log:
            log_extra("answer", list(answer))
        return [float(final(c) != a) for c, a in zip(completions, answer, strict=True)]

    return error_reward


def _none_for_wrong(share: float = 1.0, log: bool = False) -> Reward:
    """None where the answer is wrong (`share` of them), as a parser that gives up does."""
    rng = random.Random(5)

    def accuracy_reward(completions, answer, **_):
        return [1.0 if r else (None if rng.random() < share else 0.0) for r in right(completions, answer)]

    return accuracy_reward


def _outage(start: int, end: int, log: bool = False) -> Reward:
    """The service that scores is down for some steps; the client turns the exception into 0."""

    def accuracy_reward(completions, answer, trainer_state=None, **_):
        def score(r: float) -> float:
            if trainer_state is not None and start <= trainer_state.global_step < end:
                raise ConnectionError("503")
            return r

        out = []
        for r in right(completions, answer):
            try:
                out.append(score(r))
            except ConnectionError:
                out.append(0.0)
        return out

    return accuracy_reward


def _shuffled(log: bool = False) -> Reward:
    """Results of parallel requests, collected in the order in which they came back."""
    rng = random.Random(3)

    def accuracy_reward(completions, answer, **_):
        r = right(completions, answer)
        rng.shuffle(r)
        return r

    return accuracy_reward


def _noisy(share: float = 0.4, name: str = "judge_reward") -> Reward:
    """A judge whose verdict is turned round with probability `share`."""
    rng = random.Random(4)

    def judge(completions, answer, **_):
        return [1.0 - r if rng.random() < share else r for r in right(completions, answer)]

    return _with_name(name, judge)


def _near_constant(spread: float = 0.001, digits: int = 6) -> Reward:
    """A reward model that was never trained: all texts get almost the same."""

    def reward_model(completions, **_):
        return [round(0.5 + spread * ((zlib.crc32(text(c).encode()) % 2001) / 1000 - 1), digits) for c in completions]

    return reward_model


BUILDERS: dict[str, Callable[..., Reward]] = {
    "accuracy": _accuracy,
    "partial": _partial,
    "finished": _finished,
    "format": _format,
    "constant": _constant,
    "length": _length,
    "word": _word,
    "cached": _cached,
    "judge_of_the_prompt": _judge_of_the_prompt,
    "strict": _strict,
    "negative": _negative,
    "none_for_wrong": _none_for_wrong,
    "outage": _outage,
    "shuffled": _shuffled,
    "noisy": _noisy,
    "near_constant": _near_constant,
}


def build(builder: str, /, **settings: Any) -> Reward:
    return BUILDERS[builder](**settings)
