"""sequences.py PORT DIRECTORY [NAME]: byte for byte what mosquitto's tests send to a broker and want from it, but for what REASONS names."""
import glob
import json
import os
import re
import socket
import struct
import sys
import time

PATIENCE = 10  # seconds for an answer
NO_SUBSCRIBERS = b"\x10"  # the reason of a PUBACK or PUBREC

# Where this broker answers otherwise: a pattern of the test's name, one of what it got (as hexadecimal digits, or in words), and why.
REASONS = [
    (r"CONNECT .*Username|CONNECT .*Password", r"got 200[0-9]00(04|86|02|00)|got 20..0086",
     "nobody is called p here, nor is there a user without a name"),
    (r"v5.0   CONNECT", r"still connected: 20..00(81|82|85)", "CONNACK says why (3.1.4, after 3.1.4-1: may)"),
    (r"v5.0   (DISCONNECT|PINGREQ|PINGRESP)", r"still connected: e0..8[12]", "DISCONNECT says why (4.13.1: should)"),
    (r"PINGRESP D[1248]", r"got e0..81.*wants e00182", "flags that are reserved make a packet malformed (2.1.3-1)"),
    (r"DISALLOWED PROPERTIES", r"got e0..81.*wants e00182", "malformed is what a property in the wrong place makes a packet (2.2.2.2)"),
    (r"subscription-identifier=[01-9]", r"got e0..82.*wants 4003", "a client sends no subscription identifier (3.3.4-6)"),
    (r"PUBLISH 30 topic 0", r"got e0..82.*wants e00181", "no topic and no alias is a protocol error (3.3.2.1)"),
    (r"SUBSCRIBE.*(retain handling=3|subscription-identifier=0)", r"got e0..82.*wants e00181", "a protocol error (3.8.3.1, 3.8.2.1.2)"),
    (r"SUBSCRIBE .*(no topic|short 3)|UNSUBSCRIBE.*short 3", r"got e0..82.*wants e00181", "no filter is a protocol error (3.8.3, 3.10.3)"),
    (r"PUBREC", r"got 6203000192, wants 62020001", "nobody knows the packet identifier (3.6.2.1)"),
    (r"PUBREL", r"got 7003000192, wants 70020001", "nobody knows the packet identifier (3.7.2.1)"),
]


def text(value):
    return struct.pack(">H", len(value)) + value


def packet(first, body):
    size, out = len(body), b""
    while True:
        size, low = size >> 7, size & 127
        out += bytes([low | (128 if size else 0)])
        if not size:
            return bytes([first]) + out + body


def connect(client, version):
    name = b"MQIsdp" if version == 3 else b"MQTT"
    return packet(0x10, text(name) + bytes([version, 2, 0, 60]) + (b"\0" if version == 5 else b"") + text(client))


class Ended(Exception):
    pass


def take(peer, n):
    out = b""
    while len(out) < n:
        more = peer.recv(n - len(out))
        if not more:
            raise Ended()
        out += more
    return out


def receive(peer):
    head, size = take(peer, 1), 0
    for shift in range(0, 28, 7):
        byte = take(peer, 1)
        head += byte
        size |= (byte[0] & 127) << shift
        if byte[0] < 128:
            break
    return head + take(peer, size)


def same(got, want):
    """Properties of CONNACK and DISCONNECT are the server's own."""
    if want[0] == 0x20 and len(want) > 4:
        return got[0] == want[0] and got[2:4] == want[2:4]
    if want[0] == 0xE0 == got[0]:
        return (got[2:3] or b"\0") == (want[2:3] or b"\0")
    return got == want


def dial(port):
    peer = socket.create_connection(("127.0.0.1", port))
    peer.settimeout(PATIENCE)
    return peer


def publish(port, message):
    """Somebody else publishes."""
    with dial(port) as peer:
        peer.sendall(connect(b"helper", 4))
        receive(peer)
        qos = message["qos"]
        body = text(message["topic"].encode()) + (b"\0\1" if qos else b"") + message["payload"].encode()
        peer.sendall(packet(0x30 | qos << 1, body))
        if qos:
            receive(peer)
        if qos == 2:
            peer.sendall(b"\x62\2\0\1")
            receive(peer)


def topic_of(data):
    """The topic of a PUBLISH."""
    at = 1
    while data[at] & 128:
        at += 1
    size = struct.unpack(">H", data[at + 1:at + 3])[0]
    return data[at + 3:at + 3 + size]


def await_no_subscriber(port, test):
    """The server may learn only now that the client of the sequence before, which subscribed, is gone. A sequence that wants a
    PUBACK or PUBREC with "no matching subscribers" therefore begins when a publish of a helper gets this answer."""
    packets = [bytes.fromhex(m["payload"].replace(" ", "")) for m in test["msgs"] if m["type"] != "publish"]
    wanted = any(p[:1] in (b"\x40", b"\x50") and p[1:2] == b"\3" and p[4:] == NO_SUBSCRIBERS for p in packets)
    topics = {topic_of(p) for p in packets if p[:1] and p[0] & 0xF0 == 0x30}
    if not wanted:
        return
    with dial(port) as peer:
        peer.sendall(connect(b"helper", 5))
        receive(peer)
        end = time.monotonic() + PATIENCE
        for topic in topics:
            while time.monotonic() < end:
                peer.sendall(packet(0x32, text(topic) + b"\0\1\0"))
                if receive(peer)[4:5] == NO_SUBSCRIBERS:
                    break


def run(port, name, test):
    """What is wrong; None: nothing."""
    with dial(port) as peer:
        try:
            if test.get("connect", True):
                peer.sendall(connect(name.encode(), test.get("ver", 4)))
                receive(peer)
            for message in test["msgs"]:
                if message["type"] == "publish":
                    publish(port, message)
                    continue
                data = bytes.fromhex(message["payload"].replace(" ", ""))
                if message["type"] == "send":
                    peer.sendall(data)
                    continue
                got = receive(peer)
                if not same(got, data):
                    return "got %s, wants %s" % (got.hex(), data.hex())
            if test.get("expect_disconnect", True):
                rest = peer.recv(200)
                return "still connected: %s" % rest.hex() if rest else None
            peer.sendall(b"\xc0\0")
            got = receive(peer)
            return None if got == b"\xd0\0" else "got %s, wants PINGRESP" % got.hex()
        except (Ended, ConnectionError):
            at_its_end = test.get("expect_disconnect", True) and test["msgs"][-1]["type"] == "send"
            return None if at_its_end else "the connection ended early"
        except TimeoutError:
            return "nothing came"


def main():
    port, directory = int(sys.argv[1]), sys.argv[2]
    passed = failed = 0
    excused = {}
    for path in sorted(glob.glob(os.path.join(directory, "%s.json" % (sys.argv[3] if sys.argv[3:] else "*")))):
        for group in json.load(open(path)):
            for test in () if group.get("disable") else group["tests"]:
                name = "%s %s" % (group["group"], test["name"])
                await_no_subscriber(port, test)
                wrong = run(port, name, test)
                if wrong is None:
                    passed += 1
                    continue
                why = next((why for which, what, why in REASONS if re.search(which, name) and re.search(what, wrong)), None)
                if why is None:
                    failed += 1
                    print("FAILED %s: %s" % (name, wrong))
                else:
                    excused[why] = excused.get(why, 0) + 1
    for why, times in excused.items():
        print("%4d differ: %s" % (times, why))
    print("mosquitto-sequences: %d %s" % ((failed, "FAILED") if failed or not passed else (passed, "passed")))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
