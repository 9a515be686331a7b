"""What the learner says when memory runs out, and how it sees steps that low precision rounds away."""

from __future__ import annotations

import pytest
import torch

from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.optimiser import Optimiser
from gxpo.learning.torch import TorchLearner
from gxpo.training.models import tiny_model

FOREST = Forest.from_completions([[5, 6, 7]], [[[8, 9], [9, 8, 7]]], [1.0, 0.0])


def loss(x):
    return x["logprob"].mean()


@pytest.fixture
def learner():
    return TorchLearner(tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=1), lr=1e-3)


def device_is_full(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore of it")


def allocator_fails(*_):
    torch.empty(1 << 60)


@pytest.mark.parametrize("failure", [device_is_full, allocator_fails])
@pytest.mark.parametrize("act", ["step", "gradient", "outputs"])
def test_out_of_memory_names_the_setting_and_moves_nothing(learner, failure, act):
    before = learner.fingerprint()
    hook = learner.model.model.rotary_emb.register_forward_pre_hook(failure)
    with pytest.raises(ModelError, match=r"learner\.tokens_per_microbatch \(now 8192\)") as caught:
        getattr(learner, act)(FOREST, *([loss] if act != "outputs" else []))
    assert "\n" not in str(caught.value)
    hook.remove()
    assert learner.fingerprint() == before
    assert not learner.step(FOREST, loss).empty and learner.fingerprint() != before


def test_other_errors_are_not_taken_for_it(learner):
    def broken(*_):
        raise RuntimeError("shapes do not match")

    learner.model.model.rotary_emb.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        learner.step(FOREST, loss)


def test_a_step_too_small_for_bfloat16_is_seen_and_not_lost():
    """Adam's first step is lr for every weight of non-zero gradient. Near 1 bfloat16 has steps of 2^-7 above and 2^-8
    below, so 1e-4 rounds away; near 1e-3 its steps are 2^-17 (7.6e-6), so 1e-4 shows."""
    large, small = (torch.nn.Parameter(torch.full((4,), x, dtype=torch.bfloat16)) for x in (1.0, 1e-3))
    optimiser = Optimiser({"large": large, "small": small}, lr=1e-4, max_grad_norm=None)
    for _ in range(40):
        for p in (large, small):
            p.grad = torch.ones_like(p)
        optimiser.collect()
        optimiser.step()
        if optimiser.steps == 1:
            assert optimiser.moved_share == 0.5
            assert large.tolist() == [1.0] * 4 and small.tolist() != [1e-3] * 4
        optimiser.zero()
    # 40 steps of 1e-4 are 0.004 = 2^-8: what was rounded away each time has arrived
    assert large.tolist() == [1 - 2**-8] * 4
    assert optimiser.parameters()["large"].tolist() == pytest.approx([0.996] * 4, abs=1e-5)


def test_what_float32_weights_move_is_told_by_a_sample():
    """A frozen half: Adam moves what has a gradient and leaves what has none."""
    pushed, still = (torch.nn.Parameter(torch.ones(60_000)) for _ in range(2))
    optimiser = Optimiser({"pushed": pushed, "still": still}, lr=1e-3)
    pushed.grad = torch.ones_like(pushed)
    optimiser.step()
    assert optimiser.moved_share == 0.5 and not optimiser.copies
    # near 1 float32 has steps of 2^-24 (6e-8) below: a step of 1e-9 is lost in every weight
    lost = Optimiser({"pushed": torch.nn.Parameter(torch.ones(300_000))}, lr=1e-9)
    lost.parameter_by_name["pushed"].grad = torch.ones(300_000)
    lost.step()
    assert lost.moved_share == 0.0


def test_a_learning_rate_that_bfloat16_hardly_sees_is_warned_of(tmp_path):
    import gxpo

    keys = {"tasks.per_step": 2, "eval.tasks": 2, "sampling.max_new_tokens": 4, "learner.dtype": "bfloat16"}
    reward = {"optim.lr": 1e-6}
    with pytest.warns(UserWarning, match=r"optim\.lr=1e-06 changes .* of the bfloat16 weights"):
        gxpo.train("tiny:cold", "arithmetic", "grpo", 1, lambda tokens: float(sum(tokens)), out=tmp_path / "run",
                   set=keys | reward)  # fmt: skip
