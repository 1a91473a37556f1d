"""Checks of a scenario: each a function, run in the order of their definition, each reported on one line."""

import os
import signal
import subprocess
import sys
import time
import traceback

PATIENCE = 60  # seconds that one check, or one wait in it, may take


class Checks:
    """`@checks.check` registers a function; `checks.run()` runs all of them and exits."""

    def __init__(self, suite):
        self.suite = suite
        self.registered = []

    def check(self, function):
        self.registered.append(function)
        return function

    def run(self):
        """The names on the command line, or all. Exits with 1 when one failed."""
        wanted = sys.argv[1:]
        passed = failed = 0
        signal.signal(signal.SIGALRM, _out_of_time)
        for function in self.registered:
            name = function.__name__.replace("_", " ")
            if wanted and function.__name__ not in wanted:
                continue
            began = time.monotonic()
            signal.alarm(2 * PATIENCE)
            try:
                function()
            except Exception:
                failed += 1
                print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            else:
                passed += 1
                print(f"ok     {name} ({time.monotonic() - began:.1f} s)", flush=True)
            finally:
                signal.alarm(0)
        print(f"{self.suite}: {passed} passed" + f", {failed} failed" * bool(failed), flush=True)
        sys.exit(1 if failed or not passed else 0)


def _out_of_time(_signal, _frame):
    raise TimeoutError("the check did not end in time")


def until(condition, what):
    """Waits for a condition, which may do the client's own work; returns what it returned."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)
    return value


def node(*arguments):
    """`node start|stop|kill NAME`."""
    subprocess.run([os.environ["NODE"], *arguments], check=True)


def cluster(*arguments):
    """`cluster start`, `cluster node NAME`."""
    script = os.path.join(os.path.dirname(os.environ["NODE"]), "cluster")
    subprocess.run([script, *arguments], check=True)
