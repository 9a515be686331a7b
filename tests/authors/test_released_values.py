"""Credit by values of states: of turns, cuts, budgets, and continuations, as the authors' repositories compute it.

Loops over answers and tokens, written from the files that each method's `code` names.
"""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.credit.test_budget_relative import grown

import gxpo
from gxpo.algorithms.credit.value_delta import VALUE
from gxpo.algorithms.segments.segmenters import surprising
from gxpo.forest.forest import Forest

F64 = torch.float64


def episodes(rows: list[tuple[str, float, list[list[int]]]], rewards: list[list[float]] | None = None) -> Forest:
    """(group, outcome, tokens of each turn), and what the turns themselves earned."""
    records = []
    for i, (group, outcome, turns) in enumerate(rows):
        acts = [{"observation": [9], "action": act, "logprob": [-1.0] * len(act)} for act in turns]
        for act, reward in zip(acts, rewards[i] if rewards else [], strict=False):
            act["reward"] = reward
        record = {"schema": "gxpo.rollouts/1", "group": group, "id": f"e{i}", "prompt": [1], "reward": outcome}
        records.append(record | {"turns": acts, "success": outcome > 0.5})
    return Forest.from_records(records)


@pytest.mark.parametrize(("discount", "lam"), [(1.0, 1.0), (0.9, 0.7)])
def test_steppo(discount: float, lam: float) -> None:
    """AgentR1/StepPO@26107f1 arft/core_algos.py, `compute_gae_advantage_return`: a turn's value is the one before its
    first token, its reward the sum of its tokens'; whitened over turns, and the return for all of its tokens."""
    rows = [
        ("a", 1.0, [[3, 4], [5], [6, 7, 8]]),
        ("a", 0.0, [[3], [4, 5]]),
        ("b", 1.0, [[3, 4, 5, 6]]),
        ("b", 0.0, [[3], [4], [5], [6, 7]]),
    ]
    earned = [[0.1, 0.0, 1.2], [], [0.4], [0.0, 0.1, 0.0, -0.5]]  # without rewards of turns, the outcome at the end
    n = sum(len(act) for *_, turns in rows for act in turns)
    value = [math.cos(1.3 * t) for t in range(n)]
    advantages, returns, lengths, at = [], [], [], 0
    for (_, outcome, turns), paid in zip(rows, earned, strict=True):
        V = []
        for act in turns:
            V.append(value[at])
            at += len(act)
        r = paid or [0.0] * (len(turns) - 1) + [outcome]
        delta = [r[k] + discount * (V[k + 1] if k + 1 < len(V) else 0.0) - V[k] for k in range(len(V))]
        for k in range(len(V)):
            advantages.append(sum((discount * lam) ** (j - k) * delta[j] for j in range(k, len(V))))
            returns.append(advantages[-1] + V[k])
            lengths.append(len(turns[k]))
    mean = math.fsum(advantages) / len(advantages)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in advantages) / (len(advantages) - 1))
    expected = [(x - mean) / (std + 1e-8) for x, length in zip(advantages, lengths, strict=True) for _ in range(length)]
    m = gxpo.method("steppo", {"credit.discount": discount, "credit.lam": lam})
    forest, signals = episodes(rows, earned), {"value": torch.tensor(value, dtype=F64)}
    assert m.advantages(forest, signals).tolist() == pytest.approx(expected, abs=1e-12)
    targets = m.credit.targets(forest, signals, 0)["value_target"].tolist()
    assert targets == pytest.approx([x for x, k in zip(returns, lengths, strict=True) for _ in range(k)], abs=1e-12)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_steppo_fits_its_values_as_verl_does(clip: float | None) -> None:
    """AgentR1/StepPO@26107f1 arft/ray_agent_trainer.py, verl's `value_loss` on it: .5 times the mean over tokens of the
    larger of (V - R)^2 and the same with V held within .5 of the one that the returns are made of."""
    rows = [("a", 1.0, [[3, 4], [5]]), ("a", 0.0, [[3], [4, 5, 6]])]
    old = [0.2, 0.9, -0.3, 1.4, 0.1, 0.6, -0.2]
    new = [0.9, 0.8, -1.2, 2.1, 0.0, 0.6, 0.5]
    forest, m = (
        episodes(rows),
        gxpo.method("steppo", {"objective.add.value.coef": 1.0, "objective.add.value.clip": clip}),
    )
    signals = {"value": torch.tensor(old, dtype=F64)}
    signals |= m.credit.targets(forest, signals, 0)
    returns, terms = signals["value_target"].tolist(), []
    assert returns == pytest.approx([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    for v, was, r in zip(new, old, returns, strict=True):
        near = v if clip is None else min(max(v, was - clip), was + clip)
        terms.append(0.5 * max((v - r) ** 2, (near - r) ** 2))
    policy = gxpo.PolicyTokens(
        *(torch.full((7,), -1.0, dtype=F64) for _ in range(2)), value=torch.tensor(new, dtype=F64)
    )
    policy_alone = gxpo.method("steppo", {"objective.add.value.coef": 0.0}).loss(forest, policy, signals=signals).value
    actual = m.loss(forest, policy, signals=signals).value - policy_alone
    assert float(actual) == pytest.approx(math.fsum(terms) / 7, abs=1e-12)


@pytest.mark.parametrize("whiten", ["none", "token"])
def test_t_ppo(whiten: str) -> None:
    """HanlinDu/verl@5a66921 recipe/tppo/tppo_algos.py, `compute_truncate_gae_advantage_return`, called by
    `compute_advantage_tppo`: a row is the newest window of 12 tokens, padded with zeros behind its end."""
    window, lam, ignored = 12, 0.95, 8
    rows = [("done at once", [7], 1.0), ("done", [12, 5], 1.0), ("unfinished", [12], 0.0), ("third", [12, 12], 0.0)]
    finished = [True, True, False, False]
    if whiten == "token":  # over the newest windows' tokens, which are all that there are
        rows = [(name, lengths[-1:], outcome) for name, lengths, outcome in rows]
    value = [math.sin(1.7 * t + 0.3) for t in range(sum(sum(lengths) for _, lengths, _ in rows))]
    records, expected, returns, at = [], [], [], 0
    for (name, lengths, outcome), is_finished in zip(rows, finished, strict=True):
        before, newest = sum(lengths[:-1]), lengths[-1]
        V = value[at + before : at + before + newest] + [0.0] * (window - newest)
        paid = [outcome if is_finished and t == newest - 1 else 0.0 for t in range(window)]
        last, advantage = 0.0, [0.0] * window
        for t in reversed(range(window)):
            delta = paid[t] + (V[t + 1] if t < window - 1 else 0.0) - V[t]
            if t == window - 1 and not is_finished:
                delta = 0.0  # (gamma - 1) V
            last = delta + lam * last
            advantage[t] = last if is_finished or t < window - ignored else 0.0
        kept_newest = newest if is_finished else window - ignored
        expected.append((before, advantage[:newest], kept_newest))
        returns += [outcome if is_finished else math.nan] * sum(lengths)
        at += sum(lengths)
        turns = [
            {"action": [5] * n, "logprob": [-1.0] * n, "policy_version": k, **({"observation": []} if k else {})}
            for k, n in enumerate(lengths)
        ]
        record = {"schema": "gxpo.rollouts/1", "group": name, "id": name, "prompt": [1], "reward": outcome}
        records.append(record | {"turns": turns, "truncated": not is_finished})
    if whiten == "token":
        taken = [x for _, row, kept_newest in expected for x in row[:kept_newest]]
        mean = math.fsum(taken) / len(taken)
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in taken) / (len(taken) - 1) + 1e-8)
        expected = [
            (before, [(x - mean) / std if t < kept_newest else 0.0 for t, x in enumerate(row)], kept_newest)
            for before, row, kept_newest in expected
        ]
    forest, m = Forest.from_records(records), gxpo.method("t_ppo", {"credit.whiten": whiten})
    signals = {"value": torch.tensor(value, dtype=F64)}
    actual = m.advantages(forest, signals)
    for r, (before, row, _) in enumerate(expected):
        assert actual[forest.path_of(r)][before:].tolist() == pytest.approx(row, abs=1e-9)
    targets = m.credit.targets(forest, signals, 0)["value_target"].tolist()
    assert targets == pytest.approx(returns, abs=1e-12, nan_ok=True)


