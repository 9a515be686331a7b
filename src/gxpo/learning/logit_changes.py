"""Biases, penalties and masks of sampled tokens, applied again to the learner's logits before temperature.

Biases (a call's `logit_bias`, forbidden end ids, the masks of a grammar) are stored, each distinct one once. Penalties
are three numbers and the length of the reply so far: ids and their counts are those of the tokens before it on its root
path, so that storing them, as many as there are tokens for every token, would only repeat what the forest holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.forest.token_bias import BIAS, PENALTY, TokenBias, penalised

if TYPE_CHECKING:
    from gxpo.forest.forest import Packed


@dataclass(frozen=True, eq=False)
class LogitChanges:
    """Changes of the logits of Q readings.

    key      [Q] int64 hash of each one's bias, -1 none; biases: by hash
    penalty  [Q, 4] `gxpo.forest.token_bias.PENALTIES`, nan none
    before   ids before each reading with a penalty, prompt and reply
    """

    key: Tensor
    biases: Mapping[int, TokenBias]
    penalty: Tensor
    before: Mapping[int, Tensor]  # by the reading's number

    @classmethod
    def of(cls, forest: Forest, packed: Packed, token: Tensor) -> LogitChanges | None:
        """Changes of stored tokens [Q] as they were sampled; None if there are none.

        ModelError for a token that its own bias forbids, or whose bias is not stored.
        """
        no_key, no_penalty = torch.full((len(token),), -1), torch.full((len(token), 4), torch.nan, dtype=torch.float64)
        key = forest.extras[BIAS][token] if BIAS in forest.extras else no_key
        penalty = forest.extras[PENALTY][token] if PENALTY in forest.extras else no_penalty
        if not bool((key >= 0).any()) and bool(penalty.isnan().all()):
            return None
        for k in key.unique().tolist():
            if k >= 0 and k not in forest.biases:
                raise ModelError(
                    f"a token was sampled under the logit bias {k}, which the forest does not hold (Forest.biases): "
                    "keep it, or its ratios would be wrong"
                )
        changes = cls(key, forest.biases, penalty, _ids_before(packed, token, penalty))
        changes._check_targets(forest.token[token])
        return changes

    def _check_targets(self, target: Tensor) -> None:
        """Refuse a token that its own bias forbids: its log-prob would be minus infinity."""
        for k in self.key.unique().tolist():
            if k < 0:
                continue
            ids = target[self.key == k]
            if bool((is_forbidden := self.biases[k].at(ids) == -torch.inf).any()):
                token = int(ids[is_forbidden][0])
                raise ModelError(f"an action has the token {token}, which the logit bias it was sampled under forbids")

    @property
    def is_changed(self) -> Tensor:
        """[Q] bool: readings whose logits were changed."""
        return (self.key >= 0) | ~self.penalty[:, 0].isnan()

    def __getitem__(self, rows: Tensor) -> LogitChanges:
        """Changes of some readings, in this order."""
        before = {new: self.before[old] for new, old in enumerate(rows.tolist()) if old in self.before}
        return LogitChanges(self.key[rows], self.biases, self.penalty[rows], before)

    def apply(self, logits: Tensor) -> Tensor:
        """Logits [Q, V] as they were before temperature."""
        keys, row_key = self.key.unique(return_inverse=True)
        distinct = [
            self.biases[k].dense(logits.shape[1]) if k >= 0 else torch.zeros(logits.shape[1]) for k in keys.tolist()
        ]
        out = logits + torch.stack(distinct).to(logits)[row_key.to(logits.device)]
        if not self.before:
            return out
        has_penalty = torch.tensor(sorted(self.before))
        count, is_seen = self._counts(has_penalty.tolist(), logits.shape[1], logits.device)
        row_index = has_penalty.to(logits.device)
        penalised_rows = penalised(
            out[row_index], count.to(out), is_seen, self.penalty[has_penalty, :3].to(logits.device)
        )
        return out.index_copy(0, row_index, penalised_rows)

    def _counts(self, rows: list[int], vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Times that each reply has each id [n, V], and whether prompt or reply has it."""
        count = torch.zeros(len(rows), vocabulary)
        is_seen = torch.zeros(len(rows), vocabulary, dtype=torch.bool)
        for i, row in enumerate(rows):
            before, n_sampled = self.before[row], int(self.penalty[row, 3])
            reply = before[len(before) - n_sampled :]
            count[i] = torch.bincount(reply[reply < vocabulary], minlength=vocabulary)
            is_seen[i, before[before < vocabulary]] = True  # rows of pictures have ids outside the vocabulary
        return count.to(device), is_seen.to(device)


def _ids_before(packed: Packed, token: Tensor, penalty: Tensor) -> dict[int, Tensor]:
    """Ids before each token with a penalty on its root path, by its place in `token`."""
    out: dict[int, Tensor] = {}
    path_of_node: dict[int, Tensor] = {}
    for i in (~penalty[:, 0].isnan()).nonzero().squeeze(1).tolist():
        t = int(token[i])
        node = int(packed.node_of_token[t])
        if node not in path_of_node:
            # a node's tokens follow one another: from its first one back to the root, node by node
            path, place = [], t
            while place >= 0:
                owner = packed.node_of_token[place]
                first = place - int(packed.position[place] - packed.begin[owner])
                path.append(torch.arange(first, place + 1) if path else torch.arange(first, first))
                place = int(packed.predecessor[first])
            path_of_node[node] = packed.token[torch.cat(path[::-1])]
        inside = int(packed.position[t] - packed.begin[node])
        before = torch.cat([path_of_node[node], packed.token[t - inside : t]])
        if len(before) < int(penalty[i, 3]):
            raise ModelError("a token has a penalty over more tokens than there are before it: its record is damaged")
        out[i] = before
    return out
