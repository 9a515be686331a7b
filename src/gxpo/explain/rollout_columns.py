"""Numbers of a page of rollouts, packed for its script: trees, tokens, rewards, columns and arithmetic of methods."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.base.media import data_url, label, made_in, pictures_of
from gxpo.explain.derivation import Comparison, Summand
from gxpo.explain.group_figures import GroupFigures
from gxpo.explain.outlook import Outlook
from gxpo.explain.rollout_source import Source
from gxpo.explain.user_calls import Call, Variable
from gxpo.forest.columns import ACTION
from gxpo.forest.forest import Forest
from gxpo.models.masked import UNMASKED_AT

# ---------------------------------------------------------------- packed
# Columns of numbers as a page's script reads them: on the coarsest axis that holds them, in base64 typed arrays.
INTEGERS = (("u1", np.uint8), ("i1", np.int8), ("u2", np.uint16), ("i2", np.int16), ("i4", np.int32))


def pack(values: NDArray[Any] | Tensor, axis: str = "", digits: str = "f8") -> dict[str, Any]:
    """Pack a column for the page's script: {"k": kind, "d": base64}, or {"c": number} where all values are equal.

    The axis is under "a". Where there are few distinct numbers they are under "v", and "d" holds indices into them.

    digits  "f8" where a reader repeats arithmetic with the numbers, "f4" where seven digits are enough
    """
    column = values.detach().numpy() if isinstance(values, Tensor) else np.asarray(values)
    axis_entry = {"a": axis} if axis else {}
    if len(column) and np.isfinite(column[0]) and (column[0] == column).all():
        return {**axis_entry, "c": column[0].item()}
    if column.dtype == bool:
        column = column.astype(np.uint8)
    if np.issubdtype(column.dtype, np.integer):
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        kind, dtype = next((k, t) for k, t in INTEGERS if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
        return {**axis_entry, "k": kind, "d": _base64(column, dtype)}
    kind, dtype = ("f4", np.float32) if digits == "f4" else ("f8", np.float64)
    # an index takes one or two bytes, a float64 eight: worth it from three values for each distinct one
    if digits != "f4" and len(column):
        distinct, value_index = np.unique(column, return_inverse=True)
        if 3 * len(distinct) < len(column):
            return {**axis_entry, **pack(value_index.astype(np.int64)), "v": _base64(distinct, np.float64)}
    return {**axis_entry, "k": kind, "d": _base64(column, dtype)}


def _base64(column: NDArray[Any], dtype: Any) -> str:
    little = np.ascontiguousarray(column.astype(np.dtype(dtype).newbyteorder("<")))
    return base64.b64encode(little.tobytes()).decode()


def packed_tokens(forest: Forest, x: Tensor, digits: str = "f4") -> dict[str, Any]:
    """Pack a column [P] on the coarsest axis (rollouts, turns, tokens) on which it is constant."""
    column = x.detach().numpy()
    for axis, owner, n in (
        ("R", forest.path_trajectory.numpy(), forest.n_trajectories),
        ("S", forest.path_step.numpy(), forest.n_steps),
    ):
        coarse = np.zeros(n, dtype=column.dtype)
        coarse[owner[::-1]] = column[::-1]
        if np.array_equal(coarse[owner], column, equal_nan=True):
            return pack(coarse, axis, digits)
    return pack(column, "P", digits)


# ---------------------------------------------------------------- rollout columns
MAX_TEXT = 20_000  # characters of a prompt or observation
AxisRows = dict[str, Tensor]


class TextTable:
    """Texts by number, each stored once; long ones are cut to `MAX_TEXT`."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def index_of(self, text: str | None) -> int:
        if text is None:
            return -1
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]} [and {len(text) - MAX_TEXT} characters]"
        return self.texts.setdefault(text, len(self.texts))

    def column(self, texts: Sequence[str | None]) -> dict[str, Any]:
        return pack(np.array([self.index_of(t) for t in texts], dtype=np.int64))


