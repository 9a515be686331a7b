"""Records from a few words, and what a forest made of them."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import settings

fewer = settings(max_examples=12, deadline=None)
few = settings(max_examples=30, deadline=None)
Json = dict[str, Any]


def record(id: str = "t0", turns: list | None = None, **more: Any) -> Json:
    turns = [{"action": [1, 2, 3]}] if turns is None else turns
    return {"schema": "gxpo.rollouts/1", "group": "g", "id": id, "turns": turns, **more}


def fork(of: str, turn: int, token: int | None, turns: list, id: str = "f", **more: Any) -> Json:
    return record(id, turns, fork={"of": of, "turn": turn, "token": token}, **more)


# ---------------------------------------------------------------- malformed
TURN = {"action": [1, 2, 3]}
FIRST = record("a", [{**TURN, "extras": {"x": torch.ones(3)}}, {"action_text": "yes"}], prompt=[7])
