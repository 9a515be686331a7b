"""What can't be shown a picture says so in one line; nothing leaves one out."""

from dataclasses import replace

import pytest
import torch
from tests.properties.vision.families import MODELS, picture
from tests.properties.vision.test_learner import episodes, forest_of

import gxpo
from gxpo.base import media
from gxpo.base.errors import ConfigError, ModelError
from gxpo.learning.remote.rows import Rows
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.vision import vision_of
from gxpo.models.tiny import tiny_model
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.choose import Run, choose
from gxpo.sampling.engines.remote_requests import check
from gxpo.sampling.engines.torch import TorchEngine

KEY = StreamKey(seed=0, step=0, task="t", attempt=0)


def test_engines_elsewhere_refuse_requests_with_pictures():
    request = Request(prompt=(1, *media.ids(picture(0), 4), 5), streams=(KEY,))
    with pytest.raises(ModelError, match=r"shows a picture.*sampling\.engine=torch"):
        check([request], Sampling(), policy="main", positions=None, limit="")


def test_remote_engines_run_vision_models_if_they_show_pictures():
    run = Run("d", "LlavaForConditionalGeneration", "float32", "cpu", 1, 1, Sampling(), has_vision=True)
    with pytest.raises(ConfigError, match=r"sampling.engine=openai can't be used here: .*/v1/completions takes"):
        choose("openai", run, servers=["http://localhost:8000/v1"])
    assert choose("vllm", run, has_vllm=lambda where: True).engine == "vllm"
    assert choose("auto", run, has_vllm=lambda where: True).engine == "torch"
    own_text = replace(run, own_pictures="NearestProcessor")
    with pytest.raises(ConfigError, match=r"sampling.engine=vllm can't be used here: .* gxpo's own NearestProcessor"):
        choose("vllm", own_text, has_vllm=lambda where: True)


def test_training_engines_refuse_forests_with_pictures():
    forest = forest_of(episodes(MODELS["llava"]()))
    with pytest.raises(ModelError, match=r"training engines .* are given token ids alone"):
        Rows.of(forest, torch.arange(forest.n_entries))


def test_models_of_texts_refuse_pictures():
    forest = forest_of(episodes(MODELS["llava"]()))
    with pytest.raises(ModelError, match="refers to pictures"):
        TorchLearner(tiny_model(), lr=0.0).outputs(forest)
    request = Request(prompt=(1, *media.ids(picture(0), 4), 5), streams=(KEY,))
    with pytest.raises(ModelError, match="shows a picture"):
        TorchEngine(tiny_model(), stop_ids=[2]).sample([request], Sampling(max_new_tokens=1))


@pytest.mark.parametrize("family", ["llava", "qwen2.5-vl"])
@pytest.mark.parametrize("kernels", ["auto", "transformers"])
def test_placeholders_are_never_sampled(family, kernels):
    model = MODELS[family]()
    vision = vision_of(model)
    assert vision is not None
    head = model.get_output_embeddings()
    with torch.no_grad():  # the placeholder's logit would be far above all others
        state = torch.randn(head.weight.shape[1], generator=torch.Generator().manual_seed(0))
        for token in vision.banned_ids:
            head.weight[token] = 50 * state
    request = Request(prompt=(1, *vision.ids(picture(0)), 5), streams=tuple(replace(KEY, attempt=i) for i in range(64)))
    engine = TorchEngine(model, stop_ids=[2], kernels=kernels)
    actual = engine.sample([request], Sampling(temperature=2.0, max_new_tokens=6))
    assert not {*vision.banned_ids} & {t for said_actual in actual[0] for t in said_actual.tokens}


@pytest.mark.parametrize("key, value", [("learner.images_per_microbatch", 2), ("learner.freeze_vision_tower", True)])
def test_settings_of_a_tower_need_one(key, value, tmp_path):
    with pytest.raises(ConfigError, match=rf"{key}: tiny:cold has no tower: leave it out"):
        gxpo.train("tiny:cold", "arithmetic", "grpo", 1, out=tmp_path / "run", set={key: value}, progress="none")
