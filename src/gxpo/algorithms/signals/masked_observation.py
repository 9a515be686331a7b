"""Log-probs of the actions with part of the observation masked (PAPO, VPPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.base import media
from gxpo.base.errors import GxpoError
from gxpo.forest.columns import sum_before
from gxpo.forest.forest import ACTION
from gxpo.parts.learning import Output
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from collections.abc import Callable

    from gxpo.base.media import Pixels
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Learner, Signals

_LOW = (1 << 32) - 1
PATCH = 14  # pixels of a patch's side in the authors' code
LIKELIEST = 64  # ids of a distribution that a KL counts one by one; the rest count as one


def _mixed(x: Tensor) -> Tensor:
    """[n] int64 in [0, 2^32): a hash of each (xorshift and multiplication, twice)."""
    x = x & _LOW
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & _LOW
    return x ^ (x >> 16)


def prefix_keys(forest: Forest, seed: int, step: int) -> Tensor:
    """Hash of (seed, step, all tokens from the root up to and including this one), [T] int64 in [0, 2^32).

    Equal contexts have equal keys, however they are stored and in whatever order.
    """
    packed = forest.pack()
    salt = _mixed(torch.tensor(seed)) ^ _mixed(torch.tensor(step + 0x9E3779B9))
    # Position is mixed in, so that the sum over a path depends on the order of its tokens.
    token_hash = _mixed(_mixed(forest.token + salt) + packed.position * 0x9E3779B9)
    return _mixed(token_hash + sum_before(packed.predecessor, token_hash))


def hidden_tokens(forest: Forest, share: float, seed: int, step: int) -> Tensor:
    """Prompt and observation tokens to mask, each with probability `share` by its `prefix_keys`; [T] bool.

    Never the first token of a root path (bos), an action token, or a token without a vocabulary id, such as a picture's
    row.
    """
    is_text = (forest.token >= 0) & (forest.token < media.FIRST)
    is_context = (forest.kind != ACTION)[forest.token_node] & is_text & (forest.pack().predecessor >= 0)
    # A hash as the random number: contexts that are stored twice, or in other batches, are masked alike.
    return is_context & (prefix_keys(forest, seed, step) < share * 2**32)


def mask_tokens(forest: Forest, hidden: Tensor, fill: str, blank_id: int, seed: int, step: int) -> Forest:
    """Replace the hidden tokens of a forest by `blank_id`, or by ids drawn from its own contexts."""
    # Random fills come from the step's own contexts, so that they are tokens of the task's language; under the
    # seed of the choice, a token's hash would decide both whether it is hidden and by what.
    if fill == "blank":
        replacement = torch.full_like(forest.token, blank_id)
    else:
        is_text = (forest.token >= 0) & (forest.token < media.FIRST)
        is_context = (forest.kind != ACTION)[forest.token_node] & is_text
        vocabulary = torch.unique(forest.token[is_context])
        replacement = (
            vocabulary[prefix_keys(forest, seed + 1, step) % max(1, len(vocabulary))] if len(vocabulary) else None
        )
    return forest if replacement is None else forest.replace(token=torch.where(hidden, replacement, forest.token))


def with_masked_pictures(forest: Forest, mask: Callable[[str], str]) -> Forest:
    """Replace the pictures of a forest by others of as many rows: `mask` maps an old reference to the new one."""
    rows = forest.token >= media.FIRST
    keys, picture_of_row = torch.unique((forest.token[rows] - media.FIRST) // media.ROWS, return_inverse=True)
    masked_ref = {ref: mask(ref) for ref in (media.PICTURES.ref_of(key) for key in keys.tolist())}
    masked_key = torch.tensor([media.key_of(x) for x in masked_ref.values()], dtype=torch.int64)[picture_of_row]
    # A picture's token ids hold its key and the row: the key changes, rows stay.
    token = forest.token.clone()
    token[rows] = media.FIRST + masked_key * media.ROWS + (token[rows] - media.FIRST) % media.ROWS
    refs_by_node = {node: tuple(masked_ref.get(ref, ref) for ref in refs) for node, refs in forest.media.items()}
    return forest.replace(token=token, media=refs_by_node)


def masked_picture(
    pixels: Pixels, cell: tuple[float, float], share: float, fill: str, seed: int, step: int, key: int
) -> Pixels:
    """Hide each cell (height and width in pixels) of a picture [H, W, 3] with probability `share`, by a hash of (seed,
    step, key, cell): "black", or the picture's "mean" colour."""
    y, x = ((np.arange(n) // size).astype(np.int64) for n, size in zip(pixels.shape, cell, strict=False))
    # Cells by integer division of the pixel's place; the last row and column may be cut off.
    n_rows, n_columns = int(y[-1]) + 1, int(x[-1]) + 1
    salt = torch.tensor([seed, step + 0x9E3779B9, key])
    cell_number = torch.arange(n_rows * n_columns) + int(_mixed(_mixed(salt) * torch.tensor([3, 5, 7])).sum())
    hidden = (_mixed(_mixed(cell_number) + key) < share * 2**32).reshape(n_rows, n_columns).numpy()
    fill_colour = np.zeros(3) if fill == "black" else pixels.mean((0, 1))
    return np.where(hidden[y][:, x][..., None], fill_colour.round().astype(np.uint8), pixels)


def picture_kl(forest: Forest, learner: Learner) -> float | None:
    """Mean KL(policy || policy with all pictures in the mean of their colours), nats a token, over the action tokens of
    a forest at temperature 1; None where it shows no picture.

    Each token's is that of its two distributions, not an estimate from the token that was sampled; ids beyond the 64
    likeliest of the first count as one. Below a thousandth the policy says the same whatever it is shown.
    """
    if not forest.media or not bool((forest.token >= media.FIRST).any()):
        return None

    def hidden(ref: str) -> str:
        pixels = media.PICTURES.pixels(ref)
        mean = pixels.mean((0, 1)).round().astype(np.uint8)
        return media.PICTURES.put(np.broadcast_to(mean, pixels.shape).copy())

    # Temperature 1: the model's own distributions, whatever the rollouts were sampled at.
    at_one = forest.replace(sampling=[{} for _ in forest.sampling])
    ids, logprob = Output("likeliest", LIKELIEST), Output("likeliest_logprob", LIKELIEST)
    likeliest = learner.outputs(at_one, (ids, logprob))
    # The distribution with pictures is the teacher of the pass without them: KL(with || without).
    unmasked = {"teacher_ids": likeliest[ids].to(torch.int64), "teacher_logprob": likeliest[logprob]}
    divergence = Output("divergence", 0.0)  # KL of what is given from the policy
    kl = learner.outputs(with_masked_pictures(at_one, hidden), (divergence,), constants=unmasked)[divergence]
    kl = kl[forest.path_trainable & kl.isfinite()]
    return float(kl.mean()) if kl.numel() else None


@part("masked_observation", stage="signal")
@dataclass(frozen=True)
class MaskedObservation(SignalPart):
    """The signal "masked_logprob" [P]: log-probs of the actions with the context partly masked (PAPO, VPPO).

    mask_unit  "patches" of the pictures, prompt and observation "tokens", or "auto": patches where there are pictures
    share  probability that a token or a patch is hidden
    fill   replacement of a token: "blank" (one that says nothing) or "random" (an id from the step's own contexts, each
           as often as any other)
    patch  pixels of a patch's side; 0: the part of the picture that the model reads as one row, where gxpo reads it;
           elsewhere (in TRL) 14, as the authors'
    patch_fill   "black", or the picture's "mean" colour

    Which tokens are hidden depends on (seed, step, the context up to them), which patches on (seed, step, picture):
    trajectories that share a context have it masked alike, others differ, and every step draws anew. Positions stay;
    actions are never touched, so later turns still see earlier actions. Chat markup is masked like the rest. Costs one
    more forward pass of the step.

    Source: PAPO (arXiv 2507.06448) and VPPO (arXiv 2510.09285), which blacken patches of an image with probability 0.6
    before the tower; text tokens in their place is this library's reading.
    """

    mask_unit: Literal["auto", "patches", "tokens"] = "auto"
    share: Annotated[float, Interval(gt=0, le=1)] = 0.6
    fill: Literal["blank", "random"] = "blank"
    patch: Annotated[int, Ge(0)] = 0
    patch_fill: Literal["black", "mean"] = "black"

    provides = ("masked_logprob",)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("a masked observation")
        return {"masked_logprob": tools.learner.outputs(self.masked(forest, tools), ("logprob",))["logprob"]}

    def masked(self, forest: Forest, tools: SignalTools) -> Forest:
        """The forest as the policy sees it with its context partly masked."""
        pictures = bool((forest.token >= media.FIRST).any()) if forest.media else False
        if self.mask_unit == "patches" and not pictures:
            raise GxpoError(
                "signal.masked_observation.mask_unit=patches: no picture is shown in this step: mask tokens"
            )
        if self.mask_unit == "tokens" or not pictures:
            hidden = hidden_tokens(forest, self.share, tools.seed, tools.step)
            return mask_tokens(forest, hidden, self.fill, tools.blank_id, tools.seed, tools.step)

        def mask(ref: str) -> str:
            pixels = media.PICTURES.pixels(ref)
            # Without a stated patch the cell is a row of the model's features, so that whole features are hidden.
            side = float(self.patch or PATCH)
            cell = side, side
            if not self.patch and tools.picture_grid is not None:
                n_rows, n_columns = tools.picture_grid(ref)
                cell = pixels.shape[0] / n_rows, pixels.shape[1] / n_columns
            options = (self.share, self.patch_fill, tools.seed, tools.step, media.key_of(ref))
            return media.PICTURES.put(masked_picture(pixels, cell, *options))

        return with_masked_pictures(forest, mask)

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        """Figure masked_kl: mean k3 of the policy at the start of the step (or the sampler's log-probs, where the step
        has no others) from itself with the observation masked."""
        d = (signals["masked_logprob"] - signals["proximal_logprob"])[forest.path_trainable]
        d = d[d.isfinite()]
        return {"masked_kl": float((d.expm1() - d).mean())} if d.numel() else {}
