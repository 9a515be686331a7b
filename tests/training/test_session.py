"""What a session scores, and what it leaves as it is."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import torch

from gxpo.forest.forest import Forest
from gxpo.forest.token_bias import TokenBias
from gxpo.models.chat import PlainChat
from gxpo.parts.protocols import Completion, Sampling, Task
from gxpo.training.completion_bytes import pack, unpack
from gxpo.training.models import character_tokenizer
from gxpo.training.session import Session


class Lengths:
    """A reward: the length of the text; remembers what it was shown."""

    def __init__(self):
        self.shown = []

    def score(self, forest, texts, tasks):
        self.shown += list(texts)
        length = torch.tensor([float(len(t)) for t in texts])
        return forest.with_rewards(length, components={"length": length}, success=(length > 1).double())


class Letters:
    """A tokenizer whose ids are letters."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))


def session(**source):
    rewards = Lengths()
    rollout_session = Session(
        source=SimpleNamespace(draw=lambda n, step: [], **source), engine=None, rewards=rewards, tokenizer=Letters(),
        sampling=Sampling(), seed=0, step=1, chat=SimpleNamespace(stop_ids=()),
    )  # fmt: skip
    rollout_session.know([Task("q", "?", answer="1")])
    return rollout_session, rewards


def three(outcomes=(None, 0.5, None)):
    forest = Forest.from_completions(
        [[1]], [[[97], [98, 98], [99, 99, 99]]], list(outcomes), tasks=["q"], groups=["g"], ids=["x", "y", "z"]
    )
    known_flags = torch.tensor([o is not None for o in outcomes])
    return forest.with_rewards(
        forest.outcome,
        components={"old": torch.where(known_flags, 7.0, torch.nan)},
        success=torch.where(known_flags, 1.0, torch.nan),
    )


def test_a_trajectory_that_brings_an_outcome_keeps_all_it_has():
    s, rewards = session()
    scored = s.score(three())
    assert rewards.shown == ["a", "ccc"] and scored.outcome.tolist() == [1.0, 0.5, 3.0]
    assert scored.success.tolist() == [0.0, 1.0, 1.0]
    old, length = (scored.components[:, scored.component_names.index(n)] for n in ("old", "length"))
    assert old[1] == 7 and bool(old[[0, 2]].isnan().all()) and length[1].isnan() and length[2] == 3


def test_nothing_is_scored_twice_in_a_step_not_even_failures():
    s, rewards = session()
    first = s.score(three())
    again = s.score(first.replace(outcome=torch.tensor([float("nan"), 0.5, 3.0], dtype=torch.float64)))
    assert len(rewards.shown) == 2 and again.outcome[0].isnan()


def test_scores_return_where_a_trajectory_is_written_down_again():
    s, rewards = session()
    blank = three((None, None, None))
    texts = ["", "four", "!"]
    assert s.recall(blank) is blank
    assert s.score(blank.select([0, 1]), texts).outcome.tolist() == [0.0, 4.0]
    for again in (s.recall(blank), s.score(blank)):
        assert again.outcome[:2].tolist() == [0.0, 4.0] and again.success[:2].tolist() == [0.0, 1.0]
        assert again.components[:2, again.component_names.index("length")].tolist() == [0.0, 4.0]
    assert rewards.shown == ["", "four", "ccc"]
    left_out = blank.replace(info=[{"failure": "taken out"}, {}, {}])
    assert s.score(left_out).scored.tolist() == [False, True, True] and len(rewards.shown) == 3


def test_an_attempt_that_has_gone_on_is_scored_again():
    s, rewards = session()
    s.score(three((None, None, None)))
    longer = Forest.from_completions([[1]], [[[97], [98, 98, 98]]], tasks=["q"], groups=["g"], ids=["x", "y"])
    assert s.score(longer).outcome.tolist() == [1.0, 3.0]
    assert rewards.shown == ["a", "bb", "ccc", "bbb"]


def test_what_is_judged_may_be_less_than_all_that_was_said():
    s, rewards = session()
    assert s.score(three((None, None, None)), texts=["", "four", "!"]).outcome.tolist() == [0.0, 4.0, 1.0]
    assert rewards.shown == ["", "four", "!"]


