"""Generated pages of families: their methods, and one picture of how the members' advantages and losses differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gxpo.base.errors import need
from gxpo.explain.catalogue import EVIDENCE_MEANING, families
from gxpo.explain.effect import GROUP, RATIOS, Effect, SurrogateEffect

MAX_ADVANTAGE = 4.0  # larger ones are drawn at the edge
MOST_LINES = 9  # of a picture; further members are in the table alone
FENCE = "```"
CAPTION = (
    f"By the number of right answers in a group of {GROUP}: the advantage of a right one. By the token's ratio: the "
    "weight on the gradient, at a positive advantage. Members that equal GRPO (dashed) are not drawn there."
)


def family_pages(
    rows: Sequence[Mapping[str, Any]],
    effects: Mapping[str, Effect | str],
    curves: Mapping[str, SurrogateEffect | str],
    draw: Callable[[Any], Any],
) -> dict[str, Any]:
    """Generate families.md, and for each family family_NAME.md with its picture family_NAME.svg, by file name.

    rows     entries of all methods
    effects  method -> advantage by the number of right answers in a group, or why there is none; `curves` likewise the
             weight on the gradient by ratio. Members that equal GRPO are not drawn
    draw     turns a matplotlib figure into the text of its file
    """
    index = [
        "# Families of methods",
        "",
        f"{FENCE}bash",
        "gxpo methods",
        FENCE,
        "",
        "Each family changes one thing.",
        "",
    ]
    files = {}
    for family, meaning in families().items():
        title, name = family.replace("_", " ").replace(".", ": "), f"family_{family.replace('.', '_')}"
        members = [row for row in rows if row["family"] == family]
        index.append(f"- [{title}]({name}.md), {len(members)} methods: {meaning}")
        page = [f"# {title[0].upper()}{title[1:]}", "", f"{FENCE}bash", f"gxpo methods --family {family}", FENCE, ""]
        page += [f"{meaning[0].upper()}{meaning[1:]}. All: [families](families.md)."]
        figure = family_figure([row["name"] for row in members], effects, curves)
        if figure is not None:
            files[f"{name}.svg"] = draw(figure)
            page += ["", f"![how members of the family differ]({name}.svg)", "", CAPTION]
        page += ["", "| method | idea | |", "|---|---|---|"]
        for row in members:
            idea = row["idea"].replace("|", "\\|")
            page.append(f"| [{row['name']}]({row['name']}.md) | {idea} | {EVIDENCE_MEANING[row['evidence']]} |")
        files[f"{name}.md"] = "\n".join([*page, ""])
    return {"families.md": "\n".join([*index, ""]), **files}


def family_figure(
    names: Sequence[str], effects: Mapping[str, Effect | str], curves: Mapping[str, SurrogateEffect | str]
) -> Any:
    """Draw members over GRPO in two panels; None where every member equals GRPO in both.

    Raises MissingExtra without matplotlib (`gxpo[plot]`).
    """
    advantage = {n: list(e.right) for n in names if isinstance(e := effects[n], Effect)}
    weight = {n: list(c.rising) for n in names if isinstance(c := curves[n], SurrogateEffect)}
    base_effect, base_curve = effects["grpo"], curves["grpo"]
    assert isinstance(base_effect, Effect) and isinstance(base_curve, SurrogateEffect)
    panels = []
    for values, base, x, label in (
        (advantage, list(base_effect.right), list(range(GROUP + 1)), f"right answers in the group of {GROUP}"),
        (weight, list(base_curve.rising), list(RATIOS), "ratio of the token"),
    ):
        differing = {n: v for n, v in values.items() if n != "grpo" and not _is_close(v, base)}
        if differing:
            panels.append((differing, base, x, label))
    if not panels:
        return None
    figure = need("matplotlib.figure", "plot").Figure(figsize=(4.6 * len(panels), 2.9), layout="constrained")
    for number, (differing, base, x, label) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), number)
        axes.plot(x, _clamp(base), color="#8a8a8a", linestyle="--", linewidth=1, label="grpo")
        # members with one and the same line share its legend
        names_by_line: dict[str, list[str]] = {}
        for name, values in differing.items():
            names_by_line.setdefault(" ".join(f"{v:.6f}" for v in _clamp(values)), []).append(name)
        for sharing in list(names_by_line.values())[:MOST_LINES]:
            axes.plot(x, _clamp(differing[sharing[0]]), linewidth=1.3, label=", ".join(sharing))
        axes.set_xlabel(label, fontsize=8)
        axes.tick_params(labelsize=8)
        axes.axhline(0, color="#333333", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
    return figure


def _is_close(values: Sequence[float | None], base: Sequence[float | None]) -> bool:
    pairs = zip(values, base, strict=True)
    return all(a == b if a is None or b is None else abs(a - b) <= 1e-9 * (1 + abs(b)) for a, b in pairs)


def _clamp(values: Sequence[float | None]) -> list[float]:
    return [math.nan if v is None else max(-MAX_ADVANTAGE, min(MAX_ADVANTAGE, v)) for v in values]
