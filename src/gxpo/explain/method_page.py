"""Generated method pages: indices by stage, a page with pictures for each method (`make docs` writes docs/methods/)."""

from __future__ import annotations

import dataclasses
import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gxpo.base.errors import need
from gxpo.explain.catalogue import EVIDENCE_MEANING, entries, is_free
from gxpo.explain.effect import (
    ENTROPY,
    GROUP,
    LENGTH,
    RATIOS,
    SAMPLED,
    TABLE_RATIOS,
    Effect,
    SurrogateEffect,
    effect,
    surrogate_effect,
)
from gxpo.explain.family_page import family_pages
from gxpo.explain.measurements import NOT_MEASURED, effects_text
from gxpo.explain.methods import (
    EQUAL_GROUPS_MEANING,
    FORMULA_FROM,
    RECONSTRUCTION,
    SECTIONS,
    count_line,
    merge_summary,
    sections,
)
from gxpo.explain.symptoms import SYMPTOMS
from gxpo.methods import METHODS
from gxpo.methods.compose import method
from gxpo.methods.method import Method
from gxpo.parts.definition import Definition, show
from gxpo.parts.registry import part_at

FENCE = "```"
SIZE = (4.6, 2.8)  # inches
RIGHT, WRONG, BASE = "#1f77b4", "#d62728", "#9a9a9a"
MAX_ADVANTAGE = 8.0  # larger advantages are drawn at the edge, with their number
MIN_WEIGHT, MAX_WEIGHT = -2.0, 4.0  # weights outside are drawn at the edge
INDICES = {  # pages and their sections
    "index.md": ("base", "rollout"),
    "advantages.md": ("credit",),
    "more.md": tuple(s for s in SECTIONS if s not in ("base", "rollout", "credit", RECONSTRUCTION)),
    "reconstructed.md": (RECONSTRUCTION,),
}


