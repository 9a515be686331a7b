"""Credit of denoising steps and of tokens, votes, replayed rows and updates, as the authors' repositories compute them.

Loops over groups, answers and steps, written from the files that each method's `code` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.environments.rewards.test_majority import scored
from tests.learning.test_slow_fast import FOREST, ONES
from tests.sampling.rollouts.flow_session import FlowSession, grown
from tests.sampling.rollouts.replay_session import train
from tests.sampling.rollouts.test_dead_groups import Heated
from torch import Tensor

import gxpo
from gxpo.algorithms.signals.hidden_states import divergence
from gxpo.forest.forest import Forest
from gxpo.learning.slow_fast import SlowFast
from gxpo.parts.protocols import StepInfo
from gxpo.sampling.rollouts.denoise import Denoise, DenoiseTree

F64 = torch.float64


def spread(values: list[float], ddof: int) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - ddof))


def z(x: float, values: list[float], ddof: int, eps: float) -> float:
    return (x - math.fsum(values) / len(values)) / (spread(values, ddof) + eps)


def agree(m: Any, forest: Forest, gap: list[float], wanted: Callable[[list[list[Tensor]]], Tensor]) -> None:
    """gxpo's loss and gradient where log-probs have moved by `gap` from the sampler's, against `wanted` of them."""
    old = forest.path_behaviour_logprob.to(F64)
    lp = (old + torch.tensor(gap, dtype=F64)).requires_grad_()
    actual = m.loss(forest, gxpo.PolicyTokens(lp, old)).value
    theirs = lp.detach().clone().requires_grad_()
    rows = [[theirs[p] for p in forest.path_of(r).tolist()] for r in range(forest.n_trajectories)]
    value = wanted(rows)
    assert actual.item() == pytest.approx(value.item(), abs=1e-12)
    ours, slope = torch.autograd.grad(actual, lp)[0], torch.autograd.grad(value, theirs)[0]
    assert ours.tolist() == pytest.approx(slope.tolist(), abs=1e-12) and slope.abs().max() > 1e-6


# ---------------------------------------------------------------- flows
def steps_of(forest: Forest) -> list[list[tuple[int, float, float]]]:
    """Of each trajectory its trained steps: place on its way, standard deviation, the sampler's log-density."""
    out = []
    for r in range(forest.n_trajectories):
        rows = []
        for k, p in enumerate(forest.path_of(r).tolist()):
            if bool(forest.path_trainable[p]):
                scale = float(forest.extras["noise_scale"][forest.path_token[p]])
                rows.append((k, scale, float(forest.path_behaviour_logprob[p])))
        out.append(rows)
    return out


def clipped(A: float, now: Tensor, old: float, weight: float = 1.0) -> Tensor:
    rho = torch.exp(now - old)
    return torch.maximum(-weight * A * rho, -weight * A * rho.clamp(1 - 1e-4, 1 + 1e-4))


@pytest.mark.parametrize("scale", ["batch_std", "std"])
def test_flow_grpo(scale: str) -> None:
    """yifan123/flow_grpo@ac4c86e flow_grpo/stat_tracking.py and scripts/train_sd3.py, 881-893; `global_std` on and off.
    It leaves groups of equal rewards out of the batch before its mean, of which there is none here."""
    forest = grown(Denoise(4))
    reward, group = forest.outcome.tolist(), list(forest.group)
    A = []
    for r, g in zip(reward, group, strict=True):
        own_rewards = [x for x, h in zip(reward, group, strict=True) if h == g]
        over = spread(reward if scale == "batch_std" else own_rewards, 0) + 1e-4
        A.append(min(max((r - math.fsum(own_rewards) / len(own_rewards)) / over, -5.0), 5.0))
    trained = steps_of(forest)

    def wanted(rows):
        each = [clipped(a, now[k], old) for a, now, steps in zip(A, rows, trained, strict=True) for k, _, old in steps]
        return sum(each) / len(each)

    gap = [((7 * p) % 5 - 2) * 0.6e-4 for p in range(forest.n_entries)]  # within the clip and outside it
    agree(gxpo.method("flow_grpo", {"credit.scale": scale}), forest, gap, wanted)


