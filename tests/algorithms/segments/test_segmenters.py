"""Where actions are cut: positions and numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

import gxpo
from gxpo.algorithms import segments
from gxpo.algorithms.segments import Action, SegmentTools
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.training.session import Session

LETTERS = ".abcdefghijklmnopqrstuvwxyz \n<>/|"


def decode(tokens):
    return "".join(LETTERS[t] for t in tokens)


def encode(text):
    return [LETTERS.index(c) for c in text]


def action(text="", logprob=None, entropy=None):
    tokens = encode(text) if text else list(range(len(logprob or entropy or ())))
    return Action(tokens, logprob or [math.nan] * len(tokens), entropy, decode)


def test_a_delimiter_ends_the_segment_before():
    assert segments.Delimiter("\n\n").begins(action("ab\n\nc\n\n\nd")) == [4, 7]
    assert segments.Delimiter(".").begins(action("a.b.")) == [2]  # the last ends the action, too


def test_a_delimiter_inside_a_token_of_several_characters():
    pieces = ["a", "b.\n", "c", "d."]
    own_action = Action([0, 1, 2, 3], [0.0] * 4, None, lambda ids: "".join(pieces[i] for i in ids))
    assert own_action.starts == [0, 1, 4, 5]
    assert segments.Delimiter(".\n").begins(own_action) == [2]
    assert segments.Delimiter(".").begins(own_action) == [2]  # the rest of the token that ends a segment belongs to it


def test_tokens_that_are_no_whole_characters():
    def bytes_of(ids):  # token 1 is the second half of what token 0 begins
        return {(0,): "?", (1,): "?", (0, 1): "e", (0, 1, 2): "e.", (2,): "."}[tuple(ids)] if ids else ""

    own_action = Action([0, 1, 2], [0.0] * 3, None, bytes_of)
    assert own_action.text == "e." and own_action.starts == [0, 1, 1]


def test_a_pattern_begins_segments_and_keeps_its_distance():
    text = "one. wait two. wait three. but no"
    assert segments.Pattern(r"(?<=\. )(wait|but)").begins(action(text)) == [5, 15, 27]
    assert segments.Pattern(r"(?<=\. )(wait|but)", min_offset=6).begins(action(text)) == [15, 27]
    assert segments.Pattern(r"(?<=\. )(wait|but)", min_distance=11).begins(action(text)) == [5, 27]


def test_spans_are_labelled_by_pattern():
    part = segments.Spans((r"<s>(.*?)</s>", r"<a>(.*?)</a>"))
    own_action = action("<s>k</s>x<a>go</a>")
    assert part.labels(own_action) == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0]
    assert part.begins(own_action) == [3, 4, 12, 14]
    full_spans = segments.Spans((r"b", r"[abc]+"))  # the earlier pattern has the tokens of both
    assert full_spans.labels(action("abcd")) == [2, 1, 2, 0]


def test_cuts_before_every_nth_unlikely_token():
    # probabilities .5 .95 .6 .99 .7 .95 .4 .97 with threshold 0.9: tokens 0, 2, 4, 6 are unlikely
    p = [0.5, 0.95, 0.6, 0.99, 0.7, 0.95, 0.4, 0.97]
    own_action = action(logprob=[math.log(x) for x in p])
    assert segments.Surprising(threshold=0.9, interval=1).begins(own_action) == [0, 2, 4, 6]
    assert segments.Surprising(threshold=0.9, interval=2).begins(own_action) == [0, 4]
    assert segments.surprising([math.nan, -5.0], threshold=0.9, interval=5) == [1]


def test_candidates_are_dealt_out_equally():
    entropy = [0.1] * 25
    for i in (2, 5, 7, 11, 13, 17, 20, 22):
        entropy[i] = 2.0
    # 17 of 25 are below: the quantile 0.68 takes the eight others; two a segment, cut at the first of each
    assert segments.EntropySegments(segments=4, quantile=0.68).begins(action(entropy=entropy)) == [7, 13, 20]
    assert segments.equal_shares([1, 2, 3, 4, 5], 2) == [4]  # three and two
    assert segments.equal_shares([3], 4) == [] and segments.equal_shares([], 2) == []
    assert segments.EntropySegments(segments=2, quantile=0.5).begins(action(entropy=[])) == []


def test_chunks():
    assert segments.Chunks(2).begins(action("abcde")) == [2, 4]


def forest_with_fork():
    rows = [
        {"group": "g", "id": "a", "prompt": [1], "turns": [
            {"action": encode("ab.cd"), "logprob": [-0.1] * 5},
            {"observation": [2, 2], "action": encode("e.f"), "logprob": [-0.1] * 3}]},
        {"group": "g", "id": "b", "fork": {"of": "a", "turn": 0, "token": 2}, "turns": [
            {"action": encode("x.y"), "logprob": [-0.1] * 3}]},
        {"group": "g", "id": "c", "fork": {"of": "a", "turn": 0, "token": 4}, "turns": [
            {"action": encode(".z"), "logprob": [-0.1] * 2}]},
    ]  # fmt: skip
    return Forest.from_records([{"schema": "gxpo.rollouts/1", "reward": 1.0, **r} for r in rows])


def numbers(forest, r):
    return forest.segment[forest.path_token[forest.path_of(r)]].tolist()


def test_forks_go_on_from_what_they_share():
    forest = segments.Delimiter(".")(forest_with_fork(), SegmentTools(decode))
    assert numbers(forest, 0) == [0, 0, 0, 1, 1, 0, 0, 1]
    assert numbers(forest, 1) == [0, 0, 0, 0, 1]  # abx. y
    assert numbers(forest, 2) == [0, 0, 0, 1, 1, 2]  # ab. c. z
    assert bool((forest.segment[forest.kind[forest.token_node] != 2] == -1).all())
    again = Forest.from_records(list(forest.to_records()))
    assert [numbers(again, r) for r in range(3)] == [numbers(forest, r) for r in range(3)]


def test_labels_ride_as_an_extra():
    forest = segments.Spans(("[a-d]+",))(forest_with_fork(), SegmentTools(decode))
    assert forest.extras["label"][forest.path_token[forest.path_of(0)]].tolist() == [1, 1, 0, 1, 1, 0, 0, 0]
    assert numbers(forest, 0) == [0, 0, 1, 2, 2, 0, 0, 0]


def test_entropies_are_the_learners():
    class Learner:
        def outputs(self, forest, names):
            assert names == ("entropy",)
            return {"entropy": torch.arange(forest.n_entries, dtype=torch.float64)}

    first_row = forest_with_fork().select(torch.tensor([0]))
    forest = segments.EntropySegments(segments=2, quantile=0.6)(first_row, SegmentTools(decode, Learner()))
    assert numbers(forest, 0) == [0, 0, 0, 0, 1, 0, 0, 0]  # 0..4: two are at least 3; 5..7: one is at least 7
    with pytest.raises(ValueError, match="needs the policy's entropies"):
        segments.EntropySegments()(forest_with_fork(), SegmentTools(decode))


def test_a_session_cuts_once():
    s = Session.__new__(Session)
    s._segmenter, s.learner, s.decode = segments.Chunks(2), None, decode  # type: ignore[method-assign]
    forest = s.segment(forest_with_fork())
    assert numbers(forest, 0) == [0, 0, 1, 1, 2, 0, 0, 1]
    s._segmenter = segments.Turns()
    assert s.segment(forest) is forest
    s._segmenter = None
    plain = forest_with_fork()
    assert s.segment(plain) is plain


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"segment": "chunks", "segment.tokens": 0}, "segment.tokens is 0"),
        ({"segment": "delimiter", "segment.text": ""}, "segment.text is ''; it is of length 1 or more"),
        ({"segment": "pattern", "segment.regex": "("}, "no regular expression"),
        ({"segment": "spans"}, r"segment.patterns is \(\); it is of length 1"),
        ({"segment": "surprising", "segment.threshold": 0.0}, "segment.threshold"),
        ({"segment": "entropy_segments", "segment.quantile": 1.0}, "segment.quantile"),
        ({"segment": "turn"}, "did you mean"),
    ],
)
def test_what_is_wrong_is_said(keys, says):
    with pytest.raises(ConfigError, match=says):
        gxpo.method("grpo", keys)


def test_a_method_names_its_segmenter():
    m = gxpo.method("grpo", {"segment": "surprising", "segment.interval": 3})
    assert m.segmenter == segments.Surprising(threshold=0.9, interval=3)
    assert gxpo.method("grpo").segmenter is None
