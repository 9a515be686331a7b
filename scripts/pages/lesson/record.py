"""Record the run that the lesson plays: python scripts/pages/lesson/record.py writes run.json beside this file.

`tiny:arithmetic` is trained for 30 steps on sums of two numbers, seed 0, groups of 16; the answers of seven steps and
the held-out accuracy are kept.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import gxpo

STEPS = (1, 5, 10, 15, 20, 25, 30)
ROWS = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(10, 60) for b in range(10, 60)]
SETTINGS = {
    "trainer.rollouts_every": 1,
    "rollout.group_size": 16,
    "tasks.per_step": 8,
    "sampling.max_new_tokens": 24,
    "eval.tasks": 250,
    "eval.every": 5,
}


def is_right(completion: str, answer: int) -> bool:
    return completion.endswith(f"#{answer}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = gxpo.train("tiny:arithmetic", ROWS, "grpo", max(STEPS), is_right, out=f"{folder}/run", set=SETTINGS)
        steps = []
        for step in STEPS:
            groups: dict[str, dict] = {}
            for line in Path(folder, "run", "rollouts", f"step-{step:06}.jsonl").read_text().splitlines():
                record = json.loads(line)
                group = groups.setdefault(record["group"], {"prompt": record["prompt_text"], "answers": []})
                group["answers"].append([record["turns"][0]["action_text"], int(record["reward"])])
            steps.append({"step": step, "groups": list(groups.values())})
        accuracy = [[e["step"], round(e["eval_accuracy"], 3)] for e in run.evaluations]
    out = Path(__file__).with_name("run.json")
    out.write_text(json.dumps({"accuracy": accuracy, "steps": steps}, separators=(",", ":")) + "\n")
    print(out, accuracy)


if __name__ == "__main__":
    main()
