"""Pictures in vision-language models of transformers: rows of the tower for ids beyond the vocabulary.

`install` changes two modules of a model in place, by class, so that parameters and their names stay as they are: the
embedding gives a picture's rows for ids of `gxpo.base.media`, from one run of the tower for each distinct picture of a
forward pass, and the head gives the model's own placeholders no probability, in sampling and in every log-prob. Below
are the positions of m-RoPE and the deeper features of DeepStack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.models.decoder.architecture import TEXT_PARTS, backbone_of, rope_settings

if TYPE_CHECKING:
    from gxpo.base.media import Pixels
    from gxpo.forest.forest import Forest

READ = ("llava", "idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")  # types of models
PLACEHOLDERS = (
    "image_token_id", "image_token_index", "video_token_id", "vision_start_token_id", "vision_end_token_id",
)  # fmt: skip
Grid = tuple[int, int, int]  # frames, rows and columns of a picture, as the language model reads it
BLANK = 64  # pixels of a side of the blank picture


class Processor(Protocol):
    """Prepares pictures for a tower."""

    def grid(self, height: int, width: int) -> Grid:
        """Grid of a picture of that size, in pixels."""
        ...

    def inputs(self, pictures: Sequence[Pixels]) -> Mapping[str, Tensor]:
        """Arguments of the model's `get_image_features` for these pictures."""
        ...


