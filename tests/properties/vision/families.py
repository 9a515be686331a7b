"""Tiny models that see, by family, in float64; what transformers itself says of a list of ids with pictures."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
import transformers
from tests.learning.llamas import CleanNorm
from torch import Tensor

from gxpo.base import media
from gxpo.models.decoder.vision import install, vision_of
from gxpo.models.processors import NearestProcessor, PatchProcessor
from gxpo.models.tiny import CHARACTERS, SPECIAL, tiny_vision_model

MORE = ("<video>", "<|vision_start|>", "<|vision_end|>", "<image>")  # of the tokenizer
FIRST_OF_MORE = len(SPECIAL) + len(CHARACTERS)
VIDEO, START, END, IMAGE = range(FIRST_OF_MORE, FIRST_OF_MORE + 4)
VOCABULARY = IMAGE + 1
HEADS: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "initializer_range": 0.125}
TEXT: dict[str, Any] = {
    **HEADS, "intermediate_size": 128, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0,
}  # fmt: skip


def made(kind: Any, config: Any) -> Any:
    """A model of the seed 0, its weights away from their first zeros and ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.02 * torch.randn_like(p))
    return model.eval()


def llava() -> Any:
    return tiny_vision_model()


def smolvlm() -> Any:
    tower = transformers.SmolVLMVisionConfig(
        **HEADS, intermediate_size=128, num_hidden_layers=2, image_size=32, patch_size=8
    )
    text = transformers.LlamaConfig(**TEXT)
    config = transformers.SmolVLMConfig(
        vision_config=tower, text_config=text, image_token_id=IMAGE, scale_factor=2, tie_word_embeddings=False
    )
    model = made(transformers.SmolVLMForConditionalGeneration, config)
    install(model, NearestProcessor(32, 16, tiles=True))
    return model


def idefics3() -> Any:
    tower = transformers.Idefics3VisionConfig(
        **HEADS, intermediate_size=128, num_hidden_layers=2, image_size=32, patch_size=8
    )
    text = transformers.LlamaConfig(**TEXT)
    config = transformers.Idefics3Config(
        vision_config=tower, text_config=text, image_token_id=IMAGE, scale_factor=2, tie_word_embeddings=True
    )
    model = made(transformers.Idefics3ForConditionalGeneration, config)
    install(model, NearestProcessor(32, 16, tiles=True))
    return model


QWEN_VISION: dict[str, Any] = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "initializer_range": 0.125,
}  # fmt: skip
QWEN_IDS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": 58,
    "vision_start_token_id": 57,
    "vision_end_token_id": 56,
}
SECTIONS: dict[str, Any] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 100.0}


def qwen25() -> Any:
    tower = transformers.models.qwen2_5_vl.configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig(
        **QWEN_VISION, window_size=16, out_hidden_size=64, fullatt_block_indexes=[1]
    )
    text = transformers.models.qwen2_5_vl.configuration_qwen2_5_vl.Qwen2_5_VLTextConfig(
        **TEXT, rope_parameters=SECTIONS
    )
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=tower, **QWEN_IDS)
    model = made(transformers.Qwen2_5_VLForConditionalGeneration, config)
    install(model, PatchProcessor(4))
    return model


def qwen2() -> Any:
    tower = transformers.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLVisionConfig(
        depth=2, embed_dim=64, hidden_size=64, mlp_ratio=2, num_heads=4, patch_size=4, spatial_merge_size=2,
        temporal_patch_size=2, initializer_range=0.125,
    )  # fmt: skip
    text = transformers.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLTextConfig(**TEXT, rope_parameters=SECTIONS)
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=tower, **QWEN_IDS)
    model = made(transformers.Qwen2VLForConditionalGeneration, config)
    install(model, PatchProcessor(4))
    return model


def qwen3() -> Any:
    tower = transformers.models.qwen3_vl.configuration_qwen3_vl.Qwen3VLVisionConfig(
        **QWEN_VISION, out_hidden_size=64, num_position_embeddings=64, deepstack_visual_indexes=[0]
    )
    text = transformers.models.qwen3_vl.configuration_qwen3_vl.Qwen3VLTextConfig(
        **TEXT, head_dim=16, rope_parameters={**SECTIONS, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    )
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=tower, **QWEN_IDS)
    model = made(transformers.Qwen3VLForConditionalGeneration, config)
    install(model, PatchProcessor(4))
    return model


MODELS = {
    "llava": llava, "smolvlm": smolvlm, "idefics3": idefics3, "qwen2-vl": qwen2, "qwen2.5-vl": qwen25,
    "qwen3-vl": qwen3,
}  # fmt: skip


def picture(seed: int, height: int = 32, width: int = 32) -> str:
    """The reference of a noisy picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return media.PICTURES.put(pixels)


def exact(model: Any) -> Any:
    """The model in float64, its RMSNorms too, which transformers computes in float32."""
    for module in list(model.modules()):
        for name, norm in module.named_children():
            if type(norm).__name__.endswith("RMSNorm"):
                clean = CleanNorm(norm.weight.numel(), norm.variance_epsilon)
                clean.load_state_dict(norm.state_dict())
                setattr(module, name, clean)
    return model.double()


def stock(model: Any) -> Any:
    """A copy in transformers' own classes, which knows nothing of gxpo."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    assert type(copy.get_input_embeddings()) is torch.nn.Embedding
    return copy.eval()


def own_logits(own: Any, model: Any, ids: list[int]) -> Tensor:
    """[n, V] logits by transformers' forward pass with pixel_values; of placeholders minus infinity."""
    vision = vision_of(model)
    assert vision is not None
    tokens = torch.tensor([[vision.placeholder if media.is_row(i) else i for i in ids]])
    inputs: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
    refs = media.refs_in(ids)
    if refs:
        inputs |= vision.processor.inputs([media.PICTURES.pixels(ref) for ref in refs])
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (tokens == vision.placeholder).int()
        if inputs["pixel_values"].dim() == 5:  # the pictures of one text
            inputs["pixel_values"] = inputs["pixel_values"].transpose(0, 1)
        inputs["pixel_values"] = inputs["pixel_values"].to(next(own.parameters()).dtype)
    return own(**inputs).logits[0].index_fill(-1, torch.tensor(vision.banned_ids), -torch.inf)


def own_logprobs(own: Any, model: Any, ids: list[int]) -> Tensor:
    """[n - 1] log-probs of ids[1:] by `own_logits`; placeholders have probability 0."""
    targets = torch.tensor([0 if media.is_row(i) else i for i in ids[1:]])
    return own_logits(own, model, ids)[:-1].log_softmax(-1).gather(1, targets[:, None]).squeeze(1)


def exact_rotary(monkeypatch: Any) -> None:
    """Let the towers of Qwen turn queries and keys in the dtype that they have; transformers does it in float32."""

    def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        def turn(x: Tensor) -> Tensor:
            one, two = x.chunk(2, -1)
            return x * cos.unsqueeze(-2).to(x) + torch.cat([-two, one], -1) * sin.unsqueeze(-2).to(x)

        return turn(q), turn(k)

    for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
        modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        monkeypatch.setattr(modeling, "apply_rotary_pos_emb_vision", turned)
