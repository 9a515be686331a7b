"""Pack a forest into micro-batches: rows of unique tokens, and the action tokens that are read from each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.models.decoder.attention import Chain

if TYPE_CHECKING:
    from gxpo.learning.logit_changes import LogitChanges

Layout = Literal["packed", "flat"]
BISECTIONS = 6  # sizes that are tried to make micro-batches even


@dataclass(frozen=True, eq=False)
class Row:
    """tokens [n]: stored tokens in order (ancestors first); entries: the action tokens (of P) that are read from it."""

    tokens: Tensor
    entries: Tensor


@dataclass(frozen=True, eq=False)
class Sheet:
    """Rows of one forward pass, concatenated in a flat list of n tokens.

    index [n]  the stored token at each place; tokens, position [n]; lengths: of the rows
    packing    whose rows these are
    """

    index: Tensor
    lengths: tuple[int, ...]
    packing: Packing

    @property
    def n_stored(self) -> int:
        """Number of stored tokens in the rows."""
        return self.index.numel()

    @cached_property
    def tokens(self) -> Tensor:
        """[n] vocabulary ids."""
        return self.packing.packed.token[self.index]

    @cached_property
    def position(self) -> Tensor:
        """[n] positions; of m-RoPE [3, n]."""
        return self.packing.position[..., self.index]

    @cached_property
    def chains(self) -> list[Chain]:
        """Chains of tokens for tree attention over these rows."""
        return self.packing.chains(self.index, self.lengths)


@dataclass(frozen=True, eq=False)
class MicroBatch(Sheet):
    """A sheet and the action tokens that are read from it.

    entries [E]  the action tokens (of P) that are read, and reading [E] which of the Q readings is each one's: entries
                 that share a stored token and a temperature share a reading
    place [Q]    where: the token's predecessor in the flat list
    target, temperature [Q], support [Q, K] (None: whole vocabulary), changes: of the logits [Q] (None: none)
    policy       the policy that reads it, if there are several
    """

    entries: Tensor
    reading: Tensor
    place: Tensor
    target: Tensor
    temperature: Tensor
    support: Tensor | None
    changes: LogitChanges | None = None
    policy: str | None = None


class Packing:
    """Rows and micro-batches of a forest.

    layout "packed": a row holds a tree (or, if it is longer than `limit`, part of its leaves with all their
    ancestors), every token once, depth first; "flat": a row holds the path to one leaf, for models whose layers don't
    take an ancestor mask. Tokens behind the last one that is read are left out. padded: rows are padded to the longest
    of their micro-batch, and padding counts against `limit`. position [T] of the stored tokens, of m-RoPE [3, T]; None:
    their depths. images: at most so many distinct pictures in a micro-batch (None: any number), except for a single
    path that shows more, which is joined only by rows that show no further picture.
    """

    def __init__(
        self,
        forest: Forest,
        *,
        layout: Layout = "packed",
        limit: int = 8192,
        padded: bool = True,
        position: Tensor | None = None,
        images: int | None = None,
    ) -> None:
        self.images = images
        self.forest, self.layout, self.limit, self.padded = forest, layout, limit, padded
        self.packed = forest.pack()
        self.position = self.packed.position if position is None else position

    # ------------------------------------------------------------ columns
    @cached_property
    def _parent(self) -> list[int]:
        return self.forest.parent.tolist()

    @cached_property
    def _offset(self) -> Tensor:
        """[T] place of each token within its node."""
        return torch.arange(self.forest.n_tokens) - self.forest.first_token[self.packed.node_of_token]

    @cached_property
    def spans(self) -> tuple[Tensor, Tensor]:
        """[N], [N]: depth-first intervals; a is b or an ancestor exactly if enter[a] <= enter[b] < leave[a]."""
        # parents come first: sizes of subtrees from the last node back, then places from the first on
        size = [1] * len(self._parent)
        for node in range(len(size) - 1, -1, -1):
            if self._parent[node] >= 0:
                size[self._parent[node]] += size[node]
        enter, next_free, roots = [0] * len(size), [0] * len(size), 0
        for node, parent in enumerate(self._parent):
            if parent < 0:
                enter[node], roots = roots, roots + size[node]
            else:
                enter[node], next_free[parent] = next_free[parent], next_free[parent] + size[node]
            next_free[node] = enter[node] + 1
        enter_n = torch.tensor(enter, dtype=torch.int64)
        return enter_n, enter_n + torch.tensor(size, dtype=torch.int64)

    @cached_property
    def settings(self) -> tuple[Tensor, Tensor]:
        """[R], [R] bool: temperature and truncated support, from the trajectories' sampling settings."""
        temperature, is_truncated = [], []
        for name, sampling in zip(self.forest.id, self.forest.sampling, strict=True):
            value = sampling.get("temperature")
            # not stated is 1; 0 is greedy, where every log-probability is 0 or -inf
            value = 1.0 if value is None else float(value)
            if value <= 0:
                raise ModelError(
                    f"trajectory {name!r} was sampled at temperature {value:g}, which leaves no log-probabilities to "
                    "train on: sample with temperature > 0"
                )
            temperature.append(value)
            top_p, min_p = sampling.get("top_p"), sampling.get("min_p")
            # each of them cuts the vocabulary, so that probabilities are over a stored support
            is_truncated.append(bool(sampling.get("top_k")) or (top_p is not None and top_p < 1) or bool(min_p))
        return torch.tensor(temperature, dtype=torch.float64), torch.tensor(is_truncated, dtype=torch.bool)

    # ------------------------------------------------------------ rows
    def rows(self, entries: Tensor) -> list[Row]:
        """Rows from which all these action tokens can be read, each token in exactly one row."""
        if not entries.numel():
            return []
        # an action token is read at its predecessor, which may lie in the node above
        read_at = self.read_at(entries)
        node_of_entry = self.packed.node_of_token[read_at]
        tokens_needed = self._tokens_needed(read_at)
        owner, enter = torch.full((self.forest.n_nodes,), -1), self.spans[0].tolist()
        row_nodes: list[list[int]] = []
        for nodes in self._row_nodes(tokens_needed):
            nodes_of_row = torch.tensor(nodes, dtype=torch.int64)
            # a node that is in several rows is read in the first alone, or its slope would count twice
            owner[nodes_of_row[owner[nodes_of_row] < 0]] = len(row_nodes)
            row_nodes.append(sorted(nodes, key=enter.__getitem__))
        row_of_entry = owner[node_of_entry]
        first = self.forest.first_token.tolist()
        out = []
        for i, nodes in enumerate(row_nodes):
            tokens = torch.cat([torch.arange(first[n], first[n] + tokens_needed[n]) for n in nodes])
            out.append(Row(tokens, entries[row_of_entry == i]))
        return out

    def read_at(self, entries: Tensor) -> Tensor:
        """[E] stored token whose hidden state predicts each action token."""
        read_at = self.packed.predecessor[self.forest.path_token[entries]]
        if bool((read_at < 0).any()):
            r = int(self.forest.path_trajectory[entries[read_at < 0][0]])
            raise ModelError(
                f"the first action token of trajectory {self.forest.id[r]!r} has nothing before it to be predicted "
                "from: give it a prompt of at least one token, such as the model's bos"
            )
        return read_at

    def _tokens_needed(self, read_at: Tensor) -> dict[int, int]:
        """Tokens needed of each node, in order of nodes: ancestors whole, others up to the last token that is read."""
        size = self.forest.first_token.diff()
        ends = torch.zeros(self.forest.n_nodes, dtype=torch.int64).scatter_reduce_(
            0, self.packed.node_of_token[read_at], self._offset[read_at] + 1, "amax"
        )
        count, sizes, is_needed = ends.tolist(), size.tolist(), (ends > 0).tolist()
        for node in range(len(count) - 1, -1, -1):
            parent = self._parent[node]
            if is_needed[node] and parent >= 0:
                is_needed[parent], count[parent] = True, sizes[parent]
        return {node: count[node] for node in range(len(count)) if is_needed[node]}

    def _row_nodes(self, tokens_needed: dict[int, int]) -> Iterable[list[int]]:
        """Yield the nodes of each row."""
        enter = self.spans[0]
        inner_nodes = {self._parent[node] for node in tokens_needed}
        # in depth-first order, so that neighbouring leaves share most of their path
        leaves = sorted((node for node in tokens_needed if node not in inner_nodes), key=lambda node: int(enter[node]))
        nodes: dict[int, None] = {}
        pictures: frozenset[int] = frozenset()
        root, length = -1, 0
        for leaf in leaves:
            path = [leaf]
            while (up := self._parent[path[-1]]) >= 0:
                path.append(up)
            # a leaf joins the row of its tree if its further nodes fit; else a new row repeats its whole path
            new = [node for node in path if node not in nodes]
            new_length = length + sum(tokens_needed[node] for node in new)
            is_full = new_length > self.limit or self._exceeds_images(pictures, self._pictures_of_nodes(new))
            if nodes and (self.layout == "flat" or path[-1] != root or is_full):
                yield list(nodes)
                nodes, new = {}, path
                new_length, pictures = sum(tokens_needed[node] for node in path), frozenset()
            pictures |= self._pictures_of_nodes(new)
            nodes.update(dict.fromkeys(new))
            root, length = path[-1], new_length
        if nodes:
            yield list(nodes)

    # ------------------------------------------------------------ pictures
    @cached_property
    def _pictures(self) -> dict[int, set[int]]:
        """Keys of the pictures in each node; empty if their number has no limit."""
        keys_by_node: dict[int, set[int]] = {}
        if self.images is None:
            return keys_by_node
        is_picture_T = self.packed.token >= media.FIRST
        node_and_key = torch.stack(
            [self.packed.node_of_token[is_picture_T], (self.packed.token[is_picture_T] - media.FIRST) // media.ROWS]
        )
        for node, key in torch.unique(node_and_key, dim=1).T.tolist():
            keys_by_node.setdefault(node, set()).add(key)
        return keys_by_node

    def _pictures_of_nodes(self, nodes: Iterable[int]) -> frozenset[int]:
        """Keys of the pictures in these nodes; empty if their number has no limit."""
        return frozenset().union(*(self._pictures.get(node, ()) for node in nodes))

    def _pictures_of_row(self, row: Row) -> frozenset[int]:
        nodes = self.packed.node_of_token[row.tokens] if self._pictures else row.tokens[:0]
        return self._pictures_of_nodes(torch.unique_consecutive(nodes).tolist())

    def _exceeds_images(self, pictures: frozenset[int], further: frozenset[int]) -> bool:
        """Return True if further pictures would exceed the limit."""
        return self.images is not None and not further <= pictures and len(pictures | further) > self.images

    # ------------------------------------------------------------ micro-batches
    def microbatches(
        self, entries: Tensor, *, cuts: Sequence[Tensor] | None = None, at_least: int = 1
    ) -> list[MicroBatch]:
        """Micro-batches for all these action tokens, at most `limit` tokens each (a longer row is alone) and `images`
        pictures.

        at_least: cut so that there are this many if there is enough (one for each process). cuts: instead, one
        micro-batch for each of these sets of action tokens, of any size.
        """
        if cuts is not None:
            is_wanted_P = torch.zeros(self.forest.n_entries, dtype=torch.bool)
            is_wanted_P[entries] = True
            row_sets = [self.rows(cut[is_wanted_P[cut]]) for cut in cuts]
            return [self._batch(rows) for rows in row_sets if rows]
        return [self._batch(rows) for rows in self._fill_batches(self.rows(entries), at_least)]

    def _fill_batches(self, rows: list[Row], at_least: int = 1) -> list[list[Row]]:
        """Group rows of similar length into micro-batches of at most `limit` tokens, padding included, and `images`
        pictures; of similar sizes, which takes the least memory."""
        # longest first: rows of a batch then need little padding
        rows = sorted(rows, key=lambda row: -row.tokens.numel())
        limit, total = self.limit, sum(row.tokens.numel() for row in rows)
        # at least as many batches as processes, or some would have nothing to do
        if at_least > 1:
            limit = min(limit, -(-total // at_least))
        batches = self._greedy(rows, limit)
        # the smallest size, about, for which they are no more: at least an even share, which one row more may exceed
        low, high = -(-total // max(1, len(batches))), limit
        # where pictures are counted they decide: a smaller batch would show one picture again
        for _ in range(BISECTIONS if len(batches) > 1 and self.images is None else 0):
            size = (low + high) // 2
            smaller_batches = self._greedy(rows, size)
            if len(smaller_batches) > len(batches):
                low = size + 1
            else:
                batches, high = smaller_batches, size
        return batches

    def _greedy(self, rows: Sequence[Row], limit: int) -> list[list[Row]]:
        """Group rows in order, each batch as large as `limit` and `images` allow."""
        batches: list[list[Row]] = []
        batch_tokens, pictures = 0, frozenset[int]()
        for row in rows:
            size, row_pictures = row.tokens.numel(), self._pictures_of_row(row)
            new_tokens = batch_tokens + (batches[-1][0].tokens.numel() if self.padded and batches else size)
            if not batches or new_tokens > limit or self._exceeds_images(pictures, row_pictures):
                batches.append([])
                batch_tokens, pictures = 0, frozenset()
            batches[-1].append(row)
            pictures |= row_pictures
            batch_tokens += batches[-1][0].tokens.numel() if self.padded else size
        return batches

    def everything(self) -> Iterator[Sheet]:
        """Yield every stored token of every trajectory, last ones of actions included, in sheets of `limit` tokens."""
        sizes = self.forest.first_token.diff().tolist()
        node_sizes = {n: sizes[n] for n in torch.unique(self.forest.visits[1]).tolist()}
        first = self.forest.first_token.tolist()
        no_entries, enter = torch.zeros(0, dtype=torch.int64), self.spans[0].tolist().__getitem__
        rows = [
            Row(torch.cat([torch.arange(first[n], first[n] + sizes[n]) for n in sorted(nodes, key=enter)]), no_entries)
            for nodes in self._row_nodes(node_sizes)
        ]
        yield from (self._sheet(rows) for rows in self._fill_batches([row for row in rows if row.tokens.numel()]))

    def _sheet(self, rows: list[Row]) -> Sheet:
        index = torch.cat([row.tokens for row in rows])
        if bool((self.packed.token[index] < 0).any()):
            raise ModelError(
                "the forest holds steps that are not vocabulary ids (token -1), which this learner can't read"
            )
        return Sheet(index, tuple(row.tokens.numel() for row in rows), self)

    def _batch(self, rows: list[Row]) -> MicroBatch:
        sheet = self._sheet(rows)
        entries = torch.cat([row.entries for row in rows])
        # one reading for each distinct (token, temperature): entries that share it share its output
        reading, first = self._readings(entries)
        read_entries = entries[first]
        return MicroBatch(
            index=sheet.index,
            lengths=sheet.lengths,
            packing=self,
            entries=entries,
            reading=reading,
            place=self._places(rows)[first],
            target=self.forest.token[self.forest.path_token[read_entries]],
            temperature=self.settings[0][self.forest.path_trajectory[read_entries]],
            support=self._support(entries, first),
            changes=self._changes(self.forest.path_token[read_entries]),
        )

    def _changes(self, token: Tensor) -> LogitChanges | None:
        """Changes of the logits of stored tokens [Q] by options of calls; None if there are none."""
        if not {"bias", "penalty"} & self.forest.extras.keys():
            return None
        from gxpo.learning.logit_changes import LogitChanges  # few runs have any

        return LogitChanges.of(self.forest, self.packed, token)

    def chains(self, index: Tensor, lengths: Sequence[int]) -> list[Chain]:
        """Chains of the rows of stored tokens `index`; one begins at a row's start or a node with siblings, or apart.

        A node goes on with its parent's stretch if it is the only one below it in the row.
        """
        node = self.packed.node_of_token[index]
        row_start = torch.tensor([0, *lengths]).cumsum(0)
        is_begin = torch.ones(node.shape, dtype=torch.bool)
        is_begin[1:] = node[1:] != node[:-1]
        is_begin[row_start[:-1]] = True
        begin = is_begin.nonzero().squeeze(1)
        end = torch.cat([begin[1:], row_start[-1:]])
        # rows of the flat layout are single paths, each a chain by itself
        if self.layout == "flat":
            return [Chain(a, b, b) for a, b in zip(row_start[:-1].tolist(), row_start[1:].tolist(), strict=True)]
        row = torch.searchsorted(row_start[1:], begin, right=True)
        enter, leave = (x[node[begin]].tolist() for x in self.spans)
        return _chains(begin.tolist(), end.tolist(), enter, leave, row_start[1:][row].tolist())

    def _readings(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """[E] reading of each entry, one for each distinct (stored token, temperature); [Q] first entry of each."""
        temperature_id = torch.unique(self.settings[0], return_inverse=True)[1][self.forest.path_trajectory[entries]]
        key = self.forest.path_token[entries] * (int(temperature_id.max()) + 1) + temperature_id
        distinct, reading = torch.unique(key, return_inverse=True)
        first = torch.full(distinct.shape, entries.numel()).scatter_reduce_(
            0, reading, torch.arange(entries.numel()), "amin"
        )
        return reading, first

    def _places(self, rows: list[Row]) -> Tensor:
        """[E] index in the flat list of the token at which each entry is read."""
        place_of_token = torch.empty(self.forest.n_tokens, dtype=torch.int64)
        out, start = [], 0
        for row in rows:
            place_of_token[row.tokens] = torch.arange(start, start + row.tokens.numel())
            out.append(place_of_token[self.read_at(row.entries)])
            start += row.tokens.numel()
        return torch.cat(out)

    def _support(self, entries: Tensor, first: Tensor) -> Tensor | None:
        """[Q, K] allowed ids of entries[first]; None if no entry has a stored support. Checks that none is missing."""
        token, trajectory = self.forest.path_token[entries], self.forest.path_trajectory[entries]
        support = self.forest.extras.get("support")
        support_Q = None if support is None else support[token]
        has_support = torch.zeros(token.shape, dtype=torch.bool) if support_Q is None else (support_Q >= 0).any(1)
        lacks_support = self.settings[1][trajectory] & ~has_support
        if bool(lacks_support.any()):
            r = int(trajectory[lacks_support][0])
            raise ModelError(
                f"trajectory {self.forest.id[r]!r} was sampled with top_k, top_p or min_p, but the allowed ids are not "
                "stored (extras 'support'), so its ratios would be wrong: store them, or sample by temperature alone"
            )
        if support_Q is None or not bool(has_support.any()):
            return None
        is_outside = has_support & ~(support_Q == self.forest.token[token][:, None]).any(1)
        if bool(is_outside.any()):
            r = int(trajectory[is_outside][0])
            raise ModelError(f"trajectory {self.forest.id[r]!r} has an action token outside its own stored support")
        return support_Q[first]

    def by_policy(self, entries: Tensor) -> dict[str, Tensor]:
        """Group action tokens by the policy that wrote them; tokens of several policies may share a context."""
        policy = self.forest.policy[self.packed.node_of_token[self.forest.path_token[entries]]]
        return {self.forest.policy_names[p]: entries[policy == p] for p in policy.unique().tolist()}

    # ------------------------------------------------------------ accounting
    def flat_tokens(self, entries: Tensor) -> int:
        """Number of tokens that separate forward passes of every trajectory would take for these action tokens."""
        if not entries.numel():
            return 0
        # the deepest read token of each (trajectory, node), without those whose path goes on in another one
        read_at, n = self.read_at(entries), self.forest.n_nodes
        owner, node = self.forest.path_trajectory[entries], self.packed.node_of_token[read_at]
        pairs, place = torch.unique(owner * n + node, return_inverse=True)
        longest = torch.zeros(pairs.shape, dtype=torch.int64).scatter_reduce_(
            0, place, self.packed.position[read_at] + 1, "amax"
        )
        is_last = torch.ones(pairs.shape, dtype=torch.bool)
        owner, node = pairs // n, pairs % n
        while node.numel():
            above = self.forest.parent[node]
            owner, node = owner[above >= 0], above[above >= 0]
            is_last &= ~torch.isin(pairs, owner * n + node)
        return int(longest[is_last].sum())


def _chains(begin: list[int], end: list[int], enter: list[int], leave: list[int], row_end: list[int]) -> list[Chain]:
    """Chains from pieces in depth-first order, with flat ranges [begin, end) and node intervals [enter, leave)."""
    below_ends = list(row_end)  # end of the descendants of each piece
    open_pieces: list[int] = []
    for i, place in enumerate(begin):
        # a piece is closed when one follows that is not below it
        while open_pieces and (row_end[open_pieces[-1]] <= place or leave[open_pieces[-1]] <= enter[i]):
            below_ends[open_pieces.pop()] = place
        open_pieces.append(i)
    chains: list[Chain] = []
    for i, below_end in enumerate(below_ends):
        if (
            chains and chains[-1].below == below_end
        ):  # all that is below the last one is this piece and what is below it
            chains[-1] = Chain(chains[-1].start, end[i], below_end)
        else:
            chains.append(Chain(begin[i], end[i], below_end))
    return chains
