"""The packed corpus is whole, keeps to the split, and holds nothing that a reader must not open."""

import json
import tarfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
SCRIPTS = Path(__file__).parents[2] / "scripts" / "doctor_corpus"
TRUTH = json.loads((CORPUS / "truth.json").read_text())
ARCHIVES = sorted(CORPUS.glob("*/*.tar.xz"))


def test_every_archive_has_a_truth_and_trl_truths_an_archive():
    packed = {f"{p.parent.name}/{p.name.removesuffix('.tar.xz')}" for p in ARCHIVES}
    known_truths = {f"{e['half']}/{n}" for n, e in TRUTH.items()}
    assert packed <= known_truths
    assert {k for k in known_truths if "/trl-" in k} <= packed


def test_trl_runs_lie_in_the_half_that_was_drawn_for_them():
    drawn_trl = json.loads((SCRIPTS / "split.json").read_text())["trl"]
    actual = {e["recipe"]: (n, e["half"]) for n, e in TRUTH.items() if n.startswith("trl-")}
    assert actual == {r: (f"trl-{drawn_trl[r]['run']:03d}", drawn_trl[r]["half"]) for r in actual}


def test_archives_are_small_and_without_pickles():
    wrong = []
    for path in ARCHIVES:
        with tarfile.open(path, "r:xz") as tar:
            names = tar.getnames()
        pickles = [n for n in names if n.endswith((".bin", ".pt", ".pth", ".pkl", ".safetensors"))]
        if not names or pickles or path.stat().st_size >= 100_000:
            wrong.append((path.name, len(names), pickles, path.stat().st_size))
    assert len(ARCHIVES) > 200 and wrong == []
