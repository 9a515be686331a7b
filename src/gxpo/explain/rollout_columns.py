"""The numbers of a page of rollouts: trees, tokens, rewards, and each method's columns with their arithmetic."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.base.media import data_url, label, pictures_of
from gxpo.explain.derivation import Compared, Summand
from gxpo.explain.group_figures import GroupFigures
from gxpo.explain.outlook import Outlook
from gxpo.explain.rollout_source import Source
from gxpo.forest.columns import ACTION
from gxpo.forest.forest import Forest

# ---------------------------------------------------------------- packed
# Columns of numbers as a page's script reads them: on the coarsest axis that holds them, in base64 typed arrays.
INTEGERS = (("u1", np.uint8), ("i1", np.int8), ("u2", np.uint16), ("i2", np.int16), ("i4", np.int32))


def packed(values: NDArray[Any] | Tensor, axis: str = "", digits: str = "f8") -> dict[str, Any]:
    """{"k": kind, "d": base64}, or {"c": number} where all are equal; the axis under "a". Numbers of which there are
    few are given once under "v", and "d" holds their places.

    digits  "f8" where the numbers are read as arithmetic, "f4" where seven digits are more than is shown
    """
    column = values.detach().numpy() if isinstance(values, Tensor) else np.asarray(values)
    mark = {"a": axis} if axis else {}
    if len(column) and np.isfinite(column[0]) and (column[0] == column).all():
        return {**mark, "c": column[0].item()}
    if column.dtype == bool:
        column = column.astype(np.uint8)
    if np.issubdtype(column.dtype, np.integer):
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        kind, dtype = next((k, t) for k, t in INTEGERS if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
        return {**mark, "k": kind, "d": _coded(column, dtype)}
    kind, dtype = ("f4", np.float32) if digits == "f4" else ("f8", np.float64)
    if digits != "f4" and len(column):
        distinct, places = np.unique(column, return_inverse=True)
        if 3 * len(distinct) < len(column):
            return {**mark, **packed(places.astype(np.int64)), "v": _coded(distinct, np.float64)}
    return {**mark, "k": kind, "d": _coded(column, dtype)}


def _coded(column: NDArray[Any], dtype: Any) -> str:
    little = np.ascontiguousarray(column.astype(np.dtype(dtype).newbyteorder("<")))
    return base64.b64encode(little.tobytes()).decode()


def of_tokens(forest: Forest, x: Tensor, digits: str = "f4") -> dict[str, Any]:
    """A column [P] on the coarsest axis of rollouts, turns and tokens on which it is constant."""
    column = x.detach().numpy()
    for axis, owner, n in (
        ("R", forest.path_trajectory.numpy(), forest.n_trajectories),
        ("S", forest.path_step.numpy(), forest.n_steps),
    ):
        coarse = np.zeros(n, dtype=column.dtype)
        coarse[owner[::-1]] = column[::-1]
        if np.array_equal(coarse[owner], column, equal_nan=True):
            return packed(coarse, axis, digits)
    return packed(column, "P", digits)


# ---------------------------------------------------------------- rollout columns
LONGEST_TEXT = 20_000  # characters of a prompt or observation
Places = dict[str, Tensor]


class Numbered:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def of(self, text: str | None) -> int:
        if text is None:
            return -1
        if len(text) > LONGEST_TEXT:
            text = f"{text[:LONGEST_TEXT]} [and {len(text) - LONGEST_TEXT} characters]"
        return self.texts.setdefault(text, len(self.texts))

    def column(self, texts: Sequence[str | None]) -> dict[str, Any]:
        return packed(np.array([self.of(t) for t in texts], dtype=np.int64))


def columns(source: Source, looks: Sequence[Outlook], figures: GroupFigures, groups: Sequence[int]) -> dict[str, Any]:
    """What the page's script reads, of the chosen groups only."""
    whole = source.forest
    own = whole.ids("group", axis="R").numpy()
    rows = torch.from_numpy(np.flatnonzero(np.isin(own, groups)))
    places, forest = whole.kept_rows(rows), whole.select(rows)
    texts, words = Numbered(), source.words
    token = words.token[places["T"].numpy()]
    return {
        "groups": _groups(figures, groups, forest),
        "R": _rollouts(forest, source, places["R"], texts),
        "S": _turns(forest, words.texts, token, texts),
        "N": {
            "parent": packed(forest.parent),
            "kind": packed(forest.kind),
            "first": packed(forest.first_token),
        },
        "T": _tokens(forest, token),
        "words": words.texts,
        "agents": list(forest.agent_names),
        "states": list(forest.state_names),
        "methods": [_method(x, whole, forest, places) for x in looks],
        "pictures": _pictures(forest),
        "texts": list(texts.texts),  # last: the columns above have filled it
    }


