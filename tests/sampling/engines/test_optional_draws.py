"""Options of requests (biases, penalties, min_p, end ids, likeliest ids) against a plain loop over transformers."""

import math
from collections import Counter
from itertools import accumulate

import pytest
import torch
from tests.sampling.engines.letters import letters, llama
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Request, Sampling, StreamKey, TokenOptions
from gxpo.sampling.engines.draws import uniforms
from gxpo.sampling.engines.remote_requests import check
from gxpo.sampling.engines.torch import TorchEngine

MODEL = llama().double()  # so that rounding of the forward pass is out of the way
PROMPTS = ((2, 3, 4, 3), (5, 2), (2, 3, 4, 3))
END = 1
OPTIONS = {
    "logit_bias": TokenOptions(logit_bias=((4, 3.0), (7, -100.0), (9, 1.5))),
    "presence": TokenOptions(presence_penalty=1.5),
    "frequency": TokenOptions(frequency_penalty=-0.8),
    "repetition": TokenOptions(repetition_penalty=1.7),
    "min_p": TokenOptions(min_p=0.2),
    "min_tokens": TokenOptions(min_tokens=4, logit_bias=((END, 8.0),)),
    "ignore_eos": TokenOptions(ignore_eos=True, logit_bias=((END, 8.0),)),
    "all": TokenOptions(((4, 2.0), (END, 4.0)), 0.5, 0.3, 1.3, 0.05, 3, False, None, 4),
}


def key(i):
    return StreamKey(0, 1, "task", i)


def plain(prompt, stream, options, sampling, model=MODEL):
    """One sample by transformers' forward pass without a cache, its own processors, and loops over the ids."""
    ids, out, places = list(prompt), [], uniforms([stream], sampling.max_new_tokens)[0]
    for place in places:
        with torch.no_grad():
            row = model(torch.tensor([ids])).logits[0, -1].double().tolist()
        for token, value in options.logit_bias:
            row[token] += value
        reply = Counter(ids[len(prompt) :])
        if options.ignore_eos or sum(reply.values()) < options.min_tokens:
            row[END] = -math.inf
        for token in set(ids):
            row[token] = (
                row[token] / options.repetition_penalty if row[token] > 0 else row[token] * options.repetition_penalty
            )
        for token, count in reply.items():
            row[token] -= count * options.frequency_penalty + options.presence_penalty
        scores = torch.tensor([row], dtype=torch.float64)
        if sampling.temperature == 0:
            ids.append(int(scores.argmax()))
            out.append((ids[-1], 0.0, {ids[-1]: 0.0}))
        else:
            warpers = [TemperatureLogitsWarper(sampling.temperature)] if sampling.temperature != 1 else []
            warpers += [MinPLogitsWarper(options.min_p)] if options.min_p else []
            warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
            warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
            for warper in warpers:
                scores = warper(torch.tensor([ids]), scores)
            logprob = scores.log_softmax(-1)[0].tolist()
            token = next(i for i, total in enumerate(accumulate(map(math.exp, logprob))) if total > place)
            ids.append(token)
            out.append((token, logprob[token], {i: x for i, x in enumerate(logprob) if x > -math.inf}))
        if ids[-1] == END:
            break
    return out


def sampled(options, sampling):
    engine = TorchEngine(MODEL, stop_ids=[END])
    requests = [Request(p, (key(2 * i), key(2 * i + 1)), options=options) for i, p in enumerate(PROMPTS)]
    return engine.sample(requests, sampling)


@pytest.mark.parametrize(
    "sampling", [Sampling(max_new_tokens=9), Sampling(0.7, 8, 0.9, 9), Sampling(0.0, max_new_tokens=9)]
)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_agrees_with_a_plain_loop(name, sampling):
    options = OPTIONS[name]
    for i, (prompt, samples) in enumerate(zip(PROMPTS, sampled(options, sampling), strict=True)):
        for j, completion in enumerate(samples):
            expected = plain(prompt, key(2 * i + j), options, sampling)
            assert completion.tokens == [token for token, _, _ in expected]
            assert completion.logprobs == pytest.approx([x for _, x, _ in expected], abs=1e-6)
            assert completion.finish == ("stop" if completion.tokens[-1] == END else "length")
            cuts = sampling.temperature > 0 and (options.min_p or sampling.truncated_support)
            assert (completion.support is not None) == bool(cuts)
            for k, (_, _, distribution) in enumerate(expected):
                if cuts:
                    assert {int(x) for x in completion.support[k] if x >= 0} == set(distribution)
                if options.top_logprobs:
                    likeliest = sorted(distribution.items(), key=lambda entry: -entry[1])[: options.top_logprobs]
                    listed = [t for t in completion.top_ids[k].tolist() if t >= 0]
                    assert listed == [t for t, _ in likeliest]
                    assert completion.top_logprobs[k][: len(listed)] == pytest.approx(
                        [x for _, x in likeliest], abs=1e-6
                    )


