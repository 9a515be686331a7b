"""Token rows for training engines: flat sequences of a forest, in which each stored token is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.forest.token_bias import BIAS, PENALTY
from gxpo.learning.packing import Packing
from gxpo.parts.protocols import TokenRow


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows for some action tokens of a forest, one row for each leaf.

    rows      the rows; together they have Q readings
    entries   [E] the action tokens (of P) that are read
    reading   [E] which of the Q readings is each one's: entries that share a stored token and a temperature share one
    """

    rows: list[TokenRow]
    entries: Tensor
    reading: Tensor

    @classmethod
    def of(cls, forest: Forest, entries: Tensor) -> Rows:
        """Rows from which these action tokens (of P) can be read.

        A token is read in the first row that holds it, where the token after its predecessor is itself: engines that
        give next-token log-probs need no targets of their own. (A packed tree reads the first token of a fork at its
        predecessor, which may be followed by another branch's token.)
        """
        # refuse what a training engine can't represent: truncated supports, latents, pictures
        packing = Packing(forest, layout="flat")
        is_truncated, temperature_E = (x[forest.path_trajectory[entries]] for x in reversed(packing.settings))
        if bool(is_truncated.any()) or "support" in forest.extras:
            raise ModelError(
                "rollouts were sampled with top_k, top_p or min_p, and a training engine reads log-probs over the "
                "whole vocabulary: sample by temperature alone (sampling.top_k=0, sampling.top_p=1)"
            )
        if BIAS in forest.extras or PENALTY in forest.extras:
            raise ModelError(
                "rollouts were sampled under options of calls (logit_bias, penalties, min_tokens, a grammar), and a "
                "training engine reads log-probs of unchanged logits: leave them out of the calls, or train in process "
                "(cluster.backend=local)"
            )
        packing.read_at(entries)  # refuses a token without a predecessor
        first, token = forest.first_token.tolist(), forest.token
        if bool((token < 0).any()):
            raise ModelError("the forest holds steps that are not vocabulary ids (token -1), which no engine can read")
        if forest.media or bool((token >= media.FIRST).any()):
            raise ModelError(
                "the forest shows pictures, and training engines (tinker, verl) are given token ids alone: train in "
                "process (cluster.backend=local)"
            )
        token_E = forest.path_token[entries]
        # one reading for each distinct (stored token, temperature), as in `Packing`
        readings = sorted(set(zip(token_E.tolist(), temperature_E.tolist(), strict=True)))
        by_node: dict[int, list[tuple[int, float]]] = {}
        node_of = packing.packed.node_of_token
        for (token_index, temperature), node in zip(
            readings, node_of[torch.tensor([token_index for token_index, _ in readings])].tolist(), strict=True
        ):
            by_node.setdefault(node, []).append((token_index, temperature))
        # a shared token is read in the first row that holds it, so that its slope is pulled once
        reading_number: dict[tuple[int, float], int] = {}
        rows = []
        for path in _paths(forest.parent.tolist(), by_node):
            # a row ends with the last token that is read from its deepest node
            last = by_node[path[-1]][-1][0] + 1
            spans = [torch.arange(first[n], last if n == path[-1] else first[n + 1]) for n in path]
            starts = dict(zip(path, _starts([len(x) for x in spans]), strict=True))
            row_readings = [
                (n, token_index, temperature)
                for n in path
                for token_index, temperature in by_node.get(n, ())
                if (token_index, temperature) not in reading_number
            ]
            for _, token_index, temperature in row_readings:
                reading_number[token_index, temperature] = len(reading_number)
            rows.append(
                TokenRow(
                    token[torch.cat(spans)],
                    torch.tensor(
                        [starts[n] + token_index - first[n] for n, token_index, _ in row_readings], dtype=torch.int64
                    ),
                    torch.tensor([temperature for _, _, temperature in row_readings], dtype=torch.float64),
                )
            )
        reading = [reading_number[key] for key in zip(token_E.tolist(), temperature_E.tolist(), strict=True)]
        return cls(rows, entries, torch.tensor(reading, dtype=torch.int64))

    @cached_property
    def sizes(self) -> list[int]:
        """Number of readings of each row."""
        return [row.read.numel() for row in self.rows]

    @property
    def tokens(self) -> int:
        """Number of tokens in all rows."""
        return sum(row.tokens.numel() for row in self.rows)

    def gather(self, values: Sequence[Tensor]) -> Tensor:
        """Gather values [E] float64 of the entries from the values [k] of each row."""
        return torch.cat([x.to("cpu", torch.float64) for x in values])[self.reading]

    def scatter(self, slope: Tensor) -> list[Tensor]:
        """Sum slopes [E] over the entries that share a reading, into slopes [k] of each row."""
        slope_Q = torch.zeros(sum(self.sizes), dtype=torch.float64).index_add_(0, self.reading, slope)
        return list(slope_Q.split(self.sizes))

    def chunks(self, limit: int) -> list[list[int]]:
        """Row numbers in chunks of at most `limit` tokens (a longer row is alone), in order."""
        out: list[list[int]] = []
        chunk_tokens = 0
        for i, row in enumerate(self.rows):
            if not out or chunk_tokens + row.tokens.numel() > limit:
                out.append([])
                chunk_tokens = 0
            out[-1].append(i)
            chunk_tokens += row.tokens.numel()
        return out


def _paths(parent: Sequence[int], read: Mapping[int, object]) -> list[list[int]]:
    """Nodes from root to leaf, for each deepest node that is read from."""
    inner: set[int] = set()
    # a node above another one is on that one's path, and needs no row of its own
    for node in read:
        up = parent[node]
        while up >= 0 and up not in inner:
            inner.add(up)
            up = parent[up]
    out = []
    for leaf in sorted(set(read) - inner):
        path = [leaf]
        while (up := parent[path[-1]]) >= 0:
            path.append(up)
        out.append(path[::-1])
    return out


def _starts(sizes: Sequence[int]) -> list[int]:
    """Exclusive cumulative sums."""
    return torch.tensor([0, *sizes]).cumsum(0)[:-1].tolist()