def _pictures(forest: Forest) -> dict[str, str]:
    """Pictures as data URLs by what texts call them; those whose files are not there are left out."""
    found: dict[str, str] = {}
    for ref in pictures_of(forest.media):
        try:
            found[label(ref)] = data_url(ref)
        except GxpoError:
            continue
    return found


def _groups(f: GroupFigures, groups: Sequence[int], forest: Forest) -> dict[str, Any]:
    at = np.asarray(groups, dtype=np.int64)
    task = dict(zip(forest.group, forest.task, strict=True))
    return {
        "name": [f.names[g] for g in at],
        "task": [task[f.names[g]] for g in at],
        "low": packed(f.low[at]),
        "high": packed(f.high[at]),
        "mean": packed(f.mean[at]),
        "residue": packed(f.residue[at]),
        "zero_signal": {name: packed(x[at]) for name, x in f.zero_signal.items()},
        "disagreement": [{"of": list(pair), **packed(x[at], digits="f4")} for pair, x in f.disagreement.items()],
    }


def _rollouts(forest: Forest, source: Source, rows: Tensor, texts: Numbered) -> dict[str, Any]:
    group = forest.ids("group", axis="R")
    prompts: dict[int, str | None] = {}
    for r, node in enumerate(forest.prompt_node.tolist()):
        if prompts.get(node) is None:
            prompts[node] = forest.prompt_text[r]
    return {
        "id": forest.id,
        "group": packed(group),
        "reward": packed(forest.outcome),
        "success": packed(forest.success, digits="f4"),
        "cut": packed(forest.truncated),
        "compared": packed(forest.compared),
        "origin": [None if set(forest.origin) == {"policy"} else forest.origin][0],
        "recorded": packed(source.recorded[rows.numpy()]),
        "prompt": texts.column(
            [t or (prompts[n] if n >= 0 else None) for t, n in zip(forest.prompt_text, forest.prompt_node.tolist())]  # noqa: B905  # one each
        ),
        "step": packed(forest._step_begin),
        "components": {
            name: packed(forest.components[:, i], digits="f4") for i, name in enumerate(forest.component_names)
        },
    }


def _turns(forest: Forest, words: Sequence[str], token: np.ndarray, texts: Numbered) -> dict[str, Any]:
    begin = np.searchsorted(forest.path_step.numpy(), np.arange(forest.n_steps + 1))
    following = torch.full((forest.n_steps,), -1)
    before = forest.step_previous
    following[before[before >= 0]] = (before >= 0).nonzero().squeeze(1)
    finishes = sorted({x for x in forest.step_finish if x})
    return {
        "rollout": packed(forest.step_trajectory),
        "turn": packed(forest.step_turn),
        "agent": packed(forest.step_agent),
        "state": packed(forest.step_state),
        "reward": packed(forest.step_reward),
        "paid": packed(forest.returns(0.0)),
        "next": packed(following),
        "node": packed(forest.step_action),
        "entry": packed(begin),
        "finish": packed(np.array([finishes.index(x) if x else -1 for x in forest.step_finish], dtype=np.int64)),
        "finishes": finishes,
        "seen": texts.column(_seen(forest, words, token)),
    }


