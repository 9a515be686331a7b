"""Checkpoints of transformers with image processors of their own: loading, two steps of training, exporting."""

import json
import sys
import warnings

import numpy as np
import pytest
import torch
import transformers
from tests.properties.vision.families import MODELS, MORE, picture
from tests.training.parity_reward import parity

import gxpo
from gxpo.base import media
from gxpo.base.errors import MissingExtra, ModelError
from gxpo.models.decoder.vision import install, vision_of
from gxpo.models.processors import AutoPictures, PatchProcessor
from gxpo.models.tiny import character_tokenizer
from gxpo.training import config
from gxpo.training.export import export
from gxpo.training.models import load

PROCESSORS = {
    "smolvlm": lambda: transformers.models.smolvlm.image_processing_pil_smolvlm.SmolVLMImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    ),
    "idefics3": lambda: transformers.models.idefics3.image_processing_pil_idefics3.Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    ),
    "qwen2-vl": lambda: qwen_processor(),
    "qwen2.5-vl": lambda: qwen_processor(),
    "qwen3-vl": lambda: qwen_processor(),
}


def clip_processor():
    return transformers.models.clip.image_processing_pil_clip.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )


def qwen_processor():
    return transformers.models.qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(
        patch_size=4, size={"shortest_edge": 64, "longest_edge": 64 * 64}
    )


@pytest.fixture
def checkpoint(family, tmp_path):
    pytest.importorskip("PIL")
    folder = tmp_path / family
    model = MODELS[family]()
    model.save_pretrained(folder)
    PROCESSORS.get(family, clip_processor)().save_pretrained(folder)
    character_tokenizer(*(MORE if family != "llava" else MORE[3:])).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["llava", *PROCESSORS])
def test_rows_are_as_many_as_the_tower_gives(checkpoint, family):
    loaded = load(str(checkpoint), task="shapes")
    vision = vision_of(loaded.model)
    assert vision is not None and isinstance(vision.processor, AutoPictures)
    refs = [picture(0), picture(1), picture(2)]
    output = [vision.ids(ref) for ref in refs]
    with torch.no_grad():
        actual = vision.features(refs)
    assert [len(x) for x in actual] == [len(ids) for ids in output]
    side = 2 if family in ("smolvlm", "idefics3") else 4
    assert vision.grid(refs[0]) == (1, side, side)
    # one after the other, as transformers' processor gives them
    processor = vision.processor.processor
    for ref, rows in zip(refs, actual, strict=True):
        inputs = processor(images=[media.PICTURES.pixels(ref)], return_tensors="pt", input_data_format="channels_last")
        (features_of_picture,) = vision.model.get_image_features(**inputs, return_dict=True).pooler_output
        rows = rows[:, : features_of_picture.shape[-1]]
        assert (features_of_picture.reshape(rows.shape) - rows).abs().max() < 1e-5


