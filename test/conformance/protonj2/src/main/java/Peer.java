import static org.hamcrest.Matchers.anyOf;
import static org.hamcrest.Matchers.equalTo;
import static org.hamcrest.Matchers.greaterThan;
import static org.hamcrest.Matchers.hasItem;
import static org.hamcrest.Matchers.notNullValue;
import static org.hamcrest.Matchers.nullValue;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import org.apache.qpid.protonj2.test.driver.AMQPTestDriver;
import org.apache.qpid.protonj2.test.driver.ProtonTestClient;
import org.apache.qpid.protonj2.test.driver.ProtonTestClientOptions;
import org.apache.qpid.protonj2.test.driver.actions.OpenInjectAction;
import org.apache.qpid.protonj2.test.driver.actions.ScriptCompleteAction;
import org.apache.qpid.protonj2.test.driver.actions.TransferInjectAction;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Accepted;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Source;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Target;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Binary;
import org.apache.qpid.protonj2.test.driver.codec.primitives.DescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Symbol;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnknownDescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedByte;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedInteger;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedLong;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnsignedShort;
import org.apache.qpid.protonj2.test.driver.codec.transport.ErrorCondition;
import org.apache.qpid.protonj2.test.driver.codec.transport.Role;
import org.apache.qpid.protonj2.test.driver.expectations.TransferExpectation;
import org.hamcrest.Description;
import org.hamcrest.Matcher;
import org.hamcrest.TypeSafeMatcher;

/**
 * A client that writes frames one by one, legal or not. Every frame of the broker must be expected: the test driver fails on another
 * one, and the {@link Audit} judges all of them.
 */
final class Peer extends ProtonTestClient {
    /** Seconds that one answer may take. */
    static final long PATIENCE = 30;
    static final String HOST = "127.0.0.1";
    static final int PORT = 5672;

    static final long OPEN = 0x10;
    static final long BEGIN = 0x11;
    static final long ATTACH = 0x12;
    static final long FLOW = 0x13;
    static final long TRANSFER = 0x14;
    static final long DISPOSITION = 0x15;
    static final long DETACH = 0x16;
    static final long END = 0x17;
    static final long CLOSE = 0x18;
    static final long SOURCE = 0x28;
    static final long TARGET = 0x29;

    static final String DECODE = "amqp:decode-error";
    static final String INVALID = "amqp:invalid-field";
    static final String NOT_IMPLEMENTED = "amqp:not-implemented";
    static final String NOT_ALLOWED = "amqp:not-allowed";
    static final String NOT_FOUND = "amqp:not-found";
    static final String ILLEGAL_STATE = "amqp:illegal-state";
    static final String FRAMING = "amqp:connection:framing-error";

    private final Audit audit = new Audit();
    private final Queue<?> script = script();
    /** Input that the test driver has not read. It reads only while a scenario waits, so that an expectation may follow its cause. */
    private byte[] unread = {};
    private boolean isReading;
    private boolean isIgnoringFlows;
    private boolean isIgnoringFrames;

    /** The script of the test driver, which does not say whether it is complete. */
    private Queue<?> script() {
        try {
            Field field = AMQPTestDriver.class.getDeclaredField("script");
            field.setAccessible(true);
            return (Queue<?>) field.get(getDriver());
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("another version of the test driver", error);
        }
    }

    Peer() {}

    Peer(ProtonTestClientOptions options) {
        super(options);
    }

    @Override
    protected void processChannelInput(ByteBuffer input) {
        synchronized (script) {
            audit.received(input.duplicate());
            int old = unread.length;
            unread = Arrays.copyOf(unread, old + input.remaining());
            input.get(unread, old, unread.length - old);
            readFrames();
        }
    }

    @Override
    protected void processDriverOutput(ByteBuffer frame) {
        audit.sent(frame.duplicate());
        super.processDriverOutput(frame);
    }

    /** Passes whole headers and frames to the test driver until its script is complete. */
    private void readFrames() {
        while (isReading && unread.length >= Audit.HEADER_SIZE) {
            int size = Audit.sizeAt(unread, 0);
            if (size > unread.length) {
                return;
            }
            int taken = size < Audit.HEADER_SIZE ? unread.length : size;
            ByteBuffer frame = ByteBuffer.wrap(unread, 0, taken);
            unread = Arrays.copyOfRange(unread, taken, unread.length);
            if (!isIgnoringFrames && (!isIgnoringFlows || !isFlow(frame))) {
                super.processChannelInput(frame.slice());
            }
        }
    }

