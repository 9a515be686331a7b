"""Metrics of structured answers against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError, MissingExtra
from gxpo.environments.rewards.metrics import METRICS, Unreadable, metric_of, options_of
from gxpo.environments.rewards.metrics.diversity import lexical_diversity, signals, yule_k
from gxpo.environments.rewards.metrics.embedding import bmas, embedding, random_pair_baseline
from gxpo.environments.rewards.metrics.regions import (
    box_iou,
    count_distance,
    interval_iou,
    point_distance,
    point_in_box,
)
from gxpo.environments.rewards.metrics.structure import json_schema
from gxpo.environments.rewards.metrics.tables import table_of, teds
from gxpo.environments.rewards.metrics.text import bleu, cer, chrf, exact, f1, script_share, wer

close = lambda x: pytest.approx(x, abs=1e-6)  # noqa: E731


# ---------------------------------------------------------------- texts
def test_word_error_rates():
    # 5 words, one substituted (is -> sat), one (the -> a): 2 errors
    assert wer("the cat sat on a", "the cat is on the") == close(0.6)
    assert wer("one two three four five six seven", "a b c d e") == close(-0.4)  # 5 substituted, 2 inserted
    assert wer("", "a b") == 0.0 and wer("a", "a") == 1.0 and math.isnan(wer("a", ""))
    assert wer("The cat.", "the cat") == 0.0 and wer("The cat.", "the cat", normalize=True) == 1.0
    assert cer("kitten", "sitting") == close(1 - 3 / 7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
def test_wer_is_the_shortest_edit_script(said, gold):
    table = [[0] * (len(gold) + 1) for _ in range(len(said) + 1)]
    for i in range(len(said) + 1):
        for j in range(len(gold) + 1):
            if not i or not j:
                table[i][j] = i + j
            else:
                swap = table[i - 1][j - 1] + (said[i - 1] != gold[j - 1])
                table[i][j] = min(swap, table[i - 1][j] + 1, table[i][j - 1] + 1)
    assert wer(" ".join(said), " ".join(gold)) == close(1 - table[-1][-1] / len(gold))


def test_exact_and_f1():
    assert exact("New York.", "new  york") == 1.0 and exact("C", "B") == 0.0
    assert exact("+", "-") == 0.0 and exact("+", "+") == 1.0  # no words: as they stand
    assert f1("in New York", "New York City") == close(2 * 2 / 6)
    assert f1("", "a") == 0.0 and math.isnan(f1("a", None))


def test_bleu_of_short_answers_is_not_zero():
    # unigrams 1/2; no bigram of 1 matches: exp smoothing gives 1/2 of 1 / 1; brevity 1: sqrt(.5 * .5) = .5
    assert bleu("the dog", "the cat") == close(0.5)
    assert bleu("the dog", "the cat", smooth="none") == 0.0
    assert bleu("the cat", "the cat") == 1.0 and bleu("x", ["the cat", "x"]) == 1.0
    # brevity: one word of two, exp(1 - 2 / 1)
    assert bleu("the", "the cat") == close(math.exp(-1))
    assert chrf("cat", "cat") == close(1.0) and chrf("dog", "cat") == 0.0 and math.isnan(bleu("a", " "))


def test_share_of_a_script():
    assert script_share("ab \u0434\u0430 1", script="cyrillic") == 0.5
    assert script_share("\u4f60\u597d", script="cjk") == 1.0
    with pytest.raises(Unreadable):
        script_share("42")


def test_lexical_diversity_has_the_cards_yule_and_pays_little_for_little():
    # three a, two b, one c: 10,000 (9 + 4 + 1 - 6) / 36
    assert yule_k(list("abcaba")) == close(2222.222222) and yule_k(list("abcdef")) == 0.0
    found = signals("Red red dogs. Blue dogs run.")
    # words red red dogs blue dogs run: 4 of 6 distinct; bigrams 5 of 5; two sentences of 3 words with 1 of 4 in common
    assert found["vocabulary"] == close(4 / 6) and found["bigrams"] == 1.0
    assert found["sentence_lengths"] == found["sentence_kinds"] == found["function_words"] == 0.0
    assert found["adjacent_sentences"] == close(3 / 4)
    # counts 2, 2, 1, 1 of 6, of 4 kinds
    assert found["entropy"] == close((2 / 3 * math.log(3) + 1 / 3 * math.log(6)) / math.log(4))
    assert found["yule"] == close(1 / (1 + 1e4 * (4 + 4 + 1 + 1 - 6) / 36))
    whole = lexical_diversity("a b", weights={"vocabulary": 1.0}, least=2)
    assert whole == 1.0 and lexical_diversity("a b", weights={"vocabulary": 1.0}, least=20) == close(0.1)
    assert signals("") == dict.fromkeys(signals("a"), 0.0) and 0 <= lexical_diversity("!!! a ?") <= 1
    with pytest.raises(ConfigError, match="did you mean 'vocabulary'"):
        lexical_diversity("a", weights={"vocabluary": 1.0})


# ---------------------------------------------------------------- places
def test_intervals_and_boxes():
    assert interval_iou("from 2 to 6", [4, 8]) == close(2 / 6)
    assert interval_iou("0-1", "5-6") == 0.0 and interval_iou("6, 2", "2 6") == 1.0
    assert box_iou("0 0 2 2", [1, 0, 3, 2]) == close(2 / 6)
    assert box_iou("2 2 0 0", [0, 0, 2, 2]) == 1.0 and box_iou("0 0 1 1", [5, 5, 6, 6]) == 0.0
    assert math.isnan(interval_iou("1 2", "soon"))
    for text in ("2", "1 2 3", "here"):
        with pytest.raises(Unreadable):
            interval_iou(text, [0, 1])


def test_frames_of_a_picture():
    # half of 640 and of 480
    for text, frame in (("(320, 240)", "pixels"), ("(0.5, 0.5)", "unit"), ("(500, 500)", "thousand")):
        assert point_distance(text, [320, 240], frame=frame, size=[640, 480]) == close(1.0)
    assert box_iou("0 0 500 1000", [0, 0, 320, 480], frame="thousand", size=(640, 480)) == close(1.0)
    with pytest.raises(ConfigError, match="needs size"):
        box_iou("0 0 1 1", [0, 0, 1, 1], frame="unit")
    with pytest.raises(ConfigError, match="frame is 'percent'"):
        box_iou("0 0 1 1", [0, 0, 1, 1], frame="percent")  # type: ignore[arg-type]


def test_distance_of_points():
    assert point_distance("(110, 100)", [100, 100]) == close(0.8) and point_distance("160 100", [100, 100]) == 0.0
    # 3-4-5 from the corner of a box; inside it all is 1
    assert point_distance("13 24", [0, 0, 10, 20]) == close(0.9) and point_distance("5 5", [0, 0, 10, 20]) == 1.0
    assert point_distance("click(110, 100)", "click(100, 100)", typed=True) == close(0.8)
    assert point_distance("type(110, 100)", "click(100, 100)", typed=True) == 0.0


def test_distance_by_the_diagonal():
    # 3-4-5 of a picture whose diagonal is 10, and 10 of 10
    assert point_distance("3 4", [0, 0], most="diagonal", size=[6, 8]) == close(0.5)
    assert point_distance("6 8", [0, 0], most="diagonal", size=(6, 8)) == close(0.0)
    # (.5, .5) is (3, 4) in pixels
    assert point_distance("(.5, .5)", [0, 0], most="diagonal", frame="unit", size=[6, 8]) == close(0.5)
    for size in (None, [6], [6, 0], "68"):
        with pytest.raises(ConfigError, match="needs size"):
            point_distance("3 4", [0, 0], most="diagonal", size=size)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="above 0 pixels, or diagonal, not 'width'"):
        point_distance("3 4", [0, 0], most="width")  # type: ignore[arg-type]


def test_points_in_boxes():
    box = [10, 10, 20, 30]
    inside = {"10 10": 1, "20 30": 1, "click(15, 20)": 1, "9.9 20": 0, "15 30.1": 0, "0 0 30 40": 1, "0 0 10 10": 0}
    assert {text: point_in_box(text, box) for text in inside} == inside
    assert point_in_box("15 20", [20, 30, 10, 10]) == 1.0  # corners in any order
    # a quarter of 640 and a half of 480
    assert point_in_box("[250, 500]", [160, 240, 161, 241], frame="thousand", size=[640, 480]) == 1.0
    assert point_in_box("250 500", [160, 240, 161, 241]) == 0.0
    assert point_in_box("type(15, 20)", "click(10, 10, 20, 30)", typed=True) == 0.0
    assert math.isnan(point_in_box("1 2", [1, 2]))
    for text in ("15", "15 20, 15 21, 15 22", "in the middle"):
        with pytest.raises(Unreadable):
            point_in_box(text, box)


def test_distance_of_counts():
    assert count_distance("4 sheep", 5) == close(0.8) and count_distance("5.0", "5") == 1.0
    assert count_distance("11", 5) == 0.0 and count_distance("-1", 5) == 0.0
    assert count_distance("1", 0) == 0.0 and count_distance("0.5", 0) == close(0.5) and count_distance("-3", -4) == 0.75
    assert math.isnan(count_distance("3", "many")) and math.isnan(count_distance("3", None))
    for text in ("3 or 4", "some", "1e999", "nan"):
        with pytest.raises(Unreadable):
            count_distance(text, 3)


def test_degenerate_boxes():
    # a line and a point have no area: 0 beside any box, 1 beside themselves
    assert box_iou("0 0 0 2", [0, 0, 2, 2]) == 0.0 and box_iou("1 1 1 1", [0, 0, 2, 2]) == 0.0
    assert box_iou("1 1 1 1", [1, 1, 1, 1]) == 1.0 and box_iou("1 1 1 2", [1, 1, 1, 1]) == 0.0
    # x2 < x1 alone: the corners (2, 0) and (0, 2) span the box of (0, 0) and (2, 2)
    assert box_iou("2 0 0 2", [0, 0, 2, 2]) == 1.0
    # outside of the picture: 2 of 2 + 4 pixels are common to [-1, 0, 2, 2] and [0, 0, 1, 2]
    assert box_iou("-1 0 2 2", [0, 0, 1, 2]) == close(2 / 6)


@pytest.mark.parametrize(
    "text", ["nan 0 2 2", "0 0 1e999 2", "0 0 inf 2", "0 0 2 2; 0 0 2 2", "[[0, 0, 2, 2], [1]]", ""]
)
def test_a_box_is_four_finite_numbers(text):
    with pytest.raises(Unreadable):
        box_iou(text, [0, 0, 2, 2])


HUGE = ["0 0 1e308 1e308", "-1e308 0 1e308 0", "-1e308 -1e308 1e308 1e308", "1e308 1e308 1e308 1e308"]


@pytest.mark.parametrize("text", HUGE)
def test_huge_numbers_earn_nothing(text):
    assert box_iou(text, [0, 0, 2, 2]) == 0.0
    assert box_iou(text, [0, 0, 2, 2], frame="thousand", size=[640, 480]) == 0.0
    x = text.split()[2]
    assert point_distance(f"{x} -1e308", [0, 0], frame="thousand", size=[640, 480]) == 0.0
    assert interval_iou(f"-1e308 {x}", [0, 1]) == 0.0 and count_distance(x, 3) == 0.0


# ---------------------------------------------------------------- JSON
def test_the_cards_json_number():
    # parses; 2 of 3 keys; both of the right type, of 3; 1 of 3 values: .2 + .2 + .133333 + .1
    gold = json.dumps({"name": "x", "age": 3, "tags": []})
    assert json_schema('{"name": "x", "age": 4}', gold) == close(0.633333)
    assert json_schema(gold, gold) == close(1.0) and json_schema("[]", gold) == close(0.2)


def test_more_of_the_structure_never_earns_less():
    gold = {"a": 1, "b": {"c": "x", "d": True}}
    answers = ['{"z": 0}', '{"a": "1"}', '{"a": 2}', '{"a": 1}', '{"a": 1, "b": {"c": "x"}}', json.dumps(gold)]
    worth = [json_schema(text, gold) for text in answers]
    assert worth == sorted(worth) and worth[0] == close(0.2) and worth[-1] == close(1.0) and len(set(worth)) == 6
    assert json_schema('{"a": true, "b": {}}', {"a": 1}) == close(0.2 + 0.3)  # true is no number


def test_json_by_a_schema():
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 0},
            "kind": {"enum": ["a", "b"]},
            "note": {"type": "string"},
        },
        "required": ["n", "kind"],
    }
    assert json_schema('{"n": 1, "kind": "a"}', None, schema=schema) == close(1.0)
    # both keys, one fits; no values are asked: (.2 + .3 + .2 / 2) / .7
    assert json_schema('{"n": -1, "kind": "a"}', None, schema=schema) == close(0.6 / 0.7)
    nested = {"properties": {"p": {"properties": {"q": {"$ref": "#/$defs/t"}}}}, "$defs": {"t": {"type": "string"}}}
    assert json_schema('{"p": {"q": "x"}}', None, schema=nested) == close(1.0)
    assert json_schema('{"p": {"q": 1}}', None, schema=nested) == close(0.5 / 0.7)
    with pytest.raises(ConfigError, match="no JSON Schema"):
        json_schema("{}", None, schema={"type": 3, "properties": {"a": {}}})


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "NaN", "here: {}", "[" * 100_000, '{"a": 1} {"a": 1}'])
def test_what_is_no_json_cannot_be_read(text):
    with pytest.raises(Unreadable):
        json_schema(text, {"a": 1})


def test_one_fenced_block_is_read():
    assert json_schema('```json\n{"a": 1}\n```', {"a": 1}) == close(1.0)


# ---------------------------------------------------------------- tables
GRID = r"\begin{tabular}{ll}\hline a & b \\ c & d \\ \hline\end{tabular}"


def test_rows_of_a_latex_table_are_as_wide_as_the_widest():
    """The authors' conversion fills a grid: a short row ends in empty cells, one cell too many is one in every row."""
    wide = r"\begin{tabular}{lll} %s \end{tabular}"
    full = wide % r"a & b & c \\ d & & \\ e & f & g"
    assert teds(wide % r"a & b & c \\ d \\ e & f & g", full, structure_only=True) == 1.0
    # twelve places for nine: 3 of 3 + 12 nodes are too many
    assert teds(wide % r"a & b & c & x \\ d & & \\ e & f & g", full, structure_only=True) == close(1 - 3 / 15)
    # the place below a cell of two rows is none of its own, whether it is written or not
    below = r"\multirow{2}{*}{a} & b \\ %s c"
    one, two = (table_of(r"\begin{tabular}{ll} " + below % x + r" \end{tabular}") for x in ("&", ""))
    shape = [[(c.text, c.rows, c.columns) for c in row.children] for row in one.children]
    assert shape == [[("a", 2, 1), ("b", 1, 1)], [("c", 1, 1)]]
    assert [[c.text for c in row.children] for row in two.children] == [["a", "b"], ["c"]]
    span = table_of(r"\begin{tabular}{lll} \multicolumn{2}{c}{a} & b \\ c \end{tabular}")
    assert [[(c.text, c.columns) for c in row.children] for row in span.children] == [
        [("a", 2), ("b", 1)], [("c", 1), ("", 1), ("", 1)],
    ]  # fmt: skip


