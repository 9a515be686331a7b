"""Runs whose weights a training engine holds: refusals before anything runs, and whole runs on a Tinker server."""

import json
from pathlib import Path

import pytest

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.training import config, models
from gxpo.training.cluster import check_cluster
from gxpo.training.config import SettingValue

REWARD = f"{Path(__file__).with_name('parity_reward.py')}:parity"
TINKER = {"cluster.backend": "tinker", "cluster.address": "http://localhost:8000", "learner.lora_rank": 8}
VERL = {"cluster.backend": "verl"}
SHORT = {"tasks.per_step": 2, "rollout.group_size": 3, "sampling.max_new_tokens": 4, "eval.every": 0, "eval.tasks": 2}


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (TINKER | {"method": "gae"}, "can't train gae: it trains a value head"),
        (TINKER | {"method": "trpo"}, "reads and sets parameters"),
        (TINKER | {"objective.kl.coef": 0.1}, "compares with a reference policy"),
        (TINKER | {"sampling.temperature": 0.7}, "set sampling.temperature=1"),
        (TINKER | {"sampling.top_k": 5}, "set sampling.top_k=0 and sampling.top_p=1"),
        (TINKER | {"sampling.stop": ["\n"]}, "leave out sampling.stop"),
        (TINKER | {"sampling.engine": "torch"}, "leave out sampling.engine"),
        (TINKER | {"cluster.address": None}, "set cluster.address=http"),
        (TINKER | {"learner.lora_rank": 0}, "set learner.lora_rank=32"),
        (TINKER | {"learner.lora_alpha": 8.0}, "leave out learner.lora_alpha"),
        (TINKER | {"model": "tiny:cold"}, "leave out model=tiny:cold"),
        (TINKER | {"init_from": "runs/x"}, "leave out init_from"),
        (TINKER | {"learner.images_per_microbatch": 4}, "leave out learner.freeze_vision_tower and images"),
        (VERL | {"cluster.address": "http://x"}, "is no Ray address: set auto"),
        (VERL | {"cluster.address": "ray://x:10001"}, "on a node of the cluster with cluster.address=auto"),
        (VERL | {"cluster.train.nodes": 2}, "is read by `gxpo plan` alone"),
        (VERL | {"learner.lora_rank": 8}, "set learner.lora_rank=0"),
        (VERL | {"optim.weight_decay": 0.1}, "set optim.weight_decay=0"),
        (VERL | {"sampling.engine": "vllm"}, "set sampling.engine=torch"),
        (VERL | {"learner.dtype": "float64"}, "set learner.dtype=float32"),
        ({"cluster.address": "http://x"}, "the backend is local"),
    ],
)
def test_what_an_engine_can_not_do_is_refused_in_a_line(settings, words):
    keys = {"method": "grpo", **settings}
    resolved = config.resolve({key: SettingValue(value, "test") for key, value in keys.items()})
    with pytest.raises(ConfigError) as error:
        check_cluster(resolved.settings, resolved.method)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        TINKER,
        VERL,
        VERL | {"sampling.temperature": 0.7, "learner.dtype": "bfloat16"},
        VERL | {"cluster.address": "auto", "cluster.train.nodes": 2, "cluster.train.gpus_per_node": 4},
    ],
)
def test_what_it_can_do_is_let_through(settings):
    for method in ("grpo", "gspo", "dr_grpo", "gigpo"):
        keys = {"method": method, **settings}
        resolved = config.resolve({key: SettingValue(value, "test") for key, value in keys.items()})
        check_cluster(resolved.settings, resolved.method)


# ---------------------------------------------------------------- runs
@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A small model in a directory, and as it is there."""
    loaded = models.load("tiny:cold", task="arithmetic")
    folder = tmp_path_factory.mktemp("model")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder, loaded.model


def train(cold, out, url, steps, **settings):
    keys = {**TINKER, **SHORT, "cluster.address": url, **settings}
    return gxpo.train(str(cold), "arithmetic", "grpo", steps, REWARD, out=out, set=keys)


@pytest.mark.slow
def test_a_run_on_a_server_and_its_resumption(cold, tmp_path):
    pytest.importorskip("tinker")
    from tests.learning.remote.tinker_server import Fake, Server

    folder, model = cold
    fake = Fake(model, reduction="mean over a row's tokens and a step's rows")
    with Server(fake) as server:
        settings = {"optim.lr": 0.01, "trainer.checkpoint_every": 1}
        calm = train(folder, tmp_path / "calm", server.url, 3, **settings)
        assert [row["sampler_gap"] < 1e-4 for row in calm.metrics] == [True] * 3
        assert len({row["weights_fingerprint"] for row in calm.metrics}) == 3
        assert not any("entropy" in row for row in calm.metrics)
        train(folder, tmp_path / "cut", server.url, 2, **settings)
        went_on = gxpo.resume(tmp_path / "cut", steps=3)
        keys = ("reward_mean", "grad_norm", "loss", "weights_fingerprint")
        assert [[r[k] for k in keys] for r in went_on.metrics] == [[r[k] for k in keys] for r in calm.metrics]

        (newest,) = (tmp_path / "cut" / "checkpoints").glob("step-000003")
        manifest = json.loads((newest / "manifest.json").read_text())
        assert set(manifest["files"]) == {"tensors.safetensors", "state.json", "engine/tinker.json"}
        (newest / "engine" / "tinker.json").write_text("{}")
        with pytest.warns(UserWarning, match="tinker.json has 2 bytes"):
            assert gxpo.training.checkpoint.latest(tmp_path / "cut").name == "step-000002"
        with pytest.raises(CheckpointError, match="which alone can read it"):
            gxpo.training.start.parameters_of(tmp_path / "calm")


@pytest.mark.slow
def test_a_server_that_does_not_clip_is_refused_before_the_run(cold, tmp_path):
    pytest.importorskip("tinker")
    from tests.learning.remote.tinker_server import Fake, Server

    folder, model = cold
    with Server(Fake(model, clips=False)) as server:
        with pytest.raises(ConfigError, match=r"set optim\.max_grad_norm=0"):
            train(folder, tmp_path / "run", server.url, 1)
        run = train(folder, tmp_path / "run", server.url, 1, **{"optim.max_grad_norm": 0.0})
        assert len(run.metrics) == 1
