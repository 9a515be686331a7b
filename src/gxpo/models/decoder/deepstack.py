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


def read(vision: Rows, embedding: Any, tokens: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What the first layer reads [..., H] of tokens [...], which of them are rows of pictures [...] bool, and what is
    added to these [n, H] behind each of the first layers; from one run of the tower for each picture."""
    rows = tokens >= media.FIRST
    out = embedding(tokens.masked_fill(rows, vision.placeholder))
    if not vision.needs_rows(rows):
        return out, rows, []
    first, *later = vision.rows(tokens[rows]).to(out).chunk(1 + vision.deep, -1)
    return out.index_put((rows,), first), rows, later


def hand_over(inner: Any, text: Any) -> None:
    """Let transformers' forward passes of a model and of its language model read rows of pictures by their ids."""
    inner.register_forward_pre_hook(_to_model, with_kwargs=True)
    text.register_forward_pre_hook(_to_text, with_kwargs=True)


def _shown(module: Any, given: dict[str, Any]) -> bool:
    tokens = given.get("input_ids")
    return tokens is not None and module.get_input_embeddings().vision.needs_rows(tokens >= media.FIRST)


# hooks find what a model sees with in the module: copies of a model then see with towers of their own
def _to_model(module: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    if not _shown(module, given):
        return None
    vision, tokens = module.get_input_embeddings().vision, given["input_ids"]
    rows = tokens >= media.FIRST
    first, *later = vision.rows(tokens[rows]).chunk(1 + vision.deep, -1)
    found = SimpleNamespace(pooler_output=[first], deepstack_features=[[x] for x in later])
    given = {**given, "input_ids": tokens.masked_fill(rows, vision.placeholder), "mm_encoder_outputs": {"image": found}}
    return args, given


def _to_text(module: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    if not _shown(module, given):
        return None
    embedding = module.get_input_embeddings()
    out, rows, later = read(embedding.vision, embedding, given["input_ids"])
    given = {**given, "input_ids": None, "inputs_embeds": out}
    return args, {**given, "visual_pos_masks": rows, "deepstack_visual_embeds": later}
