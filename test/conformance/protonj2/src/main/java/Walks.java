import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.qpid.protonj2.engine.Receiver;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Binary;
import org.apache.qpid.protonj2.test.driver.codec.primitives.DescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Symbol;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedLong;
import org.apache.qpid.protonj2.types.messaging.Accepted;
import org.apache.qpid.protonj2.types.transport.Attach;
import org.apache.qpid.protonj2.types.transport.Begin;
import org.apache.qpid.protonj2.types.transport.Close;
import org.apache.qpid.protonj2.types.transport.Detach;
import org.apache.qpid.protonj2.types.transport.End;
import org.apache.qpid.protonj2.types.transport.Flow;
import org.apache.qpid.protonj2.types.transport.Transfer;

/**
 * Random sequences of frames, most of which are legal in some state. The audit judges every frame of the broker, and in the end the
 * broker answers a close and serves the queues of the walk.
 */
final class Walks {
    private static final int WALKS = 60;
    private static final int STEPS = 400;
    private static final int CHANNELS = 3;
    private static final int HANDLES = 4;
    private static final long MAX = 0xFFFFFFFFL;

    private final Random random;
    private final Peer peer;
    private final List<String> queues;
    private final Queue<Runnable> events = new ConcurrentLinkedQueue<>();
    private final Map<Integer, Channel> channels = new HashMap<>();
    private boolean isClosed;

    /** A session as the client sees it. */
    private static final class Channel {
        private long nextDelivery;
        /** The delivery that is not complete, by handle. */
        private final Map<Long, Long> partial = new HashMap<>();
        private final Map<Long, String> names = new HashMap<>();
        /** Names by the handles of the broker. */
        private final Map<Long, String> brokerNames = new HashMap<>();
        private long received;
        private Long nextIncoming;
    }

    private Walks(long seed, Peer peer, List<String> queues) {
        this.random = new Random(seed);
        this.peer = peer;
        this.queues = queues;
    }

    static void register(Suite suite) {
        suite.group("walk");
        for (long seed = 1; seed <= WALKS; seed++) {
            long number = seed;
            suite.check("seed " + number, () -> run(number));
        }
    }

    private static void run(long seed) throws Exception {
        List<String> queues = List.of(Peer.filled(20), Broker.queue("quorum"), Broker.queue("stream"));
        Random random = new Random(-seed);
        Peer peer = Peer.opened(open -> {
            if (random.nextBoolean()) {
                open.withMaxFrameSize(random.nextBoolean() ? 512 : 4096);
            }
            open.withChannelMax(CHANNELS);
        });
        try {
            Walks walk = new Walks(seed, peer, queues);
            peer.ignoreFrames(walk::observe);
            walk.walk();
        } finally {
            peer.close();
        }
        for (String queue : queues) {
            drain(queue);
            Broker.delete(queue);
        }
    }

    /** Receives every message that the queue has. */
    private static void drain(String queue) throws Exception {
        try (EngineClient client = new EngineClient()) {
            Receiver receiver = client.receiver(client.session(), "r", queue);
            receiver.deliveryReadHandler(delivery -> {
                if (!delivery.isPartial()) {
                    delivery.readAll();
                    delivery.disposition(Accepted.getInstance(), true);
                }
            });
            receiver.addCredit(100_000);
            receiver.drain();
            client.until("the queue is drained", () -> !receiver.isDraining());
            client.finish();
        }
    }

    /** Notes a frame of the broker; the thread of the walk reacts to it. */
    private void observe(int channel, Object performative) {
        events.add(() -> react(channel, performative));
    }

    private void react(int channel, Object performative) {
        // The broker uses the channel of the client, unless it is in use.
        Channel session = channels.get(channel);
        if (performative instanceof Close) {
            isClosed = true;
        } else if (performative instanceof End) {
            if (channels.remove(channel) != null) {
                peer.send(channel, Peer.END);
            }
        } else if (session == null) {
            return;
        } else if (performative instanceof Begin begin) {
            session.nextIncoming = begin.getNextOutgoingId();
        } else if (performative instanceof Transfer) {
            session.received++;
        } else if (performative instanceof Attach attach) {
            session.brokerNames.put(attach.getHandle(), attach.getName());
        } else if (performative instanceof Detach detach) {
            String name = session.brokerNames.remove(detach.getHandle());
            for (long handle : List.copyOf(session.names.keySet())) {
                if (session.names.get(handle).equals(name)) {
                    detach(channel, session, handle);
                }
            }
        } else if (performative instanceof Flow flow && flow.getEcho()) {
            flow(channel, session);
        }
    }

