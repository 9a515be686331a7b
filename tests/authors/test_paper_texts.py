"""Methods read in the text of their papers: the equations in plain loops with literal numbers, against gxpo's.

Each test names the paper's version and equations.
"""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from tests.environments.rewards.test_match import scored

import gxpo
from gxpo.algorithms.objectives.control import ByAccuracy
from gxpo.algorithms.segments import entropy_segments
from gxpo.environments.rewards.metrics.diversity import FUNCTION_WORDS, lexical_diversity, signals
from gxpo.environments.tasks.success_rates import SuccessRates, Visit
from gxpo.forest import Forest
from gxpo.methods import METHODS
from gxpo.parts.protocols import PolicyTokens
from gxpo.parts.registry import part_at

F64 = torch.float64
GROUPS = ["a", "b", "a", "a", "b", "c", "c"]
REWARDS = [1.0, 0.0, 0.3, 0.0, 1.0, 0.5, 0.5]
LENGTHS = [3, 1, 2, 4, 2, 1, 2]


def forest_of(groups=GROUPS, rewards=REWARDS, lengths=LENGTHS, **fields) -> Forest:
    rows = [[[10 + i] * n] for i, n in enumerate(lengths)]
    return Forest.from_completions([[1]] * len(groups), rows, rewards, groups=groups, **fields)


def keys_of(name: str) -> dict:
    """What a method sets; NAME@paper: with what the authors' experiments set beside it."""
    actual = METHODS[name.removesuffix("@paper")]
    return {**actual.keys, **(actual.paper_defaults if name.endswith("@paper") else {})}


def by_row(forest: Forest, values: torch.Tensor) -> list[list[float]]:
    return [values[forest.path_of(r)].tolist() for r in range(forest.n_trajectories)]


def slopes(method: str, forest: Forest, moved: torch.Tensor, anchor: str, keys=None) -> list[list[float]]:
    """dL/dlogprob of every token, where the policy has moved by `moved` nats from its anchor."""
    x = (moved - 1.5).requires_grad_()
    still = torch.full_like(x, -1.5).detach()
    m = gxpo.method(method, keys)
    loss = m.loss(forest, PolicyTokens(x, still, **{anchor: still}), advantages=torch.zeros_like(still))
    return by_row(forest, torch.autograd.grad(loss.value, x)[0])


def drift(n: int) -> torch.Tensor:
    return torch.tensor([0.05 * ((7 * i) % 5 - 2) for i in range(n)], dtype=F64)


# ---------------------------------------------------------------- regressions of the log-ratio
def test_opmd_is_kimis_gradient() -> None:
    """arXiv 2501.12599v4, eq. 3: of a problem's k answers (1/k) sum grad log pi (r - mean) - tau/2 grad (log ratio)^2,
    ascended; here the mean over all answers."""
    forest = forest_of()
    moved = drift(sum(LENGTHS))
    total = [float(m.sum()) for m in moved.split(LENGTHS)]
    mean = {g: statistics.fmean(r for r, h in zip(REWARDS, GROUPS, strict=True) if h == g) for g in GROUPS}
    for tau in (0.1, 0.7):
        target = [
            [-((r - mean[g]) - tau * d) / len(GROUPS)] * n
            for r, g, d, n in zip(REWARDS, GROUPS, total, LENGTHS, strict=True)
        ]
        actual = slopes("opmd", forest, moved, "proximal_logprob", {"objective.tau": tau})
        assert [x for row in actual for x in row] == pytest.approx([x for row in target for x in row], abs=1e-12)


