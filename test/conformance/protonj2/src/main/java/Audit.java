import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.function.BiConsumer;
import org.apache.qpid.protonj2.buffer.ProtonBuffer;
import org.apache.qpid.protonj2.buffer.ProtonBufferAllocator;
import org.apache.qpid.protonj2.codec.CodecFactory;
import org.apache.qpid.protonj2.codec.Decoder;
import org.apache.qpid.protonj2.types.messaging.Section;
import org.apache.qpid.protonj2.types.security.SaslOutcome;
import org.apache.qpid.protonj2.types.transport.Attach;
import org.apache.qpid.protonj2.types.transport.Begin;
import org.apache.qpid.protonj2.types.transport.Close;
import org.apache.qpid.protonj2.types.transport.Detach;
import org.apache.qpid.protonj2.types.transport.Disposition;
import org.apache.qpid.protonj2.types.transport.End;
import org.apache.qpid.protonj2.types.transport.Flow;
import org.apache.qpid.protonj2.types.transport.Open;
import org.apache.qpid.protonj2.types.transport.Performative;
import org.apache.qpid.protonj2.types.transport.Role;
import org.apache.qpid.protonj2.types.transport.SenderSettleMode;
import org.apache.qpid.protonj2.types.transport.Transfer;

/**
 * Judges each frame of the broker with the codec of ProtonJ2's engine, which is another one than that of the test driver, and with the
 * rules of the standard for channels, handles, delivery ids, windows and credit. The frames of the client are read for what they permit;
 * those that the codec does not accept permit nothing.
 */
final class Audit {
    /** Frames that the text of a fault shows. */
    private static final int MAX_TRACE = 50;
    private static final byte[] MAGIC = {'A', 'M', 'Q', 'P'};
    /** Bytes of a protocol header, and of the header of a frame. */
    static final int HEADER_SIZE = 8;
    /** Largest frame of the SASL layer (part 5, 5.3.1). */
    private static final int MAX_SASL_FRAME = 512;
    /** Longest delivery tag (part 2, 2.8.7). */
    private static final int MAX_TAG = 32;
    /** Deliveries that one disposition of the broker may cover in these scenarios. */
    private static final int MAX_RANGE = 100_000;

    private final Stream received = new Stream(true);
    private final Stream sent = new Stream(false);
    /** By the channel of the client, and by that of the broker. */
    private final Map<Integer, SessionState> ours = new HashMap<>();
    private final Map<Integer, SessionState> theirs = new HashMap<>();
    /** Sessions whose begin the broker has not answered, in order, by the channel of the client. */
    private final Map<Integer, Queue<SessionState>> beginning = new HashMap<>();
    private long maxFrameSize = Long.MAX_VALUE;
    private int channelMax = 0xFFFF;
    private boolean isHeaderDue = true;
    private boolean isOpen;
    private boolean isClosed;
    /** A frame of the client, perhaps an attach, did not decode. */
    private boolean isPermitUnknown;
    /** The last frames of both peers. */
    private final Queue<TracedFrame> frames = new ArrayDeque<>();
    private String fault;
    private BiConsumer<Integer, Object> observer = (channel, performative) -> {};

    private record TracedFrame(boolean isBroker, int channel, Object performative) {
        @Override
        public String toString() {
            return "\n  " + (isBroker ? "< " : "> ") + channel + " " + performative;
        }
    }

    /** A session of both peers. */
    private static final class SessionState {
        private long window;
        private long handleMax = 0xFFFFFFFFL;
        /** Transfer id of the first and of the next transfer of the broker. */
        private int firstTransfer;
        private int nextTransfer;
        /** Flows before the begin of the broker is known count from its first transfer. */
        private final Grant windows = new Grant();
        private long earlyWindow;
        private Integer nextDelivery;
        private final Map<Long, LinkState> theirs = new HashMap<>();
        private final Map<Long, Grant> byHandle = new HashMap<>();
        private final Map<String, Grant> byName = new HashMap<>();
        private final Set<Integer> sentDeliveries = new HashSet<>();
        private final Set<Integer> receivedDeliveries = new HashSet<>();
    }

    /** What the client granted: a number of steps from a count. Steps may be on their way when it takes some back, so each grant counts. */
    private static final class Grant {
        private final Map<Integer, Long> stepsByCount = new HashMap<>();

        void add(long count, long steps) {
            stepsByCount.merge((int) count, steps, Math::max);
        }

        /** Returns true if a grant allows this count to be reached. A client may also claim counts that are ahead of the broker's. */
        boolean allows(int count) {
            return stepsByCount.entrySet().stream().anyMatch(grant -> grant.getKey() - count > 0
                    || Integer.toUnsignedLong(count - grant.getKey()) <= grant.getValue());
        }
    }

