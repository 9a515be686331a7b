"""Methods read in code that their authors have released: what it computes in plain loops, against gxpo's.

Each test names the files and the commit is the method's `code`.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from tests.environments.rewards.test_majority import scored
from tests.environments.tasks.sampled_sources import answers, chances, sampled_source
from tests.sampling.rollouts.tree_session import TreeSession

import gxpo
from gxpo.algorithms.signals.opponents import mixed
from gxpo.environments.rewards.majority import MajorityVote
from gxpo.forest.forest import Forest
from gxpo.methods import METHODS
from gxpo.parts.protocols import PolicyTokens, Task
from gxpo.sampling.rollouts.adaptive_group_size import AdaptiveGroupSize, allot_with_fallback
from gxpo.sampling.rollouts.search import Search

F64 = torch.float64


def drift(n: int, scale: float = 0.05) -> torch.Tensor:
    return torch.tensor([scale * ((7 * i) % 5 - 2) for i in range(n)], dtype=F64)


def rows_of(forest: Forest, x: torch.Tensor) -> list[list[float]]:
    return [x[forest.path_of(r)].tolist() for r in range(forest.n_trajectories)]


# ---------------------------------------------------------------- knapsack_rl: exploration_utils.py, rl_dataset.py
def table_of_budgets(rates: list[float], spare: int, least: int, most: int) -> list[int]:
    """More attempts for each of these tasks: the largest sum of values, where no more is worth 0 and k more is worth
    the whole value of least + k."""
    best: list[tuple[float, list[int]] | None] = [None] * (spare + 1)
    best[0] = (0.0, [])
    for p in rates:
        after: list[tuple[float, list[int]] | None] = [None] * (spare + 1)
        for spent in range(spare + 1):
            for k in range(min(most - least, spent) + 1):
                actual = best[spent - k]
                if actual is None:
                    continue
                n = k + least
                gain = (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2 if k else 0.0
                if after[spent] is None or actual[0] + gain > after[spent][0] + 1e-12:
                    after[spent] = (actual[0] + gain, [*actual[1], k])
        best = after
    used = max(spent for spent in range(spare + 1) if best[spent] is not None)
    more, left = best[used][1], spare - used
    return [k + left // len(rates) + (place < left % len(rates)) for place, k in enumerate(more)]


def released_budget(rates: list[float | None], n: int, least: int, most: int) -> list[int]:
    total = n * len(rates)
    sizes = [n if p is None else least for p in rates]
    total -= sum(sizes)
    between = [i for i, p in enumerate(rates) if p is not None and 0 < p < 1]
    zero = [i for i, p in enumerate(rates) if p is None or p == 0]
    if total > 0 and not between:
        if not zero:
            return [n] * len(rates)
        for place, i in enumerate(zero):
            sizes[i] += total // len(zero) + (1 if place < total % len(zero) else 0)
        return sizes
    cost = sum(int(min(most, math.log(0.1) / math.log(max(rates[i], 1 - rates[i])))) for i in between)
    if cost < total:
        receivers = zero or [i for i in range(len(rates)) if i not in between]
        for place, i in enumerate(receivers):
            sizes[i] += (total - cost) // len(receivers) + (1 if place < (total - cost) % len(receivers) else 0)
        total = cost
    more = table_of_budgets([rates[i] for i in between], total, least, most)
    for i, k in zip(between, more, strict=True):
        sizes[i] += k
    return sizes


def test_knapsack_rl_splits_its_budget_as_released():
    draws, seen_count = random.Random(3), 0
    some = [0.0, 0.0625, 0.1875, 0.3125, 0.4375, 0.5625, 0.6875, 0.8125, 0.9375, 1.0]
    for _ in range(60):
        rates = [*draws.sample(some, draws.randint(2, 4)), *[None] * draws.randint(0, 1)]
        between = [p for p in rates if p is not None and 0 < p < 1]
        cost = sum(int(min(24, math.log(0.1) / math.log(max(p, 1 - p)))) for p in between)
        if len(between) == len(rates) and cost < 6 * len(rates):
            continue  # theirs divides by the number of the others, which is 0
        actual = allot_with_fallback([math.nan if p is None else p for p in rates], 8 * len(rates), 8, 2, 24)
        assert actual == released_budget(rates, 8, 2, 24), rates
        seen_count += 1
    assert seen_count > 40


def test_knapsack_rl_predicts_by_the_newest_sixteen_verdicts():
    part = gxpo.method("knapsack_rl").rollout
    assert isinstance(part, AdaptiveGroupSize)
    assert (part.solver, part.window, part.min_verdicts, part.min_attempts, part.max_attempts) == (
        "fallback",
        16,
        8,
        2,
        128,
    )
    visits = {"a": [[1] * 6 + [0] * 6, [0] * 8], "b": [[1] * 20 + [0] * 12], "c": [[1, 1, 0]], "d": []}
    for name, each in visits.items():
        for verdicts in each:
            part.memory.add({name: [float(v) for v in verdicts]})
    actual = part.predict(list(visits))
    newest = [0] * 8 + [0] * 6 + [1] * 2  # of a, from the last on
    assert actual[0] == sum(newest) / 16 and actual[1] == 20 / 32
    assert math.isnan(actual[2]) and math.isnan(actual[3])


# ---------------------------------------------------------------- mnpo: mnpo_trainer.py
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_mnpo_regresses_mean_log_ratios_to_its_target(kept):
    """Best and worst of a prompt; the mean over tokens of every policy; the past policies' share is left out while
    there are none."""
    forest = Forest.from_completions([[1]] * 3, [[[5, 6, 7]], [[8]], [[9, 9]]], [1.0, 0.0, 0.5], groups=["a"] * 3)
    n = len(forest.path_token)
    policy = (drift(n) - 1.0).requires_grad_()
    reference, past = drift(n, 0.03) - 1.2, [drift(n, 0.02 * (j + 1)) - 1.1 for j in range(kept)]
    assert METHODS["mnpo"].keys["signal.opponents.initial_opponent"] == "nothing"
    m = gxpo.method("mnpo")
    earlier = torch.stack(past) if past else reference.new_zeros(0, n)
    opponents = mixed(reference, earlier, 1 / 3, "nothing")
    tokens = PolicyTokens(policy, policy.detach(), reference_logprob=reference)
    loss = m.loss(forest, tokens, advantages=torch.zeros(n, dtype=F64), signals={"opponents_logprob": opponents})

    def mean(x, row):
        values = rows_of(forest, x.detach())[row]
        return sum(values) / len(values)

    logits = mean(policy, 0) - mean(policy, 1)
    logits -= 1 / 3 * (mean(reference, 0) - mean(reference, 1))
    for x in past:
        logits -= 2 / 3 / kept * (mean(x, 0) - mean(x, 1))
    expected = (logits - 1 / (2 * 0.0075)) ** 2
    assert loss.value.item() == pytest.approx(expected, rel=1e-9)
    slope = rows_of(forest, torch.autograd.grad(loss.value, policy)[0])
    pull = 2 * (logits - 1 / 0.015)
    assert slope[0] == pytest.approx([pull / 3] * 3) and slope[1] == pytest.approx([-pull]) and slope[2] == [0, 0]


# ---------------------------------------------------------------- ttrv: ttt_metrics.py, auto_extract.py
@pytest.mark.parametrize("texts", ["aabacbad", "a?b?a??b", "????", "abcd", "aaaa"])
def test_ttrv_pays_vote_shares_and_entropy_changes_no_advantage(texts):
    text = {"a": "#1", "b": "#2", "c": "#3", "d": "#4", "?": "none"}
    extracted = ["" if t == "?" else text[t][1:] for t in texts]
    share = [sum(other == mine for other in extracted) / len(extracted) for mine in extracted]
    entropy, kinds = 0.0, set(extracted)
    for kind in kinds:
        p = sum(x == kind for x in extracted) / len(extracted)
        entropy -= p * math.log(p)
    entropy = entropy / math.log(len(kinds)) if len(kinds) > 1 else 0.0
    released = torch.tensor([1.0 * s - 0.75 * entropy for s in share], dtype=F64)

    options = METHODS["ttrv"].keys["scoring.options"]
    forest, _ = scored({"g": [text[t] for t in texts]}, {"g": "1"}, options=options)
    assert forest.outcome.tolist() == share
    m = gxpo.method("ttrv")
    ends = torch.tensor([int(forest.path_of(r)[0]) for r in range(len(texts))])
    theirs = m.advantages(forest.replace(outcome=released))[ends]
    assert torch.allclose(m.advantages(forest)[ends], theirs, rtol=0, atol=1e-12)


def test_ttrv_trains_half_of_those_that_vote():
    paper = METHODS["ttrv"].paper_defaults
    assert (paper["rollout.group_size"], paper["rollout.n_votes"], paper["optim.lr"]) == (16, 32, 5e-7)
    with pytest.raises(gxpo.errors.ConfigError, match="are of clusters"):
        MajorityVote(equality="equal")


# ---------------------------------------------------------------- vas: samplers.py, metrics.py
def test_vas_stretches_the_variance_of_the_newest_answers():
    m = gxpo.method("vas")
    right = {"a": 0, "b": 1, "c": 4, "d": 7, "e": 8}
    options = {k.removeprefix("tasks.sampler."): v for k, v in METHODS["vas"].keys.items() if "sampler." in k}
    source = sampled_source("variance", **options)
    assert chances(source) == pytest.approx([0.2] * 5)  # nothing is known
    source.observe(answers(dict.fromkeys(right, 8)))
    source.observe(answers(right))  # only the newest measurement counts
    score = [p / 8 * (1 - p / 8) for p in right.values()]
    low, high = min(score), max(score)
    stretched = [(x - low) / (high - low + 1e-8) for x in score]
    expected = [0.5 / 5 + 0.5 * x / sum(stretched) for x in stretched]
    assert chances(source) == pytest.approx(expected, abs=1e-9)
    assert type(m.sampler).__name__ == "variance"


# ---------------------------------------------------------------- step_apo: dpo/trainer.py
def test_step_apo_offsets_by_the_difference_of_values():
    """beta 0.3, alpha 1: -log sigmoid(beta * logits + alpha * (q_rejected - q_chosen)), steps by summed log-ratios."""
    values = [0.9, -0.4, 0.2, -0.4]
    lengths = [2, 3, 1, 2]
    forest = Forest.from_completions([[1]] * 4, [[[7] * n] for n in lengths], values, groups=["s"] * 4)
    n = len(forest.path_token)
    policy, reference = drift(n) - 1.0, drift(n, 0.03) - 1.1
    ratio = [sum(p) - sum(r) for p, r in zip(rows_of(forest, policy), rows_of(forest, reference), strict=True)]

    def by_pairs(pairs):
        losses = []
        for i, j in pairs:
            z = 0.3 * (ratio[i] - ratio[j]) + 1.0 * (values[j] - values[i])
            losses.append(math.log1p(math.exp(-z)))
        return sum(losses) / len(losses)

    def loss(**options):
        m = gxpo.method("step_apo", {f"objective.{k}": v for k, v in options.items()})
        tokens = PolicyTokens(policy, policy, reference_logprob=reference)
        return float(m.loss(forest, tokens, advantages=torch.zeros_like(policy)).value)

    ordered = [(i, j) for i, j in itertools.permutations(range(4), 2) if values[i] > values[j]]
    across = [(i, j) for i in range(4) for j in range(4) if values[i] > 0 > values[j]]
    assert loss() == pytest.approx(by_pairs(ordered), rel=1e-9)
    assert loss(pairs="verdict", success_at=1e-9) == pytest.approx(by_pairs(across), rel=1e-9)


# ---------------------------------------------------------------- itool: mcts_vllm.py, run_mcts_dpo.sh
def phases_of(name: str) -> tuple[dict, dict]:
    warm, repeated = METHODS[name].keys["phases"]
    return warm, repeated["phases"][0]


def test_itool_pairs_the_best_and_worst_child_of_every_node():
    """A node's children are a group, and their values what the search has seen below them."""
    how = {"terminals": 6, "width": 3, "chunks": 3, "values": "mean", "backup": "all", "resume_at": "root"}
    _, keys = phases_of("itool")
    assert {k: keys[f"rollout.{k}"] for k in how if f"rollout.{k}" in keys} == {
        k: how[k] for k in how if f"rollout.{k}" in keys
    }
    seen_count = 0
    for step in range(6):
        full_value = Search(**how).grow([Task("a", "a?")], TreeSession(step=step))
        nodes = Search(**how, group_unit="siblings").grow([Task("a", "a?")], TreeSession(step=step))
        ends = [
            (info["path"], 1 if s >= 1 else -1)
            for info, s in zip(full_value.info, full_value.success.tolist(), strict=True)
        ]
        below: dict[tuple, list[int]] = {}
        for path, paid in ends:
            for depth in range(1, len(path) + 1):
                below.setdefault(tuple(path[:depth]), []).append(paid)
        actual = {tuple(info["path"]): q for info, q in zip(nodes.info, nodes.outcome.tolist(), strict=True)}
        assert actual == pytest.approx({path: sum(paid) / len(paid) for path, paid in below.items()})
        parents = {g: {tuple(i["path"][:-1]) for i, h in zip(nodes.info, nodes.group, strict=True) if h == g}
                   for g in nodes.group}  # fmt: skip
        assert all(len(p) == 1 for p in parents.values()) and len(parents) == len(set().union(*parents.values()))
        seen_count += len(parents) > 1
    assert seen_count


