"""The verl adapter on a stand-in for verl's registries; scripts/checks/check_verl.py does the same on verl itself."""

import math
import os
import random
import re
import sys
import types

import pytest
import torch

from gxpo.adapters import verl as adapter
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest
from gxpo.methods import METHODS
from gxpo.methods.compose import method as compose
from gxpo.parts.protocols import PolicyTokens


def agg_loss(table, mask, mode, dp_size=1, batch_num_tokens=None, global_batch_size=None, loss_scale_factor=None):
    """verl's aggregation written as a loop over rows; the totals are the optimiser batch's."""
    total = 0.0
    for row, own_value in zip(table, mask, strict=True):
        n, local_total = int(own_value.sum()), (row * own_value).sum()
        if mode == "seq-mean-token-mean":
            local_total = local_total / max(n, 1)
        total = total + local_total
    if mode == "token-mean":
        return total / batch_num_tokens * dp_size
    return total / global_batch_size / (loss_scale_factor if mode == "seq-mean-token-sum-norm" else 1) * dp_size


@pytest.fixture
def core(monkeypatch):
    """`verl.trainer.ppo.core_algos`, as far as the adapter needs it."""
    module = types.ModuleType("verl.trainer.ppo.core_algos")
    module.estimators, module.losses, module.agg_loss = {}, {}, agg_loss

    def into(table, once):
        def register(name):
            def keep(fn):
                if once and table.get(name, fn) is not fn:
                    raise ValueError(f"{name} has already been registered")
                table[name] = fn
                return fn

            return keep

        return register

    module.register_adv_est = into(module.estimators, True)
    module.register_policy_loss = into(module.losses, False)
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo.core_algos", module)
    return module


def batch(seed, *, width=7, sizes=(4, 1, 3, 4)):
    """(rewards (bs, R), mask (bs, R), uid): scores on the last token, groups interleaved, one of one row."""
    rng = random.Random(seed)
    uid = [f"q{g}" for g, size in enumerate(sizes) for _ in range(size)]
    rng.shuffle(uid)
    lengths = [rng.randrange(1, width + 1) for _ in uid]
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    rewards = torch.zeros(mask.shape)
    for i, n in enumerate(lengths):
        rewards[i, n - 1] = rng.choice((0.0, 0.5, 1.0))
    return rewards, mask, uid


def grpo_by_hand(rewards, mask, uid, eps=1e-6, single_raw=False):
    """verl's `grpo`: (score - mean) / (std + eps) on the response; a group of one keeps its score / (1 + eps)."""
    scores = rewards.double().sum(1).tolist()
    out = torch.zeros(mask.shape, dtype=torch.float64)
    for i, name in enumerate(uid):
        group = [s for s, u in zip(scores, uid, strict=True) if u == name]
        if len(group) == 1:
            out[i] = scores[i] / (1 + eps) if single_raw else 0.0
            continue
        mean = sum(group) / len(group)
        std = math.sqrt(sum((s - mean) ** 2 for s in group) / (len(group) - 1))
        out[i] = (scores[i] - mean) / (std + eps)
    return out * mask


@pytest.mark.parametrize("seed", range(5))
def test_grpo_with_verls_constants_is_verls_estimator(seed):
    rewards, mask, uid = batch(seed)
    actual, returns = adapter.estimator("grpo@verl")(rewards, mask, uid, config={})
    assert actual.dtype == rewards.dtype and torch.equal(actual, returns)
    assert actual == pytest.approx(grpo_by_hand(rewards, mask, uid, single_raw=True), abs=1e-6)
    assert adapter.estimator("grpo")(rewards, mask, uid)[0] == pytest.approx(grpo_by_hand(rewards, mask, uid), abs=1e-6)