class Vision:
    """The tower of a model and its processor.

    model        the part of a causal model that has `get_image_features`
    placeholder  id that stands for a row in the model's own vocabulary
    banned       ids that are never sampled
    triples      its positions are those of m-RoPE (`mrope_steps`)
    deep         layers behind which further features of a row are added (DeepStack: `embed_with_pictures`)
    around       ids of the model's vocabulary before and after the rows of each picture
    at_once      pictures that go through the tower together
    runs         number of tower runs of all processes in a forward pass, from that of this process (the parameters are
                 sharded over them); a process that needs fewer runs it on a blank picture, of which nothing is read.
                 None: each process runs it by itself
    """

    runs: Callable[[int], int] | None = None

    def __init__(
        self, model: Any, processor: Processor, config: Any, *, triples: bool = False, at_once: int = 256
    ) -> None:
        self.model, self.processor, self.triples, self.at_once = model, processor, triples, at_once
        self.deep = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
        self.width = int(config.get_text_config().hidden_size) * (1 + self.deep)  # H of `features`
        self.around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self.banned_ids = tuple(sorted({i for name in PLACEHOLDERS if (i := getattr(config, name, None)) is not None}))
        self.placeholder: int = next(i for name in PLACEHOLDERS if (i := getattr(config, name, None)) is not None)

    def freeze(self) -> None:
        """Freeze the tower and the projection of its rows."""
        parts = [getattr(self.model, name) for name in TEXT_PARTS if hasattr(self.model, name)]
        text = {id(p) for part in parts for p in part.parameters()}
        for p in self.model.parameters():
            p.requires_grad_(id(p) in text)

    def grid(self, ref: str) -> Grid:
        """Grid of a picture."""
        height, width = _size(ref)
        return self.processor.grid(height, width)

    def ids(self, ref: str) -> tuple[int, ...]:
        """Ids of a picture's rows and of the tokens around them, as contexts hold them."""
        frames, rows, columns = self.grid(ref)
        media.PICTURES.placeholders[ref] = self.placeholder
        return (*self.around[0], *media.ids(ref, frames * rows * columns), *self.around[1])

    def features(self, refs: Sequence[str]) -> list[Tensor]:
        """Rows [rows, H] of each picture; with `deep` further features [rows, (1 + deep) * H], side by side."""
        out: list[Tensor] = []
        for start in range(0, len(refs), self.at_once):
            out += self._through_tower([media.PICTURES.pixels(ref) for ref in refs[start : start + self.at_once]])
        for ref, x in zip(refs, out, strict=True):
            frames, rows, columns = self.grid(ref)
            if x.shape[0] != frames * rows * columns:
                raise ModelError(f"picture {ref[:20]}: {x.shape[0]} rows of the tower for a grid of {self.grid(ref)}")
        return out

    def _through_tower(self, pictures: Sequence[Pixels]) -> list[Tensor]:
        inputs, like = self.processor.inputs(pictures), next(self.model.parameters())
        # the processor gives float32 on the CPU: the tower takes floats in its own dtype, grids as they are
        tower_inputs = {k: x.to(like.device, like.dtype if x.is_floating_point() else None) for k, x in inputs.items()}
        output = self.model.get_image_features(**tower_inputs, return_dict=True)
        first = [x.reshape(-1, x.shape[-1]) for x in output.pooler_output]  # a tensor, or one a picture
        if not self.deep:
            return first
        # deep features lie beside the first ones in one row, and are taken apart at their layers
        return [torch.cat(features, -1) for features in zip(first, *output.deepstack_features, strict=True)]

    def _blank_runs(self, runs: int) -> list[Tensor]:
        """[0, H] of each tower run on a blank picture, made because another process has pictures left.

        A backward pass through it gives the tower's parameters gradients of 0.
        """
        blank = np.full((BLANK, BLANK, 3), 127, dtype=np.uint8)  # prepared, not 0: Idefics3 drops what is 0 as padding
        return [self._through_tower([blank])[0][:0] for _ in range(runs)]

    # ------------------------------------------------------------ positions of m-RoPE
    def _steps(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return mrope_steps(ids, lambda key: self.grid(media.PICTURES.ref_of(key)))

    def positions(self, ids: Sequence[int]) -> tuple[Tensor, int]:
        """[3, n] positions of a list of ids, and that of the next token."""
        advance, offset = self._steps(torch.tensor(ids))
        return positions_along(advance, offset), int(advance.sum())

    def positions_in(self, forest: Forest) -> Tensor:
        """[3, T] positions of a forest's stored tokens."""
        node = torch.repeat_interleave(torch.arange(forest.n_nodes), forest.first_token.diff())
        return positions_in_tree(*self._steps(forest.token), forest.first_token, forest.parent, node)

    # ------------------------------------------------------------ rows
    def needs_rows(self, rows: Tensor) -> bool:
        """Return True if a forward pass has to call `rows`: for its own pictures, or because other processes may run
        the tower in it. rows [...] bool: the tokens that are rows of pictures.
        """
        return self.runs is not None or bool(rows.any())

    def rows(self, ids: Tensor) -> Tensor:
        """[n, H] rows of pictures by id [n], as of `features`; n may be 0."""
        row_number = ids.cpu() - media.FIRST
        # each picture goes through the tower once, however often the batch shows it
        keys, picture_index = torch.unique(row_number // media.ROWS, return_inverse=True)
        runs = -(-len(keys) // self.at_once)
        extra_runs = 0 if self.runs is None else self.runs(runs) - runs  # a collective, so before any run
        picture_features = self.features([media.PICTURES.ref_of(key) for key in keys.tolist()]) + self._blank_runs(
            extra_runs
        )
        if not picture_features:
            return self.model.get_input_embeddings().weight.new_zeros(0, self.width)
        begin = torch.tensor([0, *(len(x) for x in picture_features[:-1])]).cumsum(0)
        return torch.cat(picture_features).index_select(
            0, (begin[picture_index] + row_number % media.ROWS).to(ids.device)
        )


@lru_cache(maxsize=1 << 16)
def _size(ref: str) -> tuple[int, int]:
    """Height and width of a picture."""
    height, width, _ = media.PICTURES.pixels(ref).shape
    return height, width


class PictureEmbedding(nn.Embedding):
    """Embedding that also gives rows of pictures."""

    vision: Vision

    def forward(self, input: Tensor) -> Tensor:
        rows = input >= media.FIRST
        if self.vision.deep and bool(rows.any()):
            raise ModelError("rows of pictures were embedded without their deeper features: please report it")
        if self.vision.deep or not self.vision.needs_rows(rows):
            return super().forward(input)
        out = super().forward(input.masked_fill(rows, 0))
        return out.index_put((rows,), self.vision.rows(input[rows]).to(out))


class TextHead(nn.Linear):
    """Head that gives banned ids no probability."""

    banned_ids: tuple[int, ...]

    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        return out.index_fill(-1, torch.tensor(self.banned_ids, device=out.device), -torch.inf)


@contextmanager
def with_placeholders(causal: Any) -> Iterator[None]:
    """Context manager: the head gives placeholders their logits, as the model's own head does."""
    head = causal.get_output_embeddings()
    kind = type(head)
    head.__class__ = nn.Linear if kind is TextHead else kind
    try:
        yield
    finally:
        head.__class__ = kind


def tower_of(causal: Any) -> Any:
    """Part of a model that has `get_image_features`; ModelError, with the reason, if gxpo can't show it pictures."""
    config, inner = causal.config, getattr(causal, causal.base_model_prefix, None)
    name = type(causal).__name__
    if config.model_type not in READ:
        raise ModelError(
            f"{name} can't be given pictures: gxpo knows those of {', '.join(READ)}, and others may let the rows of a "
            "picture see each other or put further tokens between them"
        )
    embedding, head = causal.get_input_embeddings(), causal.get_output_embeddings()
    if type(embedding) is not nn.Embedding or type(head) is not nn.Linear or not hasattr(inner, "get_image_features"):
        raise ModelError(
            f"{name} can't be given pictures: gxpo knows models of transformers that have get_image_features, a plain "
            "embedding and a linear head"
        )
    return inner


def install(causal: Any, processor: Processor) -> Vision:
    """Make a vision-language model read pictures by the ids of `gxpo.base.media`; ModelError as of `tower_of`."""
    inner = tower_of(causal)
    embedding, head = causal.get_input_embeddings(), causal.get_output_embeddings()
    vision = Vision(inner, processor, causal.config, triples=_has_triples(causal))
    # the class is changed in place: the module keeps its parameters, hooks and place in the model
    embedding.__class__, head.__class__ = PictureEmbedding, TextHead
    cast("PictureEmbedding", embedding).vision = vision
    # placeholders of pictures mean nothing in an answer: the head gives them no probability
    cast("TextHead", head).banned_ids = vision.banned_ids
    if vision.deep:
        register_hooks(inner, backbone_of(causal))
    return vision


def _has_triples(causal: Any) -> bool:
    """Return True for a model with m-RoPE, by its configuration or its rotary embedding's own sections."""
    settings = rope_settings(causal.config.get_text_config())
    rotary = getattr(backbone_of(causal), "rotary_emb", None)
    return any("mrope_section" in each for each in settings) or hasattr(rotary, "mrope_section")


def triples_of(model: Any) -> Vision | None:
    """Vision of a model with m-RoPE; None: its positions are the numbers of tokens before."""
    vision = vision_of(model)
    return vision if vision is not None and vision.triples else None


def picture_grid_of(model: Any) -> Callable[[str], tuple[int, int]] | None:
    """Rows and columns of the features that a model makes of a picture, by its reference; None: it reads texts."""
    vision = vision_of(model)
    return None if vision is None else lambda ref: tuple(vision.grid(ref)[1:])  # type: ignore[return-value]


def vision_of(model: Any) -> Vision | None:
    """Vision of a model, or of one wrapped by peft; None for a text-only model."""
    embedding = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    return getattr(embedding, "vision", None)


# ---------------------------------------------------------------- positions of m-RoPE
# m-RoPE (Qwen2-VL, arXiv 2409.12191, section 2.1) gives each token a frame, a row and a column. A text token at
# position p has the triple (p, p, p). The rows of a picture of `rows` x `columns` that begins at p lie at (p + frame,
# p + row, p + column), and the text goes on at p + max(rows, columns), which is less than p plus the number of its
# tokens. So every token advances later positions by a number of its own, and positions are sums of these along a path,
# plus an offset that the token knows by itself: a prefix has the same positions whatever follows it.
def mrope_steps(ids: Tensor, grid_of: Callable[[int], Grid]) -> tuple[Tensor, Tensor]:
    """Advance [n] by which each of `ids` [n] moves later positions, and offset [3, n] added to its own.

    grid_of  grid of the picture with a key (`gxpo.base.media.key_of_row`)
    """
    advance, offset = torch.ones_like(ids), ids.new_zeros(3, ids.numel())
    picture_index = (ids >= media.FIRST).nonzero().squeeze(1)
    if not picture_index.numel():
        return advance, offset
    picture_row = ids[picture_index] - media.FIRST
    keys, key_index = torch.unique(picture_row // media.ROWS, return_inverse=True)
    row = picture_row % media.ROWS
    _, height, width = torch.tensor([grid_of(key) for key in keys.tolist()], device=ids.device)[key_index].unbind(1)
    # m-RoPE moves on by the longest side of a picture, once: by its first row
    longest = torch.maximum(height, width)
    is_first_row = row == 0
    advance[picture_index] = torch.where(is_first_row, longest, 0)
    position = torch.stack([row // (height * width), row // width % height, row % width])
    # the advance of a picture's first row has already moved its other rows
    offset[:, picture_index] = position - torch.where(is_first_row, 0, longest)
    return advance, offset


def positions_along(advance: Tensor, offset: Tensor) -> Tensor:
    """Positions [3, n] of a list of tokens from its `mrope_steps`; the next token's is advance.sum()."""
    return advance.cumsum(0) - advance + offset


def positions_in_tree(advance: Tensor, offset: Tensor, first_token: Tensor, parent: Tensor, node: Tensor) -> Tensor:
    """Positions [3, T] of the tokens of a forest, each along the path from its root.

    first_token [N + 1], parent [N] (-1: a root), of nodes that come after their parents; node [T]: of each token
    """
    cumulative = torch.cat([advance.new_zeros(1), advance.cumsum(0)])
    advance_N = (cumulative[first_token[1:]] - cumulative[first_token[:-1]]).tolist()
    start: list[int] = []
    for above in parent.tolist():
        start.append(0 if above < 0 else start[above] + advance_N[above])
    begin = torch.tensor(start, dtype=advance.dtype, device=advance.device) - cumulative[first_token[:-1]]
    return cumulative[:-1] + begin[node] + offset


# ---------------------------------------------------------------- DeepStack
# DeepStack (Meng et al., arXiv 2406.04334; Qwen3-VL) adds features of inner layers of the tower to the states of
# picture rows behind the first layers of the language model. `decoder.forward` adds them itself. Transformers' own
# forward pass gets them in the arguments that it has for them, by hooks before the model and before its language
# model: from ids of `gxpo.base.media` alone it would lose them.
def embed_with_pictures(vision: Vision, embedding: Any, tokens: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Input of the first layer [..., H], mask of picture rows [...] bool, and deeper features [n, H] of these rows.

    The deeper features are added behind each of the first layers; one run of the tower for each picture gives all.
    """
    rows = tokens >= media.FIRST
    out = embedding(tokens.masked_fill(rows, vision.placeholder))
    if not vision.needs_rows(rows):
        return out, rows, []
    first, *later = vision.rows(tokens[rows]).to(out).chunk(1 + vision.deep, -1)
    return out.index_put((rows,), first), rows, later


def register_hooks(inner: Any, text: Any) -> None:
    """Register hooks by which transformers' forward passes of a model and its language model read rows of pictures."""
    inner.register_forward_pre_hook(_before_model, with_kwargs=True)
    text.register_forward_pre_hook(_before_text, with_kwargs=True)


def _has_picture_rows(module: Any, keywords: dict[str, Any]) -> bool:
    tokens = keywords.get("input_ids")
    return tokens is not None and module.get_input_embeddings().vision.needs_rows(tokens >= media.FIRST)


# hooks look the tower up in the module, so that copies of a model use towers of their own
def _before_model(module: Any, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    if not _has_picture_rows(module, keywords):
        return None
    vision, tokens = module.get_input_embeddings().vision, keywords["input_ids"]
    # transformers accepts no id beyond its vocabulary: it fills placeholders with the rows of the tower
    rows = tokens >= media.FIRST
    first, *later = vision.rows(tokens[rows]).chunk(1 + vision.deep, -1)
    tower_outputs = SimpleNamespace(pooler_output=[first], deepstack_features=[[x] for x in later])
    keywords = {
        **keywords,
        "input_ids": tokens.masked_fill(rows, vision.placeholder),
        "mm_encoder_outputs": {"image": tower_outputs},
    }
    return args, keywords


def _before_text(module: Any, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    if not _has_picture_rows(module, keywords):
        return None
    embedding = module.get_input_embeddings()
    out, rows, later = embed_with_pictures(embedding.vision, embedding, keywords["input_ids"])
    keywords = {**keywords, "input_ids": None, "inputs_embeds": out}
    return args, {**keywords, "visual_pos_masks": rows, "deepstack_visual_embeds": later}
