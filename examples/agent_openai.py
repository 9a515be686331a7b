"""An agent of one's own (pip install openai): it has a sum worked out, checks the result by casting out nines, and has
it worked out once more where the check fails. What it returns is the reward."""

import re

import openai

CLIENT = openai.OpenAI(base_url="http://localhost", api_key="-")  # one pool of connections for all episodes


def run(prompt: str, answer: str, base_url: str, api_key: str) -> bool:
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    messages = [{"role": "user", "content": prompt}]
    for _ in range(2):
        message = client.chat.completions.create(model="policy", messages=messages).choices[0].message
        result = message.content.rpartition("#")[2]
        if fits(prompt, result):
            break
        messages += [message, {"role": "user", "content": f"\n{prompt}"}]
    return result == answer


def fits(prompt: str, result: str) -> bool:
    a, b = map(int, re.findall(r"\d+", prompt))
    return result.isdecimal() and (a + b - int(result)) % 9 == 0
