"""Pictures in the vLLM engine: the real program of its process over a stand-in for vLLM, and what is refused."""

import numpy as np
import pytest
import torch
from tests import started
from tests.properties.vision.families import MODELS, MORE, own_logprobs, picture, stock
from tests.properties.vision.test_checkpoints import PROCESSORS, clip_processor
from tests.sampling.engines.test_vllm import REAL

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.models.decoder.vision import vision_of
from gxpo.models.tiny import character_tokenizer, tiny_vision_model
from gxpo.parts.protocols import MISREAD, Request, Sampling, StreamKey
from gxpo.sampling.engines import vllm_pictures, vllm_process
from gxpo.sampling.engines.vllm import VllmEngine
from gxpo.sampling.engines.weight_transfer import weights_of
from gxpo.training.models import load

pytest.importorskip("PIL")
SHORT = Sampling(max_new_tokens=4)
FAKES = ("<fake_token_around_image>", "<global-img>")


def seeing(family, folder):
    """A loaded model with an image processor of transformers; of SmolVLM with the tokens around a picture."""
    model = MODELS[family]()
    tokenizer = character_tokenizer(*(MORE[3:] if family == "llava" else MORE), *(FAKES if family == "smolvlm" else ()))
    if family == "smolvlm":
        model.resize_token_embeddings(len(tokenizer))
        model.config.text_config.vocab_size = len(tokenizer)
    model.save_pretrained(folder)
    PROCESSORS.get(family, clip_processor)().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load(str(folder), task="shapes")


@pytest.fixture(scope="module", params=["llava", "smolvlm", "qwen2.5-vl"])
def engine(request, tmp_path_factory):
    loaded = seeing(request.param, tmp_path_factory.mktemp(request.param))
    with started.forking(vllm_process):
        built_vllm_engine = VllmEngine(loaded.model, loaded.tokenizer, stop_ids=[2], program=REAL)
    yield built_vllm_engine
    built_vllm_engine.close()


def streams(task, n=2, turn=0):
    return tuple(StreamKey(0, 0, task, i, (), turn) for i in range(n))


def prompts(vision):
    """A picture; two of other sizes, beside each other; a text; a picture that came in the second turn.

    Models with m-RoPE have `vision_end` and `vision_start` between two pictures, and transformers counts on it.
    """
    a, b, c = (vision.ids(picture(i, *size)) for i, size in enumerate([(32, 32), (50, 70), (16, 64)]))
    between = (56, 57) if vision.triples else ()
    return [(1, 7, *a, 9), (1, *c, *between, *b, 10), (1, 7, 8, 9), (1, 7, *a, 9, 30, 31, *b, 11)]


