"""What the engine says of its samples against the learner, with pictures in two turns, and caches kept between them."""

import pytest
import torch
from tests.properties.vision.families import MODELS, picture
from tests.properties.vision.test_learner import forest_of

from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.vision import vision_of
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine

SAMPLING = Sampling(temperature=1.0, max_new_tokens=5)


def streams(n: int, turn: int = 0) -> tuple[StreamKey, ...]:
    return tuple(StreamKey(seed=0, step=0, task="t", attempt=i, turn=turn) for i in range(n))


@pytest.mark.parametrize("family", sorted(MODELS))
@pytest.mark.parametrize("kernels", ["auto", "transformers"])
@pytest.mark.parametrize("keep", [True, False])
def test_two_turns_with_a_picture_in_each(family, kernels, keep):
    """Samples have copies of the first prompts, and share the second, which are longer."""
    model = MODELS[family]()
    vision = vision_of(model)
    assert vision is not None
    one, two, three = (list(vision.ids(picture(i, *size))) for i, size in enumerate([(32, 32), (32, 48), (16, 64)]))
    prompts = [[1, 7, *one, 9, *two, 10], [1, 7, *three, 8], [1, 7, 8, 9]]
    engine = TorchEngine(model, stop_ids=[2], kernels=kernels, batch_rows=5, choices={"sampling prompts 64": "copied"})
    assert (engine.network.decoder is not None) == (kernels == "auto")
    names = [tuple(f"{i}.{j}" for j in range(3)) if keep else () for i in range(3)]
    first = engine.sample(
        [Request(prompt=tuple(p), streams=streams(3), keep=k) for p, k in zip(prompts, names, strict=True)], SAMPLING
    )
    seen_values = [30, *two, 31, 32]  # of every sample, behind what it said
    requests, history = [], []
    for i, prompt in enumerate(prompts):
        for j, message in enumerate(first[i]):
            history.append((prompt, list(message.tokens)))
            requests.append(
                Request(
                    prompt=(*prompt, *message.tokens, *seen_values),
                    streams=streams(1, turn=1),
                    keep=names[i][j : j + 1],
                )
            )
    second = engine.sample(requests, SAMPLING)
    assert (engine.reused_tokens > 0) == keep
    forest = forest_of(
        [
            [(prompt, False), (message, True), (seen_values, False), (list(more[0].tokens), True)]
            for (prompt, message), more in zip(history, second, strict=True)
        ]
    )
    sampled = [x for (i, j), more in zip([(i, j) for i in range(3) for j in range(3)], second, strict=True)
               for x in (*first[i][j].logprobs, *more[0].logprobs)]  # fmt: skip
    for layout in ("packed", "flat"):
        learner = TorchLearner(model, lr=0.0, layout=layout, kernels=kernels)
        read = learner.outputs(forest)["logprob"]
        assert (read - torch.tensor(sampled, dtype=torch.float64)).abs().max() < 1e-5