def test_teds():
    # table, 2 rows, 4 cells: 6 nodes below the table; one cell of another text costs 1, one cell less costs 1
    html = "<table><tr><td>a</td><th>b</th></tr><tr><td>c</td><td>{}</td></tr></table>"
    assert teds(html.format("d"), GRID) == 1.0 and teds(html.format("x"), GRID) == close(1 - 1 / 6)
    assert teds(html.format("x"), GRID, structure_only=True) == 1.0
    assert teds(r"\begin{tabular}{l|l} a & b \\ c \end{tabular}", GRID) == close(1 - 1 / 6)
    assert teds("<table><tr><td>a</td></tr></table>", GRID) == close(1 - 4 / 6)  # a row and three cells less


def test_spans_and_arguments_of_tables():
    rows = r"\multicolumn{2}{c}{\textbf{a}} & \multirow{2}{*}{b} \\ c & d & "
    wide = rf"\begin{{tabular*}}{{\textwidth}}{{@{{}}lll}} {rows}\end{{tabular*}}"
    table = table_of(wide)
    assert table is not None
    assert [[(c.text, c.columns, c.rows) for c in row.children] for row in table.children] == [
        [(r"\textbf{a}", 2, 1), ("b", 1, 2)],
        [("c", 1, 1), ("d", 1, 1)],  # b takes the third place
    ]
    other = wide.replace("multicolumn{2}", "multicolumn{3}")
    assert teds(other, wide, structure_only=True) == close(
        1 - 2 / 7
    )  # the span, and a cell more: of 2 rows and 5 cells
    kept = table_of("\\begin{tabular}{l} a \\& b \\\\[2pt] % no & cell\n c \\end{tabular}")
    assert kept is not None and [c.text for row in kept.children for c in row.children] == [r"a \& b", "c"]


