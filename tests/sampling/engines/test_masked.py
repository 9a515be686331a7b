"""The engine of masked models: what it draws, in which order, and the log-probs that it gives."""

import math
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from tests.models.masked_toys import END, MASK, PROMPT, along, every_answer, row, toy

from gxpo.algorithms.likelihoods.estimators import Coupled, Elbo, OneStep, TrajectoryLikelihood
from gxpo.base.errors import ConfigError, ModelError
from gxpo.models.masked import EXTRAS, estimate
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.masked import MaskedEngine, Unmasking

ROOM = Sampling(max_new_tokens=4)
DECODERS = [
    Unmasking(),
    Unmasking(order="left_to_right"),
    Unmasking(order="random", per_step=2),
    Unmasking(block=2, end_from=0.1),
    Unmasking(schedule="doubling"),
]
ANY_DECODER = pytest.mark.parametrize("decoder", DECODERS, ids=str)


def keys(n, name="task"):
    return tuple(StreamKey(0, 1, name, i) for i in range(n))


def samples(decoder=None, n=40, likelihood=None, sampling=ROOM, prompt=PROMPT):
    engine = MaskedEngine(toy(), likelihood or TrajectoryLikelihood(), decoder)
    return engine.sample([Request(prompt, keys(n))], sampling)[0]


# ---------------------------------------------------------------- what is drawn
@dataclass(frozen=True)
class Table:
    """A policy whose logits depend on the place alone: a token that may follow, then an end, then what is sure."""

    mask: int = MASK
    end: int = END
    positions: int = 0

    def logits(self, tokens, lengths, begins, row, column):
        likeliest = {0: (2, 0.6), 1: (END, 0.7), 2: (3, 0.99), 3: (4, 0.98)}
        out = torch.full((len(row), 7), -torch.inf)
        for k, place in enumerate((column - begins[row]).tolist()):
            token, p = likeliest[place]
            out[k, [token, 5]] = torch.tensor([p, 1 - p]).log()
        return out


@pytest.mark.parametrize("per_step", [1, 2, 4])
@pytest.mark.parametrize("order", ["confidence", "random", "left_to_right"])
def test_what_is_sure_behind_an_end_does_not_keep_it_out(order, per_step):
    engine = MaskedEngine(Table(), TrajectoryLikelihood(), Unmasking(order=order, per_step=per_step))
    for (c,) in engine.sample([Request(PROMPT, (key,)) for key in keys(5)], replace(ROOM, temperature=0.0)):
        assert c.tokens == [2, END] and c.finish == "stop"


def test_answers_come_as_often_as_their_likelihood_says():
    n, room = 4000, 2
    drawn = Counter(
        tuple(c.tokens)
        for c in samples(Unmasking(order="left_to_right"), n, sampling=replace(ROOM, max_new_tokens=room))
    )
    for answer in every_answer(room):
        p = math.exp(along(answer, range(len(answer)), room))
        assert abs(drawn[answer] / n - p) < 4.5 * math.sqrt(p * (1 - p) / n) + 1e-9, answer


@ANY_DECODER
def test_an_answer_is_a_text_and_its_end(decoder):
    for c in samples(decoder):
        assert MASK not in c.tokens and END not in c.tokens[:-1]
        assert c.finish == ("stop" if c.tokens[-1] == END else "length")
        assert len(c.tokens) == 4 or c.finish == "stop"
        assert set(c.extras) == set(EXTRAS) and all(x.shape == (len(c.tokens),) for x in c.extras.values())


@ANY_DECODER
def test_log_probs_are_of_the_state_in_which_a_token_was_unmasked(decoder):
    for c in samples(decoder, 10):
        steps = torch.from_numpy(c.extras["unmasked_at"])
        for i, token in enumerate(c.tokens):
            # what was visible before the step: tokens of earlier steps, and masks behind an end that is still hidden
            shown = [t if steps[j] < steps[i] else MASK for j, t in enumerate(c.tokens)]
            ended = c.finish == "stop" and bool(steps[-1] < steps[i])
            ids = torch.tensor([[*PROMPT, *shown, *[END if ended else MASK] * (4 - len(shown))]])
            with torch.no_grad():
                logits = toy().model(input_ids=ids).logits[0, len(PROMPT) + i]
            logits[MASK] = -torch.inf
            if any(t != MASK for t in ids[0, len(PROMPT) + i + 1 :].tolist()):
                logits[END] = -torch.inf
            assert c.logprobs[i] == pytest.approx(float(logits.log_softmax(0)[token]), abs=1e-9)


