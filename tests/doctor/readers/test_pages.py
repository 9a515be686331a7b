"""Saved pages: outputs of notebooks and HTML with tables, as transformers' callback draws them."""

import json

from gxpo.doctor import diagnose, read

ROWS = [(1, 0.25, 0.5), (2, 0.5, 0.4), (3, 0.75, 0.3), (4, 1.0, 0.2), (5, 1.0, 0.1), (6, 1.0, 0.1)]
HTML = (
    "<div><progress value='6' max='6'></progress> [6/6 01:00, Epoch 0/1]</div>\n"
    '<table border="1" class="dataframe">\n<thead>\n<tr style="text-align: left;">\n'
    "<th>Step</th>\n<th>Training Loss</th>\n<th>reward</th>\n<th>rewards / right / std</th>\n</tr>\n</thead>\n<tbody>\n"
    + "".join(f"<tr>\n<td>{s}</td>\n<td>0.0000</td>\n<td>{r}</td>\n<td>{d}</td>\n</tr>\n" for s, r, d in ROWS)
    + "</tbody>\n</table><p>"
)


def notebook(*outputs):
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "outputs": list(outputs)}]})


def test_a_page_has_the_rows_of_its_table(tmp_path):
    (tmp_path / "run.html").write_text("<html><head><title>x: 1</title></head><body>" + HTML + "</body></html>")
    run = read(tmp_path / "run.html")
    assert run.steps("reward").tolist() == [1, 2, 3, 4, 5, 6]
    assert run.values("reward").tolist() == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert run.key("component_std/right") == "rewards/right/std"


def test_a_notebook_has_the_table_with_most_rewards(tmp_path):
    few = HTML.replace("reward</th>", "accuracy</th>")
    outputs = [{"data": {"text/html": [part]}} for part in (few, HTML)]
    (tmp_path / "nb.ipynb").write_text(notebook({"name": "stdout", "text": ["Loading: 3\n"]}, *outputs))
    assert read(tmp_path / "nb.ipynb").values("reward").tolist()[:2] == [0.25, 0.5]


def test_a_notebook_has_the_lines_that_were_printed(tmp_path):
    lines = [f"{{'loss': 0.0, 'reward': {r}, 'kl': 0.01, 'epoch': {s / 10}}}\n" for s, r, _ in ROWS]
    (tmp_path / "nb.ipynb").write_text(notebook({"name": "stdout", "text": lines}))
    assert read(tmp_path / "nb.ipynb").values("reward").tolist() == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_notebook_without_figures_is_no_verdict(tmp_path):
    (tmp_path / "nb.ipynb").write_text(notebook({"name": "stdout", "text": ["hello\n"]}))
    (tmp_path / "torn.ipynb").write_text('{"cells": [{"outputs"')
    assert diagnose(read(tmp_path / "nb.ipynb")).exit_code == 2
    assert diagnose(read(tmp_path / "torn.ipynb")).exit_code == 2