def test_an_answer_without_a_table_or_with_a_huge_one_cannot_be_read():
    huge = "<table>" + "<tr><td>x</td></tr>" * 200 + "</table>"
    for text in ("no table", "<table></table>", huge):
        with pytest.raises(Unreadable):
            teds(text, GRID)
    assert math.isnan(teds(GRID, "no table"))


# ---------------------------------------------------------------- embeddings
WORDS = {"north": (1.0, 0.0), "east": (0.0, 1.0), "up": (0.6, 0.8)}


def words(text):
    return np.array([WORDS[w] for w in text.split()]).reshape(-1, 2)


def test_the_cards_bmas():
    # rows' best .9 and .8, mean .85; columns' best .9, .8, .2, mean .633333
    assert bmas([[0.9, 0.1, 0.2], [0.3, 0.8, 0.1]]) == close(0.741667)


def test_embedding_similarities_and_contrast():
    assert embedding("up", "north", embedder=words) == close(0.6)
    assert embedding("up", "north", embedder=words, contrast="east") == close(0.6 - 0.8)
    # tokens: "up" is .6 and .8 alike; the best of either side: (.8 + (.6 + .8) / 2) / 2
    assert embedding("up", "north east", embedder=words, align="tokens") == close(0.75)
    assert math.isnan(embedding("up", None, embedder=words)) and embedding("", "up", embedder=words) == 0.0
    with pytest.raises(ConfigError, match="token embeddings"):
        embedding("up", "up", embedder=lambda text: words(text)[0], align="tokens")


def test_the_baseline_of_random_pairs():
    # up-north .6, up-east .8, north-east 0, each both ways round
    assert random_pair_baseline(embedding, ["up", "north", "east"], embedder=words) == close(1.4 / 3)


# ---------------------------------------------------------------- the registry
def test_every_metric_is_found_and_names_what_is_missing(monkeypatch):
    for name in METRICS:
        metric = metric_of(name, "metric")
        assert (
            metric.__name__ == name and metric.__doc__ and list(options_of(metric)) == list(metric.__kwdefaults__ or {})
        )
    with pytest.raises(ConfigError, match="did you mean 'bleu'"):
        metric_of("blue", "metric")
    monkeypatch.setitem(__import__("sys").modules, "apted", None)
    with pytest.raises(MissingExtra, match=r"gxpo\[rewards\]"):
        metric_of("teds", "metric")


def test_the_extra_has_what_the_metrics_need():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    line = next(line for line in text.splitlines() if line.startswith("rewards = "))
    assert all(library in line for _, library in METRICS.values() if library) and "jsonschema" in line