def test_copg_is_the_papers_pair_loss() -> None:
    """arXiv 2406.19185, eqs. 7 to 9 and 18 to 19: the slope of l(y, y') with R = r - (beta/2) log(pi/ref) inside it,
    over the unordered pairs of a group; the mean over pairs, half of it for each member of a pair."""
    groups, rewards, lengths = ["a", "a", "a", "b", "b"], [1.0, 0.25, 0.0, 0.5, 1.0], [2, 1, 3, 1, 2]
    forest = forest_of(groups, rewards, lengths)
    moved, beta = drift(sum(lengths)), 0.06
    x = [[float(v) for v in part] for part in moved.split(lengths)]

    def pair(r, s, d, e):
        big, small = r - beta / 2 * d, s - beta / 2 * e
        return (big - small) * d + (small - big) * e

    def objective(total):  # mean over trajectories of the mean over a group's pairs
        out = 0.0
        for rows in ([0, 1, 2], [3, 4]):
            pairs = list(itertools.combinations(rows, 2))
            mean = sum(pair(rewards[i], rewards[j], total[i], total[j]) for i, j in pairs) / len(pairs)
            out += mean / 2 * len(rows)
        return -out / 5

    total = [sum(row) for row in x]
    target = []
    for i in range(5):  # the loss is quadratic, of which the central difference is exact
        up, down = list(total), list(total)
        up[i], down[i] = up[i] + 0.5, down[i] - 0.5
        target += [objective(up) - objective(down)] * lengths[i]
    actual = slopes("copg@paper", forest, moved, "reference_logprob")
    assert [v for row in actual for v in row] == pytest.approx(target, abs=1e-12)


# ---------------------------------------------------------------- rewards
def test_otc_grpo() -> None:
    """arXiv 2504.14870v2, eqs. 6 and 7, section 4.1: c 4 in its search runs, alpha 1, the fewest calls of any right
    answer so far."""

    def papers(m, n, c=4):
        if m == n == 0:
            return 1.0
        if n == 0:
            return math.cos(m * math.pi / (2 * m + c))
        f = 2 * n * m / (m + n)
        return math.sin(f * math.pi / (2 * n))

    def of(calls, right):
        records = [
            {
                "schema": "gxpo.rollouts/1", "group": "q", "task": "q", "id": str(i), "prompt": [1],
                "turns": [{"action": [2], "info": {"calls": [{"name": "search"}] * k}}],
                "reward": float(ok), "success": ok,
            }
            for i, (k, ok) in enumerate(zip(calls, right, strict=True))
        ]  # fmt: skip
        return Forest.from_records(records)

    m = gxpo.method("otc")
    for calls, right, fewest in (
        ([2, 1, 4, 3, 0], [True, False, True, True, False], 2),
        ([0, 1, 2, 4, 1], [True, True, True, True, False], 0),
    ):
        forest = of(calls, right)
        target = [papers(k, fewest) if ok else 0.0 for k, ok in zip(calls, right, strict=True)]
        assert m.shaped(forest).outcome.tolist() == pytest.approx(target, abs=1e-12)
    assert [papers(1, 0), papers(2, 0), papers(4, 2)] == pytest.approx([0.866025, 0.707107, 0.866025], abs=1e-6)


def standardised(rewards):
    middle, spread = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(r - middle) / spread for r in rewards]


def test_asr_grpo_pays_the_negative_word_error_rate() -> None:
    """arXiv 2509.01939v1, eqs. 4 and 7: R = -(Sub + Del + Ins) / N, not clipped; its advantage is that of 1 + R, and of
    the number of errors, eq. 9."""
    # against "a b c": right; one substitution; one deletion; two insertions and a substitution; four insertions
    texts, errors = ["a b c", "a x c", "a c", "x a b c x".replace("c x", "y x"), "a b c d e f g"], [0, 1, 1, 3, 4]
    options = keys_of("asr_grpo")["scoring.options"]
    forest, _ = scored({"q": texts}, {"q": ("a b c", {})}, options)
    assert forest.outcome.tolist() == pytest.approx([1 - e / 3 for e in errors])
    credit = gxpo.method("asr_grpo", {"credit.eps": 0.0}).advantages(forest)
    actual = [row[0] for row in by_row(forest, credit)]
    assert actual == pytest.approx(standardised([-e / 3 for e in errors]))
    assert actual == pytest.approx(standardised([-e for e in errors]))