    private void walk() throws Exception {
        for (int step = 0; step < STEPS && !isClosed && peer.isConnected(); step++) {
            act();
            if (random.nextInt(8) == 0) {
                // Gives the broker time to answer, so that the walk sees some of its states.
                Thread.yield();
            }
            for (Runnable event = events.poll(); event != null; event = events.poll()) {
                event.run();
            }
        }
        if (peer.isConnected()) {
            peer.send(0, Peer.CLOSE);
        }
        peer.awaitEndOfSocket();
    }

    private void act() {
        int channel = random.nextInt(CHANNELS);
        Channel session = channels.get(channel);
        if (session == null) {
            channels.put(channel, new Channel());
            peer.send(channel, Peer.BEGIN, null, Peer.uint(0), Peer.uint(pick(0, 1, 3, 1000, MAX)), Peer.uint(1000), Peer.uint(pick(HANDLES, MAX)));
            return;
        }
        int choice = random.nextInt(1000);
        if (choice < 200 || session.names.isEmpty() && choice < 950) {
            attach(channel, session);
        } else if (choice < 420) {
            flow(channel, session);
        } else if (choice < 700) {
            transfer(channel, session);
        } else if (choice < 860) {
            disposition(channel, session);
        } else if (choice < 950) {
            detach(channel, session, handle(session));
        } else if (choice < 970) {
            channels.remove(channel);
            peer.send(channel, Peer.END);
        } else if (choice < 996) {
            peer.remoteEmptyFrame().now();
        } else if (choice == 996) {
            peer.send(channel, Peer.BEGIN, null, Peer.uint(0), Peer.uint(1), Peer.uint(1));
        } else if (choice == 997) {
            peer.send(channel, Peer.OPEN, "again");
        } else if (choice == 998) {
            byte[] noise = new byte[random.nextInt(40)];
            random.nextBytes(noise);
            peer.frame(0, channel, noise);
        } else {
            peer.send(channel, Peer.FLOW, Peer.uint(Integer.toUnsignedLong(random.nextInt())), Peer.uint(1), Peer.uint(0), Peer.uint(1));
        }
    }

    private long pick(long... values) {
        return values[random.nextInt(values.length)];
    }

    /** Usually a handle with a link. */
    private long handle(Channel session) {
        if (!session.names.isEmpty() && random.nextInt(200) > 0) {
            return List.copyOf(session.names.keySet()).get(random.nextInt(session.names.size()));
        }
        return random.nextInt(HANDLES);
    }

    private void detach(int channel, Channel session, long handle) {
        session.partial.remove(handle);
        session.names.remove(handle);
        peer.send(channel, Peer.DETACH, Peer.uint(handle), random.nextBoolean());
    }

    private void attach(int channel, Channel session) {
        long handle = random.nextInt(HANDLES);
        if (session.names.containsKey(handle) && random.nextInt(200) > 0) {
            return;
        }
        String name = random.nextInt(20) > 0 ? "link-" + handle : "link-" + random.nextInt(HANDLES);
        session.names.put(handle, name);
        session.partial.remove(handle);
        boolean receives = handle % 2 == 0;
        String address = switch (random.nextInt(12)) {
            case 0 -> "/queues/there-is-none";
            case 1 -> receives ? "/exchanges/amq.fanout" : "/exchanges/amq.direct/nowhere";
            case 2 -> "wrong";
            default -> Peer.address(queues.get(random.nextInt(queues.size())));
        };
        DescribedType source = receives ? Peer.described(Peer.SOURCE, address) : Peer.described(Peer.SOURCE);
        DescribedType target = receives ? Peer.described(Peer.TARGET) : Peer.described(Peer.TARGET, address);
        if (!receives && random.nextInt(6) == 0) {
            target = Peer.described(0x30);
        } else if (random.nextInt(15) == 0) {
            Symbol capability = Peer.symbol("temporary-queue");
            source = receives ? Peer.described(Peer.SOURCE, null, null, null, null, true, null, null, null, null, null, capability) : source;
            target = receives ? target : Peer.described(Peer.TARGET, null, null, null, null, true, null, capability);
        }
        peer.send(channel, Peer.ATTACH, name, Peer.uint(handle), receives, Peer.ubyte(random.nextInt(3)), Peer.ubyte(random.nextInt(2)), source, target,
                null, random.nextInt(30) == 0 ? true : null, receives ? null : Peer.uint(0),
                random.nextInt(10) == 0 ? UnsignedLong.valueOf(pick(10, 100, 10_000)) : null);
    }