    /** From now on, no frame need be expected: the audit judges them, and the observer gets them. */
    void ignoreFrames(BiConsumer<Integer, Object> observer) {
        synchronized (script) {
            audit.observe(observer);
            isIgnoringFrames = true;
        }
    }

    private static boolean isFlow(ByteBuffer frame) {
        int code = Audit.HEADER_SIZE + 2;
        return frame.remaining() > code && frame.get(frame.position() + code) == FLOW;
    }

    /** Waits until all expected frames have come. */
    void await() {
        ScriptEnd end = null;
        synchronized (script) {
            if (!script.isEmpty()) {
                end = new ScriptEnd();
                getDriver().addScriptedElement(end);
            }
            isReading = true;
            readFrames();
            isReading &= end != null;
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE);
        while (end != null && !end.isReached() && !isClosed() && isConnected() && System.nanoTime() < deadline) {
            end.awaitFor(20);
        }
        // Fails if the script is not complete, or a frame was not expected.
        waitForScriptToComplete(1, TimeUnit.MILLISECONDS);
        audit.verify();
    }

    /** The last element of a script: the test driver reads no more input. */
    private final class ScriptEnd extends ScriptCompleteAction {
        private ScriptEnd() {
            super(getDriver());
        }

        @Override
        public ScriptEnd perform(AMQPTestDriver driver) {
            isReading = false;
            super.perform(driver);
            return this;
        }

        boolean isReached() {
            return complete.getCount() == 0;
        }

