"""Team graphs: the roles of a team in order, their prompts, who sends work back or calls whom, the team's answer.

A team is declared in one place: below, or in a file of one's own, named by `rollout.graph: my_team.py:pair`:

    from gxpo.sampling.rollouts.graph import Graph, Role

    pair = Graph(
        (
            Role("solver", "{prompt}", again="{prompt}\nNot {solver}, because: {verifier}", answer="{solver}"),
            Role("verifier", "{prompt}\nIs it {solver}?", back="solver", accepts=r"yes"),
        ),
        rounds=2,
    )

A role may call helpers inside its turn, as tools:

    asker = Role("asker", running=True, answer="{asker}", calls=(Call("expert", r"ASK: (.*)", max_calls=2),))
    asking = Graph((asker,), helpers=(Role("expert", "{request}"),))
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.base.usercode import Unusable, object_at

Texts = Mapping[str, str]  # "prompt": the task's text; and the newest text of each role, "" before its first
Text = str | Callable[[Texts], str]  # a template with {prompt} and {ROLE} (literal braces doubled), or a function

TASK, REQUEST, SHARED = _TAKEN = "prompt", "request", "main"  # names that a role can't have


@dataclass(frozen=True)
class Call:
    """Permission to call a helper inside one's turn, as a tool.

    helper   the helper's name
    pattern  regular expression of a call in the caller's text; its first group is the {request} that the helper reads
             (all of the match, if it has no group)
    reply    what the caller reads when the helper is done (None: the helper's text)
    max_calls  budget: calls of this kind that an attempt carries out; further ones remain plain text
    """

    helper: str
    pattern: str
    reply: Text | None = field(default=None, kw_only=True)
    max_calls: int = field(default=0, kw_only=True)


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
    local    reward of each of its own texts (rollouts `team` with `pays: role`, and `team_cells`): a function of all
             texts and of the scores of the team's answer, by component, "outcome" and "success" among them (nan:
             unknown). In `team` they are the scores of the attempt, in `team_cells` of the answer after that text
    at_once  True: it acts at the same time as the role before it, and reads what that role read
    stop     texts that end its action, in addition to the run's `sampling.stop`
    calls    helpers that it may call inside its turn. It goes on when all calls of a text are answered: a running
             context with their replies appended, another one under `again`
    """

    name: str
    prompt: Text = "{prompt}"
    again: Text | None = field(default=None, kw_only=True)
    running: bool = field(default=False, kw_only=True)
    answer: Text | None = field(default=None, kw_only=True)
    back: str | None = field(default=None, kw_only=True)
    accepts: str | Callable[[Texts], bool] | None = field(default=None, kw_only=True)
    local: Callable[[Texts, Mapping[str, float]], float] | None = field(default=None, kw_only=True)
    at_once: bool = field(default=False, kw_only=True)
    stop: tuple[str, ...] = field(default=(), kw_only=True)
    calls: tuple[Call, ...] = field(default=(), kw_only=True)

    def requests(self, text: str, past: Collection[Call] = ()) -> list[tuple[Call, str]]:
        """List the calls in a text with their requests, in the order in which they stand there.

        past  calls that were carried out before: those that exceed the budget with them are left out
        """
        matches = []
        for call in self.calls:
            n_left = call.max_calls - list(past).count(call)
            matches += [(match, call) for match in list(re.finditer(call.pattern, text))[:n_left]]
        in_order = sorted(matches, key=lambda pair: pair[0].start())
        return [(call, match[1 if match.re.groups else 0] or "") for match, call in in_order]

    def satisfied(self, texts: Texts) -> bool:
        """Return True if the role accepts the work; a role that can't send anything back always does."""
        if isinstance(self.accepts, str):
            return re.search(self.accepts, texts[self.name]) is not None
        return self.accepts is None or bool(self.accepts(texts))


@dataclass(frozen=True)
class Graph:
    """Roles in the order of their turns; one that does not accept may send the work back, `rounds` - 1 times.

    cases    two texts, for the team's answer and against it, for a judge to compare
             (`scoring.options.judge.mode: debate`)
    helpers  roles without a turn in that order, which others call (`Role.calls`); their texts have {request}
    """

    roles: tuple[Role, ...]
    rounds: int = 1
    cases: tuple[Text, Text] | None = None
    helpers: tuple[Role, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        # all mistakes of a graph are found when it is made, before a model is loaded
        names = self.names
        for i, role in enumerate(self.members):
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", role.name) or role.name in (*_TAKEN, *names[:i]):
                raise ConfigError(
                    f"team: a role is called {role.name!r}; names are different words of letters, digits and _, and "
                    f"not {', '.join(map(repr, _TAKEN))}"
                )
            self._check_turns(role)
            self._check_texts(role)
        self._check_calls()
        if not any(role.answer is not None for role in self.roles):
            raise ConfigError("team: no role has an `answer`, so there is nothing to judge: give one to a role")
        if self.rounds < 1:
            raise ConfigError(f"team: rounds is {self.rounds}; it must be at least 1, since it counts the first round")

    def _check_turns(self, role: Role) -> None:
        """Raise ConfigError if the role's turn can't follow from those of others."""
        names = [r.name for r in self.roles]
        if (role.back is None) != (role.accepts is None):
            raise ConfigError(f"team: role {role.name!r} needs both `back` and `accepts`, or neither")
        if role.name not in names and (role.back, role.answer) != (None, None):
            raise ConfigError(f"team: helper {role.name!r} has `back` or `answer`, which are for roles with turns")
        if role.back is not None and role.back not in names[: names.index(role.name) + 1]:
            raise ConfigError(
                f"team: {role.name!r} sends the work back to {role.back!r}: `back` must name itself or an earlier role"
            )
        if role.at_once and (role.name not in names[1:] or role.calls):
            raise ConfigError(
                f"team: {role.name!r} has `at_once`, which is for a role without calls that stands after another one"
            )

    def _check_texts(self, role: Role) -> None:
        """Raise ConfigError for a name in a role's templates that no text has."""
        fields = [TASK, *([REQUEST] if role in self.helpers else []), *self.names]
        replies = [call.reply for call in role.calls]
        for text in (role.prompt, role.again, role.answer, *replies, *(self.cases or ())):
            for _, name, _, _ in string.Formatter().parse(text) if isinstance(text, str) else ():
                if name is not None and name not in fields:
                    raise ConfigError(
                        f"team: a text of role {role.name!r} has {{{name}}}{did_you_mean(name, fields)}; there is "
                        f"{', '.join(f'{{{x}}}' for x in fields)}; write literal braces twice"
                    )

    def _check_calls(self) -> None:
        """Raise ConfigError for calls without budget, of roles that are no helpers, or that may go on without end."""
        helpers = [helper.name for helper in self.helpers]
        for role in self.members:
            for call in role.calls:
                if call.helper == role.name:
                    raise ConfigError(f"team: {role.name!r} calls itself, so the graph has no end: call a helper")
                if call.helper not in helpers:
                    hint = did_you_mean(call.helper, helpers) or f"; the helpers are {', '.join(helpers) or 'none'}"
                    raise ConfigError(f"team: {role.name!r} calls {call.helper!r}, which is no helper{hint}")
                if call.max_calls < 1:
                    raise ConfigError(
                        f"team: {role.name!r} calls {call.helper!r} without a budget: give the call max_calls=N, the "
                        "calls that an attempt may make"
                    )
                try:
                    re.compile(call.pattern)
                except re.error as error:
                    raise ConfigError(
                        f"team: the pattern {call.pattern!r} of a call by {role.name!r} is no regular expression: "
                        f"{error}"
                    ) from None
        callees = {role.name: {call.helper for call in role.calls} for role in self.members}
        for name in helpers:
            # all that a helper can lead to: itself among them is a circle
            reachable, new = set[str](), callees[name]
            while new:
                reachable |= new
                new = {y for x in new for y in callees[x]} - reachable
            if name in reachable:
                raise ConfigError(
                    f"team: helper {name!r} may call itself through others, so the graph has no end: leave out one of "
                    "these calls"
                )
            if not any(name in names for names in callees.values()):
                raise ConfigError(f"team: no role calls the helper {name!r}: give one a Call, or leave it out")

    def __getitem__(self, name: str) -> Role:
        return next(role for role in self.members if role.name == name)

    @property
    def members(self) -> tuple[Role, ...]:
        """Roles with turns, then helpers."""
        return (*self.roles, *self.helpers)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.members)

    @property
    def longest(self) -> int:
        """Most turns of an attempt; a call adds the helper's and one more of the caller."""
        spans = [i - self.names.index(role.back) + 1 for i, role in enumerate(self.roles) if role.back is not None]
        calls = sum(call.max_calls for role in self.members for call in role.calls)
        return len(self.roles) + (self.rounds - 1) * max(spans, default=0) + 2 * calls

    def after(self, role: Role, texts: Texts, round: int) -> tuple[Role | None, int]:
        """Return the next role after `role` in this round (from 1), and its round; None: the team is done."""
        if role.back is not None and round < self.rounds and not role.satisfied(texts):
            return self[role.back], round + 1
        place = self.names.index(role.name) + 1
        return self.roles[place] if place < len(self.roles) else None, round


def fill_text(text: Text, texts: Texts) -> str:
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

# For models that follow instructions: two write at the same time, each a half.
halves = Graph(
    (
        Role("first", "{prompt}\n\nWrite the first half of the answer; another writes the rest."),
        Role(
            "second",
            "{prompt}\n\nAnother writes the first half of the answer. Write the rest.",
            at_once=True,
            answer="{first}{second}",
        ),
    )
)

# For models that follow instructions: two answer, and a leader who reads both gives the team's answer.
led_team = Graph(
    (
        Role("first"),
        Role("second", at_once=True),
        Role(
            "leader",
            "{prompt}\n\nOne answer:\n{first}\n\nAnother answer:\n{second}\n\nWhat is right? Solve it yourself.",
            answer="{leader}",
        ),
    )
)


def _one_request(texts: Texts, scores: Mapping[str, float]) -> float:
    """Reward a planner's text with 1 if it has no question, or one that is whole."""
    return float(texts["planner"].count("<ask>") == texts["planner"].count("</ask>") <= 1)


def _is_said(texts: Texts, scores: Mapping[str, float]) -> float:
    """Reward a worker's text with 1 if it is not empty."""
    return float(bool(texts["worker"].strip()))


# For models that follow instructions: a planner asks a worker, who reads nothing but the question.
asking = Graph(
    (
        Role(
            "planner",
            "{prompt}\n\nYou may ask a colleague, who can't see the task: <ask>your question</ask>. Then answer.",
            running=True,
            answer="{planner}",
            stop=("</ask>",),
            calls=(Call("worker", r"(?s)<ask>(.*?)</ask>", reply="Your colleague says:\n{worker}", max_calls=2),),
            local=_one_request,
        ),
    ),
    helpers=(Role("worker", "{request}", local=_is_said),),
)

# For models that follow instructions: a planner with two search agents.
searching = Graph(
    (
        Role(
            "planner",
            "{prompt}\n\nSearch with <local>question</local> or <web>question</web>. Then answer.",
            running=True,
            answer="{planner}",
            stop=("</local>", "</web>"),
            calls=(
                Call("local", r"(?s)<local>(.*?)</local>", reply="Our documents:\n{local}", max_calls=2),
                Call("web", r"(?s)<web>(.*?)</web>", reply="The web:\n{web}", max_calls=2),
            ),
        ),
    ),
    helpers=(
        Role("local", "Answer from our own documents.\n\n{request}"),
        Role("web", "Answer from the web.\n\n{request}"),
    ),
)

GRAPHS: dict[str, Graph] = {
    "halves": halves,
    "led": led_team,
    "asking": asking,
    "searching": searching,
    "solver_verifier": solver_verifier,
    "second_opinion": second_opinion,
    "debate": debate,
}
