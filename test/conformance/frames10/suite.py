"""The scenarios: each is a function, which runs against the server of its thread.

A scenario fails where an answer is not the expected one. Its transcript has the answers, so that those of two servers can be compared.
"""

import concurrent.futures
import time
import traceback

from peer import RECEIVER, Closed, Transcript, use

SCENARIOS = {}
AT_ONCE = 8  # Many scenarios wait for a server that delays an answer.


def check(function):
    """Registers a scenario."""
    assert function.__name__ not in SCENARIOS, function.__name__
    SCENARIOS[function.__name__] = function
    return function


def each(**cases):
    """Registers a function once for each case, with the case as its argument."""

    def register(function):
        for name, case in cases.items():
            def run(case=case):
                function(case)

            run.__name__ = f"{function.__name__}_{name}"
            check(run)
        return function

    return register


class Result:
    """The outcome of a scenario: its error, its transcript and its duration in seconds."""

    def __init__(self, name, address, patience):
        self.name = name
        self.error = None
        self.trace = ""
        began = time.monotonic()
        with use(address, patience, Transcript()) as transcript:
            try:
                SCENARIOS[name]()
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
                self.trace = traceback.format_exc()
        self.lines = transcript.lines
        self.seconds = time.monotonic() - began


def run(address, names=(), patience=15):
    """Runs these scenarios, or all, several at a time; yields their results in order."""
    unknown = set(names) - set(SCENARIOS)
    assert not unknown, f"there are no scenarios {unknown}"
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda name: Result(name, address, patience), names or list(SCENARIOS))


# Expectations that several modules share.


def closed(peer, *conditions):
    """The connection ends. Before its open, a server may leave out the close."""
    try:
        _, body = peer.frame()
        if body.kind == "open":
            _, body = peer.frame()
    except Closed:
        return
    assert body.kind == "close" and body.error, body
    if conditions:
        assert body.error.condition in conditions, body.error
    peer.send("close")
    peer.expect_end_of_socket()


def failed(peer, *conditions):
    """The link, the session or the connection ends with an error; returns the frame."""
    while True:
        _, body = peer.frame()
        if body.kind not in {"flow", "heartbeat", "disposition"}:
            break
    assert body.kind in {"detach", "end", "close"} and body.error, body
    if conditions:
        assert body.error.condition in conditions, body.error
    return body


def with_answers(usual, others, **cases):
    """Cases with the answer that `answered` expects: `usual`, unless `others` has one for the name of the case."""
    assert set(others) <= set(cases), others
    return {name: (others.get(name, usual), case) for name, case in cases.items()}


def answered(peer, wanted):
    """The next frame that is no flow is of this kind, with the condition behind it if it has an error."""
    _, body = peer.frame()
    while body.kind in {"flow", "heartbeat"}:
        _, body = peer.frame()
    got = f"{body.kind} {body.error.condition}" if body.error else body.kind
    assert got == wanted, f"{got} instead of {wanted}"
    return body


def settle(peer, state, first, settled=True, **fields):
    """Sends the state of a delivery to the server."""
    peer.send("disposition", role=RECEIVER, first=first, settled=settled, state=state, **fields)


def until(condition, what):
    """Waits for a condition, which asks the server."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)
