"""Recommendations: names of symptoms, order by measurement and evidence."""

from types import SimpleNamespace

import pytest

from gxpo.base.errors import ConfigError
from gxpo.explain.advice import find, measurement_of, recommendations
from gxpo.explain.symptoms import SYMPTOMS

SYMPTOM = "all-wrong groups"


def measured(advice, verdict, difference=0.1, seeds=20):
    """A measurement of an advice's keys, as `gxpo.doctor.evidence` reads them."""
    keys = {"method": advice.method, **dict(s.split("=", 1) for s in advice.sets)}
    sickness = SYMPTOMS[SYMPTOM].sicknesses[0]
    return SimpleNamespace(
        sickness=sickness, keys=keys, verdict=verdict, difference=difference, figures=f"said of {verdict}", seeds=seeds
    )


def order(*measurements):
    return [row["method"] for row in recommendations(SYMPTOM, measurements)]


def test_case_hyphens_and_underscores_do_not_matter():
    assert find("ALL_wrong  Groups") == find("all-wrong-groups") == SYMPTOM


def test_words_that_fit_none_name_the_nearest_three():
    with pytest.raises(ConfigError, match=r"no symptom fits 'xyzzy'; the nearest are '[^']+', '[^']+', '[^']+';"):
        find("xyzzy")


PHRASINGS = {  # of users, in their words
    "all-wrong groups": [
        "reward is stuck at zero from the first step",
        "my model never gets a single answer right",
        "every rollout in the group fails",
        "the problems are too hard for a 1B model",
        "the reward is too sparse",
        "no success in any group",
    ],
    "all-right groups": [
        "all completions are correct already",
        "the dataset is too easy",
        "reward saturated at 1.0",
        "accuracy is 100% on every batch, nothing to learn",
    ],
    "entropy collapse": [
        "the entropy drops to 0.05 after 50 steps",
        "the model gives the same answer every time",
        "policy became deterministic",
        "we lost all diversity in the samples",
        "there isn't enough exploration",
        "the policy does not explore",
        "model collapses to one answer",
        "the outputs have collapsed to a single template",
        "my policy's entropy went to zero",
    ],
    "length growth": [
        "responses get longer and longer without better accuracy",
        "completion length explodes",
        "most completions are truncated at max_tokens",
        "the model rambles",
        "answers hit the token limit",
        "completions/clipped_ratio stays at 1.0",
        "every completion was clipped at the 256-token cap",
        "answers are too long",
        "chain of thought keeps growing",
        "generations keep hitting max_completion_length",
    ],
    "small groups": [
        "I can only afford two rollouts per prompt",
        "group size of 2",
        "I use only 2 generations per prompt because of compute",
    ],
    "noisy rewards": [
        "the judge is noisy",
        "our verifier makes mistakes",
        "false positives of the checker",
        "labels are sometimes wrong",
        "LLM judge gives inconsistent scores",
        "the reward model is unreliable",
        "some ground truth labels are incorrect",
    ],
    "long horizons": [
        "many turns and only one reward at the end",
        "credit assignment over a long episode",
        "which turn caused the failure",
        "only the final outcome of a 40 turn game is rewarded",
        "how do I assign credit to individual turns",
    ],
    "steps of one answer": [
        "where in the answer did it make the first wrong step",
        "every token gets the same advantage",
    ],
    "tool calls": [
        "tool calls fail with malformed JSON",
        "the agent makes too many search calls",
        "the agent almost always skips the tool and directly guesses the answer",
        "the tool is called with invalid arguments",
        "function calls are malformed",
    ],
    "stale data": [
        "rollouts are several versions older than the policy, fully asynchronous",
        "we do 8 updates on the same batch",
        "off-policy data",
        "samples come from an older checkpoint of the policy",
        "asynchronous rollouts lag behind",
    ],
    "sampler mismatch": [
        "vLLM logprobs differ from the trainer's",
        "train/inference mismatch",
        "rollout and trainer log probs do not match",
    ],
    "unstable updates": [
        "loss spikes and then nan",
        "gradient norm explodes",
        "training diverges after 200 steps",
        "sudden drop in reward during GRPO training",
        "kl divergence becomes inf",
        "the experiment exploded around step 160",
        "my learning rate is too high",
        "grad norm jumps to 1e5",
        "the run collapsed at step 80",
    ],
    "pass@k falls": [
        "pass@1 goes up but pass@8 goes down",
        "fewer problems are solved with many samples",
        "pass@16 dropped below the base model",
    ],
    "uneven difficulty": [
        "easy problems dominate the batch",
        "hard prompts are ignored",
        "the model only improves on the easy questions",
    ],
    "few mixed groups": [
        "most groups are either all right or all wrong",
        "which prompts should I train on",
    ],
    "several rewards": [
        "the format reward dominates the correctness reward",
        "how to combine several rewards",
        "two reward functions and one of them dominates",
    ],
    "coarse rewards": [
        "only a binary reward, no partial credit",
        "partial credit for nearly correct answers",
    ],
    "slow sampling": [
        "rollout generation is the bottleneck",
        "sampling takes most of the time",
        "90% of wall clock is spent generating",
    ],
    "no labels": [
        "I have no ground truth labels",
        "I only have unlabeled questions",
    ],
    "teams": [
        "multi-agent training with one shared reward",
        "two agents cooperate and get one reward",
    ],
    "critics": [
        "the critic gives no verdict",
        "the critic approves everything",
        "critiques do not help the solver",
        "refinements are the same as before",
    ],
    "observation ignored": [
        "the model ignores the image",
        "the VLM does not look at the picture",
    ],
    "short lists": [
        "only 50 tasks, repeated every epoch",
    ],
}
NO_SYMPTOM = [  # subjects that no method is a remedy for, questions, and what is no trouble
    "my GPU is out of memory",
    "CUDA error: device-side assert triggered",
    "how do I install vllm",
    "vllm crashes at startup",
    "the checkpoint does not load",
    "banana bread",
    "training is healthy",
    "entropy is not collapsing",
    "everything is fine, rewards rise",
    "the learning curve looks good",
    "which optimizer should I use",
    "I want to train a 70B model on 8 GPUs",
    "tokenizer has no chat template",
    "no loss spikes",
    "the answers are short",
    "wandb does not log",
    "nccl timeout",
    "the reward function raises an exception",
    "the model speaks Chinese instead of English",
    "entropy keeps increasing and performance decreases",
    "memory usage keeps increasing during training",
    "training hangs after 5 hours without error",
    "OOM when init vllm",
    "the reward stays within the same range after 300 iterations",
    "does verl support multi-turn and multi-tools rl training?",
    "why does the loss start at 0",
    "how to get the entire rollout in the multi-turn setting",
    "compute the KL divergence",
    "Log KL divergence in the GRPO loss function",
    "add entropy regularization to the trainer",
    "question about GRPO and sample indexing",
    "reward hacking",
    "I want dense feedback inside a long proof",
    "the probabilities from sglang and fsdp disagree",
    "I only have 200 training problems",
    "how many GPUs do I need",
    "can I use LoRA",
    "what is GRPO",
    "ValueError: num_generations must divide the batch size",
    "the loss is negative",
    "training is slow",
    "convert my verl config",
    "reward goes up but eval accuracy goes down",
    "my learning rate schedule",
    "how is the advantage computed",
    "the model refuses to answer",
    "gradient accumulation steps",
    "resume from a stopped run",
    "dataset loading is slow",
    "logits are in bfloat16",
    "model outputs garbage",
    "how do I write a reward function",
]


