"""Policy losses against what the authors' code computes, restated token by token: values and slopes."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

import gxpo

F64 = torch.float64


def forest_of(lengths, groups, rewards):
    rows = [[[2 + i] * k] for i, k in enumerate(lengths)]
    return gxpo.Forest.from_completions([[1]] * len(rows), rows, rewards, groups=groups, success=rewards)


def graded(method, forest, log_ratio, credit=None, keys=None, entropy=None, behaviour=None, logprob=None):
    """Value, and slope in every token's log-prob, of the method's loss."""
    m = gxpo.method(method, keys).fill(horizon=8.0, max_length=8, total_steps=4)
    gap = torch.tensor(log_ratio, dtype=F64)
    x = (gap - 1.3 if logprob is None else torch.tensor(logprob, dtype=F64)).requires_grad_()
    old = x.detach() - gap
    below = old if behaviour is None else torch.tensor(behaviour, dtype=F64)
    entropy_P = None if entropy is None else torch.tensor(entropy, dtype=F64)
    policy = gxpo.PolicyTokens(x, below, entropy=entropy_P, proximal_logprob=old)
    advantage_P = m.advantages(forest) if credit is None else torch.tensor(credit, dtype=F64)
    value = m.loss(forest, policy, advantages=advantage_P).value
    return float(value.detach()), torch.autograd.grad(value, x)[0].tolist(), advantage_P.tolist()


# Three answers of unequal lengths: moved up and down by more and less than each bound, one beyond 3, one beyond 10.
LENGTHS, GROUPS, REWARDS = [3, 5, 2], ["a", "a", "a"], [1.0, 0.0, 0.0]
CREDIT = [1.5] * 3 + [-0.5] * 5 + [-0.8] * 2
RATIO = [1.5, 0.5, 1.1, 0.4, 1.25, 2.9, 3.1, 0.95, 12.0, 0.79]
GAP = [math.log(r) for r in RATIO]


# ---------------------------------------------------------------- GPPO
def gppo_token(r, a, low, high, c):
    """max(-A r, -A clip(r, low / stop(r) r, high / stop(r) r)), and for A < 0 no more than -A c: value, slope."""
    inside, slope = -a * r, -a * r
    clipped_ratio = min(max(r, low), high)
    if -a * clipped_ratio > inside:
        inside = slope = -a * clipped_ratio  # the bound carries r / stop(r)
    if a < 0 and -a * c < inside:
        return -a * c, 0.0
    return inside, slope


@pytest.mark.parametrize(
    ("name", "high", "c"), [("gppo", 1.2, 3.0), ("gppo@paper", 1.28, 10.0)], ids=["default", "script"]
)
def test_gppo(name, high, c):
    """Kwai-Klear/KlearReasoner@3422f6d verl/trainer/ppo/core_algos.py 503-525 (line 519 since commit e0f7bb1) and
    agg_loss; clip_ratio_c 3 in verl/trainer/config/ppo_trainer.yaml, 10 and a clip above of 0.28 in
    recipe/dapo/perf_run_dapo_ours_math.sh."""
    losses, slopes = zip(*(gppo_token(r, a, 0.8, high, c) for r, a in zip(RATIO, CREDIT, strict=True)), strict=True)
    value, actual, _ = graded(name, forest_of(LENGTHS, GROUPS, REWARDS), GAP, CREDIT)
    assert value == pytest.approx(sum(losses) / 10, abs=1e-12)
    assert actual == pytest.approx([s / 10 for s in slopes], abs=1e-12)
    assert [s == 0 for s in actual] == [a < 0 and r > c for r, a in zip(RATIO, CREDIT, strict=True)]


def test_gppo_with_factors():
    """The same file, 594-617: factors on both bounds, which leave who is held to PPO's rule."""
    losses, slopes = [], []
    for r, a in zip(RATIO, CREDIT, strict=True):
        bound = 0.25 * 0.8 if r < 0.8 and a < 0 else 1.2 if r > 1.2 and a > 0 else r
        over = a < 0 and -a * bound > -a * 3.0
        losses.append(-a * 3.0 if over else -a * bound)
        slopes.append(0.0 if over else -a * bound)
    value, actual, _ = graded("gppo", forest_of(LENGTHS, GROUPS, REWARDS), GAP, CREDIT, {"objective.slope_low": 0.25})
    assert value == pytest.approx(sum(losses) / 10, abs=1e-12)
    assert actual == pytest.approx([s / 10 for s in slopes], abs=1e-12)