@pytest.mark.parametrize("spec", ["grpo", "ngrpo", "rloo", "dr_grpo", "opo"])
def test_padding_and_the_order_of_rows_change_nothing(spec):
    rewards, mask, uid = batch(11)
    advantages = adapter.estimator(spec)
    plain, _ = advantages(rewards, mask, uid)
    wide, _ = advantages(*(torch.nn.functional.pad(x, (0, 9)) for x in (rewards, mask)), uid)
    assert torch.equal(wide[:, :7], plain) and not wide[:, 7:].any()
    order = random.Random(0).sample(range(len(uid)), len(uid))
    moved, _ = advantages(rewards[order], mask[order], [uid[i] for i in order])
    assert moved == pytest.approx(plain[order], abs=1e-6)
    assert plain.any() and not plain[~mask.bool()].any()


def test_tokens_of_tools_are_left_out():
    rewards, mask, uid = batch(3, width=6)
    mask[:] = torch.tensor([1, 1, 0, 0, 1, 1])
    actual, _ = adapter.estimator("grpo")(rewards, mask, uid)
    assert actual == pytest.approx(grpo_by_hand(rewards, mask, uid), abs=1e-6)


def test_all_wrong_groups_have_credit_under_ngrpo_only():
    mask, uid = torch.ones(4, 2, dtype=torch.int64), ["a"] * 4
    assert not adapter.estimator("grpo")(torch.zeros(4, 2), mask, uid)[0].any()
    # four zeros and a virtual 1: mean 1/5, std sqrt(1/5)
    assert adapter.estimator("ngrpo")(torch.zeros(4, 2), mask, uid)[0] == pytest.approx(-1 / math.sqrt(5), abs=1e-5)


def test_an_unscored_row_is_in_no_statistic():
    rewards, mask, uid = batch(5, sizes=(4,))
    rewards[1, 0] = math.nan
    actual, _ = adapter.estimator("grpo")(rewards, mask, uid)
    rest = [0, 2, 3]
    assert not actual[1].any()
    assert actual[rest] == pytest.approx(grpo_by_hand(rewards[rest], mask[rest], uid[:3]), abs=1e-6)


def test_a_batch_without_uid_is_refused():
    rewards, mask, _ = batch(0)
    with pytest.raises(GxpoError, match="uid"):
        adapter.estimator("grpo")(rewards, mask)


@pytest.mark.slow
def test_every_method_is_registered_or_says_why_not(core, monkeypatch):
    monkeypatch.setenv(adapter.MORE, "rloo+gspo")
    monkeypatch.setattr(adapter, "_FUNCTIONS", {})
    taken = adapter.register_all()
    again = adapter.register_all()
    assert again == taken, "registered twice, the functions are the same"
    for name in METHODS:
        for what, table in (("advantage", core.estimators), ("loss", core.losses)):
            assert (f"gxpo/{name}" in table) == (adapter.why_not(name, what) is None), (name, what)
    assert {"gxpo/grpo", "gxpo/ngrpo", "gxpo/rloo", "gxpo/rloo+gspo"} <= set(core.estimators)
    assert {"gxpo/gspo", "gxpo/gmpo", "gxpo/cispo", "gxpo/dapo", "gxpo/rloo+gspo"} <= set(core.losses)
    rewards, mask, uid = batch(2)
    for name, advantages in core.estimators.items():
        inputs = {"token_level_rewards": rewards, "response_mask": mask, "index": uid}
        actual, _ = advantages(**inputs, config={adapter.SUCCESS_AT: 1.0})
        assert actual.shape == mask.shape and bool(actual.isfinite().all()), name
        assert not actual[~mask.bool()].any(), name


def test_a_misspelt_override_with_a_methods_name_is_refused(core):
    for function in (adapter.estimator, adapter.policy_loss, adapter.register):
        with pytest.raises(ConfigError, match="unknown key 'objectiv'; did you mean 'objective'"):
            function("rloo", {"objectiv": "gspo"})


