import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.apache.qpid.protonj2.buffer.ProtonBuffer;
import org.apache.qpid.protonj2.buffer.ProtonBufferAllocator;
import org.apache.qpid.protonj2.engine.Connection;
import org.apache.qpid.protonj2.engine.IncomingDelivery;
import org.apache.qpid.protonj2.engine.OutgoingDelivery;
import org.apache.qpid.protonj2.engine.Receiver;
import org.apache.qpid.protonj2.engine.Sender;
import org.apache.qpid.protonj2.engine.Session;
import org.apache.qpid.protonj2.engine.Transaction;
import org.apache.qpid.protonj2.engine.TransactionController;
import org.apache.qpid.protonj2.types.Symbol;
import org.apache.qpid.protonj2.types.messaging.Accepted;
import org.apache.qpid.protonj2.types.messaging.Modified;
import org.apache.qpid.protonj2.types.messaging.Rejected;
import org.apache.qpid.protonj2.types.messaging.Released;
import org.apache.qpid.protonj2.types.messaging.Source;
import org.apache.qpid.protonj2.types.messaging.Target;
import org.apache.qpid.protonj2.types.transactions.Coordinator;
import org.apache.qpid.protonj2.types.transactions.TransactionalState;
import org.apache.qpid.protonj2.types.transport.DeliveryState;
import org.apache.qpid.protonj2.types.transport.ErrorCondition;
import org.apache.qpid.protonj2.types.transport.SenderSettleMode;

/** Legal exchanges at the limits, with the state machine of ProtonJ2's engine as the judge. */
final class Engines {
    private Engines() {}

    private interface Step {
        void run(EngineClient client) throws Exception;
    }

    private static Suite.Body with(Consumer<Connection> settings, Step step) {
        return () -> {
            try (EngineClient client = new EngineClient(settings)) {
                step.run(client);
                client.finish();
            }
        };
    }

    private static Suite.Body with(Step step) {
        return with(connection -> {}, step);
    }

    static void register(Suite suite) {
        suite.group("engine");
        suite.check("a thousand messages are sent, received and accepted in order", with(client -> exchange(client, 1000, 50)));
        suite.check("a credit of 1 receives one message after the other", with(client -> exchange(client, 200, 1)));
        suite.check("the smallest frames carry a thousand messages", with(connection -> connection.setMaxFrameSize(512),
                client -> exchange(client, 1000, 100)));
        for (int size : new int[] {511, 512, 100_000, 1_000_000}) {
            suite.check("a message of " + size + " bytes in the smallest frames", with(connection -> connection.setMaxFrameSize(512),
                    client -> large(client, client.session(), size)));
        }
        suite.check("a large message in a session window of two frames", with(connection -> connection.setMaxFrameSize(1024), client -> {
            Session session = client.connection.session();
            session.setIncomingCapacity(2048);
            session.open();
            client.until("the session begins", session::isRemotelyOpen);
            large(client, session, 200_000);
        }));
        suite.check("63 sessions are open beside each other", with(client -> {
            String queue = Peer.queue();
            List<Sender> senders = new ArrayList<>();
            for (int i = 0; i < 63; i++) {
                senders.add(client.sender(client.session(), "s", queue));
            }
            List<OutgoingDelivery> sent = new ArrayList<>();
            for (Sender sender : senders) {
                sent.add(client.send(sender, "m"));
            }
            client.until("all are accepted", () -> sent.stream().allMatch(delivery -> delivery.getRemoteState() instanceof Accepted));
        }));
        suite.check("a link is detached, attached again and served", with(client -> {
            String queue = Peer.queue();
            Session session = client.session();
            for (int i = 0; i < 50; i++) {
                Sender sender = client.sender(session, "link", queue);
                OutgoingDelivery delivery = client.send(sender, "m");
                client.until("it is accepted", () -> delivery.getRemoteState() instanceof Accepted && delivery.isRemotelySettled());
                if (i % 2 == 0) {
                    sender.detach();
                } else {
                    sender.close();
                }
                client.until("it is detached", sender::isRemotelyClosedOrDetached);
                Checks.same(sender.getRemoteCondition(), null);
            }
        }));
        suite.check("a drain ends without credit", with(client -> {
            String queue = Peer.filled(3);
            Receiver receiver = client.receiver(client.session(), "r", queue);
            List<IncomingDelivery> received = new ArrayList<>();
            receiver.deliveryReadHandler(received::add);
            receiver.addCredit(10);
            receiver.drain();
            client.until("it is drained", () -> !receiver.isDraining() && receiver.getCredit() == 0);
            Checks.same(received.size(), 3);
        }));
        outcomes(suite);
        suite.check("an aborted delivery is not accepted, and the next one is", with(client -> {
            String queue = Peer.queue();
            Sender sender = client.sender(client.session(), "s", queue);
            OutgoingDelivery aborted = sender.next();
            aborted.setTag(new byte[] {1});
            aborted.streamBytes(EngineClient.encoded("never"), false);
            aborted.abort();
            OutgoingDelivery delivery = client.send(sender, "message 0");
            client.until("it is accepted", () -> delivery.getRemoteState() instanceof Accepted);
            Checks.same(aborted.getRemoteState(), null);
            Peer.holds(queue, 0);
        }));
        refusals(suite);
        transactions(suite);
        suite.check("a timeout of five seconds is kept with empty frames", with(connection -> connection.setIdleTimeout(5000), client -> {
            long began = System.nanoTime();
            client.engine.tick(began / 1_000_000);
            for (int i = 0; i < 80; i++) {
                long until = System.nanoTime() + 100_000_000L;
                client.until("time passes", () -> System.nanoTime() > until);
                // The engine fails here if nothing came in time.
                client.engine.tick(System.nanoTime() / 1_000_000);
                Checks.holds(!client.engine.isFailed(), "the broker sends in time");
            }
        }));
        suite.check("single outcomes are answered", with(client -> {
            String queue = Peer.filled(1);
            Receiver receiver = client.receiver(client.session(), "r", queue, Accepted.DESCRIPTOR_SYMBOL);
            Checks.same(receiver.getRemoteSource().getOutcomes().length, 1);
        }));
    }

