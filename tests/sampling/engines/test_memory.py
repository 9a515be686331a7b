"""Running out of memory while sampling."""

import pytest
import torch
from tests.sampling.engines.letters import llama

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine

REQUESTS = [Request((5, 6, 7), (StreamKey(0, 0, "t", 0),))]


def failing(failure):
    """An engine whose model fails in this way on every prompt of more than one token."""
    model = llama()

    def fail(_, args, kwargs):
        if kwargs["input_ids"].numel() > 1:
            failure()

    return TorchEngine(model, batch_rows=17, kernels="transformers"), model.register_forward_pre_hook(
        fail, with_kwargs=True
    )


def device_is_full():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore of it")


@pytest.mark.parametrize("failure", [lambda: torch.empty(1 << 60), device_is_full], ids=["cpu", "device"])
def test_the_error_names_the_settings(failure):
    engine, hook = failing(failure)
    with pytest.raises(ModelError) as caught:
        engine.sample(REQUESTS, Sampling(max_new_tokens=2))
    message = str(caught.value)
    for knob in ("sampling.batch_rows (17", "tasks.per_step", "rollout.group_size", "sampling.max_new_tokens"):
        assert knob in message
    assert "\n" not in message and "allocate" in message
    assert isinstance(caught.value.__cause__, RuntimeError)
    hook.remove()
    assert len(engine.sample(REQUESTS, Sampling(max_new_tokens=2))[0]) == 1


def test_other_errors_pass():
    def broken():
        raise RuntimeError("shapes do not match")

    engine, _ = failing(broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        engine.sample(REQUESTS, Sampling(max_new_tokens=2))
