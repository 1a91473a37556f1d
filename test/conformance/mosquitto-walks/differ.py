"""differ.py OURS THEIRS [FIRST [COUNT [STEPS]]]: the same walks against both brokers (ports on 127.0.0.1); prints where they part."""
import concurrent.futures
import sys
import time

import judge
from walk import Walk


def one(seed, ports, steps):
    token = "%x" % time.time_ns()
    walks = [Walk(seed, ("127.0.0.1", port), steps, token) for port in ports]
    ours, theirs = (walk.run() for walk in walks)
    return seed, ours, theirs, walks[0].overlap


def main():
    ports = [int(p) for p in sys.argv[1:3]]
    first, count, steps = ([int(a) for a in sys.argv[3:]] + [1, 200, 40][len(sys.argv) - 3:])
    differ = 0
    with concurrent.futures.ProcessPoolExecutor(6) as pool:
        for seed, ours, theirs, overlap in pool.map(one, range(first, first + count), [ports] * count, [steps] * count):
            parted = judge.parting(ours, theirs, overlap)
            if parted is not None:
                differ += 1
                print("== seed %d parts at step %d: %s" % (seed, parted, ours[parted][0]))
                for at in range(max(0, parted - (200 if count == 1 else 0)), parted):
                    print("   %d %s -> %s" % (at, ours[at][0], judge.shown(ours[at][1])))
                if ours[parted][0] != theirs[parted][0]:
                    print("   theirs did %s" % theirs[parted][0])
                for name, told in (("ours", ours[parted][1]), ("theirs", theirs[parted][1])):
                    other = (theirs if name == "ours" else ours)[parted][1]
                    apart = {who: all for who, all in told.items() if all != other.get(who)}
                    print("   %s: %s" % (name, judge.shown(apart)))
                sys.stdout.flush()
    if differ:
        print("mosquitto-walks: %d of %d differ" % (differ, count))
        return 1
    print("mosquitto-walks: %d passed" % count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
