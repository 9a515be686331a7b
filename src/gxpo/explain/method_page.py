"""Generated method pages: an index, and a page with pictures for each method (`make docs` writes docs/methods/)."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gxpo.explain.catalogue import EXPLAINED, entries, free
from gxpo.explain.effect import GROUP, LENGTH, Effect, effect
from gxpo.explain.method_pictures import effect_figure, number, surrogate_figure, svg
from gxpo.explain.method_text import EQUAL, SECTIONS, counted, merges, sections
from gxpo.explain.surrogate_effect import ENTROPY, RATIOS, SAMPLED, TOLD, SurrogateEffect, surrogate_effect
from gxpo.explain.symptoms import SYMPTOMS
from gxpo.methods import METHODS
from gxpo.methods.compose import method
from gxpo.methods.method import Method
from gxpo.parts.definition import Definition, show
from gxpo.parts.registry import part_at

FENCE = "```"
INDICES = {  # pages and their sections
    "index.md": ("base", "rollout", "update", "credit"),
    "more.md": tuple(s for s in SECTIONS if s not in ("base", "rollout", "update", "credit")),
}


def pages(draw: Callable[[Any], str] = svg) -> dict[str, str]:
    """All generated files by their name in docs/methods: two indices, a page for each method, and pictures.

    draw  a picture's text from its matplotlib figure
    """
    rows = entries()
    found = {"index.md": _index(rows), "more.md": _rest(rows)}
    base, plain = effect(method("grpo")), surrogate_effect(method("grpo"))
    if isinstance(base, str) or isinstance(plain, str):
        raise RuntimeError(f"grpo can't be tried on made-up rollouts: {base}, {plain}")
    for row in rows:
        name = row["name"]
        made = method(name)
        tried = effect(made)
        own = name == "grpo" or (isinstance(tried, Effect) and not tried.same_as(base))
        if isinstance(tried, Effect) and own:
            found[f"{name}.svg"] = draw(effect_figure(tried, base, name))
        curve = surrogate_effect(made)
        if isinstance(curve, SurrogateEffect) and (name == "grpo" or not curve.same_as(plain)):
            found[f"{name}_surrogate.svg"] = draw(surrogate_figure(curve, plain, name))
            curves = _surrogate(name, curve)
        else:
            curves = f"Its objective is not drawn by ratio: {curve}." if isinstance(curve, str) else ""
        found[f"{name}.md"] = _page(row, METHODS[name], made, tried, name if own else "grpo", curves)
    return found


# ---------------------------------------------------------------- the index
def _index(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "# Methods",
        "",
        f"{FENCE}bash",
        "gxpo methods --for all-wrong-groups",
        FENCE,
        "",
        f"{counted(rows)}. Evidence: "
        + "; ".join(f"`{tier}`: {what}" for tier, what in EXPLAINED.items())
        + '. "Equal groups": what a group of equal rewards teaches, `zero` or a `signal`. Cost: `*` where a method has '
        "costs or savings of its own. `gxpo methods --help` has filters for all of these.",
        "",
        "By what goes wrong (`gxpo methods --for`): " + ", ".join(f"`{name}`" for name in SYMPTOMS) + ".",
        "",
        "Here: those of rollouts, updates and advantages. Rewards, weights, objectives and reconstructions: "
        "[more methods](more.md).",
        "",
        *_table(rows, "index.md"),
    ]
    told = "; ".join(f"{section}: {what}" for section, what in SECTIONS.items())
    return "\n".join([*lines, "", f"Stages: {told}.", ""])


def _rest(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["# More methods", "", f"{FENCE}bash", "gxpo methods --stage objective", FENCE, ""]
    told = "Rewards, weights, objectives and reconstructions; the others, and the columns: [methods](index.md)."
    return "\n".join([*head, told, "", *_table(rows, "more.md"), ""])


def _table(rows: Sequence[Mapping[str, Any]], page: str) -> list[str]:
    lines = ["| stage | method | evidence | equal groups | cost | idea |", "|---|---|---|---|---|---|"]
    for section, members in sections(rows).items():
        if section not in INDICES[page]:
            continue
        for i, row in enumerate(members):
            cost = "" if free(row["cost"]) else "*"
            link = f"[{row['name']}]({row['name']}.md)"
            cells = [section if i == 0 else "", link, row["evidence"], row["on_equal"], cost, row["idea"]]
            lines.append(_cells(cells))
    return lines


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


# ---------------------------------------------------------------- one method
def _page(
    row: Mapping[str, Any], definition: Definition, made: Method, tried: Effect | str, picture: str, curves: str
) -> str:
    name, home = row["name"], f"methods/{METHODS.module_of(row['name']).replace('.', '/')}.py"
    blocks = [
        f"# {name}",
        f"{FENCE}bash\ngxpo methods {name}\n{FENCE}",
        _source(row, definition),
        f"{FENCE}text\n{_docstring(definition)}\n{FENCE}",
        f"Switch it on: `--set method={name}`"
        + (f"; with the paper's settings: `--set method={name}@paper`" if row["paper_defaults"] else "")
        + ".",
        _facts(row),
        _parts(definition, made),
        _effect(name, tried, picture),
        curves,
        f"{FENCE}bibtex\n{definition.bibtex}\n{FENCE}",
        f"Written by `make docs` from [{home}](../../src/gxpo/{home}); [all methods](index.md).",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _source(row: Mapping[str, Any], definition: Definition) -> str:
    where = f"[arXiv {row['arxiv']}](https://arxiv.org/abs/{row['arxiv']})" if row["arxiv"] else ""
    cited = ", ".join(x for x in (definition.authors, str(definition.year or ""), where) if x)
    return f"*{row['title']}*. {cited}. Evidence `{row['evidence']}`: {EXPLAINED[row['evidence']]}."


def _docstring(definition: Definition) -> str:
    return inspect.cleandoc(definition.doc or "").replace(FENCE, "'''")


def _facts(row: Mapping[str, Any]) -> str:
    facts = {
        "code": ", ".join(f"[{link.partition('github.com/')[2]}]({link})" for link in row["code"]),
        "keys": _keys(row["defaults"]) or "none: it is the base",
        "paper": _keys(row["paper_defaults"]),
        "needs": ", ".join(f"`{x}`" for x in row["needs"]),
        "computes": ", ".join(f"`{x}`" for x in row["computes"]),
        "requires": ", ".join(row["requires"]),
        "cost": row["cost"],
        "equal groups": f"`{row['on_equal']}`: {EQUAL[row['on_equal']]}",
        "merges with": merges(row),
        "refuses": ", ".join(f"`{x}`" for x in row["refuses"]),
        "alias of": f"[{row['alias_of']}]({row['alias_of']}.md)" if row["alias_of"] else "",
        "aliases": ", ".join(f"[{x}]({x}.md)" for x in row["aliases"]),
        "tried for": ", ".join(
            f"`{s}`" for s, told in SYMPTOMS.items() if any(row["name"] in a.method.split("+") for a in told.advice)
        ),
    }
    rows = [_cells([k, v]) for k, v in facts.items() if v]
    return "\n".join(["| | |", "|---|---|", *rows])


def _keys(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{k}={v}`" for k, v in values.items())


def _parts(definition: Definition, made: Method) -> str:
    """Docstrings and options of the method's own parts."""
    lines = []
    for key, stated in made.keys.items():
        part = part_at(key, stated.value)
        if stated.origin != definition.name or not (isinstance(part, type) and dataclasses.is_dataclass(part)):
            continue
        module = part.__module__.removeprefix("gxpo.").replace(".", "/")
        summary = " ".join(inspect.cleandoc(part.__doc__ or "").split("\n\n")[0].split())
        options = [_option(f) for f in dataclasses.fields(part) if f.init and f.repr]
        told = f" Options: `{', '.join(options)}`." if options else ""
        lines.append(f"- `{key}`: `{show(part)}` ([{module}.py](../../src/gxpo/{module}.py)). {summary}{told}")
    return "\n".join(["Its parts:", "", *lines]) if lines else ""