@pytest.mark.parametrize(("words", "symptom"), [(w, s) for s, row in PHRASINGS.items() for w in row])
def test_users_sentences_find_their_symptom(words, symptom):
    assert find(words) == symptom


@pytest.mark.parametrize("words", NO_SYMPTOM)
def test_other_sentences_find_none(words):
    with pytest.raises(ConfigError, match="no symptom fits"):
        find(words)


def test_two_symptoms_in_one_sentence_are_asked_about():
    with pytest.raises(ConfigError, match="may be 'length growth' or 'noisy rewards': say which"):
        find("answers get longer and the judge is noisy")


def test_a_negation_is_no_symptom():
    assert find("the entropy collapses") == "entropy collapse"
    for words in ("the entropy does not collapse", "no entropy collapse in sight here, all good"):
        with pytest.raises(ConfigError, match="no symptom fits"):
            find(words)


def test_few_seeds_are_quoted_and_change_no_order():
    first, *_ = SYMPTOMS[SYMPTOM].advice
    last = order()[-1]
    (advice,) = (a for a in SYMPTOMS[SYMPTOM].advice if a.method == last)
    pilot = measured(advice, "helped", 0.5, seeds=5)
    assert order(pilot) == order()
    assert recommendations(SYMPTOM, [pilot])[-1]["measured"] == {"verdict": "helped", "figures": "said of helped"}
    assert first.method in order()


def test_what_helped_is_first_and_what_harmed_is_last():
    first, second, *_ = SYMPTOMS[SYMPTOM].advice
    unmeasured = order()
    assert {first.method, second.method} <= set(unmeasured)
    assert order(measured(first, "harmed"), measured(second, "helped"))[0] == second.method
    assert order(measured(first, "harmed"), measured(second, "helped"))[-1] == first.method


def test_the_larger_gain_comes_first():
    first, second, *_ = SYMPTOMS[SYMPTOM].advice
    assert order(measured(first, "helped", 0.1), measured(second, "helped", 0.3))[:2] == [second.method, first.method]
    assert order(measured(first, "helped", 0.3), measured(second, "helped", 0.1))[:2] == [first.method, second.method]


def test_a_measurement_counts_for_its_keys_alone():
    first, second, *_ = SYMPTOMS[SYMPTOM].advice
    of_first = measured(first, "helped")
    assert measurement_of(SYMPTOM, first, [of_first]) is of_first
    assert measurement_of(SYMPTOM, second, [of_first]) is None
    assert measurement_of("length growth", first, [of_first]) is None
    row = next(r for r in recommendations(SYMPTOM, [of_first]) if r["method"] == first.method)
    assert row["measured"] == {"verdict": "helped", "figures": "said of helped"}
