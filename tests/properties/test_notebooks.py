"""The notebooks run from the first cell to the last in a kernel of their own, in small sizes, and hold no outputs."""

import os
import re
from pathlib import Path

import nbformat
import pytest
import torch
import transformers
from nbclient import NotebookClient

from gxpo.models.tiny import character_tokenizer

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL = {"STEPS": 2, "EVAL": 8, "PER_STEP": 2, "SEEDS": 2, "TOKENS": 500, "TOKENS_OF_AN_ANSWER": 6, "CHECKED": 6}
QUICK = "stalled_trl_run.ipynb"  # the one that the main suite runs
TOY = "models/toy"  # in the place of a model from the hub
SIZE = re.compile(r"^(\w+) = \d+  # size$", re.M)


def smaller(source):
    """A cell with the sizes of the test and the model that needs no warm-up."""
    cut = SIZE.sub(lambda m: f"{m[1]} = {SMALL[m[1]]}", source)
    cut = re.sub(r'^MODEL = "Qwen/[^"]*"', f'MODEL = "{TOY}"', cut, flags=re.M)
    return re.sub(r'^MODEL = "tiny"', 'MODEL = "tiny:cold"', cut, flags=re.M)


def save_toy(folder):
    """A random Qwen2 with the tokenizer of characters, in the place of one from the hub."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=101, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder / TOY)
    character_tokenizer().save_pretrained(folder / TOY)


def said(notebook):
    """Everything that its cells print or show."""
    out = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            out.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "".join(out)


SHOWN = {  # what a reader must see in each
    "first_hour.ipynb": ("zero-signal groups", "findings: none", "reward my_rewards.py:tidy on"),
    "stalled_trl_run.ipynb": ("[all_wrong or verifier_rejects_right_answers]", "rewards.py:strict pays for the answer",
                              "ngrpo  zero-signal groups 0%"),
    "grpo_on_a_gpu.ipynb": ("gradient, cosine with the CPU's              1.000000", "tokens/s update",
                            "log-probs, largest difference to the CPU's   0.00e+00",
                            "resume, largest difference of a weight       0.00e+00"),
    "own_method.ipynb": ("[0.75, -0.25, -0.25, -0.25, 0.0, 0.0, 0.0, 0.0]", "dr_grpo"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=[pytest.mark.thorough] * (p.name != QUICK)) for p in NOTEBOOKS], ids=lambda p: p.name
)
def test_it_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    os.symlink(ROOT / "notebooks", tmp_path / "notebooks")
    if path.name == "grpo_on_a_gpu.ipynb":
        save_toy(tmp_path)
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = smaller(cell.source)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = said(notebook)
    for display in SHOWN[path.name]:
        assert display in text, f"{display!r} not in:\n{text}"


def test_notebooks_are_stored_without_outputs_and_links_resolve():
    assert {p.name for p in NOTEBOOKS} == set(SHOWN)
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        for cell in notebook.cells:
            assert not cell.get("outputs") and cell.get("execution_count") is None
            for link in re.findall(r"\]\(([^)]+)\)", cell.source) if cell.cell_type == "markdown" else ():
                assert (path.parent / link).exists(), f"{path.name}: {link}"