def svg(figure: Any) -> str:
    """Render a figure as an SVG document; equal figures give equal text."""
    axes = figure.axes[0]
    line_by_label = {label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    axes.legend(list(line_by_label.values()), list(line_by_label), fontsize=7, frameon=False)
    out = io.StringIO()
    with need("matplotlib", "plot").rc_context({"svg.hashsalt": "gxpo", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def pages(draw: Callable[[Any], Any] = svg) -> dict[str, Any]:
    """Generate all files of docs/methods, by name: indices by stage, a page for each method, and pictures.

    draw  turns a matplotlib figure into the text of its file, or into a future of it
    """
    rows = entries()
    text_by_name = {
        "index.md": _index(rows),
        "advantages.md": _advantages_index(rows),
        "more.md": _more_index(rows),
        "reconstructed.md": _reconstructed_index(rows),
    }
    base_effect, base_curve = effect(method("grpo")), surrogate_effect(method("grpo"))
    if isinstance(base_effect, str) or isinstance(base_curve, str):
        raise RuntimeError(f"grpo can't be tried on made-up rollouts: {base_effect}, {base_curve}")
    effects: dict[str, Effect | str] = {}
    curves_by_name: dict[str, SurrogateEffect | str] = {}
    for row in rows:
        name = row["name"]
        composed = method(name)
        measured_effect = effects[name] = effect(composed)
        # a method whose advantages are GRPO's links GRPO's picture, instead of a copy of it
        has_own_picture = name == "grpo" or (
            isinstance(measured_effect, Effect) and not measured_effect.same_as(base_effect)
        )
        if isinstance(measured_effect, Effect) and has_own_picture:
            text_by_name[f"{name}.svg"] = draw(effect_figure(measured_effect, base_effect, name))
        curve = curves_by_name[name] = surrogate_effect(composed)
        if isinstance(curve, SurrogateEffect) and (name == "grpo" or not curve.same_as(base_curve)):
            text_by_name[f"{name}_surrogate.svg"] = draw(surrogate_figure(curve, base_curve, name))
            curves = _surrogate(name, curve)
        else:
            curves = f"Its objective is not drawn by ratio: {curve}." if isinstance(curve, str) else ""
        text_by_name[f"{name}.md"] = _page(
            row, METHODS[name], composed, measured_effect, name if has_own_picture else "grpo", curves
        )
    return text_by_name | family_pages(rows, effects, curves_by_name, draw)


# ---------------------------------------------------------------- the index
def _index(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "# Methods",
        "",
        f"{FENCE}bash",
        "gxpo methods --for all-wrong-groups",
        FENCE,
        "",
        f"{count_line(rows)}. Where formulas are from (`--evidence`): "
        + "; ".join(f"`{tier}`: {meaning}" for tier, meaning in EVIDENCE_MEANING.items())
        + '. "Equal groups": what a group of equal rewards teaches, `zero` or a `signal`. Cost: `*` where a method has '
        "costs or savings of its own. `gxpo methods --help` has filters for all of these.",
        "",
        "By what goes wrong (`gxpo methods --for`): " + ", ".join(f"`{name}`" for name in SYMPTOMS) + ".",
        "",
        "Here: those of rollouts. [Advantages](advantages.md); updates, rewards, weights and objectives: "
        "[more methods](more.md); "
        "[reconstructions](reconstructed.md). By family, with pictures: [families](families.md).",
        "",
        *_table(rows, "index.md"),
    ]
    stages = "; ".join(f"{section}: {meaning}" for section, meaning in SECTIONS.items())
    return "\n".join([*lines, "", f"Stages: {stages}.", ""])


def _advantages_index(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["# Methods of advantages", "", f"{FENCE}bash", "gxpo methods --stage credit", FENCE, ""]
    introduction = "How an answer is compared with its group; the others, and the columns: [methods](index.md)."
    return "\n".join([*head, introduction, "", *_table(rows, "advantages.md"), ""])


def _more_index(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["# More methods", "", f"{FENCE}bash", "gxpo methods --stage objective", FENCE, ""]
    introduction = "Updates, rewards, weights and objectives; the others, and the columns: [methods](index.md)."
    return "\n".join([*head, introduction, "", *_table(rows, "more.md"), ""])


def _reconstructed_index(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["# Reconstructions", "", f"{FENCE}bash", "gxpo methods --evidence reconstruction", FENCE, ""]
    introduction = f"{EVIDENCE_MEANING[RECONSTRUCTION].capitalize()}. All others, and the columns: [methods](index.md)."
    return "\n".join([*head, introduction, "", *_table(rows, "reconstructed.md"), ""])


def _table(rows: Sequence[Mapping[str, Any]], page: str) -> list[str]:
    lines = ["| stage | method | formula from | equal groups | cost | idea |", "|---|---|---|---|---|---|"]
    for section, members in sections(rows).items():
        if section not in INDICES[page]:
            continue
        for i, row in enumerate(members):
            cost = "" if is_free(row["cost"]) else "*"
            link = f"[{row['name']}]({row['name']}.md)"
            cells = [section if i == 0 else "", link, FORMULA_FROM[row["evidence"]], row["on_equal"], cost, row["idea"]]
            lines.append(_cells(cells))
    return lines


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


# ---------------------------------------------------------------- one method
def _page(
    row: Mapping[str, Any],
    definition: Definition,
    method: Method,
    measured_effect: Effect | str,
    picture: str,
    curves: str,
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
        _parts(definition, method),
        _effect(name, measured_effect, picture),
        curves,
        f"{FENCE}bibtex\n{definition.bibtex}\n{FENCE}",
        f"Written by `make docs` from [{home}](../../src/gxpo/{home}); [all methods](index.md).",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _source(row: Mapping[str, Any], definition: Definition) -> str:
    link = f"[arXiv {row['arxiv']}](https://arxiv.org/abs/{row['arxiv']})" if row["arxiv"] else ""
    cited = ", ".join(x for x in (definition.authors, str(definition.year or ""), link) if x)
    measured_text = effects_text(row["name"])
    # the board's rows are on a language model, all others on small ones
    page = "board" if "on sums of smollm2-135m" in measured_text else "results"
    where = "" if measured_text == NOT_MEASURED else f" ([{page}](../{page}.md))"
    return f"*{row['title']}*. {cited}. F{EVIDENCE_MEANING[row['evidence']][1:]}. Measured: {measured_text}{where}."


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
        "equal groups": f"`{row['on_equal']}`: {EQUAL_GROUPS_MEANING[row['on_equal']]}",
        "merges with": merge_summary(row),
        "refuses": ", ".join(f"`{x}`" for x in row["refuses"]),
        "alias of": f"[{row['alias_of']}]({row['alias_of']}.md)" if row["alias_of"] else "",
        "aliases": ", ".join(f"[{x}]({x}.md)" for x in row["aliases"]),
        "tried for": ", ".join(
            f"`{s}`"
            for s, symptom in SYMPTOMS.items()
            if any(row["name"] in a.method.split("+") for a in symptom.advice)
        ),
    }
    rows = [_cells([k, v]) for k, v in facts.items() if v]
    return "\n".join(["| | |", "|---|---|", *rows])


def _keys(values: Mapping[str, Any]) -> str:
    # a line break in a value would end the table's row
    return ", ".join(f"`{k}={v}`".replace("\n", "\\n") for k, v in values.items())


def _parts(definition: Definition, method: Method) -> str:
    """List the method's own parts with their docstrings and options."""
    lines = []
    for key, setting in method.keys.items():
        part = part_at(key, setting.value)
        if setting.origin != definition.name or not (isinstance(part, type) and dataclasses.is_dataclass(part)):
            continue
        module = part.__module__.removeprefix("gxpo.").replace(".", "/")
        summary = " ".join(inspect.cleandoc(part.__doc__ or "").split("\n\n")[0].split())
        options = [_option(f) for f in dataclasses.fields(part) if f.init and f.repr]
        options_text = f" Options: `{', '.join(options)}`." if options else ""
        lines.append(f"- `{key}`: `{show(part)}` ([{module}.py](../../src/gxpo/{module}.py)). {summary}{options_text}")
    return "\n".join(["Its parts:", "", *lines]) if lines else ""


def _option(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"{field.name}={show(field.default_factory())}"
    return field.name if field.default is dataclasses.MISSING else f"{field.name}={show(field.default)}"


def _effect(name: str, measured_effect: Effect | str, picture: str) -> str:
    if isinstance(measured_effect, str):
        return f"Its advantages are not drawn: {measured_effect}."
    if picture != name:
        caption = "On groups of right and wrong answers that differ in nothing else, its advantages are `grpo`'s:"
    elif measured_effect.by_gradient:
        caption = "Its objective reads no advantages; drawn is how hard an answer is pushed at the start of a step:"
    else:
        caption = "Credit (times weights) of a right and of a wrong answer, by how many of the group are right:"
    table = [
        _cells(["right answers", *(str(c) for c in range(GROUP + 1))]),
        "|---" * (GROUP + 2) + "|",
        _cells(["a right answer", *map(_number, measured_effect.right)]),
        _cells(["a wrong answer", *map(_number, measured_effect.wrong)]),
    ]
    setup = f"Nine groups of {GROUP}, one batch; every answer has {LENGTH} tokens and the same log-probs and entropy."
    return "\n".join([caption, "", f"![advantage by group composition]({picture}.svg)", "", *table, "", setup])


def _surrogate(name: str, curve: SurrogateEffect) -> str:
    columns = [RATIOS.index(r) for r in TABLE_RATIOS]
    table = [
        _cells(["ratio", *(f"{r:g}" for r in TABLE_RATIOS)]),
        "|---" * (len(TABLE_RATIOS) + 1) + "|",
        _cells(["A > 0", *(number(curve.rising[i]) for i in columns)]),
        _cells(["A < 0", *(number(curve.falling[i]) for i in columns)]),
    ]
    caption = "The weight of its objective on a token's gradient, by the token's ratio (1: REINFORCE's; 0: none):"
    setup = (
        f"Minus the derivative of the loss by the log-prob, over the advantage, of a trajectory of one token that was "
        f"sampled with probability {SAMPLED} at an entropy of {ENTROPY}; by autograd, without the method's weights."
    )
    return "\n".join([caption, "", f"![weight on the gradient by ratio]({name}_surrogate.svg)", "", *table, "", setup])


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


# ---------------------------------------------------------------- pictures
def effect_figure(effect: Effect, base: Effect, name: str) -> Any:
    """Draw the advantage by group composition: the method's two lines over the base's, which are dashed.

    Raises MissingExtra without matplotlib (`gxpo[plot]`).
    """
    figure, axes = _axes(f"right answers in the group of {GROUP}")
    for line in (base.right, base.wrong):
        _line(axes, *_points(line), color=BASE, linestyle="--", linewidth=1, label="grpo")
    for line, color, legend in ((effect.wrong, WRONG, "a wrong answer"), (effect.right, RIGHT, f"{name}, a right one")):
        counts, values = _points(line)
        _line(
            axes,
            counts,
            [_clamp(v, -MAX_ADVANTAGE, MAX_ADVANTAGE) for v in values],
            color=color,
            marker="o",
            markersize=3,
            label=legend,
        )
        for x, value in zip(counts, values, strict=True):
            if abs(value) > MAX_ADVANTAGE:
                axes.annotate(number(value), (x, _clamp(value, -MAX_ADVANTAGE, MAX_ADVANTAGE)), ha="center", fontsize=7)
    return figure


def surrogate_figure(effect: SurrogateEffect, base: SurrogateEffect, name: str) -> Any:
    """Draw the gradient weight by ratio: the method's two curves over the base's, which are dashed.

    Raises MissingExtra without matplotlib (`gxpo[plot]`).
    """
    figure, axes = _axes("ratio of the token")
    axes.axvline(1, color="#e4e4e4", linewidth=1)
    for curve in (base.rising, base.falling):
        _line(axes, RATIOS, curve, color=BASE, linestyle="--", linewidth=1, label="grpo")
    for curve, color, legend in ((effect.falling, WRONG, "A < 0"), (effect.rising, RIGHT, f"{name}, A > 0")):
        _line(axes, RATIOS, [_clamp(y, MIN_WEIGHT, MAX_WEIGHT) for y in curve], color=color, label=legend)
    return figure


def number(value: float) -> str:
    """Format to three significant digits, and to the unit for larger numbers."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{0.0 if abs(value) < 5e-7 else value:.3g}"


def _axes(x_label: str) -> tuple[Any, Any]:
    # margins for all alike: to compute them takes as long as to draw
    figure = need("matplotlib.figure", "plot").Figure(figsize=SIZE)
    axes = figure.add_axes((0.11, 0.16, 0.87, 0.81))
    axes.set_xlabel(x_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="#e4e4e4")
    axes.axhline(0, color="#333333", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(axes: Any, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
    axes.plot(x, y, **{"linewidth": 1.6, **style})


def _points(values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Return (positions, values) of the values that are not None."""
    points = [(float(i), v) for i, v in enumerate(values) if v is not None]
    return [x for x, _ in points], [v for _, v in points]


def _clamp(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))
