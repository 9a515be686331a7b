"""Hints for groups that failed: the prompts, the retries and what takes a place, against the authors' code."""

from __future__ import annotations

import pytest
import torch
from tests.sampling.rollouts.growing_session import GrowingSession, tasks, with_info

import gxpo

SOLUTION = "In April 48, in May half: 24. So 48 + 24 = 72."


def right(_: str, text: str) -> float | None:
    return float("yes" in text)


def asked(session: GrowingSession) -> list[list[str]]:
    return [[session.decode(request.prompt) for request in requests] for requests, _ in session.calls]


def test_ghpo_prompts_are_a_lead_in_and_a_quarter_more_each_time() -> None:
    """hkgc-1/GHPO@af0a7dd src/ghpo/ghpo_trainer.py lines 830-833 and 996-1143: the user's message, a sentence between
    newlines, and the first round(f n) characters of the solution; all the group anew, until an attempt is right."""
    lead = "\n Here is how it begins:\n"
    expected, stages = [["q?"]], 0
    for share in (0.25, 0.5, 0.75):
        expected.append(["q?" + lead + SOLUTION[: round(len(SOLUTION) * share)]])
        stages += 1
        if share == 0.5:  # the stage at which one of the four attempts is right
            break

    def say(context: str, stream) -> str:
        return "yes" if context == expected[2][0] and stream.attempt == 3 else "no"

    session = GrowingSession(say, right, solution={"q": SOLUTION})
    keys = {"rollout.template": "{prompt}" + lead + "{hint}", "rollout.cut": "characters", "rollout.group_size": 4}
    forest = gxpo.method("ghpo", keys).rollout.grow(tasks("q"), session)
    assert asked(session) == expected and stages == 2
    assert all(len(request.streams) == 4 for requests, _ in session.calls for request in requests)
    assert forest.success.tolist() == [0, 0, 0, 1]
    # eps 1e-4 beside the sample's deviation of 0 0 0 1, which is .5
    actual = gxpo.method("ghpo@paper", keys).advantages(forest)
    rows = torch.stack([actual[forest.path_of(r)][0] for r in range(4)])
    assert rows.tolist() == pytest.approx([-0.25 / 0.5001] * 3 + [0.75 / 0.5001], abs=1e-9)


def test_scaf_grpo_prompts_grow_by_chunks_under_their_tier_name() -> None:
    """dvlab-research/Scaf-GRPO@1085db5 hint_mix_grpo/trainer/ray_trainer.py lines 2161-2190: the question after its
    heading, a newline, the tier's heading and the first 1, 2, ... of its parts joined by spaces, all tried once; lines
    1570-1630: the least that is right stands in the place of the group's first attempt."""
    question, tiers = "q?", {"Knowledge Hints": ["sums", "halves"], "Solution Hints": ["48 / 2 = 24", "48 + 24 = 72"]}
    expected = []
    for label, parts in tiers.items():
        for count in range(1, len(parts) + 1):
            expected.append(f"Question: {question}\n{label}: " + " ".join(parts[:count]))

    def say(context: str, stream) -> str:
        return "yes" if context in expected[2:] else "no"

    session = GrowingSession(say, right)
    own_texts = [[f"{label}: {parts[0]}", *parts[1:]] for label, parts in tiers.items()]
    keys = {"rollout.template": "Question: {prompt}\n{hint}", "rollout.warmup_steps": 0, "rollout.group_size": 8}
    m = gxpo.method("scaf_grpo", keys)
    forest = m.rollout.grow([with_info(tasks("q")[0], hints=own_texts)], session)
    assert asked(session)[1] == expected
    assert forest.success.tolist() == [1] + [0] * 7 and forest.info[0] == {"hint": 3}
    # verl's GRPO: deviation of the sample, sqrt((49 + 7) / 64 / 7) = .353553, 1e-6 beside it
    rows = torch.stack([m.advantages(forest)[forest.path_of(r)][0] for r in range(8)])
    spread = ((49 / 64 + 7 / 64) / 7) ** 0.5 + 1e-6
    assert rows.tolist() == pytest.approx([7 / 8 / spread] + [-1 / 8 / spread] * 7, abs=1e-9)
    assert forest.to_records()[0]["turns"][0]["sampled_under"] == [ord(c) for c in expected[2]]
