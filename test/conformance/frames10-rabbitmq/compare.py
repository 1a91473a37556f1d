"""compare.py RABBITMQ NODE [SCENARIO...]: runs the scenarios of frames10 against a RabbitMQ and a node, and compares the answers.

An address is HOST:AMQP_PORT,MANAGEMENT_PORT. It prints the scenarios whose answers differ. It fails unless these are the scenarios in
`known`, or where the node does not give the answers that a scenario expects.
"""

import concurrent.futures
import pathlib
import sys

import scenario  # noqa: F401 registers the scenarios
import suite

KNOWN = pathlib.Path(__file__).with_name("known")
PATIENCE = 8  # seconds for one answer


def known():
    """Name of a scenario -> the reason why its answers differ. A name that ends with ? may differ or not."""
    lines = [line for line in KNOWN.read_text().splitlines() if line and not line.startswith("#")]
    out = dict(line.split(" # ", 1) for line in lines)
    assert len(out) == len(lines), "known names a scenario twice"
    return out


def outcome(result):
    """The transcript with the error at its end."""
    return result.lines + ([f"not as expected: {result.error}"] if result.error else [])


def show(name, left, right):
    """Prints the answers of both servers. Equal lines have no mark."""
    print(f"{name}")
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    for line in left[max(0, shared - 2) : shared]:
        print(f"   {line[:300]}")
    for mark, lines in (("<", left), (">", right)):
        for line in lines[shared:] or ["(nothing)"]:
            print(f" {mark} {line[:900]}")


def main():
    addresses, names = sys.argv[1:3], sys.argv[3:]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        left, right = pool.map(lambda address: list(suite.run(address, names, PATIENCE)), addresses)
    reasons, differ, bad = known(), [], []
    for one, other in zip(left, right):
        name = one.name
        if other.error:
            bad.append(f"{name}: the node fails: {other.error}")
        is_listed = name in reasons or f"{name}?" in reasons
        if outcome(one) != outcome(other):
            differ.append(name)
            show(name, outcome(one), outcome(other))
            if not is_listed:
                bad.append(f"{name}: the answers differ, and `known` does not list it")
        elif name in reasons:
            bad.append(f"{name}: the answers are equal, and `known` lists it")
    if not names:
        bad += [f"{name}: `known` lists it, and there is no such scenario" for name in reasons if name.rstrip("?") not in suite.SCENARIOS]
    print(f"{len(left)} scenarios, {len(differ)} differ, {len(reasons)} are known")
    if bad:
        print("\n".join(f"FAILED {line}" for line in bad))
        sys.exit(1)
    print(f"frames10-rabbitmq: {len(left)} passed")


if __name__ == "__main__":
    main()