def test_a_composition_of_ones_own_has_a_name_of_ones_own(core, monkeypatch):
    monkeypatch.setattr(adapter, "_FUNCTIONS", {})
    assert adapter.register("grpo", {"credit.scale": "none"}, name="centred") == ["advantage", "loss"]
    rewards, mask, uid = batch(4)
    actual, _ = core.estimators["gxpo/centred"](token_level_rewards=rewards, response_mask=mask, index=uid)
    scores = rewards.sum(1)
    for i, name in enumerate(uid):
        group = torch.stack([s for s, u in zip(scores, uid, strict=True) if u == name])
        assert actual[i, 0] == pytest.approx(float(scores[i] - group.mean()) if len(group) > 1 else 0.0, abs=1e-6)
    with pytest.raises(ConfigError, match="outcomes"):
        adapter.register("dpo")


class Settings:
    """`ActorConfig`, of which the totals of the optimiser's batch are read."""

    def __init__(self, **totals):
        self.global_batch_info = {"dp_size": 1, "loss_scale_factor": None, **totals}


def policies(seed, rows=6, width=5):
    draw = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=draw, dtype=torch.float64) * 2
    new = old + 0.4 * torch.randn(rows, width, generator=draw, dtype=torch.float64)
    lengths = torch.randint(1, width + 1, (rows, 1), generator=draw)
    mask = (torch.arange(width) < lengths).long()
    advantages = torch.randn(rows, 1, generator=draw, dtype=torch.float64) * mask
    return old, new.requires_grad_(), advantages, mask


def by_hand(name, old, new, advantages, mask):
    """Objective of a whole batch, row by row, from the formulas of PPO's clip (DAPO's bounds), GSPO and CISPO."""
    rows, total = [], 0.0
    for o, n, a, m in zip(old, new, advantages, mask, strict=True):
        length, terms = int(m.sum()), []
        mean = sum((n[t] - o[t]).detach() for t in range(length)) / length
        for t in range(length):
            if name == "gspo":
                ratio = (mean + n[t] - n[t].detach()).exp()
                terms.append(-torch.min(ratio * a[t], ratio.clamp(1 - 3e-4, 1 + 4e-4) * a[t]))
            elif name == "dapo":
                ratio = (n[t] - o[t]).exp()
                terms.append(-torch.min(ratio * a[t], ratio.clamp(0.8, 1.28) * a[t]))
            else:
                ratio = (n[t] - o[t]).exp().detach().clamp_max(1.28)
                terms.append(-ratio * a[t] * n[t])
        rows.append(terms)
    if name == "gspo":
        return sum(sum(terms) / len(terms) for terms in rows) / len(rows)
    for terms in rows:
        total = total + sum(terms)
    return total / int(mask.sum())


@pytest.mark.parametrize(
    ("name", "mode"), [("gspo", "seq-mean-token-mean"), ("dapo", "token-mean"), ("cispo", "token-mean")]
)
@pytest.mark.parametrize("size", [6, 3, 2])
def test_policy_losses_are_their_formulas_in_any_micro_batches(core, name, mode, size):
    old, new, advantages, mask = policies(7)
    config = Settings(batch_num_tokens=int(mask.sum()), global_batch_size=len(mask))
    loss, total = adapter.policy_loss(name), 0.0
    for i in range(0, len(mask), size):
        part = slice(i, i + size)
        value, figures = loss(old[part], new[part], advantages[part], mask[part].bool(), mode, config)
        total = total + value
        assert set(figures) == {"actor/pg_clipfrac", "actor/ppo_kl"}
    (gradient,) = torch.autograd.grad(total, new)
    expected = by_hand(name, old, new, advantages, mask)
    (slope,) = torch.autograd.grad(expected, new)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
    assert (gradient - slope).norm() < 1e-9 * slope.norm()