    /** An end of a link at the broker. */
    private static final class LinkState {
        private String name;
        private boolean isSender;
        private SenderSettleMode mode;
        private int deliveryCount;
        private Integer delivery;
        private ByteArrayOutputStream payload;
    }

    synchronized void received(ByteBuffer bytes) {
        received.add(bytes);
    }

    synchronized void sent(ByteBuffer bytes) {
        sent.add(bytes);
    }

    /** Passes each performative of the broker on with its channel. */
    synchronized void observe(BiConsumer<Integer, Object> observer) {
        this.observer = observer;
    }

    /** Fails if a frame of the broker was wrong. */
    synchronized void verify() {
        if (fault != null) {
            throw new AssertionError("the audit found: " + fault);
        }
    }

    private void require(boolean condition, String rule, Object... context) {
        if (!condition && fault == null) {
            StringBuilder text = new StringBuilder(rule);
            for (Object part : context) {
                text.append(", ").append(part);
            }
            frames.forEach(text::append);
            fault = text.toString();
        }
    }

    /** The size of the protocol header or frame at this place. */
    static int sizeAt(byte[] bytes, int at) {
        if (Arrays.equals(bytes, at, at + MAGIC.length, MAGIC, 0, MAGIC.length)) {
            return HEADER_SIZE;
        }
        return ByteBuffer.wrap(bytes, at, Integer.BYTES).getInt();
    }

    /** Splits bytes into headers and frames. */
    private final class Stream {
        private final boolean isBroker;
        private byte[] rest = {};
        private boolean isBroken;

        Stream(boolean isBroker) {
            this.isBroker = isBroker;
        }

        void add(ByteBuffer bytes) {
            byte[] all = new byte[rest.length + bytes.remaining()];
            System.arraycopy(rest, 0, all, 0, rest.length);
            bytes.get(all, rest.length, bytes.remaining());
            int at = 0;
            while (!isBroken && all.length - at >= HEADER_SIZE) {
                int size = sizeAt(all, at);
                if (size < HEADER_SIZE) {
                    isBroken = true;
                    require(!isBroker, "a frame has at least 8 bytes");
                    break;
                }
                if (all.length - at < size) {
                    break;
                }
                read(all, at, size);
                at += size;
            }
            rest = Arrays.copyOfRange(all, at, all.length);
        }

        private void read(byte[] all, int at, int size) {
            if (all[at] == MAGIC[0]) {
                if (isBroker) {
                    require(isHeaderDue, "a header comes first and after the SASL outcome only");
                    isHeaderDue = false;
                }
                return;
            }
            ByteBuffer frame = ByteBuffer.wrap(all, at, size).slice();
            int offset = (frame.get(4) & 0xFF) * 4;
            int type = frame.get(5);
            int channel = frame.getShort(6) & 0xFFFF;
            if (isBroker) {
                require(offset == HEADER_SIZE, "no frame of the broker has an extended header");
                require(type == 0 || type == 1, "a frame has type 0 or 1", type);
                require(size <= (type == 1 ? MAX_SASL_FRAME : maxFrameSize), "a frame fits in max-frame-size", size);
                require(!isClosed, "no frame follows the close");
            }
            if (offset >= size || offset < HEADER_SIZE) {
                require(!isBroker || offset == size && channel == 0, "an empty frame is on channel 0");
                return;
            }
            ProtonBuffer body = ProtonBufferAllocator.defaultAllocator().copy(all, at + offset, size - offset);
            Object value;
            try {
                Decoder decoder = type == 1 ? CodecFactory.getDefaultSaslDecoder() : CodecFactory.getDefaultDecoder();
                value = decoder.readObject(body, decoder.newDecoderState());
            } catch (RuntimeException | StackOverflowError error) {
                require(!isBroker, "a frame decodes: " + error);
                isPermitUnknown |= !isBroker;
                return;
            }
            frames.add(new TracedFrame(isBroker, channel, value));
            if (frames.size() > MAX_TRACE) {
                frames.remove();
            }
            if (isBroker) {
                judge(type, channel, value, body);
                observer.accept(channel, value);
            } else {
                permit(channel, value);
            }
        }
    }