def test_blocks_are_unmasked_one_after_the_other():
    for c in samples(Unmasking(block=2), sampling=replace(ROOM, max_new_tokens=6)):
        block = torch.arange(len(c.tokens)) // 2
        steps = torch.from_numpy(c.extras["unmasked_at"])
        for b in range(1, int(block.max()) + 1):
            assert int(steps[block == b].min()) > int(steps[block == b - 1].max())


@pytest.mark.parametrize(
    ("decoder", "counts"),
    [(Unmasking(per_step=2), [2, 2]), (Unmasking(schedule="doubling"), [1, 2, 1]), (Unmasking(per_step=3), [3, 1])],
)
def test_a_step_unmasks_as_many_tokens_as_the_schedule_says(decoder, counts):
    unended = [c for c in samples(decoder) if c.finish == "length"]
    assert unended
    for c in unended:
        assert torch.bincount(torch.from_numpy(c.extras["unmasked_at"])).tolist() == counts


def test_the_surest_candidate_is_unmasked_first():
    (c,) = samples(n=1, sampling=replace(ROOM, temperature=0.0))
    with torch.no_grad():
        logits = toy().model(input_ids=torch.tensor([[*PROMPT, *[MASK] * 4]])).logits[0, len(PROMPT) :]
    logits[:, MASK] = -torch.inf
    first = int(logits.softmax(1).amax(1).argmax())
    assert c.extras["unmasked_at"].tolist().index(0) == first or END in c.tokens
    assert c.logprobs == [0.0] * len(c.tokens)  # greedy


def test_ends_are_rejected_early():
    early = Unmasking(end_from=0.0)  # no end is sure in the first step
    for c in samples(early):
        if c.finish == "stop" and len(c.tokens) > 1:
            assert c.extras["unmasked_at"][-1] > 0


def test_samples_do_not_depend_on_the_batch():
    engine = MaskedEngine(toy(), TrajectoryLikelihood(), batch_rows=3)
    several = engine.sample([Request((2, 3), keys(4)), Request((4, 5, 2, 3), keys(4, "other"))], ROOM)
    for prompt, name, together in (((2, 3), "task", several[0]), ((4, 5, 2, 3), "other", several[1])):
        alone = [engine.sample([Request(prompt, (key,))], ROOM)[0][0] for key in keys(4, name)]
        assert [c.tokens for c in together] == [c.tokens for c in alone]
        assert [x for c in together for x in c.logprobs] == pytest.approx(
            [x for c in alone for x in c.logprobs], abs=1e-9
        )


@pytest.mark.parametrize("likelihood", [OneStep(), Elbo("uniform", 3), Coupled()], ids=str)
def test_log_probs_are_the_estimators(likelihood):
    sampling = replace(ROOM, temperature=0.7)
    for c in samples(n=5, likelihood=likelihood, sampling=sampling):
        of_sample = replace(
            row(c.tokens, order=c.extras["unmasked_at"].tolist(), temperature=0.7), seed=int(c.extras["mask_seed"][0])
        )
        assert c.logprobs == pytest.approx(estimate(toy(), [of_sample], likelihood)["logprob"].tolist(), abs=1e-9)


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("options", "room", "message"),
    [
        ({"block": 3}, 4, "max_new_tokens=4 is no whole number of blocks of 3 tokens: set it to 6"),
        ({"blok": 3}, 4, "not blok; did you mean 'block'"),
        ({"order": "first"}, 4, "sampling.engine_options.order is 'first'"),
        ({"per_step": 0}, 4, "per_step is 0"),
    ],
)
def test_decoders_that_can_not_be_are_refused_in_one_line(options, room, message):
    with pytest.raises(ConfigError, match=message) as error:
        Unmasking.of(options, room)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("sampling", "prompt", "message"),
    [
        (replace(ROOM, top_k=3), PROMPT, "top_k=0"),
        (replace(ROOM, stop=("x",)), PROMPT, "no stop strings"),
        (ROOM, (2,) * 30, "exceed the 32 positions"),
    ],
)
def test_requests_that_a_masked_model_can_not_sample_are_refused(sampling, prompt, message):
    with pytest.raises(ModelError, match=message):
        samples(n=1, sampling=sampling, prompt=prompt)
