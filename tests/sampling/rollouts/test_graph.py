"""Team graphs: the order of turns, sending work back, prompts of roles, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError
from gxpo.sampling.rollouts.graph import Graph, Role, fill_text, graph

SOLVER = Role("solver", answer="{solver}")
PAIR = Graph((SOLVER, Role("verifier", "Is it {solver}?", back="solver", accepts=r"\byes\b")), rounds=2)


def names(step: tuple[Role | None, int]) -> tuple[str | None, int]:
    role, round = step
    return (None if role is None else role.name), round


def test_roles_take_turns_in_their_order() -> None:
    assert names(PAIR.after(PAIR["solver"], {"solver": "4", "verifier": ""}, 1)) == ("verifier", 1)


def test_a_role_that_accepts_ends_the_attempt() -> None:
    assert names(PAIR.after(PAIR["verifier"], {"solver": "4", "verifier": "yes, 4"}, 1)) == (None, 1)


def test_a_role_that_does_not_accept_sends_the_work_back() -> None:
    assert names(PAIR.after(PAIR["verifier"], {"solver": "4", "verifier": "no"}, 1)) == ("solver", 2)


def test_in_the_last_round_nothing_is_sent_back() -> None:
    assert names(PAIR.after(PAIR["verifier"], {"solver": "4", "verifier": "no"}, 2)) == (None, 2)


def test_the_longest_attempt_counts_every_round() -> None:
    # three roles; the third sends back to the second twice: 3 turns, and 2 more for each of 2 further rounds
    team = Graph((SOLVER, Role("a"), Role("b", back="a", accepts="ok")), rounds=3)
    assert team.longest == 7 and PAIR.longest == 4 and Graph((SOLVER,)).longest == 1


def test_a_template_is_filled_and_a_function_called() -> None:
    texts = {"prompt": "2+2", "solver": "4"}
    assert fill_text("{prompt}={solver} {{}}", texts) == "2+2=4 {}"
    assert fill_text(lambda texts: texts["solver"] * 2, texts) == "44"


@pytest.mark.parametrize(
    ("roles", "rounds", "message"),
    [
        ((Role("prompt", answer="x"),), 1, "a role is called 'prompt'"),
        ((SOLVER, SOLVER), 1, "a role is called 'solver'"),
        ((SOLVER, Role("b", back="solver")), 1, "needs both `back` and `accepts`"),
        ((Role("a", back="b", accepts="x", answer="x"), Role("b")), 1, "`back` must name itself or an earlier role"),
        ((Role("a", "{solver}", answer="x"),), 1, r"has \{solver\}.*write literal braces twice"),
        ((Role("a"),), 1, "no role has an `answer`"),
        ((SOLVER,), 0, "rounds is 0; it must be at least 1"),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(roles: tuple[Role, ...], rounds: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Graph(roles, rounds)


def test_a_graph_is_found_by_name_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "team.py"
    file.write_text(
        "from gxpo.sampling.rollouts.graph import Graph, Role\n"
        "solo = Graph((Role('solver', answer='{solver}'),))\n"
        "number = 3\n"
    )
    assert graph("debate").names == ("proponent", "opponent") and graph(f"{file}:solo").names == ("solver",)
    with pytest.raises(ConfigError, match=r"no team 'debat'.*debate"):
        graph("debat")
    with pytest.raises(ConfigError, match="is no Graph"):
        graph(f"{file}:number")