def test_speech_grpo_is_a_token_mean_with_a_kl() -> None:
    """arXiv 2509.16990v1, eqs. 1 to 3 and section 4.2: BLEU in [0, 1], standardised; DAPO's token mean; beta 0.02."""
    m, keys = gxpo.method("speech_grpo@paper"), keys_of("speech_grpo@paper")
    assert keys["objective.kl.coef"] == 0.02 and keys["rollout.group_size"] == 8
    forest, _ = scored({"q": ["a b c d", "x y z w"]}, {"q": ("a b c d", {})}, keys["scoring.options"])
    assert forest.outcome.tolist() == [1.0, 0.0]
    forest = forest_of(["a"] * 3, [1.0, 0.25, 0.5], [1, 4, 2])
    x = torch.full((7,), -1.5, dtype=F64, requires_grad=True)
    still = x.detach()
    credit = gxpo.method("speech_grpo", {"credit.eps": 0.0}).advantages(forest)
    policy = PolicyTokens(x, still, proximal_logprob=still, reference_logprob=still)
    actual = by_row(forest, torch.autograd.grad(m.loss(forest, policy, advantages=credit).value, x)[0])
    for row, a, n in zip(actual, standardised([1.0, 0.25, 0.5]), [1, 4, 2], strict=True):
        assert row == pytest.approx([-a / 7] * n)  # at the reference the KL's slope is 0


def test_multirole_adds_a_tenth_of_eight_signals() -> None:
    """arXiv 2507.20187v4, section 3.2 (R = delta acc + (1 - delta) div), B.2 (0.1) and appendix F."""
    text = "The cat is on the mat. Is the dog on the mat? Run!"
    words = ["the", "cat", "is", "on", "the", "mat", "is", "the", "dog", "on", "the", "mat", "run"]
    counts = {"the": 4, "cat": 1, "is": 2, "on": 2, "mat": 2, "dog": 1, "run": 1}
    assert sum(counts.values()) == len(words) == 13
    pairs = [f"{a} {b}" for a, b in itertools.pairwise(words)]
    grammar = {"the": 4, "is": 2, "on": 2}
    assert set(grammar) <= FUNCTION_WORDS and not {"cat", "mat", "dog", "run"} & FUNCTION_WORDS
    target = {
        "vocabulary": 7 / 13,
        "entropy": -sum(c / 13 * math.log(c / 13) for c in counts.values()) / math.log(7),
        # sentences of 6, 6 and 1 words
        "sentence_lengths": math.sqrt((2 * (6 - 13 / 3) ** 2 + (1 - 13 / 3) ** 2) / 3) / (13 / 3),
        "sentence_kinds": 1.0,  # one of each of three kinds
        # {the cat is on mat} and {is the dog on mat}: 4 of 6 in common; then none of 6
        "adjacent_sentences": ((1 - 4 / 6) + 1.0) / 2,
        "yule": 1 / (1 + 1e4 * (16 + 4 * 3 + 3 - 13) / 169),
        "bigrams": len(set(pairs)) / 12,
        "function_words": -sum(c / 8 * math.log(c / 8) for c in grammar.values()) / math.log(len(FUNCTION_WORDS)),
    }
    assert signals(text) == pytest.approx(target)
    assert lexical_diversity(text, min_words=13) == pytest.approx(sum(target.values()) / 8)

    m = gxpo.method("multirole")
    assert keys_of("multirole")["scoring.weights"] == {"correct": 0.9, "match": 0.0}
    for verdicts in ([True, True, True], [True, False, False]):
        records = [
            {
                "schema": "gxpo.rollouts/1", "group": "q", "task": "q", "id": str(i), "prompt": [1],
                "turns": [{"action": [2]}], "reward": 0.9 * ok, "success": ok,
                "rewards": {"match": d, "correct": float(ok)},
            }
            for i, (ok, d) in enumerate(zip(verdicts, [0.4, 0.6, 0.5], strict=True))
        ]  # fmt: skip
        actual = m.shaped(Forest.from_records(records)).outcome.tolist()
        assert actual == pytest.approx([0.9 * ok + 0.1 * d for ok, d in zip(verdicts, [0.4, 0.6, 0.5], strict=True)])


