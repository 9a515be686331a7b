"""A run's engine: who was asked for, and a run that is sampled in another process."""

from functools import partial
from pathlib import Path

import pytest
from tests import started
from tests.sampling.engines.fake_server import served

import gxpo
from gxpo.base.errors import ConfigError, ModelError
from gxpo.sampling.engines import vllm_process
from gxpo.sampling.engines.choose import Choice
from gxpo.sampling.engines.vllm import VllmEngine
from gxpo.sampling.engines.vllm_process import PROGRAM
from gxpo.training import models, setup

FAKE = str(Path(__file__).parents[1] / "sampling" / "engines" / "fake_vllm.py")
REWARD = f"{Path(__file__).with_name('parity_reward.py')}:parity"
SHORT = {"tasks.per_step": 2, "rollout.group_size": 3, "sampling.max_new_tokens": 4, "eval.every": 0, "eval.tasks": 2}


def train(path, steps=2, **settings):
    keys = {**SHORT, **settings}
    return gxpo.train("tiny:cold", "arithmetic", "grpo", steps, REWARD, out=path / "run", set=keys)


def test_a_run_is_sampled_by_the_weights_it_has(tmp_path, monkeypatch):
    """The real program over a stand-in for vLLM: sampler and learner agree after each update."""
    engines = []

    def start(*arguments, **named):
        with started.forking(vllm_process):
            engines.append(VllmEngine(*arguments, program=(FAKE, PROGRAM), **named))
        return engines[0]

    monkeypatch.setattr(setup, "choose", lambda *_, **__: Choice("vllm", "it was asked for"))
    monkeypatch.setattr(setup, "VllmEngine", start)
    run = train(tmp_path, **{"sampling.engine": "vllm", "optim.lr": 0.01})
    assert [row["sampler_gap"] < 1e-4 for row in run.metrics] == [True, True]
    assert run.metrics[0]["weights_fingerprint"] != run.metrics[1]["weights_fingerprint"]
    (sampler,) = engines
    assert sampler._stamp == 3 and sampler.policy_version == 2  # at the start, and after each of two steps
    sampler.close()


def test_a_start_that_fails_names_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "choose", lambda *_, **__: Choice("vllm", "it is installed"))
    monkeypatch.setattr(setup, "VllmEngine", partial(VllmEngine, program=("/no/such/program.py",)))
    with pytest.raises(ModelError, match=r"exit code 2.*\(sampling.engine=torch does without vLLM\)"):
        train(tmp_path)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"sampling.engine": "torch", "sampling.engine_options": {"max_model_len": 9}}, "engine_options are for"),
        ({"sampling.engine": "openai"}, "needs sampling.servers"),
        ({"sampling.engine": "vllm", "sampling.engine_python": "/no/such/python"}, "has no vllm"),
        ({"sampling.engine": "openai", "sampling.servers": "http://127.0.0.1:9/v1",
          "sampling.engine_options": {"seed": 1}}, "retries, min_replicas, patience and publish_timeout, not seed"),
        ({"sampling.engine": "fastest"}, "sampling.engine"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together(tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, **settings)


@pytest.mark.slow
def test_server_with_stale_weights_ends_the_run_after_a_step(tmp_path):
    loaded = models.load("tiny:cold", task="arithmetic")
    with served(model=loaded.model, tokenizer=loaded.tokenizer) as (url, _):
        keys = {"sampling.engine": "openai", "sampling.servers": url}
        with pytest.raises(ModelError, match="the policy is at version 1, and nobody updates"):
            train(tmp_path, **keys)
        messages = train(tmp_path / "told", **keys, **{"sampling.engine_options": {"stale": True}, "optim.lr": 0.05})
    assert [row["staleness_mean"] for row in messages.metrics] == [0, 1]
    assert messages.metrics[0]["sampler_gap"] < 1e-4