def columns(source: Source, looks: Sequence[Outlook], figures: GroupFigures, groups: Sequence[int]) -> dict[str, Any]:
    """Collect all data that the page's script reads, of the chosen groups only."""
    step_forest = source.forest
    group_R = step_forest.ids("group", axis="R").numpy()
    rows = torch.from_numpy(np.flatnonzero(np.isin(group_R, groups)))
    kept_rows, forest = step_forest.kept_rows(rows), step_forest.select(rows)
    texts, words = TextTable(), source.words
    token = words.token[kept_rows["T"].numpy()]
    return {
        "groups": _groups(figures, groups, forest),
        "R": _rollouts(forest, source, kept_rows["R"], texts),
        "S": _turns(forest, words.texts, token, texts),
        "N": {
            "parent": pack(forest.parent),
            "kind": pack(forest.kind),
            "first": pack(forest.first_token),
        },
        "T": _tokens(forest, token),
        "words": words.texts,
        "agents": list(forest.agent_names),
        "states": list(forest.state_names),
        "methods": [_method(x, step_forest, forest, kept_rows) for x in looks],
        "pictures": picture_urls([*pictures_of(forest.media), *made_in(forest.info)]),
        "side": source.side,
        "texts": list(texts.texts),  # last: the columns above have filled it
    }


def picture_urls(refs: Sequence[str]) -> dict[str, str]:
    """Return pictures as data URLs by their label in texts; those without a file are left out."""
    url_by_label: dict[str, str] = {}
    for ref in refs:
        try:
            url_by_label[label(ref)] = data_url(ref)
        except GxpoError:
            continue
    return url_by_label


def picture_label(info: Mapping[str, Any]) -> str | None:
    """Return the label of the picture that a rollout made; None without one."""
    return next((label(ref) for ref in made_in([info])), None)


def _groups(figures: GroupFigures, groups: Sequence[int], forest: Forest) -> dict[str, Any]:
    group_index = np.asarray(groups, dtype=np.int64)
    task_by_group = dict(zip(forest.group, forest.task, strict=True))
    return {
        "name": [figures.names[g] for g in group_index],
        "task": [task_by_group[figures.names[g]] for g in group_index],
        "low": pack(figures.low[group_index]),
        "high": pack(figures.high[group_index]),
        "mean": pack(figures.mean[group_index]),
        "residue": pack(figures.residue[group_index]),
        "zero_signal": {name: pack(x[group_index]) for name, x in figures.zero_signal.items()},
        "disagreement": [
            {"of": list(pair), **pack(x[group_index], digits="f4")} for pair, x in figures.disagreement.items()
        ],
    }


def _rollouts(forest: Forest, source: Source, rows: Tensor, texts: TextTable) -> dict[str, Any]:
    """Pack the columns of rollouts [R]; `rows` are their places in the step."""
    group = forest.ids("group", axis="R")
    # records of a group state their prompt once: rollouts from the same node share its text
    text_by_node: dict[int, str | None] = {}
    for r, node in enumerate(forest.prompt_node.tolist()):
        if text_by_node.get(node) is None:
            text_by_node[node] = forest.prompt_text[r]
    return {
        "id": forest.id,
        "group": pack(group),
        "reward": pack(forest.outcome),
        "success": pack(forest.success, digits="f4"),
        "cut": pack(forest.truncated),
        "compared": pack(forest.compared),
        "origin": [None if set(forest.origin) == {"policy"} else forest.origin][0],
        "recorded": pack(source.recorded_advantage[rows.numpy()]),
        "prompt": texts.column(
            [
                t or (text_by_node[n] if n >= 0 else None)
                for t, n in zip(forest.prompt_text, forest.prompt_node.tolist(), strict=True)
            ]
        ),
        "made": [picture_label(info) for info in forest.info],
        "step": pack(forest._step_begin),
        "components": {
            name: pack(forest.components[:, i], digits="f4") for i, name in enumerate(forest.component_names)
        },
    }


