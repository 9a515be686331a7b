"""The size of a micro-batch is measured: the smallest that is nearly the fastest, within the memory that there is."""

from __future__ import annotations

import pytest
import torch

from gxpo.base.errors import ModelError
from gxpo.learning import measure
from gxpo.learning.torch import TorchLearner
from gxpo.training.models import tiny_model


class Scripted:
    """A learner of which a gradient takes as long as `speed(size)` tokens a second say."""

    device = torch.device("cpu")
    tokens_per_microbatch = 77

    def __init__(self, speed, fits=1 << 30):
        self.speed, self.fits, self.now, self.sizes = speed, fits, 0.0, []

    def gradient(self, forest, loss, *, names):
        size = self.tokens_per_microbatch
        self.sizes.append(size)
        if size > self.fits:
            raise ModelError("out of memory")
        self.now += forest.n_tokens / self.speed(size)

    def measured(self, **keys):
        return measure.tokens_per_microbatch(self, 40, 24, 8, clock=lambda: self.now, **keys)


def test_the_smallest_size_within_five_percent_is_chosen():
    speeds = {1024: 100, 2048: 180, 4096: 195, 8192: 200, 16384: 200}
    learner = Scripted(lambda size: speeds.get(size, 200))
    assert learner.measured(seconds=1e9) == 4096
    assert learner.tokens_per_microbatch == 77


def test_two_doublings_that_bring_nothing_end_it():
    learner = Scripted(lambda size: 100)
    assert learner.measured(seconds=1e9) == 1024
    assert sorted(set(learner.sizes)) == [1024, 2048, 4096]


def test_what_does_not_fit_ends_it():
    learner = Scripted(lambda size: size, fits=5000)
    assert learner.measured(seconds=1e9) == 4096
    assert learner.tokens_per_microbatch == 77


def test_nothing_fits():
    with pytest.raises(ModelError, match="not even 1024 tokens"):
        Scripted(lambda size: 1, fits=10).measured()


def test_a_size_that_would_take_the_free_memory_is_not_tried(monkeypatch):
    used = iter([0, 100, 100, 400])  # before and after each size: 1,024 tokens took 100 bytes, 2,048 took 300
    monkeypatch.setattr(measure, "_memory_in_use", lambda device, mark=False: next(used))
    monkeypatch.setattr(measure, "_free_memory", lambda device: 900)
    learner = Scripted(lambda size: size)
    assert learner.measured(seconds=1e9) == 2048  # 2 * 300 > 0.6 * 900


def test_time_is_limited():
    learner = Scripted(lambda size: size)
    assert learner.measured(seconds=0.5) == 1024


def test_a_real_learner_is_left_as_it_was():
    learner = TorchLearner(tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=1), lr=1e-3)
    before = learner.fingerprint()
    assert measure.tokens_per_microbatch(learner, 5, 4, 3, seconds=0.0) in measure.SIZES
    assert learner.fingerprint() == before and learner.tokens_per_microbatch == 8192
    assert all(p.grad is None for p in learner.model.parameters())
