import static org.hamcrest.Matchers.allOf;
import static org.hamcrest.Matchers.equalTo;
import static org.hamcrest.Matchers.hasItemInArray;
import static org.hamcrest.Matchers.hasProperty;
import static org.hamcrest.Matchers.instanceOf;
import static org.hamcrest.Matchers.nullValue;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Accepted;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Rejected;
import org.apache.qpid.protonj2.test.driver.codec.messaging.Source;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Binary;
import org.apache.qpid.protonj2.test.driver.codec.primitives.DescribedType;
import org.apache.qpid.protonj2.test.driver.codec.primitives.Symbol;
import org.apache.qpid.protonj2.test.driver.codec.primitives.UnknownDescribedType;
import org.apache.qpid.protonj2.test.driver.codec.transactions.Coordinator;
import org.apache.qpid.protonj2.test.driver.codec.transactions.Declare;
import org.apache.qpid.protonj2.test.driver.codec.transactions.Declared;
import org.apache.qpid.protonj2.test.driver.codec.transactions.Discharge;
import org.apache.qpid.protonj2.test.driver.codec.transactions.TransactionalState;
import org.apache.qpid.protonj2.test.driver.codec.transport.Role;
import org.hamcrest.Matcher;

/** Transactions and their coordinator (part 4). Of this connection, handle 0 is the link to the coordinator. */
final class Transactions {
    private static final String ACCEPTED = "amqp:accepted:list";
    private static final String REJECTED = "amqp:rejected:list";
    private static final String UNKNOWN_ID = "amqp:transaction:unknown-id";
    private static final String ROLLBACK = "amqp:transaction:rollback";

    private Transactions() {}

    static void register(Suite suite) {
        coordinators(suite);
        work(suite);
        wrongRequests(suite);
        wrongIds(suite);
        endings(suite);
    }

    private interface LinkStep {
        void run(Peer peer, String queue) throws Exception;
    }

    /** A step with a coordinator on handle 0, and on handle 1 a link on which the client sends to a queue. */
    private static Suite.Body coordinated(LinkStep step) {
        return Peer.with(Peer::begun, peer -> {
            String queue = Peer.queue();
            coordinator(peer, ACCEPTED, REJECTED);
            peer.sender(1, queue);
            step.run(peer, queue);
        });
    }

    /** Attaches a link to the coordinator, whose source has these outcomes. */
    private static void coordinator(Peer peer, String... outcomes) {
        Symbol[] symbols = Arrays.stream(outcomes).map(Peer::symbol).toArray(Symbol[]::new);
        peer.expectAttach().ofReceiver().withTarget(instanceOf(Coordinator.class));
        peer.expectFlow();
        peer.remoteAttach().withName("coordinator").withHandle(0).ofSender().withInitialDeliveryCount(0)
                .withSource(new Source().setOutcomes(symbols)).withTarget(new Coordinator()).now();
        peer.await();
    }

    /** Declares a transaction with this delivery id; returns the transaction's id. */
    private static byte[] declare(Peer peer, long id) {
        AtomicReference<byte[]> declared = new AtomicReference<>();
        peer.expectDisposition().withRole(Role.RECEIVER).withFirst(id).withSettled(true).withState(instanceOf(Declared.class))
                .withCapture(disposition -> declared.set(((Declared) disposition.getState()).getTxnId().getArray()));
        peer.remoteDeclare().withHandle(0).withDeliveryId(id).withDeliveryTag(Peer.tag(id)).now();
        peer.await();
        Checks.holds(declared.get() != null && declared.get().length > 0, "a transaction has an id");
        return declared.get();
    }

    /** Discharges a transaction, which succeeds. */
    private static void discharge(Peer peer, long id, byte[] transaction, boolean fail) {
        peer.expectDisposition().withRole(Role.RECEIVER).withFirst(id).withSettled(true).withState(Accepted.getInstance());
        request(peer, id, new Discharge().setTxnId(new Binary(transaction)).setFail(fail));
        peer.await();
    }

    /** Sends a message with this body to the coordinator. */
    private static void request(Peer peer, long id, DescribedType body) {
        peer.remoteTransfer().withHandle(0).withDeliveryId(id).withDeliveryTag(Peer.tag(id)).withBody().withValue(body).also().now();
    }