        void awaitFor(long milliseconds) {
            try {
                complete.await(milliseconds, TimeUnit.MILLISECONDS);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    // The steps of a connection.

    /** A peer that is connected and has sent nothing. */
    static Peer connected() throws Exception {
        return connected(PORT);
    }

    static Peer connected(int port) throws Exception {
        Peer peer = new Peer();
        peer.connect(HOST, port);
        return peer;
    }

    /** A peer that has logged in and exchanged the headers of the AMQP layer. */
    static Peer authenticated() throws Exception {
        return authenticated(PORT);
    }

    static Peer authenticated(int port) throws Exception {
        Peer peer = connected(port);
        peer.triggerClientSaslPlainConnect("guest", "guest");
        peer.await();
        return peer;
    }

    static Peer opened() throws Exception {
        return opened(open -> {});
    }

    static Peer opened(Consumer<OpenInjectAction> fields) throws Exception {
        return opened(PORT, fields);
    }

    static Peer opened(int port, Consumer<OpenInjectAction> fields) throws Exception {
        Peer peer = authenticated(port);
        OpenInjectAction open = peer.remoteOpen().withContainerId("hostile");
        fields.accept(open);
        peer.expectOpen();
        open.now();
        peer.await();
        return peer;
    }

    /** A peer with a session on channel 0. */
    static Peer begun() throws Exception {
        Peer peer = opened();
        peer.begin(0);
        return peer;
    }

    void begin(int channel) {
        begin(channel, 1000);
    }

    /** Begins a session with this incoming window. */
    void begin(int channel, long window) {
        expectBegin().withRemoteChannel(channel);
        remoteBegin().withNextOutgoingId(0).withIncomingWindow(window).withOutgoingWindow(1000).onChannel(channel).now();
        await();
    }

    /** Attaches a link to a queue on which the client sends. */
    void sender(long handle, String queue) {
        sender(handle, "sender-" + handle, queue);
    }

    void sender(long handle, String name, String queue) {
        expectAttach().withName(name).ofReceiver().withTarget(notNullValue());
        expectFlow().withLinkCredit(greaterThan(UnsignedInteger.ZERO));
        remoteAttach().withName(name).withHandle(handle).ofSender().withInitialDeliveryCount(0)
                .withSource(new Source()).withTarget(new Target().setAddress(address(queue))).now();
        await();
    }

    /** Attaches a link to a queue on which the client receives. */
    void receiver(long handle, String queue) {
        receiver(handle, "receiver-" + handle, queue);
    }

    void receiver(long handle, String name, String queue) {
        expectAttach().withName(name).ofSender().withSource(notNullValue());
        remoteAttach().withName(name).withHandle(handle).ofReceiver()
                .withSource(new Source().setAddress(address(queue))).withTarget(new Target()).now();
        await();
    }

    static String address(String queue) {
        return "/queues/" + queue;
    }

    /** Grants credit without an answer. */
    void credit(long handle, long deliveryCount, long credit) {
        remoteFlow().withHandle(handle).withDeliveryCount(deliveryCount).withLinkCredit(credit).now();
    }

    /** Grants credit on a link, and expects an answer after all deliveries that it causes: no credit is left. */
    void creditWithAnswer(long handle, long deliveryCount, long credit) {
        expectFlow().withHandle(notNullValue()).withLinkCredit(0);
        remoteFlow().withHandle(handle).withDeliveryCount(deliveryCount).withLinkCredit(credit).withEcho(true).now();
        await();
    }

    /** A transfer of a whole message with the text "message ID". */
    TransferInjectAction message(long handle, long id) {
        return part(handle, id, text("message " + id));
    }

    /** A transfer with this payload. */
    TransferInjectAction part(long handle, long id, byte[] payload) {
        return remoteTransfer().withHandle(handle).withDeliveryId(id).withDeliveryTag(tag(id)).withPayload(payload);
    }

    static byte[] tag(long id) {
        return ByteBuffer.allocate(Long.BYTES).putLong(id).array();
    }

    /** A message whose body is a value with this text. */
    static byte[] text(String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        byte[] head = {0x00, 0x53, 0x77, (byte) 0xb1, 0, 0, 0, 0};
        ByteBuffer.wrap(head).putInt(4, bytes.length);
        byte[] message = Arrays.copyOf(head, head.length + bytes.length);
        System.arraycopy(bytes, 0, message, head.length, bytes.length);
        return message;
    }

    /** Sends a message and expects its acceptance. */
    void publish(long handle, long id) {
        expectAccepted(id);
        message(handle, id).now();
        await();
    }

    void expectAccepted(long id) {
        expectDisposition().withRole(Role.RECEIVER).withFirst(id).withSettled(true).withState(Accepted.getInstance());
    }

    /** Expects a whole delivery with the text "message NUMBER". */
    TransferExpectation expectMessage(long number) {
        return expectTransfer().withMore(anyOf(nullValue(), equalTo(false))).withPayload(ending("message " + number));
    }

    /** The last bytes of a payload are this text: the broker adds sections in front of the body. */
    static Matcher<ByteBuffer> ending(String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        return new TypeSafeMatcher<>() {
            @Override
            protected boolean matchesSafely(ByteBuffer payload) {
                int start = payload.limit() - bytes.length;
                return start >= 0 && payload.duplicate().position(start).equals(ByteBuffer.wrap(bytes));
            }

            @Override
            public void describeTo(Description description) {
                description.appendText("a payload that ends with ").appendValue(text);
            }
        };
    }

    // Frames in illegal forms.

    /** Sends a performative with these fields, which may have any type or be missing. */
    Peer send(int channel, long code, Object... fields) {
        return send(channel, UnsignedLong.valueOf(code), Arrays.asList(fields), new byte[0]);
    }

    Peer send(int channel, Object descriptor, Object body, byte[] payload) {
        ByteBuffer bytes = payload.length == 0 ? null : ByteBuffer.wrap(payload);
        getDriver().sendAMQPFrame(channel, new UnknownDescribedType(descriptor, body), bytes);
        return this;
    }

    /** Sends a frame of this type with any bytes as its body. */
    Peer frame(int type, int channel, byte[] body) {
        return bytes(encodedFrame(type, channel, body));
    }

    static byte[] encodedFrame(int type, int channel, byte[] body) {
        return ByteBuffer.allocate(8 + body.length).putInt(8 + body.length).put((byte) 2).put((byte) type).putShort((short) channel).put(body)
                .array();
    }

    Peer bytes(byte[] bytes) {
        remoteBytes().withBytes(bytes).now();
        return this;
    }

    static DescribedType described(long code, Object... fields) {
        return new UnknownDescribedType(UnsignedLong.valueOf(code), Arrays.asList(fields));
    }

    static UnsignedInteger uint(long value) {
        return UnsignedInteger.valueOf(value);
    }

    static UnsignedShort ushort(int value) {
        return UnsignedShort.valueOf(value);
    }

    static UnsignedByte ubyte(int value) {
        return UnsignedByte.valueOf((byte) value);
    }

    static Symbol symbol(String text) {
        return Symbol.valueOf(text);
    }

    static Binary binary(int... bytes) {
        byte[] array = new byte[bytes.length];
        for (int i = 0; i < bytes.length; i++) {
            array[i] = (byte) bytes[i];
        }
        return new Binary(array);
    }

    /** The bytes of this hexadecimal text, which may have spaces. */
    static byte[] hex(String text) {
        return HexFormat.of().parseHex(text.replace(" ", ""));
    }

    // Expectations.

    /** An error with one of these conditions and a description. */
    static Matcher<Object> error(String... conditions) {
        return new TypeSafeMatcher<>(ErrorCondition.class) {
            @Override
            protected boolean matchesSafely(Object value) {
                ErrorCondition error = (ErrorCondition) value;
                return error.getCondition() != null && List.of(conditions).contains(error.getCondition().toString())
                        && error.getDescription() != null && !error.getDescription().isEmpty();
            }

            @Override
            public void describeTo(Description description) {
                description.appendText("an error of ").appendValue(Arrays.asList(conditions));
            }
        };
    }

    /** Returns true until the socket is closed. */
    boolean isConnected() {
        try {
            return eventLoop() != null;
        } catch (IllegalStateException closed) {
            return false;
        }
    }

    /** All expected frames come, and then the broker closes the socket. */
    void awaitEndOfSocket() throws Exception {
        await();
        awaitEnd();
        await();
    }

    private void awaitEnd() throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE);
        while (isConnected()) {
            Checks.holds(System.nanoTime() < deadline, "the broker closes the socket");
            TimeUnit.MILLISECONDS.sleep(1);
        }
    }