# ---------------------------------------------------------------- steps of an answer
def test_grpo_vps_adds_progress_to_centred_verdicts() -> None:
    """arXiv 2604.20659v1, eqs. 3 to 6: A = r - mean_g + 1.2 (C_k - C_(k-1)), no std."""
    forest = forest_of(["q"] * 3, [1.0, 0.0, 0.0], [4, 3, 2])
    segments = [[0, 0, 1, 1], [0, 1, 1], [0, 0]]  # of each answer's tokens
    beliefs = [[0.1, 0.4, 0.9], [0.1, 0.3, 0.05], [0.1, 0.2]]  # C_0, C_1, ...
    rows = list(zip([1.0, 0.0, 0.0], beliefs, segments, strict=True))
    target = [[r - 1 / 3 + 1.2 * (c[k + 1] - c[k]) for k in cut] for r, c, cut in rows]
    assert target[0] == pytest.approx([1.0266667, 1.0266667, 1.2666667, 1.2666667], abs=1e-6)
    of_entry = {
        f"belief_{side}": torch.tensor([c[k + after] for _, c, cut in rows for k in cut], dtype=F64)
        for side, after in (("before", 0), ("after", 1))
    }
    actual = by_row(forest, gxpo.method("grpo_vps").advantages(forest, of_entry))
    assert [x for row in actual for x in row] == pytest.approx([x for row in target for x in row])


def test_grpo_vps_cuts_at_every_fourth_uncertain_token() -> None:
    """The same, eqs. 1 and 2 and section 4.3: |U| / M candidates a segment, 4 of them on average."""
    entropy = [2.0 if i % 3 == 1 else 0.1 for i in range(60)]  # 20 candidates: 1, 4, 7, ...
    high = [i for i in range(60) if i % 3 == 1]
    assert entropy_segments(entropy, quantile=0.66) == [high[4], high[8], high[12], high[16]]
    assert entropy_segments(entropy, quantile=0.66, candidates=10) == [high[10]]
    assert entropy_segments([2.0] * 3, quantile=0.0) == []  # fewer than four: the answer is one segment


# ---------------------------------------------------------------- tasks and coefficients
def test_fg_expo_draws_by_a_moving_average() -> None:
    """arXiv 2605.11403v1, eqs. 6 and 7, section 4.1: from 0.5 with EMA factor 0.9; sigma 0.35."""
    visits = {"a": [[1, 1, 1, 0], [1, 1, 1, 1]], "b": [[0, 0, 0, 0, 0, 0]], "c": []}
    rates = SuccessRates(discount=0.9, prior=2.0, window=3)
    smoothed = []
    for name, groups in visits.items():
        x = 0.5
        for verdicts in groups:
            rates.add(name, [Visit(verdicts=[float(v) for v in verdicts])])
            x = 0.9 * x + 0.1 * statistics.fmean(verdicts)
        smoothed.append(x)
    assert smoothed == pytest.approx([0.5725, 0.45, 0.5])
    column = rates.column("smoothed", list(visits))
    assert column.tolist() == pytest.approx(smoothed)

    sampler = keys_of("fg_expo")
    assert (sampler["tasks.sampler.discount"], sampler["objective.kl.coef"]) == (0.9, 0.02)
    weights = [math.exp(-((x - 0.5) ** 2) / (2 * 0.1225)) for x in smoothed]
    sampler_part = part_at("tasks.sampler", sampler["tasks.sampler"])(discount=0.9)
    assert sampler_part.weights({"smoothed": column}).tolist() == pytest.approx([w / sum(weights) for w in weights])
    restored = SuccessRates(discount=0.9, prior=2.0, window=3)
    restored.load_state_dict(rates.state_dict())
    assert restored.column("smoothed", list(visits)).tolist() == column.tolist()
    before = {k: v for k, v in rates.state_dict().items() if k != "visits"}  # of a run that had no such column
    restored.load_state_dict(before)
    assert restored.column("rate", ["a"]).tolist() == rates.column("rate", ["a"]).tolist()