def agrees(engine, prompt, completion):
    ids = [*prompt, *completion.tokens]
    expected = own_logprobs(stock(engine.model), engine.model, ids)[len(prompt) - 1 :]
    return np.allclose(completion.logprobs, expected.detach().tolist(), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_logprobs_are_those_of_transformers_own_forward(engine):
    vision = vision_of(engine.model)
    requests = [Request(p, streams(str(i))) for i, p in enumerate(prompts(vision))]
    for request, group in zip(requests, engine.sample(requests, SHORT), strict=True):
        assert all(agrees(engine, request.prompt, c) for c in group)
        assert len({tuple(c.tokens) for c in group}) > 1  # a fork behind the picture


def test_an_update_of_the_tower_reaches_cached_pictures(engine):
    vision = vision_of(engine.model)
    requests = [Request(prompts(vision)[0], streams("t"))]
    (before,) = engine.sample(requests, SHORT)
    with torch.no_grad():
        for name, p in engine.model.named_parameters():
            p.add_(0.3 * torch.randn_like(p) if "vision" in name or "visual" in name else 0)
    engine.policy_version += 1
    (after,) = engine.sample(requests, SHORT)
    assert all(agrees(engine, requests[0].prompt, c) for c in after)
    assert not all(agrees(engine, requests[0].prompt, c) for c in before)


@pytest.mark.slow
def test_placeholders_have_no_probability(engine):
    vision = vision_of(engine.model)
    head = engine.model.get_output_embeddings()
    with torch.no_grad():  # their logits would be far above all others, or far below
        head.weight[list(vision.banned_ids)] = 50 * torch.randn(head.weight.shape[1])
    engine.policy_version += 1
    requests = [Request(p, streams(str(i), 8)) for i, p in enumerate(prompts(vision)[1:3])]
    for request, group in zip(requests, engine.sample(requests, SHORT), strict=True):
        for c in group:
            assert not {*vision.banned_ids} & {*c.tokens} and agrees(engine, request.prompt, c)


def test_a_prompt_holds_one_placeholder_for_a_picture_in_order(engine):
    vision = vision_of(engine.model)
    one, two = picture(0), picture(1, 50, 70)
    ids, refs = vllm_pictures.collapse((1, *vision.ids(two), *vision.ids(one), 5, *vision.ids(two)), vision)
    assert ids == [1, vision.placeholder, vision.placeholder, 5, vision.placeholder] and refs == (two, one, two)
    header, arrays = vllm_pictures.message([(1, 5), (1, *vision.ids(two), *vision.ids(one))], vision)
    assert header["pictures"] == [[two, 50, 70], [one, 32, 32]] and header["shown"] == [[1, [0, 1]]]
    assert np.array_equal(arrays["pixels"][: 50 * 70 * 3].reshape(50, 70, 3), media.PICTURES.pixels(two))
    assert arrays["lengths"].tolist() == [2, 3]
    assert arrays["expanded_lengths"].tolist() == [1 + len(vision.ids(two)) + len(vision.ids(one))]


def reading_otherwise(patched, vision, *prompts):
    """Of these prompts, the other side expects another last id."""

    def other(prompt, vision):
        full_placeholders = [vision.placeholder if media.is_row(token) else token for token in prompt]
        return [*full_placeholders[:-1], full_placeholders[-1] + (prompt in prompts)]

    patched.setattr(vllm_pictures, "expand", other)


def test_a_misread_prompt_loses_its_own_samples_alone(engine, monkeypatch):
    vision, messages = vision_of(engine.model), []
    one, two, text = (Request(p, streams(str(i))) for i, p in enumerate(prompts(vision)[:3]))
    two_tokens = Sampling(max_new_tokens=2)
    expected = engine.sample([one, two, text], two_tokens)
    before = engine.figures()["sampler_misread"]
    monkeypatch.setattr(engine, "_notify", messages.append)
    monkeypatch.setattr(engine, "misread", 0)
    reading_otherwise(monkeypatch, vision, two.prompt)
    actual = engine.sample([one, two, text], two_tokens)
    assert [[c.finish == MISREAD for c in group] for group in actual] == [[False] * 2, [True] * 2, [False] * 2]
    assert [[c.tokens for c in g] for g in actual] == [[c.tokens for c in g] for g in expected]
    engine.sample([one, two], two_tokens)
    assert (before, engine.figures()["sampler_misread"]) == (0, 4)
    (line,) = messages
    assert f"request of task '1' otherwise than the learner does, first at place {len(two.prompt) - 1} of" in line
    assert "unscored" in line
    assert all(c.truncate(1).finish == MISREAD for c in actual[1]) and actual[0][0].truncate(1).finish != MISREAD


def test_a_first_picture_that_is_misread_is_an_error(engine, monkeypatch):
    vision = vision_of(engine.model)
    text, output, more = (Request(prompts(vision)[i], streams(str(i))) for i in (2, 0, 3))
    monkeypatch.setattr(engine, "_has_read_pictures", False)
    place = len(output.prompt) - 1
    with monkeypatch.context() as patched:
        reading_otherwise(patched, vision, output.prompt, more.prompt)
        for _ in range(2):  # texts say nothing of pictures
            with pytest.raises(ModelError, match=rf"request of task '0' .* first at place {place} of .*none right so"):
                engine.sample([text, output, more], SHORT)
            assert len(engine.sample([text], SHORT)[0]) == 2
    assert [c.finish for c in engine.sample([output], SHORT)[0]] != [MISREAD] * 2
    reading_otherwise(monkeypatch, vision, more.prompt)
    assert [c.finish for c in engine.sample([more], SHORT)[0]] == [MISREAD] * 2  # alone in its call


def test_a_placeholder_in_the_text_is_refused(engine):
    vision = vision_of(engine.model)
    request = Request((*prompts(vision)[0], vision.placeholder), streams("t"))
    with pytest.raises(ModelError, match=r"has the placeholder .* in its text too"):
        engine.sample([request], SHORT)


def test_weights_are_sent_once_under_checkpoint_names(engine):
    sent = dict(weights_of(engine.model))
    assert sorted(x.data_ptr() for x in sent.values()) == sorted(p.data_ptr() for p in engine.model.parameters())
    kind = engine.model.config.model_type
    begin = {"llava": "vision_tower.vision_model.", "smolvlm": "model.vision_model.", "qwen2_5_vl": "visual."}[kind]
    assert any(name.startswith(begin) for name in sent)


def test_missing_ids_around_a_picture_are_named(tmp_path):
    loaded = seeing("smolvlm", tmp_path)
    vision = vision_of(loaded.model)
    assert len(vision.around[0]) == 2
    with pytest.raises(ModelError, match=r"without the ids .* around its rows"):
        vllm_pictures.collapse((1, *media.ids(picture(0), 4), 5), vision)


def test_processors_of_gxpo_s_own_are_refused():
    with pytest.raises(ModelError, match=r"gxpo's own NearestProcessor.*sampling\.engine=torch"):
        VllmEngine(tiny_vision_model(), program=REAL)


def test_prompts_of_text_send_no_pictures(engine, monkeypatch):
    """The message of a model of texts has no word of pictures; one that sees adds the placeholders."""
    requests = []
    ask = engine.process.ask
    monkeypatch.setattr(engine.process, "ask", lambda h, a=None, **n: (requests.append((h, a)), ask(h, a, **n))[1])
    engine.sample([Request((1, 7, 8), streams("t"))], SHORT)
    header, arrays = requests[-1]
    assert set(header) == {"do", "stamp", "support", "sampling", "banned"}
    assert set(arrays) == {"tokens", "lengths", "prompt", "seeds"}
    monkeypatch.setattr(engine, "_vision", None)
    messages, _ = engine._message([Request((1, 7, 8), streams("t"))])
    assert messages == {}