def test_t_ppo_trains_the_newest_window_and_a_value_per_rollout() -> None:
    """The same, `compute_value_loss`: .5 mean over the finished rows of the mean of (V - return)^2 over their tokens;
    `compute_policy_loss`: the tokens of the newest window alone have a gradient."""
    lengths, outcome = [[4, 3], [2], [4]], [1.0, 0.0, 0.0]
    records = []
    for i, row in enumerate(lengths):
        acts = [{"action": [5] * n, "logprob": [-1.0] * n, "policy_version": k} for k, n in enumerate(row)]
        record = {"schema": "gxpo.rollouts/1", "group": f"g{i}", "id": f"r{i}", "prompt": [1], "reward": outcome[i]}
        records.append(record | {"turns": acts, "truncated": i == 2})
    forest, m = Forest.from_records(records), gxpo.method("t_ppo", {"objective.add.value.coef": 1.0})
    n = forest.n_entries
    value = torch.tensor([math.cos(0.9 * t) for t in range(n)], dtype=F64)
    now, requires_grad = torch.full((n,), -1.0, dtype=F64, requires_grad=True), value.clone().requires_grad_()
    policy = gxpo.PolicyTokens(now, torch.full((n,), -1.0, dtype=F64), value=requires_grad)
    signals = {"value": value, **m.credit.targets(forest, {"value": value}, 0)}
    loss = m.loss(forest, policy, advantages=m.advantages(forest, signals), signals=signals)
    slope, pull = torch.autograd.grad(loss.value, (now, requires_grad))
    V, expected = value.tolist(), []
    for r, (first, last) in enumerate([(0, 7), (7, 9), (9, 13)]):
        expected += [(V[t] - outcome[r]) / (last - first) / 2 if r < 2 else 0.0 for t in range(first, last)]
    assert pull.tolist() == pytest.approx(expected, abs=1e-12)
    assert [bool(x) for x in slope[:4]] == [False] * 4 and all(slope[4:9]) and not any(slope[9:])


