"""Models and a tokenizer that the engine's tests share."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrst"


def llama(seed: int = 0, **settings: Any) -> LlamaForCausalLM:
    """A stock float32 Llama of two layers over 31 ids, whose end of sequence is 1."""
    config = LlamaConfig(
        **{
            "vocab_size": 31,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "initializer_range": 0.2,
            "eos_token_id": 1,
            **settings,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def letters() -> PreTrainedTokenizerFast:
    """Tokens of one to three letters: `ab`, `bc` and `abc` are tokens besides the letters themselves."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *LETTERS, "ab", "bc", "abc", " a", "\u010b"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", clean_up_tokenization_spaces=False
    )
