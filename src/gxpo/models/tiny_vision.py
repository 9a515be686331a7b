"""The embedded tiny model that sees: a Llava of 0.2 million parameters over pictures of 32 x 32 pixels."""

from __future__ import annotations

from typing import Any

from gxpo.base.errors import need
from gxpo.models.tokenizer import CHARACTERS, SPECIAL

POSITIONS = 1024  # tokens of a context
SIZE, PATCH, WIDTH = 32, 8, 64  # pixels of a side; of a patch's side; of a hidden state


def tiny_vision_model(seed: int = 0) -> Any:
    """An untrained float32 Llava over the character vocabulary and `<image>`; equal seeds give equal parameters.

    Its weights have deviation 1/8, one over the root of its width: with transformers' 0.02 a model so narrow does not
    learn where a patch lies. The global random state of torch is left as it was.
    """
    import torch

    from gxpo.models.decoder.vision import install
    from gxpo.models.processors import NearestProcessor

    transformers = need("transformers", "train")
    vocabulary = len(SPECIAL) + len(CHARACTERS)
    heads: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": 4, "initializer_range": WIDTH**-0.5}
    tower = transformers.CLIPVisionConfig(
        **heads, intermediate_size=2 * WIDTH, num_hidden_layers=1, image_size=SIZE, patch_size=PATCH,
        initializer_factor=WIDTH**-0.5 / 0.02, attention_dropout=0.0,
    )  # fmt: skip
    text = transformers.LlamaConfig(
        **heads, intermediate_size=4 * WIDTH, num_hidden_layers=2, num_key_value_heads=4, vocab_size=vocabulary + 1,
        max_position_embeddings=POSITIONS, pad_token_id=SPECIAL.index("<pad>"), bos_token_id=SPECIAL.index("<bos>"),
        eos_token_id=SPECIAL.index("<eos>"), tie_word_embeddings=False, attention_dropout=0.0,
    )  # fmt: skip
    config = transformers.LlavaConfig(
        vision_config=tower, text_config=text, image_token_index=vocabulary, image_seq_length=(SIZE // PATCH) ** 2,
        vision_feature_select_strategy="default", vision_feature_layer=-1, dtype="float32",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.LlavaForConditionalGeneration(config)
    install(model, NearestProcessor(SIZE, PATCH))
    return model.to(torch.float32).eval()
