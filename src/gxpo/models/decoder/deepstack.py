"""DeepStack (Meng et al., arXiv 2406.04334; Qwen3-VL): features of inner layers of a tower are added to the states of
picture rows behind the first layers of the language model.

`decoder.forward` adds them itself. Transformers' own forward pass is handed them in the arguments that it has for
them, by hooks before the model and before its language model: with ids of `gxpo.base.media` alone it would lose them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Protocol

from torch import Tensor

from gxpo.base import media


class Rows(Protocol):
    """What a model sees with (`gxpo.models.decoder.vision.Vision`)."""

    placeholder: int
    deep: int

    def needs_rows(self, rows: Tensor) -> bool: ...
    def rows(self, ids: Tensor) -> Tensor: ...


def embed_with_pictures(vision: Rows, embedding: Any, tokens: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What the first layer reads [..., H] of tokens [...], which of them are rows of pictures [...] bool, and what is
    added to these [n, H] behind each of the first layers; from one run of the tower for each picture."""
    rows = tokens >= media.FIRST
    out = embedding(tokens.masked_fill(rows, vision.placeholder))
    if not vision.needs_rows(rows):
        return out, rows, []
    first, *later = vision.rows(tokens[rows]).to(out).chunk(1 + vision.deep, -1)
    return out.index_put((rows,), first), rows, later


def register_hooks(inner: Any, text: Any) -> None:
    """Let transformers' forward passes of a model and of its language model read rows of pictures by their ids."""
    inner.register_forward_pre_hook(_before_model, with_kwargs=True)
    text.register_forward_pre_hook(_before_text, with_kwargs=True)


def _has_picture_rows(module: Any, keywords: dict[str, Any]) -> bool:
    tokens = keywords.get("input_ids")
    return tokens is not None and module.get_input_embeddings().vision.needs_rows(tokens >= media.FIRST)


# hooks find what a model sees with in the module: copies of a model then see with towers of their own
def _before_model(module: Any, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    if not _has_picture_rows(module, keywords):
        return None
    vision, tokens = module.get_input_embeddings().vision, keywords["input_ids"]
    rows = tokens >= media.FIRST
    first, *later = vision.rows(tokens[rows]).chunk(1 + vision.deep, -1)
    tower_outputs = SimpleNamespace(pooler_output=[first], deepstack_features=[[x] for x in later])
    keywords = {**keywords, "input_ids": tokens.masked_fill(rows, vision.placeholder), "mm_encoder_outputs": {"image": tower_outputs}}
    return args, keywords


def _before_text(module: Any, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    if not _has_picture_rows(module, keywords):
        return None
    embedding = module.get_input_embeddings()
    out, rows, later = embed_with_pictures(embedding.vision, embedding, keywords["input_ids"])
    keywords = {**keywords, "input_ids": None, "inputs_embeds": out}
    return args, {**keywords, "visual_pos_masks": rows, "deepstack_visual_embeds": later}