def test_fg_expo_scales_its_kl_by_accuracy() -> None:
    """The same, eqs. 4 and 8: beta rho(acc), rho(x) = (tanh x + 1) / 2, from 0.5 to 0.881."""
    control = ByAccuracy()
    for accuracy, factor in ((0.0, 0.5), (0.25, 0.622459), (0.5, 0.731059), (1.0, 0.880797)):
        control.adjust({"success_rate": accuracy})
        assert control.coefficient(0.02) == pytest.approx(0.02 * factor, abs=1e-8)
        assert factor == pytest.approx((math.tanh(accuracy) + 1) / 2, abs=1e-6)


def test_drive_keeps_72_then_50_then_25_of_175() -> None:
    """arXiv 2511.06307v1, section 3.2: the hardest cases of its three phases."""
    keys = keys_of("drive")
    sampler_part = part_at("tasks.sampler", keys["tasks.sampler"])(shares=keys["tasks.sampler.shares"])
    rate = torch.tensor([((37 * i) % 175) / 175 for i in range(175)], dtype=F64)
    order = sorted(range(175), key=lambda i: float(rate[i]))
    for draw, n_kept in ((0.0, 175), (1.0, 72), (2.0, 50), (3.0, 25), (9.0, 25)):
        weights = sampler_part.weights({"rate": rate, "drawn": torch.full((175,), draw, dtype=F64)})
        assert {i for i in range(175) if weights[i] > 0} == set(order[:n_kept])


# ---------------------------------------------------------------- fiberpo: arXiv 2604.03044, section 3.3.1
@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 4.0])
def test_fiberpo_gates_drifts_and_residuals(scale):
    """Equations 2 to 5, and that the gradient on policy is that of the ratio."""
    lengths = [4, 1, 3]
    forest = forest_of(["a"] * 3, [1.0, 0.0, 0.0], lengths)
    gaps = [[0.3, -0.1, 0.7, -0.55], [0.2], [-0.9, 0.4, -0.2]]
    epsilon, budget = 0.2, {1: 0.55, -1: 0.45}

    def clip(x):
        return min(max(x, -epsilon), epsilon)

    def gate(x, c, t):
        if abs(x) <= c:
            return x
        return math.copysign((t + 1) * c, x) - t * x if abs(x) < (1 + 1 / t) * c else 0.0

    credit = by_row(forest, gxpo.method("fiberpo").advantages(forest))
    total = 0.0
    for r, row in enumerate(gaps):
        logs, t = [scale * x for x in row], len(row)
        s = {1: sum(max(x, 0.0) for x in logs) / t, -1: sum(max(-x, 0.0) for x in logs) / t}
        base = gate(s[1], budget[1], t) - gate(s[-1], budget[-1], t)
        for i, x in enumerate(logs):
            sign = 1 if x >= 0 else -1
            u, v = sign * x - s[sign], -s[-sign]
            residual = clip(sign * u) - clip(sign * v)
            total -= credit[r][i] * math.exp(base + residual) / t / 3
    moved = torch.zeros(sum(lengths), dtype=F64)
    for r, row in enumerate(gaps):
        moved[forest.path_of(r)] = scale * torch.tensor(row, dtype=F64)
    still = torch.full_like(moved, -1.5)
    m = gxpo.method("fiberpo")
    loss = m.loss(forest, PolicyTokens(still + moved, still), advantages=m.advantages(forest))
    assert loss.value.item() == pytest.approx(total, rel=1e-9)
    x = still.clone().requires_grad_()
    on = by_row(forest, torch.autograd.grad(m.loss(forest, PolicyTokens(x, still)).value, x)[0])
    for r, t in enumerate(lengths):
        assert on[r] == pytest.approx([-credit[r][0] / t / 3] * t)