    private void flow(int channel, Channel session) {
        long count = random.nextInt(4) > 0 ? session.received : pick(0, 1, 5, MAX, 0x80000000L);
        Object next = session.nextIncoming == null || random.nextInt(3) == 0 ? null
                : Peer.uint((session.nextIncoming + random.nextInt((int) session.received + 1)) & MAX);
        boolean isOfLink = random.nextInt(5) > 0 && !session.names.isEmpty();
        peer.send(channel, Peer.FLOW, next, Peer.uint(pick(0, 1, 5, 1000, 1000, MAX)), Peer.uint(0), Peer.uint(1000),
                isOfLink ? Peer.uint(handle(session)) : null, isOfLink && random.nextBoolean() ? Peer.uint(count) : null,
                isOfLink ? Peer.uint(pick(0, 1, 2, 10, 1000, MAX)) : null, null, random.nextInt(4) == 0, random.nextInt(4) == 0);
    }

    private void transfer(int channel, Channel session) {
        long handle = handle(session);
        if (handle % 2 == 0 && random.nextInt(100) > 0) {
            return;
        }
        Long unfinished = session.partial.get(handle);
        long id = unfinished != null ? unfinished : session.nextDelivery++;
        if (random.nextInt(200) == 0) {
            id = Integer.toUnsignedLong(random.nextInt());
        }
        boolean more = random.nextInt(3) == 0;
        boolean isAborted = unfinished != null && random.nextInt(4) == 0;
        Object state = null;
        byte[] payload = Peer.text("x".repeat((int) pick(1, 10, 400, 3000)) + id);
        if (unfinished != null) {
            payload = new byte[0];
        }
        if (random.nextInt(10) == 0) {
            payload = random.nextBoolean() ? Peer.hex("00 53 77 00 53 31 45") : Peer.hex("00 53 77 00 53 32 c0 0c 02 a0 08 0000000000000001 42");
        }
        if (random.nextInt(20) == 0) {
            state = Peer.described(0x34, new Binary(new byte[] {0, 0, 0, 0, 0, 0, 0, (byte) (1 + random.nextInt(3))}));
        }
        if (more && !isAborted) {
            session.partial.put(handle, id);
        } else {
            session.partial.remove(handle);
        }
        List<Object> fields = new ArrayList<>(Arrays.asList(Peer.uint(handle), Peer.uint(id), new Binary(Peer.tag(id)),
                Peer.uint(0), random.nextInt(3) == 0, more, null, state, null, isAborted, random.nextBoolean()));
        peer.send(channel, UnsignedLong.valueOf(Peer.TRANSFER), fields, payload);
    }

    private void disposition(int channel, Channel session) {
        long first = random.nextInt(3) > 0 ? random.nextInt((int) session.received + 1) : pick(0, 5, MAX);
        Object last = random.nextBoolean() ? null : Peer.uint((first + pick(0, 1, 5, 1000)) & MAX);
        DescribedType state = switch (random.nextInt(8)) {
            case 0 -> null;
            case 1 -> Peer.described(0x25);
            case 2 -> Peer.described(0x26);
            case 3 -> Peer.described(0x27, true, random.nextBoolean(), Map.of(Peer.symbol("x-opt-a"), 1));
            case 4 -> Peer.described(0x23, Peer.uint(0), UnsignedLong.valueOf(0));
            case 5 -> Peer.described(0x34, new Binary(new byte[] {0, 0, 0, 0, 0, 0, 0, 1}), Peer.described(0x24));
            default -> Peer.described(0x24);
        };
        peer.send(channel, Peer.DISPOSITION, random.nextInt(10) > 0, Peer.uint(first), last, random.nextBoolean(), state);
    }
}
