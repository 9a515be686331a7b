"""Team graphs: roles in order, what each one reads, who may send work back, and the team's answer.

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

Said = Mapping[str, str]  # "prompt": the task's; and by role the newest text of each, "" before it has spoken
Text = str | Callable[[Said], str]  # a template with {prompt} and {ROLE} (braces of one's own doubled), or a function

TASK, SHARED = "prompt", "main"  # names that a role can't have


@dataclass(frozen=True)
class Role:
    """One member of a team.

    name     letters, digits and "_"; "prompt" and "main" are taken
    prompt   what it reads
    again    what it reads when its turn comes again (None: `prompt`)
    running  its context goes on: `again` is appended to all that it has read and written; else it is built anew
    answer   what the team's answer is once it has spoken (None: what it was before)
    back     the role, itself or an earlier one, that goes on where it does not accept the work
    accepts  whether it does: a regular expression to be found in its text, or a function of all texts
    local    a reward of its own for each of its texts (method at_grpo): a function of all texts and of the scores of
             the team's answer as it then stands, by component, "outcome" and "success" among them (nan: unknown)
    """

    name: str
    prompt: Text = "{prompt}"
    again: Text | None = field(default=None, kw_only=True)
    running: bool = field(default=False, kw_only=True)
    answer: Text | None = field(default=None, kw_only=True)
    back: str | None = field(default=None, kw_only=True)
    accepts: str | Callable[[Said], bool] | None = field(default=None, kw_only=True)
    local: Callable[[Said, Mapping[str, float]], float] | None = field(default=None, kw_only=True)

    def satisfied(self, said: Said) -> bool:
        """Whether it accepts the work; a role that can't send anything back does."""
        if isinstance(self.accepts, str):
            return re.search(self.accepts, said[self.name]) is not None
        return self.accepts is None or bool(self.accepts(said))


@dataclass(frozen=True)
class Graph:
    """Roles in the order in which they speak; one that does not accept may send the work back, `rounds` - 1 times.

    cases  two texts, for the team's answer and against it, that a judge compares (`scoring.options.judge.mode: debate`)
    """

    roles: tuple[Role, ...]
    rounds: int = 1
    cases: tuple[Text, Text] | None = None

    def __post_init__(self) -> None:
        names = [role.name for role in self.roles]
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
                    f"team: {role.name!r} sends the work back to {role.back!r}, which does not speak before it"
                )
            for text in (role.prompt, role.again, role.answer, *(self.cases or ())):
                for _, name, _, _ in string.Formatter().parse(text) if isinstance(text, str) else ():
                    if name is not None and name not in (TASK, *names):
                        known = [TASK, *names]
                        raise ConfigError(
                            f"team: a text of role {role.name!r} has {{{name}}}{did_you_mean(name, known)}; there is "
                            f"{', '.join(f'{{{x}}}' for x in known)}, and braces that are meant as such are doubled"
                        )
        if not any(role.answer is not None for role in self.roles):
            raise ConfigError("team: no role has an `answer`, so there is nothing to be judged")
        if self.rounds < 1:
            raise ConfigError(f"team: rounds is {self.rounds}; it counts the first one too, so it is at least 1")

    def __getitem__(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.roles)

    @property
    def longest(self) -> int:
        """The most turns that an attempt can have."""
        spans = [i - self.names.index(role.back) + 1 for i, role in enumerate(self.roles) if role.back is not None]
        return len(self.roles) + (self.rounds - 1) * max(spans, default=0)

    def after(self, role: Role, said: Said, round: int) -> tuple[Role | None, int]:
        """Who speaks after `role` has spoken in this round, counted from 1, and in which; nobody: the team is done."""
        if role.back is not None and round < self.rounds and not role.satisfied(said):
            return self[role.back], round + 1
        place = self.names.index(role.name) + 1
        return self.roles[place] if place < len(self.roles) else None, round


def filled(text: Text, said: Said) -> str:
    """A template with what was said in its places, or what the function makes of it."""
    return text.format_map(said) if isinstance(text, str) else text(said)


def graph(name: str | Graph) -> Graph:
    """A built-in graph by its name, or FILE.py:NAME."""
    if isinstance(name, Graph):
        return name
    if name in GRAPHS:
        return GRAPHS[name]
    file, _, found = name.rpartition(":")
    if not file.endswith(".py"):
        known = ", ".join(GRAPHS)
        raise ConfigError(
            f"rollout.graph: no team {name!r}{did_you_mean(name, GRAPHS)}; there is {known}, FILE.py:NAME"
        )
    try:
        made = object_at(name)
    except Unusable as error:
        raise ConfigError(f"rollout.graph={name}: {error}") from None
    if not isinstance(made, Graph):
        raise ConfigError(f"rollout.graph={name}: {found!r} in {file} is no Graph")
    return made


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


def _turned(said: Said) -> str:
    """The sum or product with its numbers in the other order: 37+48= is read as 48+37=."""
    found = _SUM.fullmatch(said["prompt"])
    return f"{found[3]}{found[2]}{found[1]}=" if found and found[2] != "-" else said["prompt"]


def _results_agree(said: Said) -> bool:
    """Both texts end in # and one and the same result."""
    (_, one, result), (_, other, check) = said["solver"].rpartition("#"), said["verifier"].rpartition("#")
    return bool(one and other) and result == check


def _knows_the_result(said: Said, scores: Mapping[str, float]) -> float:
    """1 where the verifier's own result is right, and so its verdict, whatever the solver wrote. A wrong result that is
    not the solver's wrong result is a right verdict too, and is worth nothing: it would be paid for making mistakes.
    Of a task that is no sum, difference or product of two numbers, whether the verdict is right."""
    found = _SUM.fullmatch(said["prompt"])
    if found is None:
        return float(_results_agree(said) == (scores["success"] >= 1))
    a, b = int(found[1]), int(found[3])
    return float(said["verifier"].rpartition("#")[2] == str({"+": a + b, "-": a - b, "*": a * b}[found[2]]))


# For the tiny model, which reads nothing but sums: the verifier does not read the solver's text, it works the sum out
# itself, in the other order, and its verdict is whether the results agree.
second_opinion = Graph(
    (
        Role("solver", "{prompt}", answer="{solver}"),
        Role("verifier", _turned, back="solver", accepts=_results_agree, local=_knows_the_result),
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
