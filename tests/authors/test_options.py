"""HiPER's credit of switch, sub-goal and action, restated from the authors' code."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import gxpo
from gxpo.algorithms.segments import SegmentTools
from gxpo.forest.forest import Forest

HIGH_LAM, KEEP_PENALTY, OTHER_GOAL = 0.95, -0.3, -0.3
# (turns of text with what each was paid, whether the episode was cut off)
EPISODES: list[tuple[list[tuple[str, float]], bool]] = [
    (
        [
            ("hm<switch>SWITCH</switch><subgoal>door</subgoal><action>up</action>", 0.0),
            ("<switch> keep </switch><subgoal>door</subgoal><action>left</action>", 0.25),
            ("<switch>SWITCH</switch> <action>up</action>", 0.0),  # begins an option without a sub-goal
            ("<switch>KEEP</switch><subgoal>key</subgoal><action>up</action>", 1.0),  # no sub-goal before: no penalty
        ],
        False,
    ),
    (
        [
            ("<switch>KEEP</switch><subgoal>key</subgoal><action>up</action>", 0.0),
            ("<switch>Keep</switch><subgoal>box</subgoal><action>up</action>", 0.5),  # another one than before
            ("<switch>maybe</switch><subgoal>box</subgoal><action>up</action>", 0.0),  # any other word switches
            ("<subgoal>box</subgoal>and up", 0.0),  # neither switch nor action
            ("<switch></switch><subgoal>key</subgoal> go <action>up", -0.25),  # empty: keeps; the action never ends
        ],
        True,
    ),
    ([("just up", 1.0)], False),
    ([("<switch>KEEP</switch><switch>SWITCH</switch><subgoal>a</subgoal><action>b</action>", 0.0)], True),
]


def span(text: str, tag: str) -> tuple[int, int] | None:
    begin = text.find(f"<{tag}>")
    end = text.find(f"</{tag}>", begin + len(tag) + 2) if begin >= 0 else -1
    return (begin, end + len(tag) + 3) if end >= 0 else None


def switches(text: str) -> bool:
    at = span(text, "switch")
    message = text[at[0] + 8 : at[1] - 9].strip().upper() if at else ""
    return message not in ("", "KEEP")


def acting(text: str) -> int:
    """Where the value of acting is read: after the sub-goal, else after the switch, else at the start."""
    for tag in ("subgoal", "switch"):
        at = span(text, tag)
        if at and at[1] < len(text):
            return at[1]
    return 0


def normalised(values: dict[Any, float], turns: list[Any]) -> dict[Any, float]:
    if not turns:
        return values
    mean = sum(values[t] for t in turns) / len(turns)
    std = (sum((values[t] - mean) ** 2 for t in turns) / len(turns)) ** 0.5 + 1e-8
    return {t: (x - mean) / std for t, x in values.items()}


def restated(heads: dict[str, dict[tuple[int, int], list[float]]]) -> list[float]:
    """Credit of every character; `heads` has the three values of each, by episode and turn."""
    low: dict[Any, float] = {}
    high: dict[Any, float] = {}
    switch: dict[Any, float] = {}
    boundary: dict[Any, bool] = {}
    for e, (turns, cut) in enumerate(EPISODES):
        texts, n = [text for text, _ in turns], len(turns)
        reward = [paid for _, paid in turns]
        for t, text in enumerate(texts):
            if switches(text) or n == 1:
                continue
            reward[t] += KEEP_PENALTY / n
            local_span, before = span(text, "subgoal"), span(texts[t - 1], "subgoal") if t else None
            if local_span and before and text[slice(*local_span)] != texts[t - 1][slice(*before)]:
                reward[t] += OTHER_GOAL
        starts = [t for t in range(n) if t == 0 or switches(texts[t])]
        own_low = [heads["low"][e, t][acting(text)] for t, text in enumerate(texts)]
        own_high = [heads["high"][e, t][0] for t in range(n)]
        later = 0.0  # advantage of the option after
        for k in reversed(range(len(starts))):
            begin, end = starts[k], starts[k + 1] if k + 1 < len(starts) else n
            goes_on = end < n
            ahead = 0.0
            for t in reversed(range(begin, end)):
                at_end = own_high[end] if goes_on else own_low[t] if cut else 0.0
                then = own_low[t + 1] if t < end - 1 else at_end
                ahead = reward[t] + then - own_low[t] + (ahead if t < end - 1 else 0.0)
                low[e, t] = ahead
            boot = own_high[end] if goes_on else own_high[begin] if cut else 0.0
            later = sum(reward[begin:end]) + boot - own_high[begin] + HIGH_LAM * (later if goes_on else 0.0)
            total = boot
            for t in reversed(range(begin, end)):
                total = reward[t] + total
                switch[e, t] = total - heads["switch"][e, t][0]
                high[e, t] = later if t == begin else 0.0
                boundary[e, t] = t == begin
    text_of = {(e, t): text for e, (turns, _) in enumerate(EPISODES) for t, (text, _) in enumerate(turns)}
    low = normalised(low, list(text_of))
    high = normalised(high, [t for t, text in text_of.items() if boundary[t] and span(text, "subgoal")])
    switch = normalised(switch, [t for t, text in text_of.items() if span(text, "switch")])
    out = []
    for t, text in text_of.items():
        marks = {tag: span(text, tag) for tag in ("switch", "subgoal", "action")}
        marks["action"] = marks["action"] or (0, len(text))
        for i in range(len(text)):
            inside = {tag: at is not None and at[0] <= i < at[1] for tag, at in marks.items()}
            out.append(
                inside["action"] * low[t] + (inside["subgoal"] and boundary[t]) * high[t] + inside["switch"] * switch[t]
            )
    return out


def test_credit_is_the_authors() -> None:
    """JonP07/HiPER-agent@9d3c118, hiper_hae/hier_mask.py make_hae_masks_and_switch, hiper_hae/core_hae.py
    compute_hae_advantage and compute_value_mask, with the settings of example_scripts/HiPER_trainer/run_alfworld.sh:
    one letter a token, tags of every kind and turns that lack some. A token has the sum of what its tags are given."""
    records = [
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": str(e),
            "prompt": [1],
            "turns": [
                {
                    "observation": [2],
                    "action": [ord(c) for c in text],
                    "logprob": [-1.0] * len(text),
                    "reward": paid,
                }
                for text, paid in turns
            ],
            "reward": sum(paid for _, paid in turns),
            "truncated": cut,
        }
        for e, (turns, cut) in enumerate(EPISODES)
    ]
    rng = random.Random(7)
    heads = {
        name: {
            (e, t): [rng.uniform(-1, 1) for _ in text]
            for e, (turns, _) in enumerate(EPISODES)
            for t, (text, _) in enumerate(turns)
        }
        for name in ("low", "high", "switch")
    }
    method = gxpo.method("hiper")
    forest = method.segmenter(Forest.from_records(records), SegmentTools(lambda ids: "".join(map(chr, ids))))
    signals = {
        f"value@{name}": torch.tensor([x for own_turn in turns.values() for x in own_turn], dtype=torch.float64)
        for name, turns in heads.items()
    }
    assert method.advantages(forest, signals).tolist() == pytest.approx(restated(heads), abs=1e-9)