@pytest.mark.parametrize("whiten", ["none", "token"])
def test_vineppo(whiten: str) -> None:
    """McGill-NLP/VinePPO@efe7228 math_episode_generator_with_mc_advantages.py, `_compute_mc_value`,
    `_compute_step_advantages`, `_compute_token_advantages`: the mean reward of a step's continuations, r + V' - V, and
    a token has the advantage of the step that its first character is in. ppo_trainer.py whitens over the tokens."""
    rows = [  # steps as tokens' texts, the outcome, rewards of the continuations from the query and each later step
        ([["a", "b\n"], ["c\n"], ["d", "e", "f"]], 1.0, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        ([["a\n"], ["g", "h"]], 0.0, [[1, 0, 0], [0, 0, 0]]),
        ([["k", "l"]], 1.0, [[1, 0, 0]]),
    ]
    expected, before, records = [], [], []
    for i, (steps, outcome, continued) in enumerate(rows):
        values = [sum(r) / len(r) for r in continued] + [0.0]  # of the terminal state 0
        rewards = [0.0] * (len(steps) - 1) + [outcome]
        advantages = [rewards[k] + values[k + 1] - values[k] for k in range(len(steps))]
        bounds = [0]
        for step in steps:
            bounds.append(bounds[-1] + len("".join(step)))
        of_character = [a for a, b, e in zip(advantages, bounds, bounds[1:], strict=False) for _ in range(b, e)]
        at = 0
        for k, step in enumerate(steps):
            for t, text in enumerate(step):
                expected.append(of_character[at])
                before.append(values[k] if t == 0 else math.nan)
                at += len(text)
        n = sum(len(step) for step in steps)
        turn = {"action": [5] * n, "logprob": [-1.0] * n}
        record = {"schema": "gxpo.rollouts/1", "group": "g", "id": f"v{i}", "prompt": [1], "reward": outcome}
        records.append(record | {"turns": [turn]})
    if whiten == "token":
        mean = math.fsum(expected) / len(expected)
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in expected) / (len(expected) - 1) + 1e-8)
        expected = [(x - mean) / std for x in expected]
    forest = Forest.from_records(records)
    values_T = torch.full((len(forest.token),), math.nan, dtype=F64)
    values_T[forest.path_token] = torch.tensor(before, dtype=F64)
    m = gxpo.method("vineppo", {"credit.whiten": whiten})
    actual = m.advantages(forest.replace(extras={VALUE: values_T})).tolist()
    assert actual == pytest.approx(expected, abs=1e-12)


def test_spo_segment() -> None:
    """AIFrameResearch/SPO@b9fc6a2 math_episode_generator_with_mc_advantages.py, 347-477: a stretch ends before every
    second token below 0.9 here, the first is without a value to begin from unless it is cut at its first token, and
    tokens above 0.9 have nothing."""
    rows = [  # probabilities, outcome, values of its cuts in order
        ([0.5, 0.95, 0.3, 0.7, 0.99, 0.2, 0.85], 1.0, [0.2, 0.6, 0.9]),
        ([0.97, 0.6, 0.92, 0.8, 0.4, 0.96], 0.0, [0.5, 0.3]),
        ([0.95, 0.99], 1.0, []),
        ([0.91, 0.99, 0.1], 0.0, [0.75]),
    ]
    expected, before, records = [], [], []
    for i, (probability, outcome, values) in enumerate(rows):
        unsure = [t for t, p in enumerate(probability) if p < 0.9][::2]
        assert unsure == surprising([math.log(p) for p in probability], interval=2)
        known_unsure = dict(zip(unsure, values, strict=True))
        before += [known_unsure.get(t, math.nan) for t in range(len(probability))]
        for t, p in enumerate(probability):
            begin = max((c for c in unsure if c <= t), default=None)
            end = min((c for c in unsure if c > t), default=None)
            gain = (outcome if end is None else known_unsure[end]) - known_unsure[begin] if begin is not None else 0.0
            expected.append(0.0 if p > 0.9 else gain)
        turn = {"action": [5] * len(probability), "logprob": [math.log(p) for p in probability]}
        record = {"schema": "gxpo.rollouts/1", "group": "g", "id": f"s{i}", "prompt": [1], "reward": outcome}
        records.append(record | {"turns": [turn]})
    forest = Forest.from_records(records)
    values_T = torch.full((len(forest.token),), math.nan, dtype=F64)
    values_T[forest.path_token] = torch.tensor(before, dtype=F64)
    actual = gxpo.method("spo_segment").advantages(forest.replace(extras={VALUE: values_T}))
    assert actual.tolist() == pytest.approx(expected, abs=1e-12)