def test_rollout_correction_weights_multiply_each_tokens_loss(core):
    old, new, advantages, mask = policies(1)
    config = Settings(batch_num_tokens=int(mask.sum()), global_batch_size=len(mask))
    loss = adapter.policy_loss("dapo")
    plain, _ = loss(old, new, advantages, mask, "token-mean", config)
    doubled, _ = loss(
        old, new, advantages, mask, "token-mean", config, torch.full(mask.shape, 2.0, dtype=torch.float64)
    )
    assert float(doubled.detach()) == pytest.approx(2 * float(plain.detach()), rel=1e-12)


def test_another_aggregation_than_the_methods_is_refused(core):
    old, new, advantages, mask = policies(1)
    with pytest.raises(ConfigError, match=r"loss_agg_mode=seq-mean-token-mean"):
        adapter.policy_loss("gspo")(old, new, advantages, mask, "token-mean", Settings())
    with pytest.raises(ConfigError, match=r"loss_scale_factor"):
        adapter.policy_loss("dr_grpo")(old, new, advantages, mask, "seq-mean-token-sum-norm", Settings())


# verl's settings -> the loss that has other bounds, and what is said; those of the same bounds pass
BOUNDS = [
    (
        "grpo@verl",
        "token-mean",
        {"clip_ratio_high": 0.28},
        r"clip_ratio_high=0\.28 is objective\.clip_high=0\.28 here",
    ),
    (
        "grpo@verl",
        "token-mean",
        {"clip_ratio": 0.1, "clip_ratio_low": None},
        r"clip_ratio=0\.1 is objective\.clip_low",
    ),
    ("grpo@verl", "token-mean", {"clip_ratio_c": 10.0}, r"clip_ratio_c=10 is objective\.ratio_max=10 here"),
    (
        "grpo",
        "seq-mean-token-mean",
        {"clip_ratio_c": 10.0},
        r"=10 is not read by objective\.surrogate=clip",
    ),
    ("gspo", "seq-mean-token-mean", {"clip_ratio_low": 0.1}, r"clip_ratio_low=0\.1 is objective\.clip_low=0\.1 here"),
    ("cispo", "token-mean", {"clip_ratio_high": 4.0}, r"clip_ratio_high=4 is objective\.ratio_max=5 here"),
    ("sapo_gate", "seq-mean-token-mean", {"clip_ratio_high": 0.28}, r"is not read by objective\.surrogate=sigmoid"),
    ("sapo_gate", "seq-mean-token-mean", {"tau_pos": 2.0}, r"tau_pos=2 is objective\.tau_positive=2 here"),
]
AGREE = [
    ("dapo", "token-mean", {"clip_ratio_high": 0.28}),
    ("gspo", "seq-mean-token-mean", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    ("cispo", "token-mean", {"clip_ratio_low": 1.0, "clip_ratio_high": 0.28}),
    ("grpo@verl", "token-mean", {"clip_ratio": 0.3, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}),
]


def test_bounds_that_a_loss_lacks_are_refused(core):
    old, new, advantages, mask = policies(1)
    wrong = []
    for name, mode, settings, says in [*BOUNDS, *((*case, None) for case in AGREE)]:
        config = Settings(batch_num_tokens=int(mask.sum()), global_batch_size=len(mask))
        usual = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
        vars(config).update({**usual, **settings})
        try:
            adapter.policy_loss(name)(old, new, advantages, mask, mode, config)
        except ConfigError as error:
            wrong += [] if says and re.search(says, str(error)) else [(name, settings, str(error))]
        else:
            wrong += [(name, settings, "taken")] if says else []
    assert not wrong


def test_a_scale_that_an_estimator_lacks_is_refused():
    rewards, mask, uid = batch(6)
    unscaled = {"norm_adv_by_std_in_grpo": False}
    with pytest.raises(ConfigError, match=r"norm_adv_by_std_in_grpo=False is credit\.scale=none here.*std"):
        adapter.estimator("grpo@verl")(rewards, mask, uid, config=unscaled)
    actual, _ = adapter.estimator("dr_grpo")(rewards, mask, uid, config=unscaled)
    plain, _ = adapter.estimator("grpo@verl", {"credit.scale": "none"})(rewards, mask, uid, config=unscaled)
    assert actual.any() and plain.any()


def test_scores_from_the_threshold_up_are_right_answers():
    rewards, mask, uid = batch(6)
    with pytest.raises(GxpoError, match="verdict"):
        adapter.estimator("grpo_lead")(rewards, mask, uid, config={})
    actual, _ = adapter.estimator("grpo_lead")(rewards, mask, uid, config={adapter.SUCCESS_AT: 1.0})
    assert actual.any() and os.environ.get(adapter.MORE) is None


LOSSES = [name for name in METHODS if adapter.why_not(name, "loss") is None]


def loss_failure(name):
    """Compare a method's loss in verl, in micro-batches of 3 rows, with its own term on all 8 rows; "" if equal."""
    old, new, advantages, mask = policies(3, rows=8, width=6)
    own_mask, width = mask.bool(), mask.shape[1]
    term = compose(name).fill(horizon=float(width)).terms["policy"]
    forest = Forest.from_completions([[1]] * 8, [[[2] * n] for n in mask.sum(1).tolist()], [[0.0]] * 8)
    policy = PolicyTokens(new[own_mask], old[own_mask], proximal_logprob=old[own_mask])
    credit = advantages.expand_as(mask)[own_mask]
    expected, _ = term(forest, policy, credit, torch.ones_like(credit), {}, 0)
    (slope,) = torch.autograd.grad(expected, new)
    summed = term.aggregate == "sequence_sum" and compose(name).terms["policy"].horizon == 1
    mode = adapter.SUMMED if summed else adapter.AGGREGATES[term.aggregate]
    config = Settings(batch_num_tokens=int(mask.sum()), global_batch_size=8)
    config.global_batch_info["loss_scale_factor"] = None if summed else width
    loss, total = adapter.policy_loss(name), 0.0
    for rows in torch.arange(8).split(3):
        total = total + loss(old[rows], new[rows], advantages[rows], own_mask[rows], mode, config)[0]
    (gradient,) = torch.autograd.grad(total, new)
    if float(total.detach()) != pytest.approx(float(expected.detach()), rel=1e-9, abs=1e-12):
        return f"{name}: loss {float(total.detach())}, by the term {float(expected.detach())}"
    if not slope.norm() > 0:
        return f"{name}: the term has no gradient on these rows"
    difference = float((gradient - slope).norm() / slope.norm())
    return "" if difference < 1e-9 else f"{name}: gradients differ by {difference:.1e}"


@pytest.mark.slow
def test_every_policy_loss_is_the_methods_own_term(core):
    failures = [failure for name in LOSSES if (failure := loss_failure(name))]
    assert len(LOSSES) > 150 and not failures, "\n".join(failures)


def test_a_sum_over_a_sequence_has_the_methods_horizon(core):
    old, new, advantages, mask = policies(2)
    config = Settings(batch_num_tokens=int(mask.sum()), global_batch_size=len(mask))
    plain = adapter.policy_loss("dr_grpo", {"objective.horizon": 1.0})
    value, _ = plain(old, new, advantages, mask.bool(), "seq-mean-token-sum", config)
    config.global_batch_info["loss_scale_factor"] = 5
    fifth, _ = adapter.policy_loss("dr_grpo", {"objective.horizon": 5.0})(
        old, new, advantages, mask.bool(), "seq-mean-token-sum-norm", config
    )
    assert float(value.detach()) == pytest.approx(5 * float(fifth.detach()), rel=1e-12)
    with pytest.raises(ConfigError, match=r"loss_scale_factor to 7, not 5"):
        adapter.policy_loss("dr_grpo", {"objective.horizon": 7.0})(
            old, new, advantages, mask.bool(), "seq-mean-token-sum-norm", config
        )
