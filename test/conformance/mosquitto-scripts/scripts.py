"""scripts.py DIRECTORY EXCEPTIONS: runs mosquitto's tests there, each on ports of its own."""
import glob
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# Bridges (06), access lists and plugins (09, 14) and the database (15) are mosquitto's own.
NUMBERS = "01 02 03 04 05 07 08 10 11 12 13"
AT_ONCE = 5
PATIENCE = 300  # seconds


def ports_of(directory):
    """How many each test wants, from mosquitto's own list."""
    listed = open(os.path.join(directory, "test.py")).read()
    return {name: int(ports) for ports, name in re.findall(r"\((\d), '\./(.*?)'\)", listed)}


def run(number, path, wanted):
    """What is wrong; None: nothing."""
    ports = [str(20000 + 4 * number + n) for n in range(wanted)]
    command = [sys.executable, os.path.basename(path), *ports]
    try:
        done = subprocess.run(command, cwd=os.path.dirname(path), capture_output=True, text=True, timeout=PATIENCE, errors="replace")
    except subprocess.TimeoutExpired:
        return "still running after %d s" % PATIENCE
    return None if done.returncode == 0 else done.stdout + done.stderr


def told(wrong):
    """What a test said, without what its nodes did."""
    return [line for line in wrong.splitlines() if line.strip() and " INFO " not in line][-20:]


def main():
    directory, exceptions = sys.argv[1], {}
    for line in open(sys.argv[2]):
        if line.strip() and not line.startswith("#"):
            name, why = line.strip().split(" ", 1)
            exceptions[name] = why
    numbers = os.environ.get("NUMBERS", NUMBERS).split()
    paths = sorted(path for n in numbers for path in glob.glob(os.path.join(directory, n + "-*.py")))
    paths = [path for path in paths if not path.endswith("-helper.py")]
    # Not run, for it would pass or not.
    paths = [path for path in paths if "-" + os.path.basename(path) not in exceptions]
    wanted = os.environ.get("TESTS", "").split()
    paths = [path for path in paths if not wanted or os.path.basename(path) in wanted]
    listed = ports_of(directory)
    wants = [listed.get(os.path.basename(path), 1) for path in paths]
    failed = passed = excused = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        first = list(pool.map(run, range(len(paths)), paths, wants))
        for number, (path, wrong) in enumerate(zip(paths, first)):
            name = os.path.basename(path)
            why = exceptions.get(name)
            if wrong is not None and why is None:
                # They give a node some seconds for an answer: once more, alone.
                wrong = run(number, path, wants[number])
            if wrong is None and why is None:
                passed += 1
            elif wrong is None:
                failed += 1
                print("FAILED %s passes, though it is listed: %s" % (name, why))
            elif why is None:
                failed += 1
                print("FAILED %s\n    %s" % (name, "\n    ".join(told(wrong))))
            else:
                excused += 1
                print("differs %s: %s" % (name, why))
    print("%d differ" % excused)
    print("mosquitto-scripts: %d %s" % ((failed, "FAILED") if failed or not passed else (passed, "passed")))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