def test_anytime_brpo() -> None:
    """sail-sg/AnytimeReasoner@7e3f5bb verl/verl/trainer/ppo/brpo.py, `compute_cot_advantage` and
    `compute_summary_advantage`, three budgets with four answers each, three thinkings that go through all of them."""
    scores = [
        [[0, 1, 0, 0], [1, 1, 0, 1], [1, 0, 1, 1]],
        [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]],
        [[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 1, 0]],
    ]
    S, P, own_outs, answers = 3, 1 / 3, [], {}
    mean = [[sum(cut) / 4 for cut in thinking] for thinking in scores]
    rest = [[sum(P * x for x in row[s:]) for s in range(S)] for row in mean]
    for i, row in enumerate(mean):
        out = []
        for s in range(S):
            past = sum(2**j * row[j] for j in range(s)) / (2**s - 1) if s else 0.0
            V1, V2 = past * P * (S - s), sum(other[s] for other in rest) / len(rest)
            out.append(rest[i][s] - (s * V1 + (S - s) * V2) / S)
        own_outs.append(out)
        answers |= {(i, s, a): x - row[s] for s in range(S) for a, x in enumerate(scores[i][s])}
    forest = Forest.from_records(grown({i: dict(enumerate(cuts)) for i, cuts in enumerate(scores)}))
    actual = gxpo.method("anytime_brpo").advantages(forest)
    for r, name in enumerate(forest.id):
        i, s, a = (int(x) for x in name.split("/")[1].split("."))
        expected = [own_outs[i][k] for k in range(s + 1) for _ in range(2)] + [answers[i, s, a]]  # two tokens a budget
        assert actual[forest.path_of(r)].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("eta", [1.0, 0.25, 4.0])
def test_refuel(eta: float) -> None:
    """ZhaolinGao/REFUEL@8b3c67d setting_one/refuel.py, 408-419: squares of D - eta times the difference of rewards,
    D of the turn in which two continuations part. Ours is a quarter of it, over eta^2."""
    rows = [
        ("a", 1.0, [[3], [4, 5], [6]]),
        ("a", 0.2, [[3], [7]]),
        ("b", 0.0, [[3, 4], [5]]),
        ("b", 0.7, [[6], [7, 8, 9]]),
    ]
    parting = [1, 1, 0, 0]  # the turn, by row
    forest = episodes(rows)
    old = forest.path_behaviour_logprob.to(F64)
    policy = (old + torch.tensor([((5 * p) % 7 - 3) * 0.2 for p in range(len(old))], dtype=F64)).requires_grad_()
    m = gxpo.method("refuel", {"objective.beta": 1 / eta})
    tokens = gxpo.PolicyTokens(policy, old, proximal_logprob=old)
    loss = m.loss(forest, tokens, advantages=torch.zeros(len(old), dtype=F64)).value
    scores, at = [], 0
    theirs = policy.detach().clone().requires_grad_()
    for (*_, turns), turn in zip(rows, parting, strict=True):
        begin = at + sum(map(len, turns[:turn]))
        scores.append(sum(theirs[p] - old[p] for p in range(begin, begin + len(turns[turn]))))
        at += sum(map(len, turns))
    squares = [(scores[i] - scores[i + 1] - eta * (rows[i][1] - rows[i + 1][1])) ** 2 for i in (0, 2)]
    target = sum(squares) / len(squares) / 4 / eta**2
    assert loss.item() == pytest.approx(target.item(), abs=1e-12)
    ours, slope = torch.autograd.grad(loss, policy)[0].tolist(), torch.autograd.grad(target, theirs)[0].tolist()
    assert ours == pytest.approx(slope, abs=1e-12) and sum(x != 0 for x in slope) == 6
