"""Embedded tiny models, their character tokenizer included: a Llama of about a million parameters that learns on a
laptop's CPU, a masked (bidirectional) model of 0.3 million, a Llava of 0.2 million over pictures of 32 x 32 pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gxpo.base.errors import need

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

# ---------------------------------------------------------------- tokenizer
IMAGE = "<image>"  # placeholder of a picture, of the vision-language model
MASK = "<mask>"  # hidden token, of the masked model
BUILT_IN = ("tiny", "tiny-vision", "tiny-masked")
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0..3
CHARACTERS = "\n" + "".join(chr(c) for c in range(32, 127))  # ids from 4


def character_tokenizer(*special: str) -> PreTrainedTokenizerFast:
    """One token per character, and `special` ones; `<bos>` is put before a text, its author has to write `<eos>`.

    A character outside printable ASCII becomes `<unk>`. The name of a special token typed out in a text becomes that
    token, as with every tokenizer of transformers; `gxpo.models.chat` keeps it as text.
    """
    tokenizers = need("tokenizers", "train")
    transformers = need("transformers", "train")
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS, *special))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    # not `.`, which leaves out line breaks
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return transformers.PreTrainedTokenizerFast(
        **(
            {"mask_token": MASK} if MASK in special else {"additional_special_tokens": list(special)} if special else {}
        ),
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        # decoding has to give back the very text, with the blanks before punctuation
        clean_up_tokenization_spaces=False,
    )


def built_in(model: str) -> bool:
    """Return True for the name of an embedded tiny model, warm or cold."""
    return model.partition(":")[0] in BUILT_IN


def tokenizer_of_built_in(model: str) -> PreTrainedTokenizerFast:
    """Tokenizer of an embedded model."""
    return character_tokenizer(*{BUILT_IN[1]: [IMAGE], BUILT_IN[2]: [MASK]}.get(model.partition(":")[0], []))


# ---------------------------------------------------------------- language model
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


# ---------------------------------------------------------------- vision-language model
VISION_POSITIONS = 1024  # tokens of a context
PICTURE_SIZE, PATCH_SIZE = 32, 8  # pixels of a side of a picture, of a patch
VISION_WIDTH = 64  # size of a hidden state


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
    heads: dict[str, Any] = {
        "hidden_size": VISION_WIDTH,
        "num_attention_heads": 4,
        "initializer_range": VISION_WIDTH**-0.5,
    }
    tower = transformers.CLIPVisionConfig(
        **heads, intermediate_size=2 * VISION_WIDTH, num_hidden_layers=1, image_size=PICTURE_SIZE,
        patch_size=PATCH_SIZE, initializer_factor=VISION_WIDTH**-0.5 / 0.02, attention_dropout=0.0,
    )  # fmt: skip
    text = transformers.LlamaConfig(
        **heads, intermediate_size=4 * VISION_WIDTH, num_hidden_layers=2, num_key_value_heads=4,
        vocab_size=vocabulary + 1, max_position_embeddings=VISION_POSITIONS, pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<bos>"), eos_token_id=SPECIAL.index("<eos>"), tie_word_embeddings=False,
        attention_dropout=0.0,
    )  # fmt: skip
    config = transformers.LlavaConfig(
        vision_config=tower, text_config=text, image_token_index=vocabulary,
        image_seq_length=(PICTURE_SIZE // PATCH_SIZE) ** 2, vision_feature_select_strategy="default",
        vision_feature_layer=-1, dtype="float32",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.LlavaForConditionalGeneration(config)
    # pictures are read through the embedding from here on, as in models that are loaded
    install(model, NearestProcessor(PICTURE_SIZE, PATCH_SIZE))
    return model.to(torch.float32).eval()


# ---------------------------------------------------------------- masked language model
# Narrower than the Llama: every token that is learned takes a pass of its own over the whole text.
MASKED_DIMENSIONS: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def tiny_masked_model(seed: int = 0, **dimensions: Any) -> Any:
    """An untrained float32 ModernBERT over the character vocabulary and `<mask>`, which sees in both directions.

    `dimensions` override fields of `transformers.ModernBertConfig`; equal seeds give equal parameters. The global
    random state of torch is left as it was.
    """
    import torch

    transformers = need("transformers", "train")
    config = transformers.ModernBertConfig(
        **{
            **MASKED_DIMENSIONS,
            "layer_types": ["full_attention"] * MASKED_DIMENSIONS["num_hidden_layers"],
            "initializer_range": MASKED_DIMENSIONS["hidden_size"] ** -0.5,
            "vocab_size": len(SPECIAL) + len(CHARACTERS) + 1,
            "pad_token_id": SPECIAL.index("<pad>"),
            "bos_token_id": SPECIAL.index("<bos>"),
            "eos_token_id": SPECIAL.index("<eos>"),
            "cls_token_id": SPECIAL.index("<bos>"),
            "sep_token_id": SPECIAL.index("<eos>"),
            "dtype": "float32",
            **dimensions,
        }
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.ModernBertForMaskedLM(config)
    return model.to(torch.float32).eval()
