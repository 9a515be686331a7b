"""Former names of advantage estimators and their options."""

from __future__ import annotations

from gxpo.credit.relative import Relative
from gxpo.credit.state_relative import StateRelative
from gxpo.former import Former

FORMER = {
    "pass_atk": Former("pass_at_k"),
    "group_relative": Former(Relative, values={"unit": {"trajectory": "own"}}),  # an outcome's own unit
    "for_origin": Former("constant_advantage"),
    "shrunk": Former("shrinkage_baseline"),
    "virtual_members": Former("pseudo_rollouts"),
    "anchor_state": Former(
        Relative,
        {"credit.add.state": StateRelative},
        {
            "step_weight": "credit.add.state.weight",
            "single_state": "credit.add.state.singleton",
            **{name: f"credit.add.state.{name}" for name in ("discount", "history", "state", "similar")},
        },
    ),
    "graph_distance": Former(
        Relative,
        {
            "credit.add.graph": StateRelative,
            "credit.add.graph.value": "graph_return",
            "credit.add.graph.discount": 0.1,
        },
        {
            "step_weight": "credit.add.graph.weight",
            "single_state": "credit.add.graph.singleton",
            **{
                name: f"credit.add.graph.{name}"
                for name in ("discount", "history", "state", "similar", "form", "worth")
            },
        },
    ),
    "graph_return": Former(StateRelative, {"value": "graph_return", "discount": 0.1}),
    "penalised_steps": Former(Relative, {"value": "penalised_outcome", "unit": "token", "ddof": 0}),
    "agent_relative": Former(
        Relative,
        {"among": ("agent",), "unit": "step"},
        {"unit": (), "quantile": (), "shift": (), "singleton": ()},  # options that it did not read
    ),
    "step_reward": Former(
        Relative,
        {
            "credit.add.process": Relative,
            "credit.add.process.value": "process_reward",
            "credit.add.process.unit": "step",
        },
        {"step_weight": "credit.add.process.weight"},
    ),
    "piece_reward": Former(
        Relative,
        {
            "credit.add.process": Relative,
            "credit.add.process.value": "piece_reward",
            "credit.add.process.unit": "segment",
        },
        {"step_weight": "credit.add.process.weight"},
    ),
    "tree_relative": Former(
        Relative,
        {"credit.add.tree": Relative, "credit.add.tree.among": ("info.tree",)},
        {"compare": "weight"},
        {"compare": {"both": 1.0, "tree": 0.0}},
    ),
    "token_normalised": Former(Relative, {"value": "segment_score", "ddof": 0, "eps": 1e-8, "weight": 0.5}),
    "turn_position": Former(
        Relative,
        {
            "value": "turn_rewards",
            "weight": 0.5,
            "credit.add.turn": Relative,
            "credit.add.turn.value": "return",
            "credit.add.turn.among": ("turn",),
            "credit.add.turn.discount": 0.9,
            "credit.add.turn.weight": 0.5,
        },
        {
            "over": "value",
            "whole_weight": "weight",
            "turn_weight": "credit.add.turn.weight",
            "discount": "credit.add.turn.discount",
            "last": "credit.add.turn.value",
            "singleton": ("singleton", "credit.add.turn.singleton"),
        },
        {"over": {"rewards": "turn_rewards"}, "last": {True: "return", False: "return_before_last"}},
    ),
    "against_baseline": Former(Relative, {"center": "baseline", "scale": "none"}),
    "branch_points": Former("value_delta", {"value": "branch_points"}),
    "clipped_bonus": Former(
        Relative,
        {"credit.add.bonus": "bonus", "credit.add.bonus.low": 0.0, "credit.add.bonus.kappa": 2.0},
        {"kappa": "credit.add.bonus.kappa", "at": "credit.add.bonus.at"},
    ),
    "clipped_gap": Former("bonus", {"value": "gap", "low": -0.2, "high": 0.28}),
    "confidence_gap": Former("bonus", {"value": "confidence_gap", "factor": 0.3}, {"alpha": "factor"}),
    "entropy_cost": Former("bonus", {"value": "certainty", "factor": 0.1}, {"coef": "factor"}),
    "progress": Former("value_delta", {"value": "belief"}, {"alpha": "factor"}),
    "progress_gae": Former("gae", {"reward": "progress", "bonus": 0.5}),
    "tree_progress": Former(
        "value_delta", {"value": "pieces", "target": "last"}, {"progress": "factor", "at": "target"}
    ),
    "value_difference": Former("value_delta"),
}
