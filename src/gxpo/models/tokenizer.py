"""Character tokenizer of the tiny model: printable ASCII and the newline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gxpo.base.errors import need

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IMAGE = "<image>"  # the picture's token of the model that sees
BUILT_IN = ("tiny", "tiny-vision")
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0..3
CHARACTERS = "\n" + "".join(chr(c) for c in range(32, 127))  # ids from 4


def character_tokenizer(*more: str) -> PreTrainedTokenizerFast:
    """One token per character, and `more` special ones; `<bos>` is put before a text, its author has to write `<eos>`.

    A character outside printable ASCII becomes `<unk>`. The name of a special token typed out in a text becomes that
    token, as with every tokenizer of transformers; `gxpo.models.chat` keeps it as text.
    """
    tokenizers = need("tokenizers", "train")
    transformers = need("transformers", "train")
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS, *more))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return transformers.PreTrainedTokenizerFast(
        **({"additional_special_tokens": list(more)} if more else {}),
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def built_in(model: str) -> bool:
    """Whether a name is one of the embedded tiny models, warm or cold."""
    return model.partition(":")[0] in BUILT_IN


def tokenizer_of_built_in(model: str) -> PreTrainedTokenizerFast:
    """The tokenizer of an embedded model."""
    return character_tokenizer(*([IMAGE] if model.startswith(BUILT_IN[1]) else []))