# ---------------------------------------------------------------- FIPO
def fipo(lengths, gaps, credits, c=10.0, safe=10.0, decay=32.0, low=1.0, high=1.2, clip=(0.2, 0.28)):
    """Sum over the tokens of the sequences that stay, over their number: value and slopes."""
    losses, slopes, kept_values, at = [], [], [], 0
    for n in lengths:
        rows = list(zip(gaps[at : at + n], credits[at : at + n], strict=True))
        at += n
        mine, turns, lower = [], [], 0
        for t, (gap, a) in enumerate(rows):
            future = sum(2 ** (-(k - t) / decay) * g for k, (g, _) in enumerate(rows) if k >= t and not g > math.log(c))
            r, f = math.exp(gap), min(max(math.exp(future), low), high)
            if a < 0 and r > safe:
                f = min(max(f, 0.8), 1.0)
            weighted = a * f
            one, two = -weighted * r, -weighted * min(max(r, 1 - clip[0]), 1 + clip[1])
            loss, slope = (one, one) if one >= two else (two, 0.0)
            if a < 0 and loss > -weighted * c:
                loss, slope, lower = -weighted * c, 0.0, lower + 1
            mine.append(loss)
            turns.append(slope)
        stays = not lower > 1
        kept_values += [stays] * n
        losses += mine
        slopes += turns
    count = sum(kept_values)
    return (
        sum(x for x, k in zip(losses, kept_values, strict=True) if k) / count,
        [s / count if k else 0.0 for s, k in zip(slopes, kept_values, strict=True)],
    )


@pytest.mark.parametrize("beyond", [1, 2, 3], ids=["one is tolerated", "two are not", "nor are three"])
def test_fipo(beyond):
    """qwenpilot/FIPO@ee25452 verl/trainer/ppo/core_algos.py 941-1120 (a sequence of more than one dual-clipped token is
    in neither sum of the masked mean) with the constants of recipe/fipo/run_fipo_qwen2.5_32b.sh."""
    lengths = [4, 5, 3]
    gaps = [0.3, -0.2, 0.15, 0.05, -0.4, 0.1, 0.2, 0.02, -0.1, 0.3, 2.1, -0.05]
    for place in (5, 7, 8)[:beyond]:
        gaps[place] = math.log(11.0 + place)
    gaps[2] = math.log(15.0)  # of a sequence that is rewarded: left out of the future, and nothing else
    credits = [1.0] * 4 + [-0.7] * 5 + [-1.1] * 3
    value, slopes = fipo(lengths, gaps, credits)
    forest = forest_of(lengths, ["a"] * 3, [1.0, 0.0, 0.0])
    actual, gradient, _ = graded("fipo", forest, gaps, credits)
    assert actual == pytest.approx(value, abs=1e-12)
    assert gradient == pytest.approx(slopes, abs=1e-12)
    assert (not any(gradient[4:9])) == (beyond > 1)


# ---------------------------------------------------------------- HAPO
def hapo_credit(lengths, groups, rewards):
    out = [0.0] * len(rewards)
    for g in dict.fromkeys(groups):
        rows = [i for i, h in enumerate(groups) if h == g]
        tokens = [rewards[i] for i in rows for _ in range(lengths[i])]
        mean, std = statistics.fmean(tokens), statistics.pstdev(tokens)
        own_rewards = {i: (rewards[i] - mean) / (std + 1e-6) for i in rows}
        if any(abs(a) >= 5 for a in own_rewards.values()):
            r = [rewards[i] for i in rows]
            own_rewards = {i: (rewards[i] - statistics.fmean(r)) / (statistics.stdev(r) + 1e-6) for i in rows}
        for i in rows:
            out[i] = own_rewards[i]
    return [a for a, n in zip(out, lengths, strict=True) for _ in range(n)]


