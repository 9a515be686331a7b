"""vLLM without gxpo, run by path in an interpreter with vLLM: `python -I vllm_alone.py`.

Lines of JSON: first what vllm.LLM is given, then the prompts of each batch (token ids, one for every sample). Answers:
{"ready": true}, then {"tokens": how many were drawn}. Needs the standard library and vllm alone.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints must not get between the answers

    def say(line: dict[str, Any]) -> None:
        answer.write(json.dumps(line) + "\n")
        answer.flush()

    vllm: Any = importlib.import_module("vllm")
    request = json.loads(sys.stdin.readline())
    llm: Any = vllm.LLM(**request["arguments"])
    # log-probs of what was drawn are part of the work: training needs them
    params = vllm.SamplingParams(
        temperature=1.0, max_tokens=request["new"], ignore_eos=True, logprobs=0, detokenize=False
    )
    say({"ready": True})
    for line in sys.stdin:
        prompts = [{"prompt_token_ids": ids} for ids in json.loads(line)]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        say({"tokens": sum(len(out.outputs[0].token_ids) for out in outputs)})


if __name__ == "__main__":
    main()
