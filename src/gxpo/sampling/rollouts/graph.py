"""Team graphs: the roles of a team in order, their prompts, who may send work back, and the team's answer.

A team is declared in one place: below, or in a file of one's own, named by `rollout.graph: my_team.py:pair`:

    from gxpo.sampling.rollouts.graph import Graph, Role

    pair = Graph(
        (
            Role("solver", "{prompt}", again="{prompt}\nNot {solver}, because: {verifier}", answer="{solver}"),
            Role("verifier", "{prompt}\nIs it {solver}?", back="solver", accepts=r"yes"),
        ),
        rounds=2,
    )
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.base.usercode import Unusable, object_at

Texts = Mapping[str, str]  # "prompt": the task's text; and the newest text of each role, "" before its first
Text = str | Callable[[Texts], str]  # a template with {prompt} and {ROLE} (literal braces doubled), or a function

TASK, SHARED = "prompt", "main"  # names that a role can't have


@dataclass(frozen=True)
class Role:
    """One member of a team.

    name     letters, digits and "_"; "prompt" and "main" are taken
    prompt   its prompt
    again    its prompt at later turns (None: `prompt`)
    running  True: one context that `again` is appended to; False: a new context every turn
    answer   the team's answer after its turn (None: unchanged)
    back     the role, itself or an earlier one, that goes on if it does not accept the work
    accepts  test of acceptance: a regular expression to be found in its text, or a function of all texts
    local    reward of each of its own texts (method at_grpo): a function of all texts and of the scores of the team's
             answer after that text, by component, "outcome" and "success" among them (nan: unknown)
    """

    name: str
    prompt: Text = "{prompt}"
    again: Text | None = field(default=None, kw_only=True)
    running: bool = field(default=False, kw_only=True)
    answer: Text | None = field(default=None, kw_only=True)
    back: str | None = field(default=None, kw_only=True)
    accepts: str | Callable[[Texts], bool] | None = field(default=None, kw_only=True)
    local: Callable[[Texts, Mapping[str, float]], float] | None = field(default=None, kw_only=True)

    def satisfied(self, texts: Texts) -> bool:
        """Return True if the role accepts the work; a role that can't send anything back always does."""
        if isinstance(self.accepts, str):
            return re.search(self.accepts, texts[self.name]) is not None
        return self.accepts is None or bool(self.accepts(texts))


@dataclass(frozen=True)
class Graph:
    """Roles in the order of their turns; one that does not accept may send the work back, `rounds` - 1 times.

    cases  two texts, for the team's answer and against it, for a judge to compare
           (`scoring.options.judge.mode: debate`)
    """

    roles: tuple[Role, ...]
    rounds: int = 1
    cases: tuple[Text, Text] | None = None

    def __post_init__(self) -> None:
        names = [role.name for role in self.roles]
        # all mistakes of a graph are found when it is made, before a model is loaded
        for i, role in enumerate(self.roles):
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", role.name) or role.name in (TASK, SHARED, *names[:i]):
                raise ConfigError(
                    f"team: a role is called {role.name!r}; names are different words of letters, digits and _, and "
                    f"not {TASK!r} or {SHARED!r}"
                )
            if (role.back is None) != (role.accepts is None):
                raise ConfigError(f"team: role {role.name!r} needs both `back` and `accepts`, or neither")
            if role.back is not None and role.back not in names[: i + 1]:
                raise ConfigError(
                    f"team: {role.name!r} sends the work back to {role.back!r}: `back` must name itself or an earlier "
                    "role"
                )
            for text in (role.prompt, role.again, role.answer, *(self.cases or ())):
                for _, name, _, _ in string.Formatter().parse(text) if isinstance(text, str) else ():
                    if name is not None and name not in (TASK, *names):
                        allowed = [TASK, *names]
                        raise ConfigError(
                            f"team: a text of role {role.name!r} has {{{name}}}{did_you_mean(name, allowed)}; there is "
                            f"{', '.join(f'{{{x}}}' for x in allowed)}; write literal braces twice"
                        )
        if not any(role.answer is not None for role in self.roles):
            raise ConfigError("team: no role has an `answer`, so there is nothing to judge: give one to a role")
        if self.rounds < 1:
            raise ConfigError(f"team: rounds is {self.rounds}; it must be at least 1, since it counts the first round")

    def __getitem__(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.roles)

    @property
    def longest(self) -> int:
        """Most turns of an attempt."""
        spans = [i - self.names.index(role.back) + 1 for i, role in enumerate(self.roles) if role.back is not None]
        return len(self.roles) + (self.rounds - 1) * max(spans, default=0)

    def after(self, role: Role, texts: Texts, round: int) -> tuple[Role | None, int]:
        """Return the next role after `role` in this round (from 1), and its round; None: the team is done."""
        if role.back is not None and round < self.rounds and not role.satisfied(texts):
            return self[role.back], round + 1
        place = self.names.index(role.name) + 1
        return self.roles[place] if place < len(self.roles) else None, round