def hapo_scores(entropies, q=0.8):
    """compute_entropy_h, but for the sign of what lies below the pivot, which the paper has and the code loses."""
    logs = [math.log(max(h, 1e-8)) for h in entropies]
    pivot = sorted(logs)[round(q * (len(logs) - 1))]
    gaps = [x - pivot for x in logs]
    std = math.sqrt(max(statistics.fmean(x * x for x in gaps), 1e-8))
    z = [x / std for x in gaps]
    top, bottom = max(max(z), 1e-8), min(min(z), -1e-8)
    return [x / top if x > 0 else -(x / bottom) for x in z]


def hapo_token(r, a, h, c=10.0):
    low, high = (0.2 * (1 - h), 0.2) if h <= 0 else (0.2, 0.2 * (1 + h))
    inside = 1 - low / 2 < r < 1 + high / 2
    a = a * (1 + h) if inside == (h <= 0) else a
    one, two = -a * r, -a * min(max(r, 1 - low), 1 + high)
    loss, slope = (one, one) if one >= two else (two, 0.0)
    return (-a * c, 0.0) if a < 0 and loss > -a * c else (loss, slope)


def test_hapo():
    """starriver030515/HAPO@7671dde verl/trainer/ppo/core_algos.py 32-156, 296-367 and 770-805, with the settings of
    recipe/qwen2.5_math_7b.sh: quantile .8 by the nearest token, clip .2, dual clip 10, a masked mean. A group of which
    one answer is longer than all the others together by far reaches 5 and has GRPO's credit."""
    lengths, groups = [2, 4, 1, 3, 1, 30, 2], ["a", "a", "a", "b", "b", "c", "c"]
    rewards = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    lengths[5] = 60
    draw = torch.Generator().manual_seed(3)
    n = sum(lengths)
    gaps = (0.3 * torch.randn(n, generator=draw, dtype=F64)).tolist()
    entropy = torch.rand(n, generator=draw, dtype=F64).tolist()
    gaps[3], entropy[4] = math.log(12.0), 0.0
    credit = hapo_credit(lengths, groups, rewards)
    assert abs((1.0 - 2 / 62) / math.sqrt(2 / 62 * 60 / 62)) >= 5 and credit[-1] == pytest.approx(0.707106, abs=1e-5)
    h = hapo_scores(entropy)
    each = [hapo_token(math.exp(g), a, x) for g, a, x in zip(gaps, credit, h, strict=True)]
    forest = forest_of(lengths, groups, rewards)
    value, actual, own_value = graded("hapo", forest, gaps, entropy=entropy)
    assert own_value == pytest.approx(credit, abs=1e-9)
    assert value == pytest.approx(sum(x for x, _ in each) / n, abs=1e-9)
    assert actual == pytest.approx([s / n for _, s in each], abs=1e-9)
    assert min(h) == -1.0 and max(h) == 1.0 and 0.0 in h