def test_a_solution_is_the_task_s_or_its_source_s():
    plain, _ = session()
    writing, _ = session(worked_example=lambda task: f"{task.id}: worked")
    assert plain.solution(Task("q", "?")) is None and writing.solution(Task("q", "?")) == "q: worked"
    assert writing.solution(Task("q", "?", info={"solution": "given"})) == "given"


def test_text_is_tokenised_without_control_tokens_unless_markup():
    session_object, _ = session()
    session_object.chat = PlainChat(character_tokenizer())
    (a, b), (eos,) = session_object.tokenize("ab"), session_object.tokenize("<eos>", markup=True)
    assert (
        eos == session_object.chat.stop_ids[0]
        and session_object.tokenize("a<eos>b")[::6] == (a, b)
        and len(session_object.tokenize("<eos>")) == 5
    )


def test_completions_go_between_processes_with_their_payload():
    latent = np.array([[0.1, -2.5], [3.0, 1e-300]])
    sent = [[Completion([1, 2], [-0.1, -1 / 3], "stop", np.array([[1, -1], [2, 3]]), 4, extras={"latent": latent})]]
    ((back,),) = unpack(pack(sent))
    assert back.tokens == [1, 2] and back.logprobs == [-0.1, -1 / 3] and back.policy_version == 4
    assert back.support.dtype == np.int64 and back.support.tolist() == [[1, -1], [2, 3]]
    assert back.extras["latent"].dtype == np.float64 and (back.extras["latent"] == latent).all()


def test_completions_go_between_processes_with_their_biases():
    bias = TokenBias.of({3: 1.5, 1: -math.inf}, bytes([0b1010]))
    penalty = np.array([[0.5, 0.0, 1.0, 0.0]])
    sent = Completion([3], [-0.5], "stop", bias=np.array([bias.key]), biases={bias.key: bias}, penalty=penalty)
    ((back,),) = unpack(pack([[sent]]))
    assert back.bias.tolist() == [bias.key] and back.penalty.tolist() == penalty.tolist()
    assert back.biases[bias.key].key == bias.key and back.biases[bias.key].dense(5).tolist() == bias.dense(5).tolist()


def misread_tree():
    """q: one turn; an episode of two turns, the first misread; its fork within the second; one that forks before it."""

    def turn(action, finish="stop", **more):
        return {"action": action, "logprob": [-1.0] * len(action), "finish": finish, **more}

    first, line = turn([97], "misread", context=[1]), {"schema": "gxpo.rollouts/1", "task": "q", "group": "g"}
    return Forest.from_records([
        {**line, "id": "x", "turns": [turn([98, 98], context=[1])]},
        {**line, "id": "e", "turns": [first, turn([98], observation=[2])], "reward": 1.0},
        {**line, "id": "f", "turns": [turn([99], context=[1, 97, 2])], "fork": {"of": "e", "turn": 0, "token": None}},
        {**line, "id": "y", "turns": [turn([98], "length", context=[1])], "reward": 2.0},
    ])  # fmt: skip


def test_rollout_sampled_under_another_prompt_stays_unscored():
    s, _ = session()
    scored = s.score(misread_tree())
    known_scored = dict(zip(scored.id, scored.outcome.tolist(), strict=True))
    assert (known_scored["x"], known_scored["y"]) == (2.0, 2.0) and scored.scored.tolist() == [True, False, False, True]
    assert bool(scored.success[1:3].isnan().all())
    why = dict(zip(scored.id, scored.info, strict=True))
    assert "sampled under another prompt" in why["e"]["failure"] and "failure" not in why["x"]
    again = s.score(scored)
    assert again.scored.tolist() == scored.scored.tolist() and again.info == scored.info


def test_a_forest_is_cut_once_and_only_where_there_is_a_segmenter():
    s, _ = session()
    forest = three()
    assert s.segment(forest) is forest  # no segmenter
    calls = []

    def halves(uncut, tools):
        calls.append(tools.decode([97]))
        return dataclasses.replace(uncut, segment=torch.zeros_like(uncut.segment))

    s._segmenter = halves
    cut = s.segment(forest)
    assert calls == ["a"] and cut.segment.tolist() == [0] * len(forest.segment)
    assert s.segment(cut) is cut and calls == ["a"]