def test_flow_grpo_without_rows_of_equal_groups() -> None:
    """The same script, 796-816: rows whose advantages are all 0 leave the batch before the mean over what is left."""
    forest = grown(Denoise(4))
    reward = torch.where(torch.tensor([g == forest.group[0] for g in forest.group]), 0.5, forest.outcome)
    forest, trained = forest.replace(outcome=reward), steps_of(forest)
    kept_forests = [i for i, g in enumerate(forest.group) if g != forest.group[0]]
    every = reward.tolist()

    def wanted(rows):
        each = []
        for i in kept_forests:
            own_everies = [x for x, g in zip(every, forest.group, strict=True) if g == forest.group[i]]
            A = (every[i] - math.fsum(own_everies) / len(own_everies)) / (spread(every, 0) + 1e-4)
            each += [clipped(A, rows[i][k], old) for k, _, old in trained[i]]
        return sum(each) / len(each)

    gap = [((7 * p) % 5 - 2) * 0.6e-4 for p in range(forest.n_entries)]
    settings = {"weight.valid_share": "group_weight", "weight.valid_share.statistic": "credited"}
    m = gxpo.method("flow_grpo", {**settings, "weight.valid_share.curve": "over_share"})
    agree(m, forest, gap, wanted)


def test_flow_grpos_step() -> None:
    """flow_grpo/diffusers_patch/sd3_sde_with_logprob.py: mean and density of a step, a number at a time."""
    session = FlowSession(temperature=0.7)
    forest, network = grown(Denoise(2), session=session), session.model.network
    levels, checked = session.model.times.tolist(), 0
    for r in range(forest.n_trajectories):
        direction = forest.token[int(forest.first_token[int(forest.prompt_node[r])])]
        latents = [forest.extras["latent"][t].tolist() for t in forest.path_token[forest.path_of(r)].tolist()]
        for k, _, density in steps_of(forest)[r]:
            level, next_level = levels[k - 1], levels[k]
            v = network(torch.tensor([latents[k - 1]], dtype=F64), torch.tensor([level], dtype=F64), direction[None])[0]
            noise = 0.7 * math.sqrt(level / (1 - (levels[1] if level == 1 else level)))
            dt, total = next_level - level, 0.0
            for x, y, speed in zip(latents[k - 1], latents[k], v.tolist(), strict=True):
                mean = x * (1 + noise**2 / (2 * level) * dt) + speed * (1 + noise**2 * (1 - level) / (2 * level)) * dt
                variance = noise**2 * -dt
                total += -((y - mean) ** 2) / (2 * variance) - math.log(math.sqrt(variance * 2 * math.pi))
            assert density == pytest.approx(total / len(v), abs=1e-6)  # stored in float32
            checked += 1
    assert checked == forest.n_trajectories * (len(levels) - 2)


def test_tempflow_grpo() -> None:
    """Shredded-Pork/TempFlow-GRPO@e66824e scripts/train_sd3_pr.py, a column of advantages for each step, scaled by the
    step's noise. Its 2.25 is one over the mean noise of its schedule, here of the trained steps."""
    forest = grown(DenoiseTree(seeds=2, branches=3))
    trained = steps_of(forest)
    assert all(len(steps) == 1 for steps in trained)
    step, scales = [steps[0][0] for steps in trained], [steps[0][1] for steps in trained]
    mean_scale = math.fsum(scales) / len(scales)
    reward, group = forest.outcome.tolist(), list(forest.group)
    A = []
    for i, r in enumerate(reward):
        own_rewards = [x for x, g, k in zip(reward, group, step, strict=True) if (g, k) == (group[i], step[i])]
        A.append(min(max(z(r, own_rewards, 0, 1e-4), -5.0), 5.0))

    def wanted(rows):
        each = [
            clipped(a, now[k], old, s / mean_scale) for a, now, ((k, s, old),) in zip(A, rows, trained, strict=True)
        ]
        return sum(each) / len(each)

    gap = [((7 * p) % 5 - 2) * 0.6e-4 for p in range(forest.n_entries)]
    agree(gxpo.method("tempflow_grpo"), forest, gap, wanted)


# ---------------------------------------------------------------- tokens
def answers(rows: list[tuple[str, float, int]], **more: list) -> Forest:
    records = []
    for i, (group, reward, n) in enumerate(rows):
        record = {"schema": "gxpo.rollouts/1", "group": group, "id": f"a{i}", "prompt": [1], "reward": reward}
        turn = {"action": [5] * n, "logprob": [-0.4 - 0.3 * ((i + t) % 3) for t in range(n)]}
        records.append(record | {"turns": [turn], "success": reward > 0} | {k: v[i] for k, v in more.items()})
    return Forest.from_records(records)