def _seen(forest: Forest, words: Sequence[str], token: np.ndarray) -> list[str | None]:
    """What each turn was told before it acted: the observation, or the context since the action before; None where that
    is the prompt."""
    parent, kind, first = forest.parent.tolist(), forest.kind.tolist(), forest.first_token.tolist()
    known: dict[int, str] = {}
    out: list[str | None] = []
    opening = forest.prompt_node[forest.step_trajectory].tolist()
    for s, node in enumerate(forest._first_nodes.tolist()):
        text = forest.observation_text[s]
        if parent[node] == opening[s]:
            text = None
        elif text is None and parent[node] >= 0 and kind[parent[node]] != ACTION:
            above = parent[node]
            if above not in known:
                chain = []
                at = above
                while at >= 0 and kind[at] != ACTION:
                    chain.append(at)
                    at = parent[at]
                tokens = [int(w) for n in reversed(chain) for w in token[first[n] : first[n + 1]]]
                known[above] = "".join([words[w] for w in tokens])
            text = known[above]
        out.append(text)
    return out


def _tokens(forest: Forest, token: np.ndarray) -> dict[str, Any]:
    logprob = forest.behaviour_logprob.numpy()
    known = np.isfinite(logprob)
    return {
        "word": packed(token),
        "logprob": packed(logprob, digits="f4") if known.any() else None,
        "trained": packed(forest.trainable),
        "path": None if torch.equal(forest.path_token, torch.arange(forest.n_tokens)) else packed(forest.path_token),
    }


def _method(x: Outlook, whole: Forest, forest: Forest, places: Places) -> dict[str, Any]:
    out: dict[str, Any] = {"name": x.name, "formula": x.formula, "missing": x.missing, "notes": x.notes}
    if x.credit is None or x.outcome is None:
        return out
    at = places["P"]
    trained = whole.path_trainable & whole.to_path(whole.scored, "R")
    own = {name: getattr(x, name) for name in ("credit", "weight", "share", "pull", "kept")}
    differs = not torch.equal(x.outcome.nan_to_num(nan=-7e77), whole.outcome.nan_to_num(nan=-7e77))
    return {
        **out,
        **{name: None if column is None else of_tokens(forest, column[at]) for name, column in own.items()},
        "outcome": packed(x.outcome[places["R"]]) if differs else None,
        "without": x.without,
        "surrogate": x.surrogate,
        "aggregate": x.aggregate,
        "curve": x.curve,
        "rollouts": len(whole.path_trajectory[trained].unique()),
        "tokens": int(trained.sum()),
        "summands": [_summand(s, x, whole, forest, places) for s in x.summands],
    }


def _summand(s: Summand, x: Outlook, whole: Forest, forest: Forest, places: Places) -> dict[str, Any]:
    assert x.scored is not None
    out = {"name": s.name, "factor": s.factor, "formula": s.formula}
    entries = whole.entries_of(x.scored)
    given = torch.zeros(whole.n_entries, dtype=torch.float64).index_copy(0, entries, s.contribution)[places["P"]]
    out["value"] = of_tokens(forest, given, "f8")
    if s.compared is None:
        return {**out, "compared": None}
    kept = whole.kept_rows(x.scored)[s.compared.axis]  # its rows are of the scored rollouts
    return {**out, "compared": _compared(s.compared, kept.numpy(), whole, places)}


def _compared(c: Compared, rows: np.ndarray, whole: Forest, places: Places) -> dict[str, Any]:
    n = whole._size(c.axis)

    def on_page(values: np.ndarray, blank: float) -> dict[str, Any]:
        full = np.full(n, blank, dtype=values.dtype if values.dtype != bool else np.uint8)
        full[rows] = values
        return packed(full[places[c.axis].numpy()])

    return {
        "axis": c.axis,
        "what": c.what,
        "among": c.among,
        "settings": c.settings,
        "x": on_page(c.value, np.nan),
        "set": on_page(c.peers, -1),
        "counted": on_page(c.counted, 0),
        "center": on_page(c.center, np.nan),
        "spread": on_page(c.spread, np.nan),
        "result": on_page(c.result, np.nan),
        "status": on_page(c.status, 4),
    }
