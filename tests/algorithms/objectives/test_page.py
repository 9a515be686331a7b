"""docs/objectives.md names what there is."""

import re
from pathlib import Path

from gxpo.parts import registry

PAGE = (Path(__file__).parents[3] / "docs" / "objectives.md").read_text()


def test_every_gate_ratio_and_control_is_on_the_page():
    names_on_page = set(re.findall(r"`([a-z0-9_]+)`", PAGE))
    assert {*registry.SURROGATES, *registry.RATIOS, *registry.CONTROLS} - names_on_page == set()
    rows = [
        line.split("|")[1] for line in PAGE.split("## Surrogates")[1].split("## ")[0].splitlines() if line[:3] == "| `"
    ]
    assert set(re.findall(r"`([a-z_]+)`", " ".join(rows))) == set(registry.SURROGATES)