    /** Takes over the limits in a frame of the client. */
    private void permit(int channel, Object value) {
        SessionState session = ours.get(channel);
        if (value instanceof Open open) {
            maxFrameSize = open.hasMaxFrameSize() ? Math.max(open.getMaxFrameSize(), 512) : Long.MAX_VALUE;
            channelMax = open.hasChannelMax() ? open.getChannelMax() : 0xFFFF;
        } else if (value instanceof Begin begin) {
            session = new SessionState();
            session.window = begin.getIncomingWindow();
            session.handleMax = begin.hasHandleMax() ? begin.getHandleMax() : 0xFFFFFFFFL;
            ours.put(channel, session);
            beginning.computeIfAbsent(channel, number -> new ArrayDeque<>()).add(session);
        } else if (session == null) {
            return;
        } else if (value instanceof Attach attach) {
            // The earlier link with the name may still have deliveries on their way.
            Grant grant = session.byName.computeIfAbsent(key(attach.getName(), attach.getRole() == Role.RECEIVER), name -> new Grant());
            session.byHandle.put(attach.getHandle(), grant);
        } else if (value instanceof Flow flow) {
            if (flow.hasNextIncomingId()) {
                session.windows.add(flow.getNextIncomingId(), flow.getIncomingWindow());
            } else {
                session.windows.add(session.firstTransfer, flow.getIncomingWindow());
                session.earlyWindow = Math.max(session.earlyWindow, flow.getIncomingWindow());
            }
            Grant grant = flow.hasHandle() ? session.byHandle.get(flow.getHandle()) : null;
            if (grant != null && flow.hasLinkCredit()) {
                grant.add(flow.hasDeliveryCount() ? flow.getDeliveryCount() : 0, flow.getLinkCredit());
            }
        } else if (value instanceof Transfer transfer && transfer.hasDeliveryId()) {
            session.sentDeliveries.add((int) transfer.getDeliveryId());
        }
    }

    private static String key(String name, boolean brokerSends) {
        return (brokerSends ? "to the client: " : "to the broker: ") + name;
    }

    private void judge(int type, int channel, Object value, ProtonBuffer rest) {
        if (type == 1) {
            require(!isOpen && channel == 0, "SASL frames come before the open, on channel 0", value);
            isHeaderDue |= value instanceof SaslOutcome;
            return;
        }
        require(value instanceof Performative, "a frame has a performative", value);
        require(value instanceof Transfer || rest.getReadableBytes() == 0, "only transfers have a payload", value);
        if (value instanceof Open) {
            require(!isOpen && channel == 0, "the open comes once, on channel 0");
            isOpen = true;
            return;
        }
        require(isOpen, "the open comes first", value);
        if (value instanceof Close) {
            require(channel == 0, "the close is on channel 0");
            isClosed = true;
        } else if (value instanceof Begin begin) {
            require(channel <= channelMax, "channels are within channel-max", channel);
            Queue<SessionState> sessions = begin.hasRemoteChannel() ? beginning.get(begin.getRemoteChannel()) : null;
            SessionState session = sessions == null ? null : sessions.poll();
            require(session != null && !theirs.containsKey(channel), "a begin answers one of the client, on a free channel", begin);
            if (session != null) {
                session.firstTransfer = (int) begin.getNextOutgoingId();
                session.nextTransfer = session.firstTransfer;
                session.windows.add(session.firstTransfer, Math.max(session.window, session.earlyWindow));
                theirs.put(channel, session);
            }
        } else if (value instanceof End) {
            require(theirs.remove(channel) != null, "an end is on a channel with a session", channel);
        } else {
            SessionState session = theirs.get(channel);
            require(session != null, "frames are on channels with a session", channel, value);
            if (session != null) {
                judge(session, value, rest);
            }
        }
    }

    private void judge(SessionState session, Object value, ProtonBuffer rest) {
        if (value instanceof Attach attach) {
            LinkState link = new LinkState();
            link.name = attach.getName();
            link.isSender = attach.getRole() == Role.SENDER;
            link.mode = attach.getSenderSettleMode();
            link.deliveryCount = (int) attach.getInitialDeliveryCount();
            require(attach.hasName() && attach.hasHandle() && attach.hasRole(), "an attach has its mandatory fields", attach);
            require(!link.isSender || attach.hasInitialDeliveryCount(), "an attach of a sender has a delivery count", attach);
            require(attach.getHandle() <= session.handleMax, "handles are within handle-max", attach);
            require(session.theirs.put(attach.getHandle(), link) == null, "handles are free", attach);
            require(isPermitUnknown || session.byName.containsKey(key(link.name, link.isSender)), "an attach answers one of the client", attach);
        } else if (value instanceof Detach detach) {
            require(session.theirs.remove(detach.getHandle()) != null, "a detach has the handle of a link", detach);
        } else if (value instanceof Flow flow) {
            LinkState link = flow.hasHandle() ? session.theirs.get(flow.getHandle()) : null;
            require(!flow.hasHandle() || link != null, "a flow has the handle of a link", flow);
            require(flow.hasNextIncomingId(), "a flow after the begin has next-incoming-id", flow);
            require((int) flow.getNextOutgoingId() == session.nextTransfer, "next-outgoing-id is the id of the next transfer", flow);
            if (link != null && link.isSender) {
                require(flow.hasDeliveryCount() && flow.hasLinkCredit(), "a flow of a sender has its count and credit", flow);
                link.deliveryCount = (int) flow.getDeliveryCount();
                requireCredit(session, link, flow);
            }
        } else if (value instanceof Transfer transfer) {
            judge(session, transfer, rest);
        } else if (value instanceof Disposition disposition) {
            Set<Integer> known = disposition.getRole() == Role.RECEIVER ? session.sentDeliveries : session.receivedDeliveries;
            int first = (int) disposition.getFirst();
            int count = disposition.hasLast() ? (int) disposition.getLast() - first + 1 : 1;
            require(count > 0 && count < MAX_RANGE, "a disposition has a range of ids", disposition);
            for (int i = 0; i < Math.min(count, MAX_RANGE); i++) {
                boolean isKnown = disposition.getSettled() ? known.remove(first + i) : known.contains(first + i);
                // A range of the sender may have settled deliveries inside.
                isKnown |= disposition.getRole() == Role.SENDER && i > 0 && i < count - 1;
                require(isPermitUnknown || isKnown, "a disposition concerns deliveries that the broker has not settled", disposition);
            }
        } else {
            require(false, "the performative belongs to a session", value);
        }
    }