@pytest.mark.parametrize("family", ["smolvlm"])
def test_tokens_around_a_picture_and_the_template(checkpoint):
    """As Idefics3Processor writes a picture that is not split: fake, global, rows, fake."""
    tokenizer = character_tokenizer(*MORE, "<fake_token_around_image>", "<global-img>")
    tokenizer.save_pretrained(checkpoint)
    (checkpoint / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    loaded = load(str(checkpoint), task="shapes")
    vision = vision_of(loaded.model)
    assert vision is not None
    fake, first = tokenizer.convert_tokens_to_ids(["<fake_token_around_image>", "<global-img>"])
    ref = picture(0)
    assert vision.ids(ref) == (fake, first, *media.ids(ref, 4), fake)
    assert loaded.tokenizer.chat_template == "{{ messages }}"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava", "smolvlm", "qwen2.5-vl"])
def test_two_steps_and_an_export(checkpoint, tmp_path):
    keys = [
        f"model={checkpoint}", "task=shapes", "method=grpo", "tasks.per_step=2", "rollout.group_size=4",
        "sampling.max_new_tokens=4", "trainer.steps=2", "optim.lr=1e-3", "eval.tasks=2",
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = gxpo.Trainer(config.load(None, keys), out=tmp_path / "run", reward=parity)
        before = {name: p.detach().clone() for name, p in trainer.learner.model.named_parameters()}
        trainer.train()
        moved = [n for n, p in trainer.learner.model.named_parameters() if not torch.equal(p, before[n])]
        trainer.close()
    assert any("vision" in name or "visual" in name for name in moved)
    out = export(tmp_path / "run", tmp_path / "exported")
    again = load(str(out), task="shapes")
    vision = vision_of(again.model)
    assert vision is not None and vision.ids(picture(3)) == vision_of(trainer.learner.model).ids(picture(3))
    for name, p in again.model.named_parameters():
        assert torch.equal(p, trainer.learner.model.get_parameter(name)), name


@pytest.mark.slow
def test_a_run_of_the_tiny_model_exports_its_processor(tmp_path):
    keys = [
        "model=tiny-vision:cold",
        "task=shapes",
        "tasks.per_step=1",
        "rollout.group_size=2",
        "trainer.steps=1",
        "eval.tasks=2",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = gxpo.Trainer(
            config.load(None, [*keys, "sampling.max_new_tokens=2"]), out=tmp_path / "r", reward=parity
        )
        trainer.train()
        trainer.close()
    out = export(tmp_path / "r", tmp_path / "exported")
    assert json.loads((out / "preprocessor_config.json").read_text())["image_processor_type"] == "NearestProcessor"
    again = vision_of(load(str(out), task="shapes").model)
    assert again is not None and len(again.ids(picture(0))) == 16


def test_our_patches_are_those_of_transformers():
    pytest.importorskip("PIL")
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    own_qwen_processor = qwen_processor()
    own_qwen_processor.image_mean = own_qwen_processor.image_std = [0.5, 0.5, 0.5]
    theirs = own_qwen_processor(images=[pixels], return_tensors="pt", input_data_format="channels_last")
    ours = PatchProcessor(4).inputs([pixels])
    assert torch.equal(ours["image_grid_thw"], theirs["image_grid_thw"])
    assert (ours["pixel_values"] - theirs["pixel_values"]).abs().max() < 1e-5


@pytest.mark.parametrize("family", ["llava"])
def test_pillow_is_named_where_it_is_missing(checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtra, match=r"gxpo\[vision\]"):
        load(str(checkpoint), task="shapes")


def test_a_directory_without_processor_is_refused(tmp_path):
    pytest.importorskip("PIL")
    MODELS["smolvlm"]().save_pretrained(tmp_path)
    character_tokenizer(*MORE).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"reads pictures, and its preprocessor_config\.json can't be used"):
        load(str(tmp_path), task="shapes")


def test_a_processor_that_gives_more_is_refused():
    def processor(**given):
        return {"pixel_values": torch.zeros(1, 3, 4, 4), "image_sizes": torch.tensor([[4, 4]])}

    with pytest.raises(ModelError, match="gives image_sizes"):
        AutoPictures(processor, None).inputs([np.zeros((4, 4, 3), dtype=np.uint8)])


def test_models_that_are_not_read_say_why():
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**tower, "vocab_size": 40, "num_key_value_heads": 2, "head_dim": 16}
    gemma = transformers.PaliGemmaForConditionalGeneration(
        transformers.PaliGemmaConfig(
            vision_config={**tower, "image_size": 8, "patch_size": 4, "model_type": "siglip_vision_model"},
            text_config={**text, "model_type": "gemma"},
            image_token_id=39,
            projection_dim=32,
        )
    )
    with pytest.raises(ModelError, match="PaliGemmaForConditionalGeneration can't be given pictures"):
        install(gemma, PatchProcessor(4))


def test_other_models_with_a_tower_are_trained_on_texts(tmp_path):
    text = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16,
        "vocab_size": 104, "num_key_value_heads": 2, "model_type": "gemma3_text",
    }  # fmt: skip
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings = {"vision_config": {**tower, "image_size": 8, "patch_size": 4, "model_type": "siglip_vision_model"}}
    config = transformers.Gemma3Config(text_config=text, mm_tokens_per_image=4, image_token_index=103, **settings)
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    character_tokenizer(*MORE).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="trained on texts alone: gxpo knows pictures of llava"):
        loaded = load(str(tmp_path), task="shapes")
    assert vision_of(loaded.model) is None
    with torch.no_grad():
        assert loaded.model(input_ids=torch.tensor([[1, 5, 6]])).logits.isfinite().all()
