"""Where two brokers may differ, each with the words of the standard."""
from walk import Told

MALFORMED = ("DISCONNECT 81", "DISCONNECT 82", "DISCONNECT 94")


def unknown(told):
    """Of a packet identifier that is not in use a server may say so (0x92), or not."""
    if isinstance(told, str) and told.startswith(("PUBREL 92", "PUBCOMP")) and told.split()[-1 if told[3] == "C" else 1] == "92":
        return told.replace("92", "00")
    return told


def merged(all):
    """Where subscriptions overlap a server may send a message once, with the best QoS, or once for each (section 3.3.4)."""
    by_message, out = {}, []
    for told in all:
        if not isinstance(told, Told):
            # One message of QoS 2, or two.
            if told != "PUBREL 00":
                out.append(told)
            continue
        key = (told.topic, told.payload, told.user, told.more)
        qos, retain, ids = by_message.get(key, (0, 0, ()))
        by_message[key] = max(qos, told.qos), max(retain, told.retain), tuple(sorted(ids + told.ids))
    return out + sorted(by_message.items())


def plain(told, overlap):
    # Section 2.2.2.2 says 0x81 of a property in the wrong place, 3.8.3.1 and 3.8.2.1.2 say 0x82 of what mosquitto calls 0x81.
    # A topic alias of 0 may be called a protocol error or an invalid alias (3.3.2.3.4, 3.14.2.1).
    told = {who: ["DISCONNECT 81 or 82" if t in MALFORMED else unknown(t) for t in all] for who, all in told.items()}
    return {who: merged(all) for who, all in told.items()} if overlap else told


def parting(ours, theirs, overlap):
    """The first step at which they are told different things; None: there is none."""
    for at, ((done, mine), (other, yours)) in enumerate(zip(ours, theirs)):
        # A member that is away may be chosen (section 4.8.2); ours says who is lost.
        yours = {k: v for k, v in yours.items() if k != "lost of a group"}
        mine, yours = plain(mine, overlap), plain(yours, overlap)
        # Why a connection ends may be said or not (section 4.13.1).
        for who, all in mine.items():
            if "closed" in all and "DISCONNECT 81 or 82" in all and "closed" in yours.get(who, ()):
                mine[who], yours[who] = ([t for t in a if t != "DISCONNECT 81 or 82"] for a in (all, yours[who]))
        if done != other or mine != yours:
            return at
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs)) - 1


def shown(told):
    def one(t):
        if not isinstance(t, Told):
            return t
        more = " ".join("%s" % (x,) for x in (t.ids, t.user, t.more) if x)
        return "PUBLISH %s %r q%d%s%s %s" % (t.topic, t.payload, t.qos, " retain" * t.retain, " dup" * t.dup, more)
    return {who: [one(t) for t in all] for who, all in told.items()}
