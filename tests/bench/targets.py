"""Work of the simplest kind, for processes that measure it."""

import os
import time


def sleeper(seconds):
    """Sleeps, prints, and says in what surroundings."""
    print("this must not get between the answers")

    def once():
        print("nor this")
        time.sleep(seconds)
        return {"tokens": 7, "threads": int(os.environ["OMP_NUM_THREADS"]), "note": "not a number"}

    return once


def told(seconds):
    """Says how long it took, whatever it did."""
    return lambda: {"seconds": seconds}


def gated(seconds):
    """A loop that asks for its rounds itself, as a trainer's callbacks do, and counts them."""

    def work(gate):
        done = 0
        while gate.wait():
            done += 1
            gate.finish_round({"done": done, "seconds": seconds})

    work.holds_gate = True
    return work


def broken():
    raise ValueError("no such work")


def dies():
    os._exit(3)
