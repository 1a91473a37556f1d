import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.security.Principal;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import org.apache.qpid.protonj2.buffer.ProtonBuffer;
import org.apache.qpid.protonj2.buffer.ProtonBufferAllocator;
import org.apache.qpid.protonj2.codec.CodecFactory;
import org.apache.qpid.protonj2.codec.Encoder;
import org.apache.qpid.protonj2.engine.Connection;
import org.apache.qpid.protonj2.engine.Engine;
import org.apache.qpid.protonj2.engine.EngineFactory;
import org.apache.qpid.protonj2.engine.OutgoingDelivery;
import org.apache.qpid.protonj2.engine.Receiver;
import org.apache.qpid.protonj2.engine.Sender;
import org.apache.qpid.protonj2.engine.Session;
import org.apache.qpid.protonj2.engine.sasl.client.SaslAuthenticator;
import org.apache.qpid.protonj2.engine.sasl.client.SaslCredentialsProvider;
import org.apache.qpid.protonj2.types.DeliveryTag;
import org.apache.qpid.protonj2.types.Symbol;
import org.apache.qpid.protonj2.types.messaging.AmqpValue;
import org.apache.qpid.protonj2.types.messaging.Source;
import org.apache.qpid.protonj2.types.messaging.Target;
import org.apache.qpid.protonj2.types.transport.DeliveryState;

/**
 * A client on ProtonJ2's engine, which fails on frames of the broker that its state machine does not allow. All calls are made by one
 * thread; the engine reads input while that thread waits for a condition.
 */
final class EngineClient implements AutoCloseable {
    private static final int MAX_READ = 64 * 1024;
    private static final int READ_TIMEOUT = 20; // milliseconds

    final Engine engine = EngineFactory.PROTON.createEngine();
    final Connection connection;
    private final Socket socket = new Socket(Peer.HOST, Peer.PORT);
    private final InputStream input = socket.getInputStream();
    private final OutputStream output = socket.getOutputStream();
    private final byte[] buffer = new byte[MAX_READ];
    private boolean isEnded;
    private long tags;

    /** Opens a connection. */
    EngineClient(Consumer<Connection> settings) throws IOException {
        socket.setSoTimeout(READ_TIMEOUT);
        socket.setTcpNoDelay(true);
        engine.outputConsumer(this::write);
        engine.errorHandler(failed -> {});
        engine.saslDriver().client().setListener(new SaslAuthenticator(new Guest()));
        connection = engine.start();
        connection.setContainerId("engine");
        settings.accept(connection);
        connection.open();
        until("the connection opens", connection::isRemotelyOpen);
    }

    EngineClient() throws IOException {
        this(connection -> {});
    }

    /** The user that every node has. */
    private static final class Guest implements SaslCredentialsProvider {
        @Override
        public String vhost() {
            return null;
        }

        @Override
        public String username() {
            return "guest";
        }

        @Override
        public String password() {
            return "guest";
        }

        @Override
        public Principal localPrincipal() {
            return null;
        }
    }

    private void write(ProtonBuffer bytes) {
        byte[] copy = new byte[bytes.getReadableBytes()];
        bytes.readBytes(copy, 0, copy.length);
        try {
            output.write(copy);
        } catch (IOException error) {
            isEnded = true;
        }
    }

    /** Reads input until the condition holds. */
    void until(String condition, BooleanSupplier holds) throws IOException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Peer.PATIENCE);
        while (!holds.getAsBoolean()) {
            Checks.holds(!isEnded, condition + ", before the socket ends");
            Checks.holds(System.nanoTime() < deadline, condition);
            read();
        }
    }

    private void read() throws IOException {
        int count;
        try {
            count = input.read(buffer);
        } catch (SocketTimeoutException nothing) {
            return;
        }
        if (count < 0) {
            isEnded = true;
            return;
        }
        engine.accept(ProtonBufferAllocator.defaultAllocator().copy(Arrays.copyOf(buffer, count)));
        if (engine.isFailed()) {
            throw new AssertionError("the engine refuses the input", engine.failureCause());
        }
    }

    Session session() throws IOException {
        Session session = connection.session();
        session.open();
        until("the session begins", session::isRemotelyOpen);
        return session;
    }

    Sender sender(Session session, String name, String queue) throws IOException {
        Sender sender = session.sender(name);
        sender.setSource(new Source());
        sender.setTarget(new Target().setAddress(Peer.address(queue)));
        sender.open();
        until("the link is attached, and has credit", () -> sender.isRemotelyOpen() && sender.isSendable());
        Checks.holds(sender.getRemoteTarget() != null, "the broker has the target");
        return sender;
    }

    Receiver receiver(Session session, String name, String queue, Symbol... outcomes) throws IOException {
        Receiver receiver = session.receiver(name);
        receiver.setSource(new Source().setAddress(Peer.address(queue)).setOutcomes(outcomes));
        receiver.setTarget(new Target());
        receiver.open();
        until("the link is attached", receiver::isRemotelyOpen);
        Checks.holds(receiver.getRemoteSource() != null, "the broker has the source");
        return receiver;
    }

    /** Sends a message with this text. */
    OutgoingDelivery send(Sender sender, String text) throws IOException {
        return send(sender, text, null);
    }

    /** Sends a message with this text and this state, such as that of a transaction. */
    OutgoingDelivery send(Sender sender, String text, DeliveryState state) throws IOException {
        OutgoingDelivery delivery = sender.next();
        delivery.setTag(new DeliveryTag.ProtonDeliveryTag(Peer.tag(tags++)));
        if (state != null) {
            delivery.disposition(state, false);
        }
        ProtonBuffer bytes = encoded(text);
        // The engine writes the frames that the broker's window allows.
        until("all frames are written", () -> {
            delivery.writeBytes(bytes);
            return !bytes.isReadable();
        });
        return delivery;
    }

    static ProtonBuffer encoded(String text) {
        ProtonBuffer bytes = ProtonBufferAllocator.defaultAllocator().allocate();
        Encoder encoder = CodecFactory.getDefaultEncoder();
        encoder.writeObject(bytes, encoder.newEncoderState(), new AmqpValue<>(text));
        return bytes;
    }

    /** The text of a message: the value in its last section. */
    static String text(ProtonBuffer bytes) {
        Object section = null;
        while (bytes.getReadableBytes() > 0) {
            section = CodecFactory.getDefaultDecoder().readObject(bytes, CodecFactory.getDefaultDecoder().newDecoderState());
        }
        return (String) ((AmqpValue<?>) section).getValue();
    }

    /** Closes the connection in order. */
    void finish() throws IOException {
        connection.close();
        until("the connection closes", connection::isRemotelyClosed);
        Checks.same(connection.getRemoteCondition(), null);
        Checks.holds(!engine.isFailed(), "the engine has not failed");
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }
}