# ---------------------------------------------------------------- pav: arXiv 2410.08146v1, equations 1 to 5, appendix D
def test_pav_adds_the_progress_of_the_best_of_four():
    """Q + alpha A^mu with Q^BoK = 1 - (1 - Q)^K; the value after the last step is the outcome."""
    keys, paper = METHODS["pav"].keys, METHODS["pav"].paper_defaults
    assert (keys["segment.text"], paper["rollout.samples"], paper["objective.kl.coef"]) == ("\n", 20, 0.001)
    groups, rewards, lengths = ["a", "a", "b", "b"], [1.0, 0.0, 1.0, 1.0], [4, 3, 2, 2]
    q = [[0.5, None, 0.25, None], [0.5, 0.0, None], [0.75, 1.0], [0.75, None]]
    forest = forest_of(groups, rewards, lengths)
    values = torch.full((len(forest.token),), math.nan, dtype=F64)
    for r, row in enumerate(q):
        for place, v in zip(forest.path_token[forest.path_of(r)].tolist(), row, strict=True):
            if v is not None:
                values[place] = v
    forest = forest.replace(extras={**forest.extras, "state_value": values})

    def best(v):
        return 1 - (1 - v) ** 4

    expected = []
    for r, row in enumerate(q):
        mean = sum(x for x, g in zip(rewards, groups, strict=True) if g == groups[r]) / groups.count(groups[r])
        states = [v for v in row if v is not None] + [rewards[r]]
        steps = [best(after) - best(before) for before, after in itertools.pairwise(states)]
        step, out = -1, []
        for v in row:
            step += v is not None
            out.append(rewards[r] - mean + 5.0 * steps[step])
        expected.append(out)
    actual = by_row(forest, gxpo.method("pav").advantages(forest))
    assert [x for row in actual for x in row] == pytest.approx([x for row in expected for x in row], abs=1e-9)


# ---------------------------------------------------------------- rloo: "Putting RL back in RLHF", Huang and Ahmadian
def test_rloo_subtracts_the_mean_of_others_from_one_action():
    """The article's three prompts with four answers each, and REINFORCE on the sum of an answer's log-probs."""
    rewards = [1.0, 2, 3, 2, 3, 4, 5, 6, 7, 8, 9, 10]  # first answers of the prompts, second, ...
    groups, lengths = ["a", "b", "c"] * 4, [1, 2, 3, 2, 1, 1, 2, 3, 1, 1, 2, 2]
    expected = []
    for r, g in zip(rewards, groups, strict=True):
        others = [x for x, h in zip(rewards, groups, strict=True) if h == g]
        others.remove(r)
        expected.append(r - sum(others) / 3)
    assert expected[0] == 1 - (2 + 5 + 8) / 3 and expected[7] == 6 - (3 + 2 + 9) / 3
    forest = forest_of(groups, rewards, lengths)
    m = gxpo.method("rloo", {"objective.aggregate": "sequence_sum", "objective.horizon": 1.0})
    credit = m.advantages(forest)
    assert [row[0] for row in by_row(forest, credit)] == pytest.approx(expected)
    x = torch.full_like(credit, -1.5).requires_grad_()
    loss = m.loss(forest, PolicyTokens(x, x.detach()), advantages=credit)
    actual = by_row(forest, torch.autograd.grad(loss.value, x)[0])
    for row, a, n in zip(actual, expected, lengths, strict=True):
        assert row == pytest.approx([-a / 12] * n)