def test_prorag() -> None:
    """lilinwz/ProRAG@c7a6411 prorag/rl/trainer.py, 163-199: scores of steps on their tokens, standardised over all
    tokens of the group. Its 1e-8 in the root is left out."""
    rows = [("p", 1.0, 4), ("p", 0.0, 2), ("p", 1.0, 1), ("q", 0.0, 3), ("q", 0.0, 2), ("q", 0.0, 5)]
    score = [[0.8, 0.8, 0.1, 0.1], [0.4, 0.4], [0.9], [0.2, 0.2, 0.7], [0.5, 0.1], [0.3] * 4 + [0.6]]
    expected = []
    for (group, reward, _), own_value in zip(rows, score, strict=True):
        outcomes = [r for g, r, _ in rows if g == group]
        tokens = [x for (g, *_), s in zip(rows, score, strict=True) for x in s if g == group]
        outcome = z(reward, outcomes, 1, 1e-4) if len(set(outcomes)) > 1 else 0.0
        expected += [outcome + 0.5 * z(x, tokens, 0, 0.0) for x in own_value]
    signal = {"segment_score": torch.tensor([x for s in score for x in s], dtype=F64)}
    actual = gxpo.method("prorag", {"credit.add.token_normalised.eps": 0.0}).advantages(answers(rows), signal)
    assert actual.tolist() == pytest.approx(expected, abs=1e-12)


def test_tw_grpo() -> None:
    """longmalongma/TW-GRPO@aa529ff src/open_r1/trainer/grpo_trainer.py, 590-609 and 640-690, without its KL, which it
    weighs as well: one prompt a batch, whose answers are uniform past their ends. Its 1e-8 under the range is left out.
    """
    rows = [("p", 1.0, 3), ("p", 0.0, 1), ("p", 0.0, 4)]
    vocabulary, longest = 3, 4
    raw = [[[math.sin(1.7 * i + 2.1 * t + 0.9 * v) * 2 for v in range(vocabulary)] for t in range(n)]
           for i, (*_, n) in enumerate(rows)]  # fmt: skip
    spoken = [[[x - math.log(math.fsum(map(math.exp, row))) for x in row] for row in answer] for answer in raw]
    apart = []
    for t in range(longest):
        at = [answer[t] if t < len(answer) else [-math.log(vocabulary)] * vocabulary for answer in spoken]
        total = 0.0
        for row in at:
            for v, x in enumerate(row):
                d = min(max(sum(other[v] for other in at) / len(at) - x, -11.0), 11.0)
                total += math.exp(d) - d - 1
        apart.append(total / len(at))
    weight = [1 + 0.4 * (x - min(apart)) / (max(apart) - min(apart)) for x in apart]
    A = [z(r, [1.0, 0.0, 0.0], 1, 1e-4) for _, r, _ in rows]

    flat = [(t, row) for answer in spoken for t, row in enumerate(answer)]
    order = sorted(range(len(flat)), key=lambda i: flat[i][0])
    held_flats = torch.tensor([flat[i][1] for i in order], dtype=F64)
    cell = torch.tensor([flat[i][0] for i in order])
    actual = divergence(held_flats, cell, torch.full((longest,), len(rows), dtype=F64))
    assert actual.tolist() == pytest.approx(apart, abs=1e-12)

    forest = answers(rows)
    place = torch.tensor([t for *_, n in rows for t in range(n)])
    m = gxpo.method("tw_grpo@paper")
    credit = m.advantages(forest)
    paid = credit * m.token_weights(forest, credit, {"disagreement": actual[place]})
    expected = [a * weight[t] for a, (*_, n) in zip(A, rows, strict=True) for t in range(n)]
    assert paid.tolist() == pytest.approx(expected, abs=1e-12)