def _option(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"{field.name}={show(field.default_factory())}"
    return field.name if field.default is dataclasses.MISSING else f"{field.name}={show(field.default)}"


def _effect(name: str, tried: Effect | str, picture: str) -> str:
    if isinstance(tried, str):
        return f"Its advantages are not drawn: {tried}."
    if picture != name:
        said = "On groups of right and wrong answers that differ in nothing else, its advantages are `grpo`'s:"
    elif tried.by_gradient:
        said = "Its objective reads no advantages; drawn is how hard an answer is pushed at the start of a step:"
    else:
        said = "Credit (times weights) of a right and of a wrong answer, by how many of the group are right:"
    table = [
        _cells(["right answers", *(str(c) for c in range(GROUP + 1))]),
        "|---" * (GROUP + 2) + "|",
        _cells(["a right answer", *map(_number, tried.right)]),
        _cells(["a wrong answer", *map(_number, tried.wrong)]),
    ]
    made_up = f"Nine groups of {GROUP}, one batch; every answer has {LENGTH} tokens and the same log-probs and entropy."
    return "\n".join([said, "", f"![advantage by group composition]({picture}.svg)", "", *table, "", made_up])


def _surrogate(name: str, curve: SurrogateEffect) -> str:
    places = [RATIOS.index(r) for r in TOLD]
    table = [
        _cells(["ratio", *(f"{r:g}" for r in TOLD)]),
        "|---" * (len(TOLD) + 1) + "|",
        _cells(["A > 0", *(number(curve.rising[i]) for i in places)]),
        _cells(["A < 0", *(number(curve.falling[i]) for i in places)]),
    ]
    said = "The weight of its objective on a token's gradient, by the token's ratio (1: REINFORCE's; 0: none):"
    made_up = (
        f"Minus the derivative of the loss by the log-prob, over the advantage, of a trajectory of one token that was "
        f"sampled with probability {SAMPLED} at an entropy of {ENTROPY}; by autograd, without the method's weights."
    )
    return "\n".join([said, "", f"![weight on the gradient by ratio]({name}_surrogate.svg)", "", *table, "", made_up])


def _number(value: float | None) -> str:
    return "" if value is None else number(value)
