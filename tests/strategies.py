"""Random rollouts with everything the interchange format allows, for property tests.

    records = random_records(random.Random(7))      # dicts that Forest.from_records accepts
    forest = random_forest(7)                        # an int seeds a generator
    @given(forests())                                # the same as a hypothesis strategy

Every switch that is turned off removes one feature, so that a test can ask for what it supports.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from gxpo.forest.forest import Forest

Json = dict[str, Any]


@dataclass
class Shape:
    """What a fork has to know of a turn that stands earlier in the file."""

    length: int
    agent: str
    text_only: bool = False
    segments: bool = False
    under: list[int] | None = None


def random_records(
    rng: random.Random | int,
    *,
    groups: int = 3,
    rollouts: int = 4,
    vocab: int = 40,
    max_turns: int = 4,
    max_action: int = 5,
    agents: tuple[str, ...] = ("agent", "solver", "critic"),
    policies: tuple[str, ...] = ("main", "other"),
    forks: bool = True,
    mixed_turns: bool = True,
    contexts: bool = True,
    sampled_under: bool = True,
    after: bool = True,
    callers: bool = True,
    segments: bool = True,
    partial_trainable: bool = True,
    unknown_logprob: bool = True,
    unscored: bool = True,
    uncompared: bool = True,
    weights: bool = True,
    empty_actions: bool = True,
    empty_prompts: bool = True,
    latents: bool = False,
    extras: bool = False,
    media: bool = False,
    texts: bool = False,
) -> list[Json]:
    """Valid records in an order in which forks follow their bases; `rollouts` is the largest group size.

    mixed_turns    a fork inside an action may change agent, policy, version, state (not to be written in one turn)
    empty_prompts  trajectories may begin with nothing before their first action token
    latents        some action tokens are -1 (no vocabulary id)
    texts          text beside ids, and turns and prompts that are text only
    """
    if isinstance(rng, int):
        rng = random.Random(rng)
    chance = lambda p: rng.random() < p  # noqa: E731
    number = lambda: round(rng.uniform(-2, 2), rng.choice([0, 1, 3]))  # noqa: E731
    tokens = lambda low, high: [rng.randrange(vocab) for _ in range(rng.randint(low, high))]  # noqa: E731
    least = 0 if empty_prompts else 1
    shapes: dict[str, list[Shape]] = {}
    out: list[Json] = []
    observations = [tokens(1, 3) for _ in range(2)]  # few, so that equal ones meet at one place

    def action_of(size: int, goes_on: Shape | None = None) -> Json:
        turn: Json = {"action": [rng.randrange(vocab) for _ in range(size)]}
        if latents and chance(0.2):
            turn["action"] = [-1 if chance(0.5) else t for t in turn["action"]]
        if not unknown_logprob or chance(0.8):
            turn["logprob"] = [round(-rng.expovariate(1.0), 4) for _ in range(size)]
            if unknown_logprob and size and chance(0.1):
                turn["logprob"][rng.randrange(size)] = None
        if partial_trainable and chance(0.3):
            turn["trainable"] = False if chance(0.3) else [chance(0.6) for _ in range(size)]
        if segments and size and chance(0.5) and (goes_on is None or goes_on.segments):
            begins = sorted(rng.sample(range(size), rng.randint(1, size)))
            turn["segments"] = begins if goes_on else sorted({0, *begins})
        if extras and size and chance(0.5):
            turn["extras"] = {"support": torch.randint(0, vocab, (size, rng.randint(1, 3)))}
            if chance(0.5):
                turn["extras"]["latent"] = torch.rand(size, 2, 2)
        return turn

    def own(turn: Json) -> Json:
        """What is never inherited."""
        if chance(0.4):
            turn["reward"] = number()
        if chance(0.5):
            turn["finish"] = rng.choice(["stop", "length"])
        if chance(0.1):
            turn["info"] = {"note": rng.randrange(3)}
        return turn

    def author(turn: Json) -> Json:
        if chance(0.7):
            turn["agent"] = rng.choice(agents)
        if chance(0.5):
            turn["policy"] = rng.choice(policies)
        if chance(0.3):
            turn["policy_version"] = rng.randrange(3)
        if chance(0.5):
            turn["state"] = rng.choice("xyz")
        return turn

    def fresh(at: int) -> Json:
        """A turn written as usual; it is turn `at` of its trajectory."""
        size = rng.randint(0 if empty_actions and chance(0.3) else 1, max_action)
        turn = own(author(action_of(size)))
        if texts and chance(0.2):
            turn = {k: v for k, v in turn.items() if k not in ("action", "logprob", "segments", "extras", "trainable")}
        if (texts and chance(0.5)) or "action" not in turn:
            turn["action_text"] = rng.choice(["yes", "no", "17"])
        kind = rng.random()
        if contexts and kind < 0.15:
            turn["context"] = tokens(least, 4)
        elif kind < 0.7 and (at or chance(0.3)):
            turn["observation"] = rng.choice(observations) if chance(0.8) else tokens(0, 3)
        if texts and chance(0.3):
            turn["observation_text"] = "look"
        if media and chance(0.3):
            turn["media"] = [rng.choice(["a.png", "b.png"])]
        if sampled_under and chance(0.1):
            turn["sampled_under"] = tokens(1, 4)
        if after and at > 1 and chance(0.2):
            turn["after"] = rng.randrange(at)
        if callers and at and chance(0.2):
            turn["caller"] = rng.randrange(at)
        return turn

    def shape(turn: Json) -> Shape:
        size, agent = len(turn.get("action", [-1])), turn.get("agent", "agent")
        return Shape(size, agent, "action" not in turn, "segments" in turn, turn.get("sampled_under"))

    def forked() -> tuple[Json, list[Json], list[Shape]]:
        of = rng.choice(list(shapes))
        base = shapes[of]
        at = rng.randrange(len(base))
        if base[at].text_only or chance(0.25):
            kept_base = base[: at + 1]
            turns = [fresh(len(kept_base) + i) for i in range(rng.randint(0, 2))]
            return {"of": of, "turn": at, "token": None}, turns, kept_base + [shape(t) for t in turns]
        length = base[at].length
        token = rng.choice([0, length, rng.randint(0, length)])
        first = own(action_of(rng.randint(0 if empty_actions else 1, max_action), base[at] if token else None))
        if mixed_turns and chance(0.3):
            first = author(first)
        if sampled_under and mixed_turns and chance(0.1):
            first["sampled_under"] = tokens(1, 4)
        elif base[at].under and token and not mixed_turns:
            first["sampled_under"] = base[at].under
        turns = [first] + [fresh(at + 1 + i) for i in range(rng.randint(0, 2))]
        local_shape = shape({"agent": base[at].agent, **first})
        local_shape.length += token
        local_shape.segments = base[at].segments if token else local_shape.segments
        local_shape.under = local_shape.under if first["action"] else base[at].under
        return {"of": of, "turn": at, "token": token}, turns, [*base[:at], local_shape, *(shape(t) for t in turns[1:])]

    names = [n for n in ("correct", "format", "length") if chance(0.5)]
    for g in range(groups):
        prompt = tokens(least if chance(0.2) else 1, 5)
        for _ in range(rng.randint(1, rollouts)):
            record: Json = {"schema": "gxpo.rollouts/1", "group": f"g{g}", "id": f"t{len(out)}"}
            if chance(0.7):
                record["task"] = f"task/{g % 2}"
            if forks and out and chance(0.45):
                record["fork"], record["turns"], known_shapes = forked()
            else:
                record["prompt"] = prompt if chance(0.85) else tokens(least, 5)
                record["turns"] = [fresh(i) for i in range(rng.randint(1, max_turns))]
                known_shapes = [shape(t) for t in record["turns"]]
                if texts and chance(0.5):
                    record["prompt_text"] = "how many?"
            shapes[record["id"]] = known_shapes
            record["reward"] = None if unscored and chance(0.15) else number()
            if chance(0.7):
                record["rewards"] = {n: None if chance(0.1) else number() for n in names if chance(0.9)}
            if chance(0.6):
                record["success"] = chance(0.5)
            if uncompared and chance(0.15):
                record["compared"] = False
            if weights and chance(0.2):
                record["weight"] = rng.choice([0.0, 0.5, 2.0])
            if chance(0.15):
                record["origin"] = rng.choice(["demonstration", "replay", "hint"])
            if chance(0.15):
                record["truncated"] = True
            if chance(0.3):
                record["sampling"] = {"temperature": rng.choice([0.7, 1.0]), "top_k": 0}
            if chance(0.2):
                record["final_state"] = rng.choice("xyz")
            if chance(0.2):
                record["final_observation"] = tokens(0, 3)
            if chance(0.2):
                record["info"] = {"seed": rng.randrange(9), "tags": ["a", "b"]}
            out.append(record)
    return out


def random_forest(rng: random.Random | int, **options: Any) -> Forest:
    """The forest of `random_records(rng, **options)`."""
    return Forest.from_records(random_records(rng, **options))


def record_lists(**options: Any) -> st.SearchStrategy[list[Json]]:
    """Hypothesis strategy of `random_records`; fails with a small seed to repeat."""
    return st.integers(0, 2**32 - 1).map(lambda seed: random_records(seed, **options))


def forests(**options: Any) -> st.SearchStrategy[Forest]:
    """Hypothesis strategy of `random_forest`."""
    return st.integers(0, 2**32 - 1).map(lambda seed: random_forest(seed, **options))


RICH: dict[str, Any] = {"extras": True, "media": True, "latents": True, "texts": True}  # every feature switched on