    private void requireCredit(SessionState session, LinkState link, Object frame) {
        Grant grant = session.byName.get(key(link.name, true));
        require(isPermitUnknown || link.deliveryCount == 0 || grant != null && grant.allows(link.deliveryCount),
                "deliveries are within the credit", frame);
    }

    private void judge(SessionState session, Transfer transfer, ProtonBuffer payload) {
        session.nextTransfer++;
        require(isPermitUnknown || session.windows.allows(session.nextTransfer), "transfers are within the incoming window", transfer);
        LinkState link = session.theirs.get(transfer.getHandle());
        require(link != null && link.isSender, "a transfer has the handle of a sending link", transfer);
        if (link == null) {
            return;
        }
        if (link.delivery == null) {
            require(transfer.hasDeliveryId() && transfer.hasDeliveryTag(), "the first transfer has a delivery id and a tag", transfer);
            link.delivery = (int) transfer.getDeliveryId();
            link.payload = new ByteArrayOutputStream();
            int tag = transfer.hasDeliveryTag() ? transfer.getDeliveryTag().tagLength() : 0;
            require(tag <= MAX_TAG, "a delivery tag has at most 32 bytes", transfer);
            require(session.nextDelivery == null || session.nextDelivery.equals(link.delivery), "delivery ids are consecutive", transfer);
            session.nextDelivery = link.delivery + 1;
            session.receivedDeliveries.add(link.delivery);
            link.deliveryCount++;
            requireCredit(session, link, transfer);
        }
        require(!transfer.hasDeliveryId() || (int) transfer.getDeliveryId() == link.delivery, "transfers of a delivery have its id", transfer);
        boolean isSettled = transfer.hasSettled() && transfer.getSettled();
        require(link.mode != SenderSettleMode.UNSETTLED || !isSettled, "deliveries of a link of mode unsettled are unsettled", transfer);
        byte[] bytes = new byte[payload.getReadableBytes()];
        payload.readBytes(bytes, 0, bytes.length);
        link.payload.writeBytes(bytes);
        if (transfer.getAborted()) {
            link.delivery = null;
        } else if (!transfer.getMore()) {
            requireMessage(link.payload.toByteArray());
            link.delivery = null;
        }
    }

    /** A message is a sequence of sections in their order (part 3, 3.2). */
    private void requireMessage(byte[] message) {
        ProtonBuffer buffer = ProtonBufferAllocator.defaultAllocator().copy(message);
        Decoder decoder = CodecFactory.getDefaultDecoder();
        int last = -1;
        try {
            while (buffer.getReadableBytes() > 0) {
                Section<?> section = decoder.readObject(buffer, decoder.newDecoderState(), Section.class);
                int order = order(section);
                require(order > last || order == last && section.getType() != Section.SectionType.AmqpValue && order == BODY,
                        "sections are in order", section.getType());
                last = order;
            }
        } catch (RuntimeException error) {
            require(false, "a message decodes: " + error);
        }
        require(last >= BODY, "a message has a body");
    }

    private static final int BODY = 5;

    private static int order(Section<?> section) {
        return switch (section.getType()) {
            case Header -> 0;
            case DeliveryAnnotations -> 1;
            case MessageAnnotations -> 2;
            case Properties -> 3;
            case ApplicationProperties -> 4;
            case Data, AmqpSequence, AmqpValue -> BODY;
            case Footer -> 6;
        };
    }
}