    /** Sends messages and receives them with this credit at a time; each is accepted. */
    private static void exchange(EngineClient client, int count, int credit) throws Exception {
        String queue = Peer.queue();
        Session session = client.session();
        Sender sender = client.sender(session, "s", queue);
        List<OutgoingDelivery> sent = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            client.until("there is credit", sender::isSendable);
            sent.add(client.send(sender, "message " + i));
        }
        client.until("all are accepted", () -> sent.stream()
                .allMatch(delivery -> delivery.isRemotelySettled() && delivery.getRemoteState() instanceof Accepted));
        Receiver receiver = client.receiver(session, "r", queue);
        List<String> received = new ArrayList<>();
        receiver.deliveryReadHandler(delivery -> {
            if (!delivery.isPartial()) {
                received.add(EngineClient.text(delivery.readAll()));
                delivery.disposition(Accepted.getInstance(), true);
                if (receiver.getCredit() == 0) {
                    receiver.addCredit(credit);
                }
            }
        });
        receiver.addCredit(credit);
        client.until("all are received", () -> received.size() == count);
        Checks.same(received, IntStream.range(0, count).mapToObj(i -> "message " + i).toList());
        receiver.close();
        client.until("the link is detached", receiver::isRemotelyClosed);
        Peer.holds(queue);
    }

    private static void large(EngineClient client, Session session, int size) throws Exception {
        String queue = Peer.queue();
        String text = "x".repeat(size);
        Sender sender = client.sender(session, "s", queue);
        OutgoingDelivery sent = client.send(sender, text);
        client.until("it is accepted", () -> sent.getRemoteState() instanceof Accepted);
        Receiver receiver = client.receiver(session, "r", queue);
        ProtonBuffer payload = ProtonBufferAllocator.defaultAllocator().allocate(16);
        boolean[] isWhole = {false};
        receiver.deliveryReadHandler(delivery -> {
            // Reading makes room in the session's window.
            payload.ensureWritable(delivery.available());
            payload.writeBytes(delivery.readAll());
            isWhole[0] = !delivery.isPartial();
        });
        receiver.addCredit(1);
        client.until("it is received", () -> isWhole[0]);
        String received = EngineClient.text(payload);
        Checks.holds(received.equals(text), "the same text, got " + received.length() + " characters");
    }

    private static void outcomes(Suite suite) {
        record Case(String name, DeliveryState state, boolean comesAgain) {}
        List<Case> cases = List.of(
                new Case("accepted", Accepted.getInstance(), false),
                new Case("rejected", new Rejected().setError(new ErrorCondition("example:bad", "d")), false),
                new Case("released", Released.getInstance(), true),
                new Case("modified", new Modified().setDeliveryFailed(true), true));
        for (Case one : cases) {
            for (boolean settles : new boolean[] {true, false}) {
                String who = settles ? "settled by the client" : "settled by the broker";
                suite.check(one.name() + ", " + who + (one.comesAgain() ? ", comes again" : ", is gone"), with(client -> {
                    String queue = Peer.filled(1);
                    Receiver receiver = client.receiver(client.session(), "r", queue);
                    List<IncomingDelivery> received = new ArrayList<>();
                    receiver.deliveryReadHandler(received::add);
                    receiver.addCredit(1);
                    client.until("it is received", () -> received.size() == 1);
                    IncomingDelivery delivery = received.get(0);
                    delivery.readAll();
                    delivery.disposition(one.state(), settles);
                    if (!settles) {
                        client.until("the broker settles it", delivery::isRemotelySettled);
                    }
                    receiver.close();
                    client.until("the link is detached", receiver::isRemotelyClosed);
                    if (one.comesAgain()) {
                        Peer.holds(queue, 0);
                    } else {
                        Peer.holds(queue);
                    }
                }));
            }
        }
    }

    private static void refusals(Suite suite) {
        suite.check("a link to a queue that does not exist is closed with an error", with(client -> {
            Session session = client.session();
            Receiver receiver = session.receiver("r");
            receiver.setSource(new Source().setAddress("/queues/there-is-none"));
            receiver.setTarget(new Target());
            receiver.open();
            client.until("the link is closed", receiver::isRemotelyClosed);
            Checks.same(receiver.getRemoteSource(), null);
            Checks.same(receiver.getRemoteCondition().getCondition().toString(), Peer.NOT_FOUND);
            receiver.close();
            client.sender(session, "s", Peer.queue());
        }));
        suite.check("a link whose queue is deleted is closed with an error", with(client -> {
            String queue = Peer.queue();
            Receiver receiver = client.receiver(client.session(), "r", queue);
            receiver.addCredit(10);
            Broker.delete(queue);
            client.until("the link is closed", receiver::isRemotelyClosed);
            Checks.same(receiver.getRemoteCondition().getCondition().toString(), "amqp:resource-deleted");
            receiver.close();
        }));
        suite.check("a message without a route is released", with(client -> {
            Sender sender = client.session().sender("s");
            sender.setSource(new Source());
            sender.setTarget(new Target().setAddress("/exchanges/amq.direct/nowhere"));
            sender.open();
            client.until("there is credit", sender::isSendable);
            OutgoingDelivery delivery = client.send(sender, "m");
            client.until("it is released", () -> delivery.getRemoteState() instanceof Released && delivery.isRemotelySettled());
        }));
        suite.check("a receiver of mode settled gets settled deliveries", with(client -> {
            String queue = Peer.filled(5);
            Receiver receiver = client.session().receiver("r");
            receiver.setSource(new Source().setAddress(Peer.address(queue)));
            receiver.setTarget(new Target());
            receiver.setSenderSettleMode(SenderSettleMode.SETTLED);
            receiver.open();
            List<IncomingDelivery> received = new ArrayList<>();
            receiver.deliveryReadHandler(received::add);
            receiver.addCredit(5);
            client.until("all are received", () -> received.size() == 5);
            Checks.holds(received.stream().allMatch(IncomingDelivery::isRemotelySettled), "all are settled");
            Peer.holds(queue);
        }));
    }

    private static void transactions(Suite suite) {
        for (boolean fail : new boolean[] {false, true}) {
            suite.check(fail ? "a transaction is rolled back" : "a transaction is committed", with(client -> {
                String queue = Peer.queue();
                Session session = client.session();
                TransactionController controller = controller(client, session);
                Sender sender = client.sender(session, "s", queue);
                Transaction<TransactionController> transaction = controller.declare();
                client.until("it is declared", transaction::isDeclared);
                TransactionalState state = new TransactionalState().setTxnId(transaction.getTxnId());
                OutgoingDelivery delivery = client.send(sender, "message 0", state);
                client.until("it has a provisional outcome", () -> delivery.getRemoteState() instanceof TransactionalState told
                        && told.getOutcome() instanceof Accepted);
                Peer.holds(queue);
                controller.discharge(transaction, fail);
                client.until("it is discharged", transaction::isDischarged);
                if (fail) {
                    Peer.holds(queue);
                } else {
                    Peer.holds(queue, 0);
                }
            }));
        }
        suite.check("ten transactions at the same time are discharged in another order", with(client -> {
            Session session = client.session();
            TransactionController controller = controller(client, session);
            List<Transaction<TransactionController>> open = new ArrayList<>();
            for (int i = 0; i < 10; i++) {
                open.add(controller.declare());
            }
            client.until("all are declared", () -> open.stream().allMatch(Transaction::isDeclared));
            Checks.same(open.stream().map(Transaction::getTxnId).distinct().count(), 10L);
            for (int i = 9; i >= 0; i--) {
                controller.discharge(open.get(i), i % 2 == 0);
            }
            client.until("all are discharged", () -> open.stream().allMatch(Transaction::isDischarged));
        }));
        suite.check("a transaction over two queues fails, with its condition", with(client -> {
            Session session = client.session();
            TransactionController controller = controller(client, session);
            Transaction<TransactionController> transaction = controller.declare();
            client.until("it is declared", transaction::isDeclared);
            TransactionalState state = new TransactionalState().setTxnId(transaction.getTxnId());
            for (String name : List.of("one", "two")) {
                OutgoingDelivery delivery = client.send(client.sender(session, name, Peer.queue()), "m", state);
                client.until("it has an outcome", () -> delivery.getRemoteState() != null);
            }
            controller.discharge(transaction, false);
            client.until("it fails", transaction::isFailed);
            Checks.same(transaction.getCondition().getCondition().toString(), "amqp:transaction:rollback");
        }));
    }

    private static TransactionController controller(EngineClient client, Session session) throws Exception {
        TransactionController controller = session.coordinator("controller");
        controller.setSource(new Source().setOutcomes(Accepted.DESCRIPTOR_SYMBOL, Rejected.DESCRIPTOR_SYMBOL, Released.DESCRIPTOR_SYMBOL,
                Modified.DESCRIPTOR_SYMBOL));
        controller.setCoordinator(new Coordinator().setCapabilities(Symbol.valueOf("amqp:local-transactions")));
        controller.open();
        client.until("the controller has credit", controller::hasCapacity);
        return controller;
    }
}