def filled(text: Text, texts: Texts) -> str:
    """Fill a template with texts, or call the function that stands in its place."""
    return text.format_map(texts) if isinstance(text, str) else text(texts)


def graph(name: str | Graph) -> Graph:
    """Return a built-in graph by its name, or the one at FILE.py:NAME."""
    if isinstance(name, Graph):
        return name
    if name in GRAPHS:
        return GRAPHS[name]
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py"):
        built_in = ", ".join(GRAPHS)
        raise ConfigError(
            f"rollout.graph: no team {name!r}{did_you_mean(name, GRAPHS)}; there is {built_in}, FILE.py:NAME"
        )
    try:
        team = object_at(name)
    except Unusable as error:
        raise ConfigError(f"rollout.graph={name}: {error}") from None
    if not isinstance(team, Graph):
        raise ConfigError(f"rollout.graph={name}: {attribute!r} in {file} is no Graph")
    return team


# For models that follow instructions.
solver_verifier = Graph(
    (
        Role(
            "solver",
            "{prompt}",
            again="{prompt}\n\nAn earlier attempt:\n{solver}\n\nA reviewer wrote:\n{verifier}\n\nSolve it again.",
            answer="{solver}",
        ),
        Role(
            "verifier",
            "{prompt}\n\nA proposed solution:\n{solver}\n\nCheck it. End with VERDICT: right or VERDICT: wrong.",
            back="solver",
            accepts=r"VERDICT:\s*right",
        ),
    ),
    rounds=2,
)


_SUM = re.compile(r"(?<!\d)(\d+)([-+*])(\d+)=")


def _swap_operands(texts: Texts) -> str:
    """Swap the operands of a sum or product: 37+48= becomes 48+37=."""
    terms = _SUM.fullmatch(texts["prompt"])
    return f"{terms[3]}{terms[2]}{terms[1]}=" if terms and terms[2] != "-" else texts["prompt"]


def _results_agree(texts: Texts) -> bool:
    """Return True if both texts end in # and the same result."""
    (_, one, result), (_, other, check) = texts["solver"].rpartition("#"), texts["verifier"].rpartition("#")
    return bool(one and other) and result == check


def _knows_the_result(texts: Texts, scores: Mapping[str, float]) -> float:
    """Reward the verifier with 1 if its own result is right, and so its verdict, whatever the solver wrote.

    A wrong result that differs from the solver's wrong result is a right verdict too, but earns nothing: it would pay
    for making mistakes. For a task that is no sum, difference or product of two numbers the reward is 1 if the verdict
    is right.
    """
    terms = _SUM.fullmatch(texts["prompt"])
    if terms is None:
        return float(_results_agree(texts) == (scores["success"] >= 1))
    a, b = int(terms[1]), int(terms[3])
    return float(texts["verifier"].rpartition("#")[2] == str({"+": a + b, "-": a - b, "*": a * b}[terms[2]]))


# For the tiny model, which reads nothing but sums: the verifier does not read the solver's text, it works the sum out
# itself, in the other order, and its verdict is whether the results agree.
second_opinion = Graph(
    (
        Role("solver", "{prompt}", answer="{solver}"),
        Role("verifier", _swap_operands, back="solver", accepts=_results_agree, local=_knows_the_result),
    ),
    rounds=3,
)

# For models that follow instructions: the first answers and says why, the other argues against it.
debate = Graph(
    (
        Role("proponent", "{prompt}\n\nAnswer, and give the evidence for your answer.", answer="{proponent}"),
        Role(
            "opponent",
            "{prompt}\n\nSomebody answers:\n{proponent}\n\nArgue for another answer, and give the evidence for it.",
        ),
    ),
    cases=("{proponent}", "{opponent}"),
)

GRAPHS: dict[str, Graph] = {
    "solver_verifier": solver_verifier,
    "second_opinion": second_opinion,
    "debate": debate,
}