    /** Sends a message in a transaction and expects the provisional outcome. */
    private static void post(Peer peer, long id, byte[] transaction) {
        peer.expectDisposition().withRole(Role.RECEIVER).withFirst(id).withSettled(true).withState(allOf(
                instanceOf(TransactionalState.class),
                hasProperty("txnId", equalTo(new Binary(transaction))),
                hasProperty("outcome", instanceOf(Accepted.class))));
        peer.message(1, id).withState().transactional().withTxnId(transaction).also().now();
        peer.await();
    }

    private static void expectRejected(Peer peer, long id, String... conditions) {
        Matcher<Object> state = allOf(instanceOf(Rejected.class), hasProperty("error", Peer.error(conditions)));
        peer.expectDisposition().withRole(Role.RECEIVER).withFirst(id).withSettled(true).withState(state);
    }

    private static void coordinators(Suite suite) {
        suite.group("coordinator");
        suite.check("its capabilities are those that the broker has", Peer.with(Peer::begun, peer -> {
            peer.expectAttach().ofReceiver().withTarget(allOf(instanceOf(Coordinator.class),
                    hasProperty("capabilities", hasItemInArray(Peer.symbol("amqp:local-transactions")))));
            peer.expectFlow();
            peer.remoteAttach().withName("c").withHandle(0).ofSender().withInitialDeliveryCount(0).withSource(new Source())
                    .withTarget(new Coordinator().setCapabilities(Peer.symbol("amqp:distributed-transactions"), Peer.symbol("unknown"))).now();
            peer.await();
            peer.finish();
        }));
        suite.check("the client cannot receive from it", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, "c", Peer.uint(0), true, null, null, Peer.described(0x30), Peer.described(Peer.TARGET));
            peer.ended(Peer.DECODE, Peer.INVALID, Peer.NOT_IMPLEMENTED);
        }));
        Map<String, DescribedType> wrong = new LinkedHashMap<>();
        wrong.put("capabilities that are text", Peer.described(0x30, "amqp:local-transactions"));
        wrong.put("two fields", Peer.described(0x30, null, 1));
        wrong.forEach((name, target) -> suite.check("a coordinator with " + name + " ends the session", Peer.with(Peer::begun, peer -> {
            peer.send(0, Peer.ATTACH, "c", Peer.uint(0), false, null, null, Peer.described(Peer.SOURCE), target, null, null, Peer.uint(0));
            peer.ended(Peer.DECODE, Peer.INVALID);
        })));
        suite.check("several declare their own transactions", coordinated((peer, queue) -> {
            peer.expectAttach().ofReceiver();
            peer.expectFlow();
            peer.remoteAttach().withName("second").withHandle(2).ofSender().withInitialDeliveryCount(0).withSource(new Source())
                    .withTarget(new Coordinator()).now();
            peer.await();
            byte[] one = declare(peer, 0);
            byte[] other = declare(peer, 1);
            Checks.holds(!Arrays.equals(one, other), "ids are unique");
            peer.finish();
        }));
    }

    private static void work(Suite suite) {
        suite.group("transaction");
        suite.check("a commit publishes its messages", coordinated((peer, queue) -> {
            byte[] transaction = declare(peer, 0);
            post(peer, 1, transaction);
            post(peer, 2, transaction);
            Peer.holds(queue);
            discharge(peer, 3, transaction, false);
            peer.finish();
            Peer.holds(queue, 1, 2);
        }));
        suite.check("a rollback discards its messages", coordinated((peer, queue) -> {
            byte[] transaction = declare(peer, 0);
            post(peer, 1, transaction);
            discharge(peer, 2, transaction, true);
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("a settled message is part of it", coordinated((peer, queue) -> {
            byte[] transaction = declare(peer, 0);
            peer.message(1, 1).withSettled(true).withState().transactional().withTxnId(transaction).also().now();
            peer.sync();
            Peer.holds(queue);
            discharge(peer, 2, transaction, false);
            peer.finish();
            Peer.holds(queue, 1);
        }));
        suite.check("messages without its id are not part of it", coordinated((peer, queue) -> {
            byte[] transaction = declare(peer, 0);
            peer.publish(1, 1);
            Peer.holds(queue, 1);
            discharge(peer, 2, transaction, true);
            peer.finish();
        }));
        for (boolean fail : new boolean[] {false, true}) {
            suite.check((fail ? "a rollback takes back" : "a commit applies") + " outcomes of deliveries", coordinated((peer, queue) -> {
                peer.publish(1, 0);
                peer.receiver(2, queue);
                peer.expectMessage(0);
                peer.credit(2, 0, 1);
                peer.await();
                byte[] transaction = declare(peer, 1);
                peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true)
                        .withState(new TransactionalState().setTxnId(new Binary(transaction)).setOutcome(Accepted.getInstance())).now();
                peer.sync();
                if (fail) {
                    // The client has settled the delivery, so it comes again.
                    peer.credit(2, 1, 0);
                }
                discharge(peer, 2, transaction, fail);
                peer.finish();
                if (fail) {
                    Peer.holds(queue, 0);
                } else {
                    Peer.holds(queue);
                }
            }));
        }
        suite.check("a commit settles the deliveries that the client has not settled", coordinated((peer, queue) -> {
            byte[] transaction = acceptUnsettled(peer, queue);
            peer.expectDisposition().withRole(Role.SENDER).withFirst(0).withSettled(true).withState(Accepted.getInstance());
            discharge(peer, 2, transaction, false);
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("a rollback leaves the deliveries that the client has not settled to it", coordinated((peer, queue) -> {
            byte[] transaction = acceptUnsettled(peer, queue);
            discharge(peer, 2, transaction, true);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState().accepted().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("a rollback of a delivery that is then released brings it back", coordinated((peer, queue) -> {
            byte[] transaction = acceptUnsettled(peer, queue);
            discharge(peer, 2, transaction, true);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState().released().now();
            peer.sync();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("a delivery that is settled twice in it is settled once", coordinated((peer, queue) -> {
            byte[] transaction = acceptUnsettled(peer, queue);
            for (int i = 0; i < 3; i++) {
                peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true)
                        .withState(new TransactionalState().setTxnId(new Binary(transaction)).setOutcome(Accepted.getInstance())).now();
            }
            peer.sync();
            discharge(peer, 2, transaction, false);
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("a delivery of it that is settled outside before the commit does not come twice", coordinated((peer, queue) -> {
            byte[] transaction = acceptUnsettled(peer, queue);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true).withState().released().now();
            peer.sync();
            peer.expectDisposition().withRole(Role.RECEIVER).withFirst(2).withSettled(true);
            request(peer, 2, new Discharge().setTxnId(new Binary(transaction)).setFail(false));
            peer.await();
            peer.finish();
            Peer.holds(queue, 0);
        }));
        suite.check("64 are open at the same time, and no more", coordinated((peer, queue) -> {
            for (int id = 0; id < 64; id++) {
                declare(peer, id);
            }
            expectRejected(peer, 64, "amqp:resource-limit-exceeded");
            peer.remoteDeclare().withHandle(0).withDeliveryId(64).withDeliveryTag(Peer.tag(64)).now();
            peer.await();
            peer.finish();
        }));
    }

    /** Receives a message with delivery id 0, and accepts it in a transaction without settling it. */
    private static byte[] acceptUnsettled(Peer peer, String queue) {
        peer.publish(1, 0);
        peer.receiver(2, queue);
        peer.expectMessage(0);
        peer.credit(2, 0, 1);
        peer.await();
        byte[] transaction = declare(peer, 1);
        peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(false)
                .withState(new TransactionalState().setTxnId(new Binary(transaction)).setOutcome(Accepted.getInstance())).now();
        peer.sync();
        return transaction;
    }

    private static void wrongRequests(Suite suite) {
        suite.group("wrong request");
        Map<String, DescribedType> requests = new LinkedHashMap<>();
        requests.put("a declare with a global id", new Declare().setGlobalId(new Binary(new byte[] {1})));
        requests.put("a declare with two fields", Peer.described(0x31, null, 1));
        requests.put("a discharge without an id", new Discharge().setFail(false));
        requests.put("a discharge with an id that is text", Peer.described(0x32, "id", false));
        requests.put("a discharge with a flag that is text", Peer.described(0x32, new Binary(new byte[8]), "false"));
        requests.put("a discharge with three fields", Peer.described(0x32, new Binary(new byte[8]), false, 1));
        requests.put("an unknown type", Peer.described(0x3f, "declare"));
        requests.put("a declared", Peer.described(0x33, new Binary(new byte[8])));
        requests.put("an unknown symbol", new UnknownDescribedType(Peer.symbol("amqp:declare"), List.of()));
        requests.forEach((name, body) -> suite.check(name + " is rejected", coordinated((peer, queue) -> {
            expectRejected(peer, 0, Peer.INVALID, Peer.DECODE, Peer.NOT_IMPLEMENTED, UNKNOWN_ID);
            request(peer, 0, body);
            peer.await();
            byte[] transaction = declare(peer, 1);
            discharge(peer, 2, transaction, false);
            peer.finish();
        })));
        Map<String, byte[]> payloads = new LinkedHashMap<>();
        payloads.put("a message without a body", new byte[0]);
        payloads.put("a value that is text", Peer.text("declare"));
        payloads.put("a value that is null", Peer.hex("00 53 77 40"));
        payloads.put("a body of data", Peer.hex("00 53 75 a0 01 61"));
        payloads.put("bytes that are no section", Peer.hex("ff ff"));
        payloads.put("a declare that ends early", Peer.hex("00 53 77 00 53 31 c0 05 01"));
        payloads.put("descriptors without end", Peer.hex("00 53 77" + "00 53 31".repeat(200) + "45"));
        payloads.forEach((name, payload) -> suite.check(name + " is rejected", coordinated((peer, queue) -> {
            expectRejected(peer, 0, Peer.INVALID, Peer.DECODE);
            peer.part(0, 0, payload).now();
            peer.await();
            declare(peer, 1);
            peer.finish();
        })));
        suite.check("a settled declare detaches the link", coordinated((peer, queue) -> {
            peer.remoteDeclare().withHandle(0).withDeliveryId(0).withDeliveryTag(Peer.tag(0)).withSettled(true).now();
            peer.detached(0, Peer.NOT_ALLOWED, Peer.ILLEGAL_STATE, Peer.INVALID);
            peer.finish();
        }));
        suite.check("a declare in two transfers declares", coordinated((peer, queue) -> {
            peer.expectDisposition().withFirst(0).withState(instanceOf(Declared.class));
            peer.part(0, 0, Peer.hex("00 53 77 00")).withMore(true).now();
            peer.part(0, 0, Peer.hex("53 31 45")).now();
            peer.await();
            peer.finish();
        }));
        // 4.2 and 4.3: without the outcome rejected, the link is detached with the error.
        suite.check("where the source has no outcome rejected, an unknown id detaches the link", Peer.with(Peer::begun, peer -> {
            coordinator(peer, ACCEPTED);
            request(peer, 0, new Discharge().setTxnId(new Binary(new byte[] {1, 2, 3})).setFail(false));
            peer.detached(0, UNKNOWN_ID);
            peer.finish();
        }));
        suite.check("where the source has no outcome rejected, a global id detaches the link", Peer.with(Peer::begun, peer -> {
            coordinator(peer, ACCEPTED);
            request(peer, 0, new Declare().setGlobalId(new Binary(new byte[] {1})));
            peer.detached(0, Peer.NOT_IMPLEMENTED, Peer.NOT_ALLOWED);
            peer.finish();
        }));
    }

    private static void wrongIds(Suite suite) {
        suite.group("transaction id");
        Map<String, byte[]> ids = new LinkedHashMap<>();
        ids.put("an empty one", new byte[0]);
        ids.put("one of 3 bytes", new byte[3]);
        ids.put("one of zeros", new byte[8]);
        ids.put("one of ones", Peer.hex("ffffffffffffffff"));
        ids.put("one of 33 bytes", new byte[33]);
        ids.put("one of 10000 bytes", new byte[10_000]);
        ids.forEach((name, id) -> {
            suite.check(name + " cannot be discharged", coordinated((peer, queue) -> {
                declare(peer, 0);
                expectRejected(peer, 1, UNKNOWN_ID);
                request(peer, 1, new Discharge().setTxnId(new Binary(id)).setFail(false));
                peer.await();
                peer.finish();
            }));
            suite.check(name + " in a transfer detaches the link", coordinated((peer, queue) -> {
                declare(peer, 0);
                peer.message(1, 1).withState().transactional().withTxnId(id).also().now();
                peer.detached(1, UNKNOWN_ID);
                peer.finish();
                Peer.holds(queue);
            }));
            suite.check(name + " in a disposition ends the session, and the message comes again", coordinated((peer, queue) -> {
                peer.publish(1, 0);
                peer.receiver(2, queue);
                peer.expectMessage(0);
                peer.credit(2, 0, 1);
                peer.await();
                peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true)
                        .withState(new TransactionalState().setTxnId(new Binary(id)).setOutcome(Accepted.getInstance())).now();
                peer.ended(UNKNOWN_ID);
                Peer.holds(queue, 0);
            }));
        });
        suite.check("it is unknown after its discharge", coordinated((peer, queue) -> {
            byte[] transaction = declare(peer, 0);
            discharge(peer, 1, transaction, false);
            for (int id = 2; id < 4; id++) {
                expectRejected(peer, id, UNKNOWN_ID);
                request(peer, id, new Discharge().setTxnId(new Binary(transaction)).setFail(id == 3));
                peer.await();
            }
            peer.message(1, 4).withState().transactional().withTxnId(transaction).also().now();
            peer.detached(1, UNKNOWN_ID);
            peer.finish();
            Peer.holds(queue);
        }));
        suite.check("it belongs to its connection", coordinated((peer, queue) -> {
            byte[] transaction = declare(peer, 0);
            Peer other = Peer.begun();
            coordinator(other, ACCEPTED, REJECTED);
            expectRejected(other, 0, UNKNOWN_ID);
            request(other, 0, new Discharge().setTxnId(new Binary(transaction)).setFail(true));
            other.await();
            other.finish();
            post(peer, 1, transaction);
            discharge(peer, 2, transaction, false);
            peer.finish();
            Peer.holds(queue, 1);
        }));
        suite.check("it belongs to its session", coordinated((peer, queue) -> {
            byte[] transaction = declare(peer, 0);
            peer.begin(1);
            peer.expectAttach().ofReceiver();
            peer.expectFlow();
            peer.remoteAttach().withName("other").withHandle(0).ofSender().withInitialDeliveryCount(0)
                    .withSource(new Source().setOutcomes(Peer.symbol(ACCEPTED), Peer.symbol(REJECTED))).withTarget(new Coordinator()).onChannel(1).now();
            peer.await();
            expectRejected(peer, 0, UNKNOWN_ID);
            request(peer, 0, new Discharge().setTxnId(new Binary(transaction)).setFail(true));
            peer.await();
            peer.finish();
        }));
        suite.check("work on two queues is rolled back with an error", coordinated((peer, queue) -> {
            String second = Peer.queue();
            peer.sender(2, second);
            byte[] transaction = declare(peer, 0);
            post(peer, 1, transaction);
            peer.expectDisposition().withFirst(2).withSettled(true).withState(instanceOf(TransactionalState.class));
            peer.message(2, 2).withState().transactional().withTxnId(transaction).also().now();
            peer.await();
            expectRejected(peer, 3, ROLLBACK);
            request(peer, 3, new Discharge().setTxnId(new Binary(transaction)).setFail(false));
            peer.await();
            peer.finish();
            Peer.holds(queue);
            Peer.holds(second);
        }));
    }

    private static void endings(Suite suite) {
        suite.group("open transaction");
        Map<String, Peer.Step> endings = new LinkedHashMap<>();
        endings.put("the detach of its coordinator", peer -> {
            peer.expectDetach().withError(nullValue());
            peer.remoteDetach().withHandle(0).withClosed(true).now();
            peer.await();
            peer.finish();
        });
        endings.put("the end of its session", peer -> {
            peer.expectEnd().withError(nullValue());
            peer.remoteEnd().onChannel(0).now();
            peer.await();
            peer.finish();
        });
        endings.put("the close of its connection", Peer::finish);
        endings.put("the break of its connection", Peer::close);
        endings.put("an error of its connection", peer -> {
            peer.bytes(Peer.hex("00000007 02 00 0000"));
            peer.closed(Peer.FRAMING);
        });
        endings.forEach((name, step) -> suite.check("it is rolled back by " + name, coordinated((peer, queue) -> {
            peer.publish(1, 0);
            peer.receiver(2, queue);
            peer.expectMessage(0);
            peer.credit(2, 0, 1);
            peer.await();
            byte[] transaction = declare(peer, 1);
            post(peer, 2, transaction);
            peer.remoteDisposition().withRole(Role.RECEIVER).withFirst(0).withSettled(true)
                    .withState(new TransactionalState().setTxnId(new Binary(transaction)).setOutcome(Accepted.getInstance())).now();
            peer.sync();
            step.run(peer);
            Peer receiver = Peer.begun();
            receiver.receiver(0, queue);
            receiver.expectMessage(0).accept();
            receiver.credit(0, 0, 1);
            receiver.await();
            receiver.finish();
            Peer.holds(queue);
        })));
    }
}