# ---------------------------------------------------------------- DisCO
def test_disco():
    """Optimization-AI/DisCO@bd2b078 verl/verl/trainer/ppo/core_algos.py 540-610 with tau 10, delta 1e-4 and beta 1e3
    (scripts/train/run_disco_logL_1.5b_8k.sh): the KL is a masked mean over the answers of all questions, the one in
    which all are right among them. Slopes alone: the loss's value there has no meaning, its logarithm is detached."""
    lengths, groups = [2, 1, 3, 2, 4, 1], ["a", "a", "a", "b", "b", "b"]
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    logprob = [-1.0, -0.4, -2.0, -0.3, -1.1, -0.6, -0.9, -0.2, -0.5, -0.7, -1.4, -0.8, -0.1]
    gaps = [-0.02, 0.01, -0.03, 0.02, -0.05, 0.01, -0.04, -0.02, 0.03, -0.06, -0.01, -0.02, 0.0]
    owner = [i for i, n in enumerate(lengths) for _ in range(n)]
    score = [statistics.fmean(x for x, o in zip(logprob, owner, strict=True) if o == i) for i in range(6)]
    total = sum(math.exp(score[i] / 10) for i in (1, 2))
    questions, kl = 2, statistics.fmean(-g for g in gaps)
    by_row = {0: -1.0, 1: math.exp(score[1] / 10) / total, 2: math.exp(score[2] / 10) / total}
    pull = max(1e3 * (kl - 1e-4), 0.0)
    assert pull > 0
    slopes = [by_row.get(o, 0.0) / lengths[o] / questions - pull / len(owner) for o in owner]
    forest = forest_of(lengths, groups, rewards)
    _, actual, _ = graded("disco", forest, gaps, logprob=logprob)
    assert actual == pytest.approx(slopes, abs=1e-9)
    mixed = statistics.fmean(-g for g in gaps[:6])  # the groups with both labels alone
    slopes = [by_row[o] / lengths[o] / questions - max(1e3 * (mixed - 1e-4), 0.0) / 6 for o in owner[:6]]
    _, actual, _ = graded("disco", forest, gaps, logprob=logprob, keys={"objective.constrained": "contrasted"})
    assert actual == pytest.approx([*slopes, *[0.0] * 7], abs=1e-9)


# ---------------------------------------------------------------- LUFFY
def test_luffy():
    """ElliottYan/LUFFY@01f4ae0 luffy/verl/verl/mix_src/mix_core_alg.py 100-290 (p_div_p_0.1, loss_remove_clip,
    loss_remove_token_mean) and mix_actor.py 201-226, as exp_scripts/train.sh sets them: of a micro-batch of rows the
    *sum* of their tokens' losses over the width, less 0.001 times the *mean* of entropies. Here the mean over rows is
    taken, so that the same balance is 0.001 over the number of rows."""
    lengths, rewards, width = [2, 3, 1, 4], [1.0, 0.0, 0.0, 1.0], 8.0
    gaps = [0.4, -0.2, 0.9, -0.8, 0.1, 1.5, 0.0, 0.0, 0.0, 0.0]
    logprob = [-0.6, -0.9, -0.2, -1.7, -0.4, -0.3, -0.05, -2.3, -4.0, -1.0]
    entropy = [0.5, 0.1, 0.9, 1.4, 0.2, 0.7, 0.3, 1.1, 0.6, 0.8]
    owner = [i for i, n in enumerate(lengths) for _ in range(n)]
    value, slopes = 0.0, []
    for g, x, o in zip(gaps, logprob, owner, strict=True):
        a, pi = rewards[o] - 0.5, math.exp(x)  # the last row is the teacher's
        value += -a * (pi / (pi + 0.1) if o == 3 else math.exp(g)) / width
        slopes.append(-a * (0.1 * pi / (pi + 0.1) ** 2 if o == 3 else math.exp(g)) / width)
    value -= 0.001 * statistics.fmean(entropy)
    behaviour = [x - g if o < 3 else math.nan for g, x, o in zip(gaps, logprob, owner, strict=True)]
    actual, gradient, _ = graded(
        "luffy",
        forest_of(lengths, ["a"] * 4, rewards),
        gaps,
        keys={"objective.entropy.coef": 0.001 / 4},
        entropy=entropy,
        behaviour=behaviour,
        logprob=logprob,
    )
    assert 4 * actual == pytest.approx(value, abs=1e-12)
    assert [4 * s for s in gradient] == pytest.approx(slopes, abs=1e-12)
