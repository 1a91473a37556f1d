"""compare.py AMQP HTTP AMQP HTTP [GROUP...]: the same corners of two brokers, the first a RabbitMQ; what differs is shown. It fails where more
differs in a group than `known` says, and where a group could not be asked."""

import concurrent.futures
import importlib
import pathlib
import re
import sys

import corners

# Each has groups of its own; they are asked in this order.
for module in ("topology", "publishing", "consuming", "queues", "connections", "web"):
    importlib.import_module(module)

KNOWN = pathlib.Path(__file__).with_name("known")


def tidy(text):
    text = re.sub(r"amq\.gen-[\w-]{22}|amq\.gen\.[\w.-]+", "amq.gen-X", str(text))
    text = re.sub(r"amq\.ctag-[\w-]{22}", "amq.ctag-X", text)
    return re.sub(r"(walks\d+|rabbit|posthorn)@[\w.-]+", "NODE", text)


def numbered(lines):
    """What was asked -> the answer; what is asked again gets a number."""
    answers, times = {}, {}
    for what, answer in lines:
        times[what] = times.get(what, 0) + 1
        answers[what, times[what]] = tidy(answer)
    return answers


def main():
    ports = [int(port) for port in sys.argv[1:5]]
    sides = [corners.Side(ports[0], ports[1], "<"), corners.Side(ports[2], ports[3], ">")]
    known = dict(line.split()[:2] for line in KNOWN.read_text().splitlines() if not line.startswith("#"))
    total, bad = 0, False
    for name in sys.argv[5:] or corners.GROUPS:
        for side in sides:
            side.lines.clear()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            left, right = pool.map(lambda side: numbered(corners.run(side, name)), sides)
        total += len({**left, **right})
        differ, unasked, alike = 0, False, {}
        for what in {**left, **right}:
            one, other = left.get(what, "(not asked)"), right.get(what, "(not asked)")
            failed = what[0].startswith("FAILED")
            unasked |= failed
            differ += one != other
            if one != other or failed:
                alike.setdefault((what[0].split("=")[0], one, other), []).append(what[0])
        for (_, one, other), whats in alike.items():
            if "(not asked)" in (one, other) and not whats[0].startswith("FAILED"):
                continue
            print(f"{name}: {', '.join(whats)[:300]}\n < {one[:900]}\n > {other[:900]}")
        wanted = int(known.get(name, 0))
        more = unasked or differ > wanted
        print(f"{name}: {len(left)} / {len(right)} answers, {differ} differ, {wanted} are known{': FAILED' if more else ''}", flush=True)
        bad |= more
    if bad:
        sys.exit(1)
    print(f"{total} answers compared")


if __name__ == "__main__":
    main()
