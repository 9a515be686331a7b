"""Learner for masked language models: estimates of log-probs of whole answers, through the views of an estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.likelihoods.base import Answer, Likelihood
from gxpo.base.errors import ModelError
from gxpo.forest.forest import ACTION, Forest
from gxpo.learning.base import outputs_of
from gxpo.learning.module import ModuleLearner
from gxpo.models.masked import EXTRAS, MASK_SEED, ROOM, UNMASKED_AT, MaskedPolicy, Row, estimate

OUTPUTS = ("logprob", "entropy")


@dataclass(frozen=True, eq=False)
class Answers:
    """A micro-batch of whole answers.

    rows     the answers, whose tokens are read one after the other
    entries  [E] the action tokens (of P) that are read, and reading [E] which of the rows' tokens is each one's
    n_stored tokens of all views
    """

    rows: list[Row]
    entries: Tensor
    reading: Tensor
    n_stored: int


class MaskedPacking:
    """Answers of a forest: every action node with all that comes before it."""

    def __init__(self, forest: Forest, limit: int, policy: MaskedPolicy, likelihood: Likelihood) -> None:
        self.forest, self.limit, self.policy, self.likelihood = forest, limit, policy, likelihood
        for name in EXTRAS:
            if name not in forest.extras:
                raise ModelError(
                    f"a masked model learns from rollouts with extras {', '.join(EXTRAS)}, and these have no {name!r}: "
                    "sample them with a masked model"
                )
        acted = torch.unique(forest.token_node[forest.path_token])
        parent = forest.parent[acted].clamp_min(0)
        # an answer is not written from left to right: the first half of one is no context of the second
        if bool(((forest.kind[parent] == ACTION) & (forest.turn[parent] == forest.turn[acted])).any()):
            raise ModelError(
                "some answers fork within an action, which a masked model does not write from left to right"
            )
        self.views: dict[int, int] = {}  # tokens of the views of an answer, by node

    def microbatches(self, entries: Tensor, cuts: Sequence[Tensor] | None = None, at_least: int = 1) -> list[Answers]:
        """Micro-batches with these action tokens, at most `limit` tokens of views each, or one answer."""
        entry_sets = [entries] if cuts is None else [part[torch.isin(part, entries)] for part in cuts]
        out: list[Answers] = []
        for part in entry_sets:
            nodes = torch.unique(self.forest.token_node[self.forest.path_token[part]]).tolist()
            rows = {node: self._row(node, part) for node in nodes}
            sizes = {node: self._tokens(row) for node, row in rows.items()}
            limit = (
                min(self.limit, -(-sum(sizes.values()) // at_least)) if at_least > 1 and cuts is None else self.limit
            )
            batch: list[int] = []
            for node in nodes:
                if batch and cuts is None and sum(sizes[x] for x in (*batch, node)) > limit:
                    out.append(self._batch(batch, rows, sizes, part))
                    batch = []
                batch.append(node)
            if batch:
                out.append(self._batch(batch, rows, sizes, part))
        return out

    def _row(self, node: int, entries: Tensor) -> Row:
        """The answer that a node holds."""
        forest = self.forest
        begin, end = int(forest.first_token[node]), int(forest.first_token[node + 1])
        of_node = entries[forest.token_node[forest.path_token[entries]] == node]
        sampling = forest.sampling[int(forest.path_trajectory[of_node[0]])]
        temperature = sampling.get("temperature")
        temperature = 1.0 if temperature is None else float(temperature)
        if temperature <= 0:
            raise ModelError(
                "some answers were sampled at temperature 0, which leaves no log-probabilities to train on: sample "
                "with temperature > 0"
            )
        unmasked_at, seed, room = (forest.extras[name][begin:end] for name in (UNMASKED_AT, MASK_SEED, ROOM))
        return Row(
            forest.context(int(forest.parent[node])),
            forest.token[begin:end].tolist(),
            int(room[0]),
            unmasked_at.to(torch.int64),
            int(seed[0]),
            temperature,
        )

    def _tokens(self, row: Row) -> int:
        """Tokens that go through the model for an answer."""
        hidden, _ = self.likelihood.views(Answer(len(row.prompt), row.unmasked_at, row.seed))
        return len(hidden) * (len(row.prompt) + row.room)

    def _batch(self, nodes: list[int], rows: dict[int, Row], sizes: dict[int, int], entries: Tensor) -> Answers:
        forest, offset, first = self.forest, {}, 0
        for node in nodes:
            offset[node], first = first, first + len(rows[node].answer)
        node_of_entry = forest.token_node[forest.path_token[entries]]
        batch_entries = entries[torch.isin(node_of_entry, torch.tensor(nodes))]
        token = forest.path_token[batch_entries]
        base = torch.tensor([offset[int(node)] for node in forest.token_node[token]], dtype=torch.int64)
        reading = base + token - forest.first_token[forest.token_node[token]]
        return Answers([rows[node] for node in nodes], batch_entries, reading, sum(sizes[node] for node in nodes))

    def flat_tokens(self, entries: Tensor) -> int:
        """Number of tokens of views for these action tokens, each answer of each trajectory read by itself."""
        node = self.forest.token_node[self.forest.path_token[entries]]
        pairs = torch.unique(torch.stack([self.forest.path_trajectory[entries], node]), dim=1)
        return sum(self._tokens(self._row(int(n), entries)) for n in pairs[1])


class MaskedLearner(ModuleLearner):
    """Holds and optimises a masked language model's parameters; settings as those of `ModuleLearner`.

    policy      the model with its special ids
    likelihood  the estimator whose values are the outputs "logprob" and "entropy" of every token of an answer

    The masks of an answer are those that were drawn when it was sampled: the current, the old and the reference policy
    are read through the same views. No adapters, value head or hidden states.
    """

    family = "a masked model"

    def __init__(self, policy: MaskedPolicy, likelihood: Likelihood, *, lr: float, **settings: Any) -> None:
        self.policy, self.likelihood = policy, likelihood
        super().__init__(policy.model, lr=lr, **settings)

    def _like(self, model: Any, **settings: Any) -> MaskedLearner:
        return MaskedLearner(replace(self.policy, model=model), self.likelihood, **settings)

    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Detached float64 [P] outputs of the "current" or the "reference" policy, for every action token; none of them
        uses `constants`."""
        reader = replace(self.policy, model=self.module_of(policy))
        batches = self._microbatches(self._packing(forest), torch.arange(forest.n_entries), None)
        nothing = torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)

        def read(batch: Any) -> Mapping[str, Tensor]:
            return self._read(batch, names, reader)

        with self._short_memory("computing log-probs"):
            return outputs_of(read, batches, {name: nothing for name in names})

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        """Not supported: raises an error."""
        raise ModelError("a masked model has a hidden state for each view of an answer: choose a method without them")

    def logits(self, states: Tensor) -> Tensor:
        """Not supported: raises an error."""
        raise ModelError("a masked model has logits for each view of an answer: choose a method that reads none")

    def _packing(self, forest: Forest) -> MaskedPacking:
        return MaskedPacking(forest, self.tokens_per_microbatch, self.policy, self.likelihood)

    def _live(self, batch: Answers, names: Sequence[str], *constants: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self._read(batch, names, self.policy)

    def _read(self, batch: Answers, names: Sequence[str], policy: MaskedPolicy) -> dict[str, Tensor]:
        unknown = [name for name in names if name not in OUTPUTS]
        if unknown:
            raise ModelError(
                f"a masked model has no output {unknown[0]!r}, only {', '.join(OUTPUTS)}: choose another method"
            )
        estimates = estimate(policy, batch.rows, self.likelihood)
        return {name: estimates[name][batch.reading] for name in names}
