"""Groups of successes and failures, and what every loss that compares trajectories must satisfy."""

from __future__ import annotations

import random
from typing import Any

import torch
from tests import strategies
from tests.learning.llamas import clean_llama
from torch import Tensor

from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import PolicyTokens

Row = dict[str, Any]


def forest_of(rows: list[tuple[Any, ...]]) -> Forest:
    """Rows (group, tokens, success, fields of the record...); single turns, reward = success unless given."""
    records = []
    for i, (group, n, success, *rest) in enumerate(rows):
        turn: Row = {"action": list(range(10, 10 + n)), "logprob": [-1.0] * n}
        fields = dict(rest[0]) if rest else {}
        if "trainable" in fields:
            turn["trainable"] = fields.pop("trainable")
        record = {"schema": "gxpo.rollouts/1", "group": group, "id": f"t{i}", "prompt": [1, 2], "turns": [turn]}
        records.append(record | {"reward": float(success), "success": bool(success)} | fields)
    return Forest.from_records(records)


def random_labelled(seed: int) -> Forest:
    """Three groups with forks, partly trained actions, unscored and uncompared members, weights, verdicts."""
    forest = strategies.random_forest(seed, groups=3, rollouts=5, unknown_logprob=False)
    uniform = torch.rand(forest.n_trajectories, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return forest.replace(success=(uniform > 0.5).to(torch.float64))


def policies(forest: Forest, seed: int, spread: float = 0.4) -> dict[str, Tensor]:
    """Log-probs [P] of current, proximal, behaviour and reference policies, none of them equal."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(4, forest.n_entries, generator=generator, dtype=torch.float64)
    behaviour = -1.5 + 0.5 * noise[0]
    names = ("logprob", "proximal_logprob", "reference_logprob")
    return {"behaviour_logprob": behaviour} | {k: behaviour + spread * e for k, e in zip(names, noise[1:], strict=True)}


def graded(term: Any, forest: Forest, x: dict[str, Tensor], weight: Tensor | None = None) -> tuple[float, Tensor]:
    """Value and gradient [P] of a term."""
    logprob = x["logprob"].clone().requires_grad_()
    weight_P = forest.to_path(forest.weight, "R") if weight is None else weight
    policy = PolicyTokens(**{**x, "logprob": logprob})
    value = term(forest, policy, torch.zeros_like(weight_P), weight_P, {}, 0)[0]
    (gradient,) = torch.autograd.grad(value, logprob)
    return float(value.detach()), gradient


def members(forest: Forest, weight: Tensor | None = None) -> dict[str, list[Row]]:
    """The scored trajectories with trained tokens, by group, each with what a loss may know of it."""
    weight_P = forest.to_path(forest.weight, "R") if weight is None else weight
    out: dict[str, list[Row]] = {}
    for r in range(forest.n_trajectories):
        entries = [p for p in forest.path_of(r).tolist() if bool(forest.trainable[forest.path_token[p]])]
        if entries and bool(forest.outcome[r].isfinite()):
            row = {
                "entries": entries,
                "reward": float(forest.outcome[r]),
                "good": float(forest.success[r]) == 1.0,
                "compared": bool(forest.compared[r]),
                "weight": [float(weight_P[p]) for p in entries],
            }
            out.setdefault(forest.group[r], []).append(row)
    return out


def moves(rows: list[Row]) -> bool:
    """True if any of their tokens has a weight: groups without one are not run."""
    return any(w != 0 for row in rows for w in row["weight"])


def spread_over(forest: Forest, slopes: list[tuple[Row, float]], how: str) -> Tensor:
    """[P]: dL/ds of trajectories handed on to their tokens, of which s is the sum or the mean, times their weights."""
    out = torch.zeros(forest.n_entries, dtype=torch.float64)
    for row, slope in slopes:
        for p, w in zip(row["entries"], row["weight"], strict=True):
            out[p] += w * slope / (len(row["entries"]) if how == "mean" else 1)
    return out


def battery() -> Forest:
    """Groups with both labels, one with a fork inside an action, one without failures; weights; somebody uncompared."""
    rng = random.Random(0)
    records: list[Row] = []
    for g, verdicts in enumerate(([1, 0, 0, 1], [0, 1, 0], [1, 0, 1, 0, 0], [1, 1])):
        for i, good in enumerate(verdicts):
            turns = []
            for _ in range(rng.choice((1, 2))):
                action = [rng.randrange(1, 60) for _ in range(rng.randrange(2, 6))]
                turns.append({"observation": [rng.randrange(1, 60)], "action": action, "logprob": [-1.0] * len(action)})
            record: Row = {"schema": "gxpo.rollouts/1", "group": f"g{g}", "id": f"{g}.{i}", "turns": turns}
            record |= {"prompt": [7 + g, 8, 9], "reward": good + 0.1 * rng.random(), "success": bool(good)}
            if i == 1:
                record["weight"] = 0.5
            if (g, i) == (2, 4):
                record["compared"] = False
            records.append(record)
    fork = {"of": "0.0", "turn": 0, "token": 1}
    turn = {"action": [5, 6, 7], "logprob": [-1.0] * 3}
    forked: Row = {"schema": "gxpo.rollouts/1", "group": "g0", "id": "0.4", "fork": fork, "turns": [turn]}
    return Forest.from_records([*records, forked | {"reward": 0.0, "success": False}])


# ---------------------------------------------------------------- what every such loss must satisfy
def same_however_cut(term: Any) -> None:
    """The parameters' gradient is the same however the step is cut into micro-batches, in one pass or two."""
    forest, learner = battery(), TorchLearner(clean_llama(vocab_size=64), lr=1e-3)
    now = learner.outputs(forest)["logprob"]
    x = policies(forest, 3, 0.3)
    moved = {k: now + v - x["behaviour_logprob"] for k, v in x.items()}
    fixed = {k: moved[k] for k in ("proximal_logprob", "reference_logprob")}
    weight = forest.to_path(forest.weight, "R")
    active = term.active(forest, torch.zeros_like(weight), weight)

    def loss(live: Any) -> Tensor:
        policy = PolicyTokens(live["logprob"], forest.path_behaviour_logprob, **fixed)
        return term(forest, policy, torch.zeros_like(weight), weight, {}, 0)[0]

    def gradient(cuts: list[Tensor], two_pass: bool) -> Tensor:
        gradient_by_parameter = learner.gradient(
            forest, loss, couples=term.couples, active=active, cuts=cuts, two_pass=two_pass
        )
        return torch.cat([g.reshape(-1) for _, g in sorted(gradient_by_parameter.items())])

    # cuts of the step: none, by trajectory, every three tokens (inside trajectories), by group
    everything = torch.arange(forest.n_entries)
    rows = [forest.path_of(r) for r in range(forest.n_trajectories)]
    group = forest.ids("group", axis="P")
    by_group = [(group == g).nonzero().squeeze(1) for g in range(4)]
    whole_gradient = gradient([everything], False)
    assert float(whole_gradient.norm()) > 0
    ways = [([everything], True), (rows, True), (list(everything.split(3)), True), (by_group, True)]
    ways += [(by_group, False)] if term.couples == "group" else []
    for cuts, two_pass in ways:
        difference = float((gradient(cuts, two_pass) - whole_gradient).norm() / whole_gradient.norm())
        assert difference <= 1e-12, f"{len(cuts)} cuts, two passes {two_pass}: {difference:.2e}"
    # an optimiser step runs the active tokens and no others
    ran = learner.step(forest, loss, couples=term.couples, active=active).outputs["logprob"].isfinite()
    assert torch.equal(ran, active)  # groups that nothing is learned from are not run


def keeps_the_rules(term: Any, seed: int) -> None:
    """Order, unscored rows, entries that are not active, and members that are not compared."""
    forest = random_labelled(seed)
    x = policies(forest, seed)
    value, gradient = graded(term, forest, x)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    for rows in (order, forest.scored.nonzero().squeeze(1)):
        entries = forest.entries_of(rows)
        again, moved = graded(term, forest.select(rows), {k: v[entries] for k, v in x.items()})
        assert abs(again - value) <= 1e-10 * max(1.0, abs(value)), "order, or what is unscored, matters"
        torch.testing.assert_close(moved, gradient[entries], rtol=1e-9, atol=1e-12)
    unscored = ~forest.to_path(forest.scored, "R")
    assert bool((gradient[unscored | ~forest.path_trainable] == 0).all())

    weight = forest.to_path(forest.weight, "R")
    active = term.active(forest, torch.zeros_like(weight), weight)
    blind = {k: torch.where(active, v, torch.nan) if k == "logprob" else v for k, v in x.items()}
    again, moved = graded(term, forest, blind)
    assert again == value and torch.equal(moved, gradient), "an entry that is not active was read"
    assert bool((gradient[~active] == 0).all())

    uncompared_P = ~forest.to_path(forest.compared, "R")  # what they score is in no statistic of others
    _, moved = graded(term, forest, {**x, "logprob": torch.where(uncompared_P, x["logprob"] - 0.3, x["logprob"])})
    torch.testing.assert_close(moved[~uncompared_P], gradient[~uncompared_P], rtol=1e-9, atol=1e-12)


def weights_scale_derivatives(term: Any, seed: int) -> None:
    """Token weights change nothing but the derivative of their own token."""
    forest = random_labelled(seed)
    forest = forest.replace(weight=torch.ones(forest.n_trajectories, dtype=torch.float64))
    x = policies(forest, seed)
    value, gradient = graded(term, forest, x)
    random_weight = 0.1 + torch.rand(
        forest.n_entries, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    again, moved = graded(term, forest, x, random_weight)
    assert again == value
    torch.testing.assert_close(moved, random_weight * gradient, rtol=1e-12, atol=0)