# ---------------------------------------------------------------- p3o: "Rethinking the Role of PPO in RLHF", Wu and Zhu
def test_p3o_follows_the_reward_difference_and_clips_each_answer():
    """(r_1 - r_2) grad log(policy(y_1) / policy(y_2)) / 2, unchanged by what a prompt adds; half of it is the mean."""
    groups, rewards, lengths = ["a", "a", "b", "b"], [0.7, 0.1, 5.0, 5.5], [2, 3, 1, 2]

    def gradient(rewards, moved):
        forest = forest_of(groups, rewards, lengths)
        m = gxpo.method("p3o")
        still = torch.full((sum(lengths),), -1.5, dtype=F64)
        x = still.clone()
        for r, gap in enumerate(moved):
            x[forest.path_of(r)[0]] += gap
        x.requires_grad_()
        loss = m.loss(forest, PolicyTokens(x, still), advantages=m.advantages(forest))
        return by_row(forest, torch.autograd.grad(loss.value, x)[0])

    actual = gradient(rewards, [0.0] * 4)
    for first, second in ((0, 1), (2, 3)):
        half = (rewards[first] - rewards[second]) / 2 / 2 / 2  # two answers, two prompts
        assert actual[first] == pytest.approx([-half] * lengths[first])
        assert actual[second] == pytest.approx([half] * lengths[second])
    shifted = gradient([r + (3.0 if g == "a" else -2.0) for r, g in zip(rewards, groups, strict=True)], [0.0] * 4)
    assert [x for row in shifted for x in row] == pytest.approx([x for row in actual for x in row])
    moved = [math.log(1.3), math.log(1.1), math.log(1.3), math.log(0.7)]  # better ones: 0 and 3
    actual = gradient(rewards, moved)
    assert actual[0] == [0.0] * 2  # better, and beyond 1.2
    assert actual[1] == pytest.approx([1.1 * 0.6 / 8] * 3)
    assert actual[2] == pytest.approx([1.3 * 0.5 / 8])  # worse and likelier: not held
    assert actual[3] == pytest.approx([-0.7 * 0.5 / 8] * 2)


# ---------------------------------------------------------------- pta_grpo: ICML 2026, equations 2 to 4 and 10
def test_pta_grpo_pays_plans_by_softmax_of_execution_accuracy():
    keys = METHODS["pta_grpo"].keys
    assert (keys["rollout.plans"], keys["rollout.executions"]) == (4, 3)
    right = {"a": [[1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0]], "b": [[0, 0, 0]] * 4}
    groups, rewards, infos = [], [], []
    for g, plans in right.items():
        for i, executions in enumerate(plans):
            for verdict in executions:
                groups.append(g), rewards.append(float(verdict)), infos.append({"plan": i})
    forest = forest_of(groups, rewards, [1] * 24, success=rewards).replace(info=infos)
    expected = []
    for plans in right.values():
        s = [sum(executions) / 3 for executions in plans]
        total = sum(math.exp(x / 1.0) for x in s)
        paid = [v + 0.5 * math.exp(s[i] / 1.0) / total for i, ex in enumerate(plans) for v in ex]
        mean = sum(paid) / 12
        std = math.sqrt(sum((x - mean) ** 2 for x in paid) / 12)
        expected += [(x - mean) / std if std > 1e-9 else 0.0 for x in paid]
    m = gxpo.method("pta_grpo")
    actual = [row[0] for row in by_row(forest, m.advantages(m.shaped(forest)))]
    assert actual == pytest.approx(expected, abs=1e-4)
    by_mean = gxpo.method("pta_grpo", {"reward.add.plan_success.function": "plan_success"})
    paid = by_mean.shaped(forest).outcome[:3].tolist()
    assert paid == pytest.approx([1 + 0.5 / 3, 0.5 / 3, 0.5 / 3])