def test_itools_simpo_has_its_margin_outside_of_beta():
    _, keys = phases_of("itool")
    values, lengths = [0.5, -1.0, -1.0, 0.0], [2, 3, 1, 2]
    groups = ["n", "n", "m", "m"]
    forest = Forest.from_completions([[1]] * 4, [[[7] * n] for n in lengths], values, groups=groups)
    policy = drift(len(forest.path_token)) - 1.0
    mean = [sum(x) / len(x) for x in rows_of(forest, policy)]
    each = [math.log1p(math.exp(-(2.5 * (mean[i] - mean[j]) - 0.5))) for i, j in ((0, 1), (3, 2))]
    m = gxpo.method("simpo", {k: v for k, v in keys.items() if k.startswith("objective.")})
    loss = m.loss(forest, PolicyTokens(policy, policy), advantages=torch.zeros_like(policy))
    assert float(loss.value) == pytest.approx(sum(each) / 2, rel=1e-9)
    near = forest.replace(outcome=torch.tensor([0.5, 0.45, -1.0, 0.0], dtype=F64))  # less than 0.1 apart: left out
    loss = m.loss(near, PolicyTokens(policy, policy), advantages=torch.zeros_like(policy))
    assert float(loss.value) == pytest.approx(each[1] / 2, rel=1e-9)


def test_itools_warm_up_imitates_right_attempts_alone():
    warm, _ = phases_of("itool")
    m = gxpo.method(warm["method"], {k: v for k, v in warm.items() if k != "method"})
    rewards = [1.0, 1.0, 0.4, 0.1]
    forest = Forest.from_completions([[1]] * 4, [[[7] * n] for n in (2, 1, 3, 1)], rewards, groups=["a", "a", "b", "b"])
    policy = (drift(len(forest.path_token)) - 1.0).requires_grad_()
    loss = m.loss(forest, PolicyTokens(policy, policy.detach()), advantages=m.advantages(forest))
    assert rows_of(forest, torch.autograd.grad(loss.value, policy)[0]) == [[-1 / 3] * 2, [-1 / 3], [0] * 3, [0]]
