"""Frames of AMQP 1.0 and the answers of the server: what is allowed, and what ends a link, a session or the connection.

Section numbers are those of the OASIS standard, part 2 (transport) unless another part is named. Where the standard leaves the
answer open, the expectation is that of RabbitMQ 4.3.
"""

import importlib
import os
import sys

import suite

for module in ("transport", "sessions", "links", "transfers", "deliveries", "messages", "filters", "addresses", "management"):
    importlib.import_module(module)


def main():
    passed = failed = 0
    for result in suite.run(os.environ.get("AMQP", "127.0.0.1:5672,15672"), sys.argv[1:]):
        name = result.name.replace("_", " ")
        if result.error:
            failed += 1
            print(f"FAILED {name}\n{result.trace}", flush=True)
        else:
            passed += 1
            print(f"ok     {name} ({result.seconds:.1f} s)", flush=True)
    print(f"frames10: {passed} passed" + f", {failed} failed" * bool(failed), flush=True)
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
