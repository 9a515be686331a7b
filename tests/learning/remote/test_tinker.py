"""The engine over a Tinker server, on a server of the tests: conformance, reductions, states, samplers, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.learning.llamas import small_llama
from torch import Tensor

from gxpo.base.errors import CheckpointError, ConfigError, ModelError
from gxpo.conformance.engines import check, forest
from gxpo.learning.remote import RemoteLearner
from gxpo.learning.remote.probe import probe
from gxpo.learning.remote.tinker import DIVISORS, Reduction
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Request, Sampling, StreamKey, TokenRow

pytest.importorskip("tinker")
from tests.learning.remote.tinker_server import Fake, Server

from gxpo.learning.remote.tinker import Adapter, TinkerEngine
from gxpo.sampling.engines.tinker import TinkerSampler

MEAN = "mean over a row's tokens and a step's rows"  # SkyRL's JAX backend


@contextmanager
def served(**settings: Any) -> Iterator[tuple[Fake, TinkerEngine]]:
    fake = Fake(small_llama(vocab_size=64), **settings)
    with Server(fake) as server:
        yield fake, TinkerEngine(server.url, "fake", adapter=Adapter(rank=8))


class Seen(TinkerEngine):
    """An engine whose server is in this process, so that gradients can be looked at."""

    fake: Fake

    def gradients(self) -> dict[str, Tensor]:
        self._send(self._pending_pulls, self.reduction)
        trained = self.fake.models[self._client.model_id]
        self.fake.gradient(trained)
        trained.calls = []
        return {n: p.grad.clone() for n, p in trained.model.named_parameters() if p.grad is not None}


@pytest.mark.slow
def test_the_engine_conforms_whatever_the_server_divides_by() -> None:
    for way in ("sum", MEAN):
        fake = Fake(small_llama(vocab_size=64), reduction=way)
        with Server(fake) as server:
            engine = Seen(server.url, "fake")
            engine.fake = fake
            assert engine.reduction.name == way
            results = check(engine, TorchLearner(small_llama(vocab_size=64), lr=0.0))
            assert [str(r) for r in results if not r.passed] == []
            assert [r.tolerance for r in results if r.name.startswith("gradient")] == [1e-5] * 5


@pytest.mark.slow
@pytest.mark.parametrize("way", sorted(set(DIVISORS) - {"sum", MEAN}))
def test_reductions_are_told_apart(way: str) -> None:
    with served(reduction=way) as (_, engine):
        assert engine.reduction.name == way


def test_a_reduction_that_is_not_known_is_refused() -> None:
    fake = Fake(small_llama(vocab_size=64))

    class Odd(Reduction):
        def divisor(self, row: Any, call: Any, step: Any) -> float:
            return 1 + 0.5 * len(call)

    fake.reduction = Odd("odd")
    with Server(fake) as server, pytest.raises(ModelError, match=r"docs/train-engines\.md"):
        TinkerEngine(server.url, "fake")


def test_a_server_that_reports_no_norm_is_refused() -> None:
    with Server(Fake(small_llama(vocab_size=64), norm=False)) as server, pytest.raises(ModelError, match="no gradient"):
        TinkerEngine(server.url, "fake")


@pytest.mark.slow
def test_a_server_that_does_not_clip_is_noticed() -> None:
    row = TokenRow(torch.tensor([3, 4, 5]), torch.tensor([1, 2]), torch.ones(2))
    for clips in (True, False):
        with served(clips=clips) as (_, engine):
            assert engine.clips is clips
            engine.pull([row], {"logprob": [torch.tensor([1.0, -0.5])]})
            if not clips:
                with pytest.raises(ConfigError, match=r"optim\.max_grad_norm=0"):
                    engine.step(0.01, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("clips", [True, False])
def test_a_server_whose_eps_is_fixed_is_measured_by_small_slopes(clips: bool) -> None:
    fake = Fake(small_llama(vocab_size=64), reduction=MEAN, clips=clips, eps=1e-8)
    with Server(fake) as server:
        engine = Seen(server.url, "fake")
        engine.fake = fake
        assert engine.fixed_eps == 1e-8 and engine.clips is clips and engine.reduction.name == MEAN
        results = check(engine, TorchLearner(small_llama(vocab_size=64), lr=0.0))
        assert [str(r) for r in results if not r.passed] == []
        assert probe(engine, TokenRow(torch.tensor([3, 4, 5]), torch.tensor([1]), torch.ones(1))).fixed_eps == 1e-8
    with served(clips=clips) as (_, engine):
        assert engine.fixed_eps is None


@pytest.mark.slow
def test_steps_states_and_slopes_that_are_not_finite(tmp_path: Path) -> None:
    with served() as (fake, engine):
        learner, standard = RemoteLearner(engine, lr=0.01), TorchLearner(small_llama(vocab_size=64), lr=0.01)
        probe_forest = forest(64)

        def loss(x: Any) -> Tensor:
            return (x["logprob"].sin() * torch.linspace(-1, 1, probe_forest.n_entries, dtype=torch.float64)).sum()

        for _ in range(2):
            mine, theirs = learner.step(probe_forest, loss), standard.step(probe_forest, loss)
            assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-5)
        after = standard.outputs(probe_forest)["logprob"]
        # AdamW of float32 gradients: where one is near 0, its sign is rounding
        assert torch.allclose(learner.outputs(probe_forest)["logprob"], after, rtol=0, atol=2e-4)

        fingerprint = engine.fingerprint()
        learner.save(tmp_path / "engine")
        meta = learner.meta()
        learner.step(probe_forest, loss)
        moved = engine.fingerprint()
        assert moved != fingerprint
        learner.load(tmp_path / "engine", meta)
        assert engine.fingerprint() == fingerprint
        learner.step(probe_forest, loss)
        assert engine.fingerprint() == moved  # the moments came back, too

        calls = len(fake.newest.calls)
        assert learner.step(probe_forest, lambda x: (torch.inf * x["logprob"]).sum()).nonfinite
        assert engine.fingerprint() == moved and len(fake.newest.calls) == calls


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    with served() as (_, engine):
        engine.save(tmp_path)
        engine.adapter = Adapter(rank=4)
        with pytest.raises(CheckpointError, match="rank 8"):
            engine.load(tmp_path)
        (tmp_path / "tinker.json").write_text("{}")
        with pytest.raises(CheckpointError, match="no checkpoint"):
            engine.load(tmp_path)


@pytest.mark.slow
def test_temperatures_and_outputs_that_a_server_has_not() -> None:
    with served() as (_, engine):
        row = TokenRow(torch.tensor([3, 4, 5]), torch.tensor([1]), torch.tensor([0.7]))
        with pytest.raises(ModelError, match=r"sampling\.temperature=1"):
            engine.forward([row])
        with pytest.raises(ModelError, match="nothing else"):
            engine.forward([row], ("entropy",))


def test_a_server_that_is_not_there() -> None:
    for address in ("http://127.0.0.1:9", "localhost:8000", "ftp://x"):
        with pytest.raises(ModelError, match=r"cluster\.address=.* can't be reached"):
            TinkerEngine(address, "fake")


# ---------------------------------------------------------------- samplers
@pytest.mark.slow
def test_samples_carry_the_servers_logprobs_and_the_version() -> None:
    with served() as (fake, engine):
        sampler = TinkerSampler(engine, vocabulary=64, positions=64)
        sampler.policy_version = 3
        keys = tuple(StreamKey(0, 3, "task", i) for i in range(3))
        requests = [Request((3, 4, 5), keys), Request((6, 7), keys[:1])]
        actual = sampler.sample(requests, Sampling(max_new_tokens=5, stop_ids=(9,)))
        assert [len(row) for row in actual] == [3, 1] and engine.version == 3
        for request, row in zip(requests, actual, strict=True):
            for c in row:
                assert c.policy_version == 3 and c.finish == ("stop" if c.tokens[-1] == 9 else "length")
                full_prompts = torch.tensor([*request.prompt, *c.tokens])
                with torch.no_grad():
                    z = fake.newest.model(input_ids=full_prompts[None]).logits[0].log_softmax(-1)
                expected = (
                    z[len(request.prompt) - 1 : -1].gather(1, full_prompts[len(request.prompt) :, None]).squeeze(1)
                )
                assert torch.allclose(torch.tensor(c.logprobs), expected, atol=1e-5)
        assert (
            len({asked_fake["seed"] for asked_fake in fake.asked}) == 3
        )  # a stream's seed is its own; two requests share one
        assert sampler.sample(requests, Sampling(max_new_tokens=5, stop_ids=(9,))) == actual
        assert len(fake.samplers) == 1  # published once
        learner = RemoteLearner(engine, lr=0.1)
        learner.step(forest(64), lambda x: x["logprob"].sum())
        sampler.policy_version = 4
        sampler.sample(requests, Sampling(max_new_tokens=5))
        assert len(fake.samplers) == 2


@pytest.mark.slow
def test_sampling_that_a_server_can_not_do() -> None:
    with served() as (_, engine):
        sampler, request = TinkerSampler(engine), [Request((3,), (StreamKey(0, 0, "t", 0),))]
        with pytest.raises(ModelError, match=r"sampling\.stop"):
            sampler.sample(request, Sampling(stop=("x",)))
        with pytest.raises(ModelError, match=r"sampling\.top_k=0"):
            sampler.sample(request, Sampling(top_k=3))
