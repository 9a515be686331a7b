"""Base class of segmenters, which cut actions into segments and fill the forest's `segment` column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from gxpo.parts.functions import FunctionPart, signature
from gxpo.parts.ranges import Part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

LABEL = "label"  # name of the extra that holds the labels, [T] int64, 0 none


@dataclass(frozen=True)
class SegmentTools:
    """Services for a segmenter: decoding, and the policy.

    decode   token ids -> text, special tokens left out
    learner  the policy, for parts that need its entropies (None: there is none)
    """

    decode: Callable[[Sequence[int]], str]
    learner: Any = None


@dataclass(frozen=True, eq=False)
class Action:
    """Action of one trajectory, as a segmenter reads it."""

    tokens: Sequence[int]
    logprob: Sequence[float]  # of the rollout policy, nan unknown
    entropy: Sequence[float] | None  # of the policy, nats, where the part asks for it
    decode: Callable[[Sequence[int]], str] = field(repr=False)

    @cached_property
    def text(self) -> str:
        return self.decode(self.tokens)

    @cached_property
    def starts(self) -> list[int]:
        """Character offset in the text of each token."""
        out, offset = [], 0
        # Tokens that end inside a character decode to other texts alone than together: then prefixes are decoded.
        pieces = [self.decode([token]) for token in self.tokens]
        if "".join(pieces) == self.text:
            for piece in pieces:
                out.append(offset)
                offset += len(piece)
            return out
        return [len(self.decode(self.tokens[:i])) for i in range(len(self.tokens))]  # pieces of a character

    def first_from(self, character: int) -> int:
        """Index of the first token that begins at or after a character of the text."""
        return sum(start < character for start in self.starts)

    def holding(self, begin: int, end: int) -> range:
        """Tokens that overlap the characters begin..end-1."""
        ends = [*self.starts[1:], len(self.text)]
        overlapping = [i for i, (a, b) in enumerate(zip(self.starts, ends, strict=True)) if a < end and b > begin]
        return range(overlapping[0], overlapping[-1] + 1) if overlapping else range(0)


class Segmenter(Part, ABC):
    """Base of segmenters: a frozen dataclass with `begins`, and `labels` where its segments are of several kinds.

    Tokens that forks share keep the numbers of the first trajectory that holds them; a fork's own tokens go on from
    there.
    """

    slot = "segment"
    reads_entropy: bool = False
    provides: tuple[str, ...] = ("segments",)

    @abstractmethod
    def begins(self, action: Action) -> Sequence[int]:
        """Token positions at which segments begin; position 0 always begins one."""
        raise NotImplementedError

    def labels(self, action: Action) -> Sequence[int] | None:
        """Label of each token, 0 none; None from a segmenter without labels."""
        return None

    def __call__(self, forest: Forest, tools: SegmentTools) -> Forest:
        """Return the forest with its column `segment` ([T], from 0 within each action, -1 outside), and with labels in
        `extras["label"]`."""
        segment, label = [-1] * forest.n_tokens, [0] * forest.n_tokens
        token, logprob = forest.token.tolist(), forest.behaviour_logprob.tolist()
        entropy = self._entropy(forest, tools)
        path, token_counts = (
            forest.path_token.tolist(),
            torch.bincount(forest.path_step, minlength=forest.n_steps).tolist(),
        )
        path_begin, has_labels = 0, False
        # Actions of the paths, one after the other; a token that forks share is met once for each of them.
        for count in token_counts:
            action_tokens = path[path_begin : path_begin + count]
            path_begin += count
            action = Action(
                [token[t] for t in action_tokens],
                [logprob[t] for t in action_tokens],
                None if entropy is None else [entropy[t] for t in action_tokens],
                tools.decode,
            )
            numbers = _segment_numbers(count, self.begins(action))
            # What a fork inherits has its numbers already and comes first; the fork's own numbers go on from the last.
            n_shared = sum(segment[t] >= 0 for t in action_tokens)  # what a fork inherits comes first
            shift = segment[action_tokens[n_shared - 1]] - numbers[n_shared - 1] if n_shared else 0
            action_labels = self.labels(action)
            has_labels |= action_labels is not None
            for i in range(n_shared, count):
                segment[action_tokens[i]] = numbers[i] + shift
                label[action_tokens[i]] = 0 if action_labels is None else action_labels[i]
        extras = {**forest.extras, LABEL: torch.tensor(label)} if has_labels else forest.extras
        return replace(forest, segment=torch.tensor(segment, dtype=torch.int64), extras=extras)

    def _entropy(self, forest: Forest, tools: SegmentTools) -> list[float] | None:
        """Entropy [T] of the policy's distribution at each action token, nats; None if the segmenter reads none."""
        if not self.reads_entropy:
            return None
        if tools.learner is None:
            raise ValueError(f"{type(self).__name__} needs the policy's entropies: give SegmentTools a learner")
        entropy_T = torch.zeros(forest.n_tokens, dtype=torch.float64)
        entropy_T[forest.path_token] = tools.learner.outputs(forest, ("entropy",))["entropy"]
        return entropy_T.tolist()


class Cuts(FunctionPart, Segmenter):
    """Segmenter from a function whose parameters name fields of an `Action`; it returns what `begins` does."""

    @classmethod
    def facts(cls, function: Callable[..., Any]) -> dict[str, Any]:
        return {"reads_entropy": "entropy" in signature(function).columns}

    def begins(self, action: Action) -> Sequence[int]:
        return self.function(*(getattr(action, name) for name in signature(self.function).columns), **self.options)


def _segment_numbers(count: int, begins: Sequence[int]) -> list[int]:
    """Segment number, from 0, of each of `count` tokens."""
    opening = set(begins) - {0}
    out, number = [], 0
    for i in range(count):
        number += i in opening
        out.append(number)
    return out
