"""What is read of a judge's answer: its last line in the form that was asked for, or an object; nothing is guessed."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.algorithms.signals.step_judge import read_scores, read_wrong
from gxpo.environments.rewards.judged import read_preference, read_score

SCORES = [  # (what a judge says, the score from 0 to 10 that it gives; None: not said in a form that can be read)
    ("Score: 3", 3),
    ("The answer is right but long.\nScore: 8", 8),
    ("The answer claims Score: 10.\n\nScore: 2\n", 2),
    ("**Score:** 2", 2),
    ("**Score: 2**", 2),
    ("Wrong sign.\n\n### Score: 2/10", 2),
    ("`Score: 4.5`", 4.5),
    ("score = 4.5.", 4.5),
    (" 7 ", 7),
    ("7/10", 7),
    ("8.", 8),
    ('{"score": 6}', 6),
    ('It is good.\n{"reason": "a score of 10 is claimed", "score": 6}', 6),
    ('```json\n{\n "steps": [\n{"ok": true}\n],\n "score": 6\n}\n```', 6),
    ('I think:\n{\n "Score": "6/10"\n}', 6),
    ("```\nScore: 3\n```", 3),
    ("Score: 2. (The answer itself claims score: 10)", None),
    ("Score: 2\nThe answer itself says:\n> Score: 10", None),
    ("Score: 2\nThe answer itself says:\n```\nScore: 10\n```", None),
    ('Its last line was "Score: 10"', None),
    ("I would not say Score: 10", None),
    ("Score: 10 would be too much", None),
    ("Score: 1 or 9", None),
    ("Score: 9/100", None),
    ("Score: 70%", None),
    ("Score: ten", None),
    ("Score:", None),
    ("Score: 1e400", None),
    ("Score: \u0667", None),
    ('{"score": true}', None),
    ('{"score": null}', None),
    ('{"score": NaN}', None),
    ('{"score": 1, "score": 10}', None),
    ('{"score": ' + "9" * 6000 + "}", None),
    ('{"score": ' + "[" * 90_000 + "]" * 90_000 + "}", None),
    ('{"score": ' + "[" * 500 + "]" * 500 + "}", None),
    ("{" * 9000 + "}", None),
]
VERDICTS = [  # (what a judge says, the one that it holds to be better; None: not said in a form that can be read)
    ("A", "A"),
    ("**B**", "B"),
    ("TIE", "TIE"),
    ("Verdict: A", "A"),
    ("Verdict: B.", "B"),
    ("Answer B has a gap that Answer A has not.\nVerdict: A", "A"),
    ("Answer A is fine, but B is better than A.\n\n**Verdict:** B", "B"),
    ("A and B are close.\nVerdict: Tie", "TIE"),
    ("Verdict: A\nNo, I missed the sign: B is right and A is not.\nVerdict: B", "B"),
    ("verdict = [[A]]", "A"),
    ("## Verdict: Answer B", "B"),
    ('{"verdict": "B", "reason": "A errs"}', "B"),
    ('B claims "Verdict: B".\n```json\n{"verdict": "a"}\n```', "A"),
    ("Answer B is better than Answer A.", None),
    ("Answer A is worse than B", None),
    ("I prefer B to A.", None),
    ("B wins over A", None),
    ("Between the two, B; not A", None),
    ("Unlike B, A", None),
    ("A loses to B", None),
    ("Not A", None),
    ("Verdict: not A", None),
    ("Verdict: A is worse than B", None),
    ("Verdict: B > A", None),
    ("Verdict: A or B", None),
    ("Verdict: A\nRunner-up: B", None),
    ("Verdict: B, as A is wrong", None),
    ("Better:\nB\nWorse:\nA", None),
    ("Answer B ends with the line\n> Verdict: B", None),
    ("I would have said Verdict: A", None),
    ("There is no verdict: A", None),
    ("The verdict: A", None),
    ("Verdict: AB", None),
    ('{"verdict": "A", "verdict": "B"}', None),
    ('{"verdict": "A or B"}', None),
    ('{"verdict": ["A"]}', None),
    ('{"A": 1, "B": 0}', None),
    ("Verdict:", None),
    ("", None),
    ("both", None),
]


@pytest.mark.parametrize(("answer", "score"), SCORES, ids=lambda x: str(x)[:40])
def test_a_score_is_the_last_line_or_unreadable(answer, score):
    if score is not None:
        assert read_score(answer, 0, 10) == score
    else:
        with pytest.raises(ValueError, match=r"score|number"):
            read_score(answer, 0, 10)


@pytest.mark.parametrize(("answer", "better"), VERDICTS, ids=lambda x: str(x)[:40])
def test_no_verdict_is_inverted(answer, better):
    if better is not None:
        assert read_preference(answer) == {"A": 1.0, "B": 0.0, "TIE": 0.5}[better]
    else:
        with pytest.raises(ValueError, match="verdict"):
            read_preference(answer)


@given(st.text(alphabet='AB{}[]"`:=*#\n 19.score/verdict\u00b2\u0663\ud800', max_size=60))
def test_whatever_a_judge_says_is_read_or_refused(answer):
    for read in (lambda x: read_score(x, 0, 10), read_preference):
        with suppress(ValueError):
            assert 0 <= read(answer) <= 10


STEP_SCORES = [  # (what a judge says of 3 steps, their shares of 10; None: not said in a form that can be read)
    ("Step 1 is good.\nScores: 10, 0, 2.5", [1.0, 0.0, 0.25]),
    ("Scores: 1, 1, 1\nNo, the first is right.\n**Scores:** [10; 1/10 and 1].", [1.0, 0.1, 0.1]),
    ('```json\n{"scores": [10, "0", 5.0]}\n```', [1.0, 0.0, 0.5]),
    ("no, Scores: 10, 0, 2.5", None),
    ("Scores: 1. 10, 2. 0, 3. 5", None),
    ("Scores: 10, 0, 5\nThe second claims:\n> Scores: 10, 10, 10", None),
    ("Scores: 1, 2", None),
    ("Scores: 11, 2, 3", None),
    ("Scores: -1, 2, 3", None),
    ('{"scores": [1, 2, true]}', None),
    ('{"scores": [1, 2, NaN]}', None),
    ('{"scores": {"1": 10}}', None),
    ('{"scores": [[1, 2, 3]]}', None),
    ('{"scores": ' + "[" * 50_000 + "]" * 50_000 + "}", None),
    ("all are good", None),
]
WRONG = [  # (what a judge says of 3 steps, 0 for those that it calls wrong; None: not said in a form that can be read)
    ("The sign is lost.\nWRONG STEPS: 1 and 3.", [0.0, 1.0, 0.0]),
    ("**Wrong step:** none.", [1.0, 1.0, 1.0]),
    ("Wrong steps: 0", [1.0, 1.0, 1.0]),
    ('{"wrong_steps": [2]}', [1.0, 0.0, 1.0]),
    ('{"wrong_steps": []}', [1.0, 1.0, 1.0]),
    ("Wrong steps: 2 is fine, 3 is not", None),
    ("Wrong steps: none but 2", None),
    ("There are no wrong steps: none", None),
    ("Wrong steps: 4", None),
    ("Wrong steps: 1.5", None),
    ("Wrong steps: the last", None),
    ("Wrong steps:", None),  # and there it was cut off
    ("Wrong steps: ,", None),
    ('{"wrong_steps": null}', None),
    ("they are all right", None),
]


@pytest.mark.parametrize(("answer", "scores"), STEP_SCORES, ids=lambda x: str(x)[:40])
def test_scores_of_steps_are_the_last_line_or_unreadable(answer, scores):
    if scores is not None:
        assert read_scores(answer, 3, 0, 10) == pytest.approx(scores)
    else:
        with pytest.raises(ValueError, match=r"scores|not from|number|list"):
            read_scores(answer, 3, 0, 10)


@pytest.mark.parametrize(("answer", "right"), WRONG, ids=lambda x: str(x)[:40])
def test_wrong_steps_are_the_last_line_or_unreadable(answer, right):
    if right is not None:
        assert read_wrong(answer, 3) == right
    else:
        with pytest.raises(ValueError, match=r"wrong_steps|no steps|number|list"):
            read_wrong(answer, 3)
