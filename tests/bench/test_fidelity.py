"""The true advantage of turns in a world where it is known, and how credit is compared with it."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
import torch

from gxpo.algorithms.credit import group_relative
from gxpo.base.errors import GxpoError
from gxpo.bench import fidelity
from gxpo.bench.fidelity import Truth, compare_with_truth, prediction, rank_correlation, true_advantages
from gxpo.bench.plan import Plan
from gxpo.environments.envs import EnvPool, source
from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks.seeds import SeedTasks
from gxpo.forest.forest import Forest
from gxpo.models.chat import PlainChat
from gxpo.parts.protocols import Completion, EpisodeRules, Sampling
from gxpo.sampling.rollouts import Independent
from gxpo.training.models import character_tokenizer
from gxpo.training.session import Session

HEADS = 0.3
TOKENS = character_tokenizer()


class Coin:
    """Says `a` with probability HEADS, else `b`; each stream has a throw of its own."""

    def sample(self, requests, sampling):
        out = []
        for request in requests:
            (stream,) = request.streams
            number = int.from_bytes(hashlib.blake2b(repr(stream).encode(), digest_size=7).digest(), "big") / 2**56
            text = "a" if number < HEADS else "b"
            tokens = [*TOKENS(text, add_special_tokens=False).input_ids, TOKENS.eos_token_id]
            out.append([Completion(tokens, [math.log(HEADS if text == "a" else 1 - HEADS), 0.0], "stop")])
        return out

    def release(self, names=None):
        pass


@pytest.fixture(scope="module", params=[{}, {"loaded": True}], ids=["two of three", "the first"])
def world(request):
    spec = source(f"{Path(__file__).with_name('coins.py')}:Throws", request.param)
    with EnvPool(spec, workers=0) as pool:
        yield pool, bool(request.param)


def rollouts(pool):
    tasks = SeedTasks("throws", lambda seeds: [str(s) for s in seeds])
    s = Session(source=tasks, engine=Coin(), rewards=RewardSet.make(None, source=tasks), tokenizer=TOKENS,
                sampling=Sampling(max_new_tokens=2), seed=0, step=1, chat=PlainChat(TOKENS), envs=pool,
                episode=EpisodeRules(max_turns=3))  # fmt: skip
    drawn_value = s.draw(4)
    return s, s.score(Independent(6).grow(drawn_value, s)), {t.id: t for t in drawn_value}


def chance(said: str, loaded: bool) -> float:
    """Of success after these throws."""
    if loaded:
        return float(said[0] == "a") if said else HEADS
    if len(said) == 3:
        return float(said.count("a") >= 2)
    return HEADS * chance(said + "a", loaded) + (1 - HEADS) * chance(said + "b", loaded)


@pytest.mark.slow
def test_the_estimate_is_the_expectation(world):
    pool, loaded = world
    s, forest, tasks = rollouts(pool)
    truth = true_advantages(forest, tasks, s, samples=200)
    text = ["".join("a" if "a" in s.decode(t["action"]) else "b" for t in r["turns"]) for r in forest.to_records()]
    expected = [chance(x[: t + 1], loaded) - chance(x[:t], loaded) for x in text for t in range(3)]
    off = (truth.advantage - torch.tensor(expected, dtype=torch.float64)) / truth.error.clamp_min(1e-9)
    assert float(off.abs().max()) < 4.5 and float(off[truth.error > 0].square().mean()) < 2
    last = torch.arange(forest.n_steps) % 3 == 2  # its second end is the outcome itself
    assert bool((truth.error[last] <= truth.error.max()).all())
    # 24 attempts share few histories: no more than 1 + 2 + 4 of each of four tasks
    assert truth.continuations <= 200 * 28
    assert 0.9 < truth.reliability < 1


@pytest.mark.slow
def test_credit_of_whole_episodes_against_the_truth(world):
    pool, _ = world
    s, forest, tasks = rollouts(pool)
    truth = true_advantages(forest, tasks, s, samples=100)
    task = torch.zeros(forest.n_steps, dtype=torch.int64)
    perfect = compare_with_truth(3.0 * truth.advantage, truth, task)
    assert perfect["rank"] == pytest.approx(1) and perfect["sign"] == 1
    assert perfect["bias"] == pytest.approx(0, abs=1e-12) and perfect["variance"] == pytest.approx(0, abs=1e-12)
    assert compare_with_truth(-truth.advantage, truth, task)["sign"] == 0
    episode = group_relative(forest.outcome, forest.ids("group", axis="R"))[forest.step_trajectory]
    actual = compare_with_truth(episode, truth, task)
    assert 0 < actual["rank"] < 1 and compare_with_truth(torch.zeros(forest.n_steps), truth, task)["sign"] == 0.5


def test_other_contexts_and_broken_worlds_are_refused(world):
    pool, _ = world
    s, forest, tasks = rollouts(pool)
    elsewhere = forest.replace(token=torch.where(forest.kind[forest.token_node] == 2, forest.token, forest.token + 1))
    with pytest.raises(GxpoError, match="was not sampled under the world's own context"):
        true_advantages(elsewhere, tasks, s, samples=2)


def test_ranks_by_hand():
    assert rank_correlation(torch.tensor([1.0, 2, 3, 4]), torch.tensor([1.0, 3, 2, 4])) == pytest.approx(0.8)
    # ranks 0.5 0.5 2 3 and 0 1 2 3, centred -1 -1 .5 1.5 and -1.5 -.5 .5 1.5: 4.5 / sqrt(4.5 * 5)
    assert rank_correlation(torch.tensor([1.0, 1, 2, 5]), torch.tensor([0.0, 1, 2, 3])) == pytest.approx(
        4.5 / 22.5**0.5
    )
    assert math.isnan(rank_correlation(torch.ones(3), torch.arange(3.0)))
    assert prediction([0.1, 0.2, 0.3], [3.0, 2.0, 1.0]) == pytest.approx(-1)


def test_reliability_by_hand():
    # variance of 1, -1, 1, -1 is 1; mean square error 0.25
    truth = Truth(torch.tensor([1.0, -1, 1, -1]).double(), torch.full((4,), 0.5).double(), 0)
    assert truth.reliability == pytest.approx(0.75)


def walks(*rows: tuple[str, str]) -> Forest:
    """(group, its states as letters)."""
    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": group,
                "id": str(i),
                "turns": [{"observation": [2], "action": [3], "state": state} for state in states],
            }
            for i, (group, states) in enumerate(rows)
        ]
    )


def test_the_overlap_of_states_by_hand():
    """Of six steps after the first: x, x, and the y that the third began with; z z are one attempt's, or group's."""
    assert fidelity.overlap(walks(("a", "sxy"), ("a", "sx"), ("a", "yz"), ("b", "szz"))) == pytest.approx(3 / 6)
    assert math.isnan(fidelity.overlap(walks(("a", "s"))))


def test_how_early_it_is_decided_by_hand():
    """Squares less errors .8 .2 0 | .0 .25: the first two of three turns and the first of two have 1.0 of 1.25."""
    truth = Truth(
        torch.tensor([-1.0, 0.6, 0.4, 0.1, 0.5]).double(), torch.tensor([0.2**0.5, 0.4, 0.4, 0.1, 0]).double(), 0
    )
    assert fidelity.early(walks(("a", "xyz"), ("a", "xy")), truth) == pytest.approx(0.8)
    still = Truth(torch.zeros(5).double(), torch.zeros(5).double(), 0)
    assert math.isnan(fidelity.early(walks(("a", "xyz"), ("a", "xy")), still))


def test_a_sign_is_asked_only_where_the_truth_is_sure():
    truth = Truth(torch.tensor([0.5, -0.5, 0.1, 0.0]).double(), torch.tensor([0.1, 0.1, 0.1, 0.0]).double(), 0)
    actual = compare_with_truth(torch.tensor([1.0, 2.0, -9.0, 9.0]).double(), truth, torch.arange(4))
    assert actual["sign"] == 0.5


@pytest.mark.slow
def test_every_candidate_has_a_row_or_a_reason(monkeypatch, tmp_path):
    spec = f"{Path(__file__).with_name('coins.py')}:Throws"
    keys = {
        **fidelity.SHARED,
        "model": "tiny:cold",
        "task": spec,
        "tasks.options": {"any_sign": True},
        "env.workers": 0,
    }
    monkeypatch.setattr(fidelity, "WORLDS", {"throws": fidelity.World(keys)})
    monkeypatch.setattr(fidelity, "candidates", lambda: ["grpo", "gigpo", "tempflow_grpo", "gae"])
    plan = Plan(tmp_path, threads=1, quick=True)
    rows = [row for entry in fidelity.entries(plan) for row in entry.measure(plan)]
    assert [r["name"] for r in rows] == [f"throws/{m}" for m in ("grpo", "gigpo", "tempflow_grpo", "gae")]
    assert rows[0]["ratio"] == 1 and -1 <= rows[1]["rank"] <= 1 and rows[0]["turns"] == rows[1]["turns"]
    assert rows[2]["ratio"] is None and rows[2]["note"].startswith("left out: ")
    assert rows[3]["practised"] == 1 and rows[0]["practised"] == 0
