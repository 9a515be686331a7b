"""The learner's steps, references and checkpoints."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.learning.llamas import clean_llama, random_forest, small_llama

from gxpo.base.errors import CheckpointError, ModelError
from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner

FOREST = random_forest(1)


def loss(x):
    weight = torch.linspace(-1, 1, FOREST.n_entries, dtype=torch.float64)
    return -(x["logprob"] * weight).sum() / FOREST.n_entries


def learner(**settings) -> TorchLearner:
    return TorchLearner(small_llama(), **{"lr": 1e-2, "weight_decay": 0.1, "tokens_per_microbatch": 60, **settings})


def test_an_empty_step_changes_nothing():
    one = learner()
    one.step(FOREST, loss)  # momentum and decay are at work
    before, crc = one.tensors(), one.fingerprint()
    info = one.step(FOREST, loss, active=torch.zeros(FOREST.n_entries, dtype=torch.bool))
    assert info.empty and info.microbatches == 0
    after = one.tensors()
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
    assert one.fingerprint() == crc and one.meta() == {"steps": 1}


def test_a_gradient_of_zero_is_still_a_step():
    one = learner()
    crc = one.fingerprint()
    info = one.step(FOREST, lambda x: (0.0 * x["logprob"]).sum())
    assert not info.empty and info.grad_norm == 0.0 and one.meta() == {"steps": 1}
    assert one.fingerprint() != crc  # decay


def test_adamw_by_hand():
    # Loshchilov & Hutter (2019), algorithm 2, on one matrix and one vector, with clipping at half the norm
    model = clean_llama()
    one = TorchLearner(model, lr=0.01, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-8, max_grad_norm=None)
    norm = one.step(FOREST, loss).grad_norm
    two = TorchLearner(clean_llama(), lr=0.01, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-8, max_grad_norm=norm / 2)
    names = ("model.layers.0.self_attn.q_proj.weight", "model.norm.weight")
    p, m, v = {n: two.snapshot()[n] for n in names}, dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for t in (1, 2, 3):
        gradient = two.gradient(FOREST, loss)
        total = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))
        info = two.step(FOREST, loss)
        assert math.isclose(info.grad_norm, total, rel_tol=1e-6)
        for name in names:
            g = gradient[name] * min(1.0, norm / 2 / (total + 1e-6))
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.99 * v[name] + 0.01 * g * g
            decay = 0.1 if p[name].dim() == 2 else 0.0
            step = (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.99**t)).sqrt() + 1e-8)
            p[name] = p[name] - 0.01 * decay * p[name] - 0.01 * step
            assert torch.allclose(two.snapshot()[name], p[name], rtol=0, atol=1e-9)


def test_the_same_seed_twice_is_bit_identical():
    crcs = []
    for _ in range(2):
        one = learner()
        crcs.append([(one.step(FOREST, loss).loss, one.fingerprint()) for _ in range(3)])
    assert crcs[0] == crcs[1] and len({crc for _, crc in crcs[0]}) == 3


@pytest.mark.parametrize(
    "settings", [{}, {"lora": LoraSettings(rank=2)}, {"dtype": "bfloat16"}, {"schedule": "cosine", "total_steps": 9}]
)
def test_a_checkpoint_continues_bit_for_bit(settings, tmp_path):
    from safetensors.torch import load_file, save_file

    one = learner(**settings)
    for _ in range(2):
        one.step(FOREST, loss)
    save_file(one.tensors(), tmp_path / "learner.safetensors")
    other = learner(**settings)
    other.load_tensors(load_file(tmp_path / "learner.safetensors"), one.meta())
    assert one.fingerprint() == other.fingerprint()
    for _ in range(2):
        one.step(FOREST, loss)
        other.step(FOREST, loss)
    assert one.fingerprint() == other.fingerprint()
    assert all(torch.equal(x, other.tensors()[n]) for n, x in one.tensors().items())


def test_a_checkpoint_before_the_first_step():
    one, other = learner(), TorchLearner(small_llama(seed=5), lr=1e-2)
    other.load_tensors(one.tensors(), one.meta())
    assert one.fingerprint() == other.fingerprint()


def test_damaged_checkpoints_are_refused_and_nothing_is_loaded():
    one = learner()
    one.step(FOREST, loss)
    other = learner()
    crc, tensors = other.fingerprint(), one.tensors()
    for bad in (
        {n: x for n, x in tensors.items() if n != "exp_avg/model.norm.weight"},
        {**tensors, "parameter/extra": torch.zeros(1)},
        {**tensors, "parameter/model.norm.weight": torch.zeros(3)},
        {**tensors, "exp_avg_sq/model.norm.weight": torch.zeros(3)},
    ):
        with pytest.raises(CheckpointError):
            other.load_tensors(bad, one.meta())
        assert other.fingerprint() == crc and other.meta() == {"steps": 0}
    with pytest.raises(CheckpointError, match="steps"):
        other.load_tensors(tensors, {})


def test_snapshot_and_restore():
    one = learner()
    snapshot, crc = one.snapshot(), one.fingerprint()
    one.step(FOREST, loss)
    assert one.fingerprint() != crc
    one.restore(snapshot)
    assert one.fingerprint() == crc


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, alpha=64)])
def test_the_reference_stays_where_the_policy_was(lora):
    one = learner(lora=lora, reference=True)
    start = one.outputs(FOREST)["logprob"]
    assert torch.equal(start, one.outputs(FOREST, policy="reference")["logprob"])
    for _ in range(3):
        one.step(FOREST, loss)
    assert torch.equal(start, one.outputs(FOREST, policy="reference")["logprob"])
    assert float((one.outputs(FOREST)["logprob"] - start).abs().max()) > 1e-3
    assert all(p.requires_grad for n, p in one.model.named_parameters() if "lora_" in n)


def test_a_reference_is_kept_only_when_asked_for():
    with pytest.raises(ModelError, match="reference=True"):
        learner().outputs(FOREST, policy="reference")
    with pytest.raises(ModelError, match="'current' or 'reference'"):
        learner().outputs(FOREST, policy="old")


def test_lora_trains_adapters_alone_and_keeps_the_random_state():
    state = torch.random.get_rng_state()
    one, two = learner(lora=LoraSettings(rank=2)), learner(lora=LoraSettings(rank=2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert one.fingerprint() == two.fingerprint() != learner(lora=LoraSettings(rank=2, seed=1)).fingerprint()
    frozen = {n: p.clone() for n, p in one.model.named_parameters() if "lora_" not in n}
    one.step(FOREST, loss)
    assert all(torch.equal(p, frozen[n]) for n, p in one.model.named_parameters() if n in frozen)
    assert all("lora_" in n for n in one.snapshot())


def test_low_precision_parameters_are_updated_in_float32():
    one = TorchLearner(small_llama(), lr=1e-6, dtype="bfloat16", tokens_per_microbatch=60)
    assert {p.dtype for p in one.model.parameters()} == {torch.bfloat16}
    assert one.model.model.rotary_emb.inv_freq.dtype == torch.float32
    start = one.snapshot()
    for _ in range(3):
        one.step(FOREST, loss)
    after = one.snapshot()
    name = "model.layers.0.mlp.up_proj.weight"
    assert start[name].dtype == torch.float32
    moved = (after[name] - start[name]).abs()
    assert 1e-6 < float(moved.max()) < 1e-5  # three steps of 1e-6, each lost in bfloat16's own rounding
    exact = TorchLearner(small_llama(), lr=0.0)
    difference = one.outputs(FOREST)["logprob"] - exact.outputs(FOREST)["logprob"]
    assert float(difference.abs().mean()) < 0.05


@pytest.mark.parametrize("couples", ["token", "step"])
def test_a_gradient_that_is_not_finite_takes_no_step(couples):
    """Neither parameters nor momentum, decay and the count of steps change."""
    one, other = learner(), learner()
    for each in (one, other):
        each.step(FOREST, loss)
    before = one.tensors()
    info = one.step(FOREST, lambda x: (x["logprob"] * 1e308 * 10).sum(), couples=couples)
    assert info.nonfinite in one.optimiser.parameter_by_name and not info.empty and not math.isfinite(info.grad_norm)
    after = one.tensors()
    assert all(torch.equal(before[n], after[n]) for n in before) and one.meta() == {"steps": 1}
    assert all(p.grad is None for p in one.model.parameters())
    for each in (one, other):
        assert not each.step(FOREST, loss).nonfinite
    assert one.fingerprint() == other.fingerprint()


def test_a_clipped_gradient_whose_squares_overflow_is_followed():
    moves = []
    for scale, clip in ((1.0, 1e-9), (1e25, 1e-9), (1e25, None)):
        one = learner(max_grad_norm=clip, eps=1e-3, weight_decay=0.0)
        start = one.snapshot()
        info = one.step(FOREST, lambda x, scale=scale: scale * loss(x))
        moves.append(torch.cat([(x - start[n]).reshape(-1) for n, x in one.snapshot().items()]))
        norm = info.grad_norm
    torch.testing.assert_close(moves[1], moves[0], rtol=1e-4, atol=1e-12)
    assert math.isinf(norm) and info.nonfinite == "the sum of its squares" and not bool(moves[2].any())


def test_a_loss_that_fails_leaves_no_gradient_behind():
    one = learner()
    calls = []

    def fails(x):
        calls.append(0)
        if len(calls) > 1:
            raise RuntimeError("no")
        return loss(x)

    with pytest.raises(RuntimeError):
        one.step(FOREST, fails)
    assert all(p.grad is None for p in one.model.parameters())


def test_schedule_counts_steps_taken():
    one = learner(schedule="linear", warmup_steps=2, total_steps=4)
    rates = []
    for active in (True, False, True, True, True):
        rates.append(one.optimiser.current_lr)
        one.step(FOREST, loss, active=torch.full((FOREST.n_entries,), active))
    assert rates == [0.005, 0.01, 0.01, 0.01, 0.005]


def test_refusals():
    with pytest.raises(ModelError, match="tokens_per_microbatch"):
        learner(tokens_per_microbatch=0)
    with pytest.raises(ModelError, match="'int8'"):
        learner(dtype="int8")
    with pytest.raises(ModelError, match="layout"):
        learner(layout="dense")
    with pytest.raises(ModelError, match="no trainable parameters"):
        TorchLearner(small_llama().requires_grad_(False), lr=0.1)
    with pytest.raises(ValueError, match="active"):
        learner().step(FOREST, loss, active=torch.ones(3, dtype=torch.bool))


@pytest.mark.slow
def test_importing_the_learner_imports_no_transformers():
    code = (
        "import sys, gxpo.learning.torch, gxpo.learning.base, gxpo.sampling.engines.torch;"
        "print(sorted({'transformers', 'peft'} & set(sys.modules)))"
    )
    source = Path(__file__).parents[2] / "src"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(source)}, check=True
    )
    assert out.stdout.strip() == "[]"