    /** The session on this channel answers, so that everything before is handled, and nothing but the answer comes. */
    void sync(int channel) {
        expectFlow().withHandle(nullValue()).onChannel(channel);
        remoteFlow().withNullHandle().withEcho(true).onChannel(channel).now();
        await();
    }

    void sync() {
        sync(0);
    }

    /** From now on, flows need not be expected: the broker renews credit and windows at times of its choice. */
    void ignoreFlows() {
        isIgnoringFlows = true;
    }

    /** The broker closes the connection with one of these conditions, and the socket after the client's close. */
    void closed(String... conditions) throws Exception {
        expectClose().withError(error(conditions));
        await();
        remoteClose().now();
        awaitEndOfSocket();
    }

    /** The broker ends the session on channel 0 with one of these conditions; the connection goes on. */
    void ended(String... conditions) throws Exception {
        expectEnd().withError(error(conditions)).onChannel(0);
        await();
        remoteEnd().onChannel(0).now();
        begin(1);
        sync(1);
        finish();
    }

    /** The broker detaches a link of channel 0 with one of these conditions; the session goes on. */
    void detached(long handle, String... conditions) throws Exception {
        expectDetach().withClosed(true).withError(error(conditions));
        await();
        remoteDetach().withHandle(handle).withClosed(true).onChannel(0).now();
        sync();
    }

    /** The broker answers an attach without the terminus of its side, and detaches the link (2.6.3). */
    void refused(long handle, boolean clientSends, String... conditions) throws Exception {
        if (clientSends) {
            expectAttach().ofReceiver().withTarget(nullValue());
        } else {
            expectAttach().ofSender().withSource(nullValue());
        }
        detached(handle, conditions);
    }

    /** Closes the connection in order. */
    void finish() throws Exception {
        expectClose().withError(nullValue());
        remoteClose().now();
        awaitEndOfSocket();
        close();
    }

    // Scenarios.

    interface Step {
        void run(Peer peer) throws Exception;
    }

    /** Runs a step with a peer, which is closed in the end. */
    static Suite.Body with(Opener opener, Step step) {
        return () -> {
            Peer peer = opener.open();
            try {
                step.run(peer);
                peer.await();
            } finally {
                peer.close();
            }
        };
    }

    interface Opener {
        Peer open() throws Exception;
    }

    /** A new queue of the type classic. */
    static String queue() throws Exception {
        return Broker.queue("classic");
    }

    /** A new queue with the messages 0 to COUNT - 1. */
    static String filled(int count) throws Exception {
        String queue = queue();
        Peer peer = begun();
        peer.sender(0, queue);
        for (int id = 0; id < count; id++) {
            peer.publish(0, id);
        }
        peer.finish();
        return queue;
    }

    /** A queue has these messages, in this order; they are consumed. */
    static void holds(String queue, long... numbers) throws Exception {
        Peer peer = begun();
        peer.receiver(0, queue);
        for (long number : numbers) {
            peer.expectMessage(number).accept();
        }
        peer.expectFlow().withHandle(0).withLinkCredit(0).withDrain(true);
        peer.remoteFlow().withHandle(0).withDeliveryCount(0).withLinkCredit(numbers.length + 10).withDrain(true).now();
        peer.await();
        peer.sync();
        peer.finish();
    }

    /** Sends a message on a new connection and receives it. */
    static void probe() throws Exception {
        String queue = filled(1);
        holds(queue, 0);
        Broker.delete(queue);
    }

    /** The script of a login may have several offered mechanisms. */
    static Matcher<?> offers(String mechanism) {
        return hasItem(symbol(mechanism));
    }

    static List<Object> nested(int depth) {
        List<Object> inner = new ArrayList<>();
        for (int i = 1; i < depth; i++) {
            inner = new ArrayList<>(List.of(inner));
        }
        return inner;
    }
}
