"""Soft thinking about a picture: the engine's densities and log-probs are the learner's."""

import numpy as np
import pytest
import torch
from tests.properties.vision.families import MODELS, picture

from gxpo.base import media
from gxpo.forest.forest import Forest
from gxpo.forest.records import SCHEMA
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.vision import vision_of
from gxpo.parts.protocols import Request, SoftSampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine


@pytest.mark.parametrize("family", sorted(MODELS))
@pytest.mark.parametrize("kernels", ["auto", "transformers"])
def test_soft_steps_behind_a_picture(family, kernels):
    from gxpo.models.tiny import character_tokenizer

    model = MODELS[family]()
    vision = vision_of(model)
    assert vision is not None
    prompt = [1, 7, *vision.ids(picture(0, 16, 40)), 8]
    engine = TorchEngine(model, character_tokenizer("<image>"), stop_ids=[2], kernels=kernels)
    sampling = SoftSampling(max_new_tokens=6, soft_top_k=4, soft_top_p=0.99, mixing_temperature=0.5, end_text="e")
    keys = tuple(StreamKey(seed=0, step=0, task="t", attempt=i) for i in range(4))
    (actual,) = engine.sample([Request(prompt=tuple(prompt), streams=keys)], sampling)
    record, media_at = media.to_record(prompt)
    forest = Forest.from_records(
        {
            "schema": SCHEMA, "id": str(i), "group": "g", "prompt": record, "media_at": media_at, "reward": 0.0,
            "turns": [{"action": list(c.tokens)}],
        }
        for i, c in enumerate(actual)
    )  # fmt: skip
    wide = {"support": -1, "soft_y": np.nan, "soft_weight": np.nan}
    extras = {}
    for name, nothing in wide.items():
        dtype = torch.int64 if name == "support" else torch.float64
        extras[name] = torch.full((forest.n_tokens, 4), nothing, dtype=dtype)
        text = [torch.as_tensor(np.asarray(c.support if name == "support" else c.extras[name])) for c in actual]
        text = [torch.nn.functional.pad(x, (0, 4 - x.shape[1]), value=nothing) for x in text]
        extras[name][forest.path_token] = torch.cat(text).to(dtype)
    learner = TorchLearner(model, lr=0.0, kernels=kernels)
    assert len({tuple(c.tokens) for c in actual}) == len(actual), "one node would hold two samples of other mixtures"
    read = learner.outputs(forest.replace(extras=extras))["logprob"]
    sampled = torch.tensor([x for c in actual for x in c.logprobs], dtype=torch.float64)
    assert (read - sampled).abs().max() < 1e-5
