"""Draw a forest as SVG: context tree, authors, trained tokens, order of turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import torch

from gxpo.forest.forest import ACTION, OBSERVATION, Forest

ROW, LEFT, TOP, STEP, THICK = 30, 12, 12, 9, 20  # pixels: between rows, margins, of a token, of a node
INK, GREY, BLUE = "#333333", "#d9d9d9", "#c6dbef"
AUTHORS = ("#a1d99b", "#fdae6b", "#bcbddc", "#fa9fb5", "#fff3a3")  # colours of actions, by agent


@dataclass(frozen=True)
class _Box:
    """Position of a drawn node."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        return self.y + THICK / 2


def picture(forest: Forest, labels: Mapping[int, str] | None = None, notes: Sequence[str] | None = None) -> str:
    """Draw a forest as an SVG document.

    labels  node -> text inside its box (default: its number of tokens)
    notes   [R] text behind each trajectory (default: outcome, and the origin where it is not the policy)

    Time runs to the right. A box is a node: grey a prompt, blue an observation, other colours actions, by agent; a
    dashed edge: not trained. Lines join a node to its parent; dotted arrows lead from an action to the next of its
    trajectory where that is not below it (`previous`); a dashed line leads to the context an action was sampled under.
    """
    boxes = _layout(forest)
    agents = {a: AUTHORS[i % len(AUTHORS)] for i, a in enumerate(sorted(set(forest.step_agent.tolist())))}
    shapes = [_link(boxes[up], box, "line") for n, box in boxes.items() if (up := int(forest.parent[n])) >= 0]
    # an arrow for time only where the tree does not show it already: where the earlier action is no ancestor
    for s, previous_step in enumerate(forest.step_previous.tolist()):
        head, earlier = (
            int(forest._first_nodes[s]),
            int(forest.step_action[previous_step]) if previous_step >= 0 else -1,
        )
        if earlier >= 0 and earlier not in forest.path(head).tolist():
            shapes.append(_link(boxes[earlier], boxes[head], "before"))
    for n, context in enumerate(forest.sampled_under.tolist()):
        if context >= 0 and n in boxes:
            shapes.append(_link(boxes[context], boxes[n], "under"))
    for n, box in boxes.items():
        kind, size = int(forest.kind[n]), int(forest.first_token[n + 1] - forest.first_token[n])
        colour = GREY if kind != OBSERVATION else BLUE
        is_trained = True
        if kind == ACTION:
            colour = agents.get(int(forest.agent[n]), AUTHORS[0])
            is_trained = bool(forest.trainable[int(forest.first_token[n]) : int(forest.first_token[n + 1])].any())
        text = (labels or {}).get(n, str(size))
        shapes.append(
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{THICK}" rx="3" fill="{colour}" '
            f'class="{"box" if is_trained else "box still"}"/>'
            f'<text x="{box.x + box.width / 2:g}" y="{box.middle + 4:g}" text-anchor="middle">{escape(text)}</text>'
        )
    notes_R = _notes(forest) if notes is None else notes
    width = max((b.x + b.width for b in boxes.values()), default=0.0)
    notes_at_node: dict[int, int] = {}  # notes at one node go below one another
    for r, note in enumerate(notes_R):
        n = int(forest.last_action[r])
        box = boxes[n]
        y = box.middle + 4 + 12 * notes_at_node.get(n, 0)
        notes_at_node[n] = notes_at_node.get(n, 0) + 1
        shapes.append(f'<text x="{box.x + box.width + 6:g}" y="{y:g}">{escape(note)}</text>')
        width = max(width, box.x + box.width + 6 + 6.4 * len(note))
    height = max((b.y for b in boxes.values()), default=0.0) + ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + LEFT:.0f} {height:.0f}" '
        f'width="{width + LEFT:.0f}" height="{height:.0f}">{_STYLE}{"".join(shapes)}</svg>\n'
    )


_STYLE = (
    "<style>text{font:11px sans-serif;fill:" + INK + "}.box{stroke:" + INK + ";stroke-width:1}"
    ".still{stroke-dasharray:3 2;fill-opacity:.35}path{fill:none;stroke:" + INK + "}.before{stroke-dasharray:1 3}"
    ".under{stroke-dasharray:6 3;stroke:#b30000}</style>"
    '<defs><marker id="a" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
    f'<path d="M0,0 L6,3 L0,6 z" style="fill:{INK};stroke:none"/></marker></defs>'
    '<rect width="100%" height="100%" fill="white"/>'
)


def _layout(forest: Forest) -> dict[int, _Box]:
    """Lay out the boxes: one row for each leaf, parents at the level of their first child."""
    # nodes that no trajectory visits are left out, except prompts and contexts that an action was sampled under
    nodes = set(forest.visits[1].tolist()) | set(forest.prompt_node[forest.prompt_node >= 0].tolist())
    for context in forest.sampled_under[forest.sampled_under >= 0].tolist():
        nodes |= set(forest.path(context).tolist())
    children: dict[int, list[int]] = {}
    for n in sorted(nodes):
        children.setdefault(int(forest.parent[n]), []).append(n)
    sizes = forest.first_token.diff()
    width = {n: STEP * min(max(float(sizes[n]), 2.0), 12.0) for n in nodes}
    boxes: dict[int, _Box] = {}
    row = 0

    def place(n: int, x: float) -> float:
        nonlocal row
        child_rows = [place(c, x + width[n] + STEP) for c in children.get(n, [])]
        if not child_rows:
            child_rows = [TOP + ROW * row]
            row += 1
        boxes[n] = _Box(x, child_rows[0], width[n])
        return child_rows[0]

    for root in children.get(-1, []):
        place(root, LEFT)
    return boxes


def _link(start_box: _Box, end_box: _Box, kind: str) -> str:
    """Draw a curve from parent to child ("line"), else a straight arrow between two boxes."""
    start, end = start_box.x + start_box.width, end_box.x
    if kind == "line":
        bend = f"C{start + 6:g},{start_box.middle:g} {end - 8:g},{end_box.middle:g}"
        return f'<path d="M{start:g},{start_box.middle:g} {bend} {end:g},{end_box.middle:g}"/>'
    from_y, to_y = (start_box.y + THICK, end_box.y) if end_box.y > start_box.y else (start_box.y, end_box.y + THICK)
    x, y = start_box.x + start_box.width / 2, end_box.x + end_box.width / 2
    return f'<path class="{kind}" marker-end="url(#a)" d="M{x:g},{from_y:g} L{y:g},{to_y:g}"/>'


def _notes(forest: Forest) -> list[str]:
    is_scored_R = torch.isfinite(forest.outcome)
    return [
        (f"r={float(r):g}" if bool(k) else "not scored") + ("" if origin == "policy" else f" ({origin})")
        for r, k, origin in zip(forest.outcome, is_scored_R, forest.origin, strict=True)
    ]
