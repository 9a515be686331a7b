"""Advantage estimators that are sums of parts, made from the options of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gxpo.algorithms.credit.relative import Relative
from gxpo.algorithms.credit.state_relative import StateRelative
from gxpo.methods.compose import _credit
from gxpo.parts.definition import SettingValue
from gxpo.parts.options import Keys

OF_STATE = ("discount", "history", "state", "min_similarity")  # options of the second summand alone


Words = Mapping[str, Mapping[Any, Any]]


def composition(
    keys: Mapping[str, Any], options: Mapping[str, str | tuple[str, ...]], words: Words | None = None
) -> Callable[..., Any]:
    """A function that composes `keys`, with further options under the keys that `options` gives them, or under
    `credit`; `words`: option -> what its values are called there."""

    def compose(**given: Any) -> Any:
        stated_values = dict(keys)
        for name, value in given.items():
            value = (words or {}).get(name, {}).get(value, value)
            homes = options.get(name, name)
            for home in (homes,) if isinstance(homes, str) else homes:
                stated_values[home if home.startswith("credit.") else f"credit.{home}"] = value
        consumed = Keys({key: SettingValue(value, "test") for key, value in stated_values.items()})
        credit = _credit(consumed)
        assert not consumed.leftover(), consumed.leftover()
        return credit

    return compose


def _added(slot: str, *names: str) -> dict[str, str]:
    return {
        "step_weight": f"credit.add.{slot}.weight",
        "single_state": f"credit.add.{slot}.singleton",
        **{name: f"credit.add.{slot}.{name}" for name in (*OF_STATE, *names)},
    }


anchor_state_credit = composition(
    {"credit": Relative, "credit.add.state": StateRelative}, {"single": "singleton", **_added("state")}
)
graph_distance_credit = composition(
    {
        "credit": Relative,
        "credit.add.graph": StateRelative,
        "credit.add.graph.value": "graph_return",
        "credit.add.graph.discount": 0.1,
    },
    _added("graph", "form", "worth"),
)
graph_return_credit = composition({"credit": StateRelative, "credit.value": "graph_return", "credit.discount": 0.1}, {})
penalised_steps_credit = composition(
    {"credit": Relative, "credit.value": "penalised_outcome", "credit.unit": "token", "credit.ddof": 0}, {}
)
token_normalised_credit = composition(
    {"credit": Relative, "credit.value": "segment_score", "credit.ddof": 0, "credit.eps": 1e-8, "credit.weight": 0.5},
    {},
)
turn_position_credit = composition(
    {
        "credit": Relative,
        "credit.value": "turn_rewards",
        "credit.weight": 0.5,
        "credit.add.turn": Relative,
        "credit.add.turn.value": "return",
        "credit.add.turn.group_by": ("turn",),
        "credit.add.turn.discount": 0.9,
        "credit.add.turn.weight": 0.5,
    },
    {
        "over": "value",
        "whole_weight": "weight",
        "turn_weight": "credit.add.turn.weight",
        "discount": "credit.add.turn.discount",
        "last": "credit.add.turn.value",
        "single": ("singleton", "credit.add.turn.singleton"),
    },
    {"over": {"rewards": "turn_rewards"}, "last": {True: "return", False: "return_before_last"}},
)
tree_relative_credit = composition(
    {"credit": Relative, "credit.add.tree": Relative, "credit.add.tree.group_by": ("info.tree",)},
    {"compare": "weight"},
    {"compare": {"both": 1.0, "tree": 0.0}},
)
step_reward_credit = composition(
    {
        "credit": Relative,
        "credit.add.process": Relative,
        "credit.add.process.value": "process_reward",
        "credit.add.process.unit": "step",
    },
    {"step_weight": "credit.add.process.weight"},
)
piece_reward_credit = composition(
    {
        "credit": Relative,
        "credit.add.process": Relative,
        "credit.add.process.value": "piece_reward",
        "credit.add.process.unit": "segment",
    },
    {"step_weight": "credit.add.process.weight"},
)
against_baseline_credit = composition({"credit": Relative, "credit.center": "baseline", "credit.scale": "none"}, {})
