"""compare.py PORT PORT [--kind KIND] [--seed N] [--walks N] [--steps N] [--quiet SECONDS] [--show]: the same walks at two brokers; what differs is
shown with what came before. Where queues have no order among each other a broker differs from itself, so a walk that differs is walked five times,
and two of them that are alike are enough."""

import argparse
import concurrent.futures
import itertools
import re
import sys

import walk


def both(ports, kind, seed, steps, quiet):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda side: one(ports[side], kind, seed, steps, quiet, side), (0, 1)))


def one(port, kind, seed, steps, quiet, side):
    at = walk.Walk(port, kind, seed, quiet, side)
    try:
        return at.run(steps)
    except Exception as error:
        return at.lines + [f"FAILED {type(error).__name__}: {error}"]


def alike(reference, line):
    """RabbitMQ 4.3 marks a dead letter as redelivered in its next classic queue if it was redelivered in the one before; 4.0 did not."""
    return line == reference or ("'x-death'" in line and reference == re.sub(r"(deliver \w+|left in \w+:|get \w+|^) new ", r"\1 again ", line, count=1))


def first(left, right):
    """The number of the first line that differs, or None."""
    for number, (one_line, other) in enumerate(zip(left, right)):
        if not alike(one_line, other):
            return number
    for lines in (left, right):
        if lines and lines[-1].startswith("FAILED"):
            return len(lines) - 1
    return None if len(left) == len(right) else min(len(left), len(right))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("ports", nargs=2, type=int)
    arguments.add_argument("--kind", action="append", choices=walk.KINDS)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--walks", type=int, default=20)
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--quiet", type=float, default=0.03)
    arguments.add_argument("--show", action="store_true", help="the whole walk up to where it differs")
    given = arguments.parse_args()
    differ = alike = 0
    for kind in given.kind or walk.KINDS:
        for seed in range(given.seed, given.seed + given.walks):
            quiet = given.quiet * (2 if kind.startswith("quorum") else 1)
            lefts, rights = [], []
            for longer in (1, 1, 4, 4, 4):
                left, right = both(given.ports, kind, seed, given.steps, quiet * longer)
                lefts.append(left)
                rights.append(right)
                left, right = min(itertools.product(lefts, rights), key=lambda pair: -(first(*pair) or 1e9))
                at = first(left, right)
                if at is None:
                    break
            if at is None:
                alike += 1
                continue
            differ += 1
            print(f"== {kind} seed {seed} differs at line {at}")
            for line in left[0 if given.show else max(0, at - 12) : at]:
                print("   " + line)
            for mark, lines in (("<", left), (">", right)):
                for line in lines[at : at + 6]:
                    print(f" {mark} {line}")
            sys.stdout.flush()
    print(f"{alike} walks alike, {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