def _turns(forest: Forest, words: Sequence[str], token: np.ndarray, texts: TextTable) -> dict[str, Any]:
    """Pack the columns of turns [S]."""
    first_entry_S = np.searchsorted(forest.path_step.numpy(), np.arange(forest.n_steps + 1))
    next_step_S = torch.full((forest.n_steps,), -1)
    previous_S = forest.step_previous
    next_step_S[previous_S[previous_S >= 0]] = (previous_S >= 0).nonzero().squeeze(1)
    finish_reasons = sorted({x for x in forest.step_finish if x})
    return {
        "rollout": pack(forest.step_trajectory),
        "turn": pack(forest.step_turn),
        "agent": pack(forest.step_agent),
        # the turn that called this one, -1 none
        "caller": pack(torch.where((caller_S := forest.caller[forest.step_action]) < 0, -1, forest.turn[caller_S])),
        "state": pack(forest.step_state),
        "reward": pack(forest.step_reward),
        "paid": pack(forest.returns(0.0)),
        "next": pack(next_step_S),
        "node": pack(forest.step_action),
        "entry": pack(first_entry_S),
        "finish": pack(np.array([finish_reasons.index(x) if x else -1 for x in forest.step_finish], dtype=np.int64)),
        "finishes": finish_reasons,
        "seen": texts.column(observations(forest, words, token)),
    }


def observations(forest: Forest, words: Sequence[str], token: np.ndarray) -> list[str | None]:
    """Return each turn's input: its observation, else the context since the last action; None for the prompt at first.

    A later turn that begins from the prompt again has its text.

    words, token  texts of distinct tokens, and [T] which of them each stored token is
    """
    parent, kind, first = forest.parent.tolist(), forest.kind.tolist(), forest.first_token.tolist()
    text_by_node: dict[int, str] = {}
    texts: list[str | None] = []
    prompt_node_S, turn_S = forest.prompt_node[forest.step_trajectory].tolist(), forest.step_turn.tolist()
    for s, node in enumerate(forest._first_nodes.tolist()):
        text = forest.observation_text[s]
        if parent[node] == prompt_node_S[s] and turn_S[s] == 0:
            text = None
        elif text is None and parent[node] >= 0 and kind[parent[node]] != ACTION:
            # contexts are shared by rollouts: each is put together once, from the nodes up to the action above
            context_node = parent[node]
            if context_node not in text_by_node:
                chain = []
                node_above = context_node
                while node_above >= 0 and kind[node_above] != ACTION:
                    chain.append(node_above)
                    node_above = parent[node_above]
                tokens = [int(w) for n in reversed(chain) for w in token[first[n] : first[n + 1]]]
                text_by_node[context_node] = "".join([words[w] for w in tokens])
            text = text_by_node[context_node]
        texts.append(text)
    return texts


def _tokens(forest: Forest, token: np.ndarray) -> dict[str, Any]:
    logprob = forest.behaviour_logprob.numpy()
    is_known = np.isfinite(logprob)
    return {
        "word": pack(token),
        "logprob": pack(logprob, digits="f4") if is_known.any() else None,
        "trained": pack(forest.trainable),
        "unmasked": pack(forest.extras[UNMASKED_AT]) if UNMASKED_AT in forest.extras else None,
        "path": None if torch.equal(forest.path_token, torch.arange(forest.n_tokens)) else pack(forest.path_token),
    }