# ---------------------------------------------------------------- votes, replay, updates
@pytest.mark.parametrize("said", ["aabacbad", "bcacbb?a", "??b?a?a?", "cccccccc", "abab????"])
def test_ttrl(said: str) -> None:
    """PRIME-RL/TTRL@3e2cc93 verl/verl/utils/reward_score/ttrl/ttt_metrics.py: texts without an answer have no vote, the
    first of the most frequent answers is the label, the verifier compares every text with it. The first half of those
    that vote is trained (`n_samples_per_prompt`), on GRPO's advantage among them."""
    texts = {"a": "#1", "b": "#2", "c": "#3", "d": "#4", "?": "nothing"}
    votes: dict[str, int] = {}
    for letter in said.replace("?", ""):
        votes[letter] = votes.get(letter, 0) + 1
    label = next(letter for letter, n in votes.items() if n == max(votes.values()))
    reward = [1.0 if letter == label else 0.0 for letter in said]
    forest, _ = scored({"g": [texts[letter] for letter in said]}, {"g": "3"})
    assert forest.outcome.tolist() == reward
    trained = forest.select(torch.arange(4))
    credit = gxpo.method("ttrl").advantages(trained)
    first = reward[:4]
    expected = [z(r, first, 1, 1e-6) if len(set(first)) > 1 else 0.0 for r in first]
    assert [float(credit[trained.path_of(r)[0]]) for r in range(4)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("coef", [1.0, 0.25])
def test_repo(coef: float) -> None:
    """SihengLi99/RePO@119fef6 src/replay_grpo_trainer.py, "split" advantages and `_compute_loss` with loss type grpo:
    fresh and replayed sums both over the number of all rows."""
    rows = [("p", 1.0, 2), ("p", 0.0, 3), ("p", 0.0, 1), ("q", 1.0, 1), ("q", 1.0, 2), ("q", 0.0, 2)]
    old = [("p/replay", 1.0, 2), ("p/replay", 0.0, 1)]
    every = rows + old
    forest = answers(every, origin=["policy"] * 6 + ["replay"] * 2, weight=[1.0] * 6 + [coef] * 2)
    A = [z(r, [x for h, x, _ in every if h == g], 1, 1e-4) for g, r, _ in every]
    before = [forest.path_behaviour_logprob[forest.path_of(i)].tolist() for i in range(len(every))]

    def wanted(now):
        sums = {"fresh": now[0][0] * 0, "replayed": now[0][0] * 0}
        for i, (a, row, then) in enumerate(zip(A, now, before, strict=True)):
            losses = []
            for x, y in zip(row, then, strict=True):
                rho = torch.exp(x - y)
                losses.append(-torch.minimum(rho * a, rho.clamp(0.8, 1.2) * a))
            sums["fresh" if i < len(rows) else "replayed"] += sum(losses) / len(losses)
        return sums["fresh"] / len(every) + coef * sums["replayed"] / len(every)

    gap = [((5 * p) % 7 - 3) * 0.11 for p in range(forest.n_entries)]
    agree(gxpo.method("repo_replay@paper"), forest, gap, wanted)


def test_eframe() -> None:
    """597358816/EFRame@173b698 verl/trainer/ray_trainer.py, 166-200 and 727-756: GRPO's advantages, above 0.05 of the
    fresh rows and above 1 of the hotter ones, none above 0 of an answer that fills its room."""
    rows = [("p", 1.0, 2), ("p", 0.0, 4), ("p", 0.0, 1), ("p", 0.0, 2), ("p", 1.0, 4)]
    rows += [("q", 0.0, n) for n in (1, 2, 4, 2, 3)]
    rows += [("h", r, n) for r, n in ((1.0, 2), (0.0, 1), (0.0, 4), (1.0, 4), (0.0, 2), (0.0, 3), (0.0, 1))]
    rows += [("k", r, n) for r, n in ((1.0, 1), (1.0, 2), (1.0, 3), (0.0, 4), (0.0, 1), (0.0, 2))]
    hot, room = {"h", "k"}, 4
    forest = answers(
        rows,
        origin=["tempered" if g in hot else "policy" for g, *_ in rows],
        truncated=[n == room for *_, n in rows],
    )
    expected = []
    for g, r, n in rows:
        own_rows = [x for h, x, _ in rows if h == g]
        A = z(r, own_rows, 1, 1e-6) if len(set(own_rows)) > 1 else 0.0
        chosen = abs(A) > (1.0 if g in hot else 0.05) and not (n == room and A > 0)
        expected += [A if chosen else 0.0] * n
    m = gxpo.method("eframe")
    credit = m.advantages(forest)
    actual = credit * m.token_weights(forest, credit)
    assert actual.tolist() == pytest.approx(expected, abs=1e-12)
    assert [sum(x != 0 for x in expected[a:b]) for a, b in ((0, 13), (13, 25), (25, 42), (42, 55))] == [9, 0, 2, 0]


def test_arpo_gui() -> None:
    """dvlab-research/ARPO@7489ae3 verl/trainer/ray_trainer.py, 722-760, and replay_buffer.py: where no attempt succeeds
    a stored success of the task, of the newest eight, takes the place of one, before GRPO's advantage."""
    visits = [
        {"a": [0, 1, 0, 0], "b": [0, 0, 0, 0], "c": [1, 1, 1, 1]},
        {"a": [0, 0, 0, 0], "b": [0, 0, 0, 0], "c": [0, 1, 1, 0]},
        {"a": [0, 0, 0, 0], "b": [0, 1, 0, 1], "c": [0, 0, 1, 1]},
        {"a": [1, 0, 1, 0], "b": [0, 0, 0, 0], "c": [0, 0, 0, 0]},
    ]
    m = gxpo.method("arpo_gui", {"rollout.group_size": 4})
    stored: dict[str, list[str]] = {name: [] for name in "abc"}
    replays = 0
    for step, verdicts in enumerate(visits, 1):
        session = Heated({(step, name): row for name, row in verdicts.items()}, step)
        forest = train(m.rollout, list(verdicts), session)
        credit = m.advantages(forest)
        for name, row in verdicts.items():
            mine = [r for r in range(forest.n_trajectories) if forest.group[r] == f"s{step}/{name}"]
            dead = max(row) == 0 and bool(stored[name])
            outcomes = sorted(map(float, [*row[1:], 1] if dead else row))
            assert sorted(forest.outcome[mine].tolist()) == outcomes
            taken = [forest.info[r]["sampled_as"] for r in mine if forest.origin[r] == "replay"]
            assert len(taken) == dead and set(taken) <= set(stored[name])
            mixed = len(set(outcomes)) > 1
            target = [z(x, outcomes, 1, 1e-6) if mixed else 0.0 for x in outcomes]
            assert sorted(float(credit[forest.path_of(r)[0]]) for r in mine) == pytest.approx(target, abs=1e-12)
            stored[name] = [*stored[name], *(f"s{step}/{name}/{i}" for i, x in enumerate(row) if x)][-8:]
            replays += dead
    assert replays == 4


class Parabola:
    """A learner of two numbers by gradient steps on a (x - c)^2, which reports a given entropy."""

    def __init__(self, x: list[float], entropy: float) -> None:
        self.x, self.entropy = torch.tensor(x, dtype=F64), entropy

    def step(self, forest, credit, weight, trajectories=None):
        self.x = self.x - 0.1 * 2 * torch.tensor([1.5, 0.7], dtype=F64) * (self.x - torch.tensor([2.0, -1.0]))
        return StepInfo(empty=False, outputs={"entropy": torch.full((2,), self.entropy, dtype=F64)})

    def snapshot(self):
        return {"x": self.x.clone()}

    def restore(self, snapshot):
        self.x = snapshot["x"].clone()


def test_sfpo() -> None:
    """Urheen/SFPO@e7b765e Code/SFPO/verl/workers/fsdp_workers.py, 489-514, and ray_trainer.py, 1211-1234: three fast
    steps, back to a share of their way, a slow one; plain steps for good once the newest entropy is a population std
    above the mean of its window."""
    entropies = [0.9, 0.8, 0.85, 0.7, 0.6, 0.62, 0.58, 0.9, 0.5, 0.4]
    part = gxpo.method("sfpo", {"update.window": 4}).update
    assert isinstance(part, SlowFast)
    ours = theirs = [0.3, 0.4]
    past: list[float] = []
    stopped, plain = False, []

    def descended(x: list[float]) -> list[float]:
        return [x[0] - 0.2 * 1.5 * (x[0] - 2.0), x[1] - 0.2 * 0.7 * (x[1] + 1.0)]

    for entropy in entropies:
        window = past[-4:]
        if len(past) >= 4 and (past[-1] - math.fsum(window) / 4) / (spread(window, 0) + 1e-9) >= 1.0:
            stopped = True
        slow = theirs
        if not stopped:
            fast = descended(descended(descended(slow)))
            theirs = [a + 0.8 * (b - a) for a, b in zip(slow, fast, strict=True)]
        theirs = descended(theirs)
        past.append(entropy)
        plain.append(stopped)
        learner = Parabola(ours, entropy)
        part.run(FOREST, ONES, ONES, learner)
        ours = learner.x.tolist()
        assert ours == pytest.approx(theirs, abs=1e-12) and part.plain == stopped
    assert plain == [False] * 8 + [True] * 2