def test_options_do_what_they_say():
    never = sampled(OPTIONS["ignore_eos"], Sampling(max_new_tokens=20))
    assert all(END not in c.tokens and len(c.tokens) == 20 for group in never for c in group)
    late = [c for group in sampled(OPTIONS["min_tokens"], Sampling(max_new_tokens=20)) for c in group]
    assert all(c.tokens.index(END) >= 4 for c in late)
    first = next(c for c in late if c.tokens.index(END) == 4)
    # four tokens share the bias that forbids the end; from there on the call's own
    assert len(first.biases) == 2 and len(set(first.bias[:4].tolist())) == 1 and first.bias[4] != first.bias[0]
    banned = [
        c for group in sampled(TokenOptions(logit_bias=((3, -100.0),)), Sampling(max_new_tokens=9)) for c in group
    ]
    assert all(3 not in c.tokens for c in banned) and len(banned[0].biases) == 1


def test_requests_without_options_are_sampled_as_if_there_were_none():
    sampling = Sampling(0.9, max_new_tokens=12)
    bare = [Request(p, (key(i),)) for i, p in enumerate(PROMPTS[:2])]
    with_options = Request(PROMPTS[2], (key(9),), options=OPTIONS["all"])
    alone = TorchEngine(MODEL, stop_ids=[END]).sample(bare, sampling)
    mixed = TorchEngine(MODEL, stop_ids=[END]).sample([bare[0], with_options, bare[1]], sampling)
    for (a,), (b,) in zip(alone, (mixed[0], mixed[2]), strict=True):
        assert a.tokens == b.tokens and a.logprobs == b.logprobs
        assert (b.bias, b.penalty, b.top_ids, b.support) == (None, None, None, None)


def test_a_list_of_likeliest_ids_changes_no_token():
    sampling = Sampling(max_new_tokens=12)
    (bare,) = TorchEngine(MODEL, stop_ids=[END]).sample([Request(PROMPTS[0], (key(3),))], sampling)
    request = Request(PROMPTS[0], (key(3),), options=TokenOptions(top_logprobs=2))
    (listed,) = TorchEngine(MODEL, stop_ids=[END]).sample([request], sampling)
    assert bare[0].tokens == listed[0].tokens and bare[0].logprobs == listed[0].logprobs
    assert listed[0].bias is None and listed[0].top_ids.shape == (len(listed[0].tokens), 2)


def test_several_turns_keep_their_caches_under_options():
    engine, options = TorchEngine(MODEL, stop_ids=[END]), OPTIONS["presence"]
    sampling = Sampling(max_new_tokens=5)
    ((first,),) = engine.sample([Request(PROMPTS[0], (key(0),), ("a",), options=options)], sampling)
    longer = (*PROMPTS[0], *first.tokens, 6, 7)
    ((second,),) = engine.sample([Request(longer, (key(1),), ("a",), options=options)], sampling)
    assert engine.reused_tokens == len(PROMPTS[0]) + len(first.tokens) - 1
    expected = plain(longer, key(1), options, sampling)
    assert second.tokens == [token for token, _, _ in expected]
    assert second.logprobs == pytest.approx([x for _, x, _ in expected], abs=1e-5)


def test_engines_elsewhere_refuse_options():
    request = Request((2, 3), (key(0),), options=TokenOptions(min_p=0.1))
    with pytest.raises(ModelError, match=r"min_p=0.1.*does not record the distribution.*sampling.engine=torch"):
        check([request], Sampling(), policy="main", positions=None, limit="")
    check([Request((2, 3), (key(0),))], Sampling(), policy="main", positions=None, limit="")


# ---------------------------------------------------------------- grammars
def test_a_reply_follows_its_grammar_to_the_end():
    pytest.importorskip("llguidance")
    tokenizer = letters()
    engine = TorchEngine(MODEL, tokenizer, stop_ids=[END])
    for grammar, texts in (
        (("choice", '["abc", "tab"]'), {"abc", "tab"}),
        (("regex", "(ab){2}"), {"abab"}),
    ):
        request = Request(PROMPTS[0], tuple(key(i) for i in range(6)), options=TokenOptions(grammar=grammar))
        (samples,) = engine.sample([request], Sampling(max_new_tokens=12))
        assert {tokenizer.decode(c.tokens[:-1]) for c in samples} <= texts
        assert all(c.tokens[-1] == END and c.finish == "stop" for c in samples)
        # the end is forced, so that it is certain
        assert all(c.logprobs[-1] == 0.0 for c in samples)
        for c in samples:
            for token, bias, logprob in zip(c.tokens, c.bias.tolist(), c.logprobs, strict=True):
                assert float(c.biases[bias].at(torch.tensor([token]))) == 0.0 and logprob > -math.inf
    (cut,) = engine.sample(
        [Request(PROMPTS[0], (key(0),), options=TokenOptions(grammar=("regex", "(ab){9}")))], Sampling(max_new_tokens=3)
    )[0]
    assert cut.finish == "length"
    with pytest.raises(ModelError, match="a grammar needs a token that ends the reply"):
        TorchEngine(MODEL, tokenizer, stop_ids=[]).sample([request], Sampling(max_new_tokens=12))
