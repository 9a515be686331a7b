"""The embedded tiny model: a Llama of about a million parameters that learns on a laptop's CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gxpo.base.errors import need
from gxpo.models.tokenizer import CHARACTERS, SPECIAL

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

# Few layers, because at this size a forward pass costs by the call and not by the multiplication; three, because
# looking up a digit by its position and adding it to another takes two hops and a read-out.
DIMENSIONS: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}


def tiny_model(seed: int = 0, **dimensions: Any) -> LlamaForCausalLM:
    """An untrained float32 Llama over the character vocabulary; the same `seed` gives the same parameters.

    `dimensions` override fields of `transformers.LlamaConfig`. The global random state of torch is left as it was.
    """
    import torch

    transformers = need("transformers", "train")
    config = transformers.LlamaConfig(
        **{
            **DIMENSIONS,
            "vocab_size": len(SPECIAL) + len(CHARACTERS),
            "pad_token_id": SPECIAL.index("<pad>"),
            "bos_token_id": SPECIAL.index("<bos>"),
            "eos_token_id": SPECIAL.index("<eos>"),
            "tie_word_embeddings": False,
            "attention_dropout": 0.0,
            "dtype": "float32",
            **dimensions,
        }
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
    return model.to(torch.float32).eval()