def _method(outlook: Outlook, step_forest: Forest, forest: Forest, kept_rows: AxisRows) -> dict[str, Any]:
    """Pack one method's columns and summands; without columns where the rollouts lack what it requires."""
    out: dict[str, Any] = {
        "name": outlook.name,
        "formula": outlook.formula,
        "missing": outlook.missing,
        "notes": outlook.notes,
    }
    if outlook.credit is None or outlook.outcome is None:
        return out
    path_rows = kept_rows["P"]
    is_trained_P = step_forest.path_trainable & step_forest.to_path(step_forest.scored, "R")
    columns = {
        "credit": outlook.credit,
        "weight": outlook.weight,
        "share": outlook.share,
        "pull": outlook.pull,
        "kept": outlook.gradient_share,
    }
    # rewards that differ from the file's are shown beside them; the number stands for nan, which equals nothing
    has_own_rewards = not torch.equal(outlook.outcome.nan_to_num(nan=-7e77), step_forest.outcome.nan_to_num(nan=-7e77))
    return {
        **out,
        **{
            name: None if column is None else packed_tokens(forest, column[path_rows])
            for name, column in columns.items()
        },
        "outcome": pack(outlook.outcome[kept_rows["R"]]) if has_own_rewards else None,
        "without": outlook.without,
        "surrogate": outlook.surrogate,
        "aggregate": outlook.aggregate,
        "curve": outlook.curve,
        "settings": outlook.settings,
        "calls": {place: _calls(calls, outlook, step_forest, kept_rows) for place, calls in outlook.calls.items()},
        "rollouts": len(step_forest.path_trajectory[is_trained_P].unique()),
        "tokens": int(is_trained_P.sum()),
        "summands": [_summand(s, outlook, step_forest, forest, kept_rows) for s in outlook.summands],
    }


def _summand(
    summand: Summand, outlook: Outlook, step_forest: Forest, forest: Forest, kept_rows: AxisRows
) -> dict[str, Any]:
    assert outlook.is_scored is not None
    column = {"name": summand.name, "factor": summand.factor, "formula": summand.formula}
    entries = step_forest.entries_of(outlook.is_scored)
    contribution_P = torch.zeros(step_forest.n_entries, dtype=torch.float64).index_copy(
        0, entries, summand.contribution
    )[kept_rows["P"]]
    column["value"] = packed_tokens(forest, contribution_P, "f8")
    column["calls"] = _calls(summand.calls, outlook, step_forest, kept_rows)
    if summand.compared is None:
        return {**column, "compared": None}
    scored_rows = step_forest.kept_rows(outlook.is_scored)  # its rows are of the scored rollouts
    return {**column, "compared": _pack_comparison(summand.compared, scored_rows, step_forest, kept_rows)}


def _on_page(
    values: np.ndarray, blank: float, axis: str, scored_rows: AxisRows, step_forest: Forest, kept_rows: AxisRows
) -> dict[str, Any]:
    """Pack a column of the scored rollouts; rows of the page that it lacks are `blank`."""
    full = np.full(step_forest._size(axis), blank, dtype=values.dtype if values.dtype != bool else np.uint8)
    full[scored_rows[axis].numpy()] = values
    return pack(full[kept_rows[axis].numpy()])


def _calls(calls: Sequence[Call], outlook: Outlook, step_forest: Forest, kept_rows: AxisRows) -> list[dict[str, Any]]:
    """Pack the calls of a user's functions: columns on their axes, and single values as text."""
    if not calls or outlook.is_scored is None:
        return []
    scored_rows = step_forest.kept_rows(outlook.is_scored)

    def column(variable: Variable) -> dict[str, Any]:
        if variable.values is None:
            return {"text": variable.text}
        packed_column = _on_page(variable.values.numpy(), np.nan, variable.axis, scored_rows, step_forest, kept_rows)
        return {"value": {**packed_column, "a": variable.axis}}

    return [
        {"title": call.title, "rows": [{"name": v.name, "role": v.role, **column(v)} for v in call.variables]}
        for call in calls
    ]


def _pack_comparison(
    comparison: Comparison, scored_rows: AxisRows, step_forest: Forest, kept_rows: AxisRows
) -> dict[str, Any]:
    def on_page(values: np.ndarray, blank: float) -> dict[str, Any]:
        return _on_page(values, blank, comparison.axis, scored_rows, step_forest, kept_rows)

    return {
        "axis": comparison.axis,
        "what": comparison.quantity,
        "among": comparison.among,
        "settings": comparison.settings,
        "x": on_page(comparison.value, np.nan),
        "set": on_page(comparison.peers, -1),
        "counted": on_page(comparison.is_counted, 0),
        "center": on_page(comparison.center, np.nan),
        "spread": on_page(comparison.spread, np.nan),
        "result": on_page(comparison.result, np.nan),
        "status": on_page(comparison.status, 4),
    }
