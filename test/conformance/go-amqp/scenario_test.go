// Scenarios of Azure's AMQP 1.0 client, which Microsoft's and RabbitMQ's Go clients are built on.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
)

// The default address of a node, for a run without a suite: AMQP_URL.
func url() string {
	if url := os.Getenv("AMQP_URL"); url != "" {
		return url
	}
	return "amqp://127.0.0.1:5672"
}

type client struct {
	t       *testing.T
	ctx     context.Context
	conn    *amqp.Conn
	session *amqp.Session
	*management
}

func connect(t *testing.T, user string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	conn, err := amqp.Dial(ctx, url(), &amqp.ConnOptions{
		ContainerID: t.Name(),
		SASLType:    amqp.SASLTypePlain(user, user),
	})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	c := &client{t: t, ctx: ctx, conn: conn}
	c.session = c.newSession()
	c.management = newManagement(c)
	return c
}

func open(t *testing.T) *client { return connect(t, "guest") }

func (c *client) newSession() *amqp.Session {
	c.t.Helper()
	session, err := c.conn.NewSession(c.ctx, nil)
	must(c.t, err)
	return session
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Requires an error with that condition, whichever of link, session and connection it ended.
func expectError(t *testing.T, err error, condition amqp.ErrCond) {
	t.Helper()
	var plain *amqp.Error
	var link *amqp.LinkError
	var session *amqp.SessionError
	var conn *amqp.ConnError
	switch {
	case err == nil:
		t.Fatalf("no error; want %s", condition)
	case errors.As(err, &link) && link.RemoteErr != nil:
		plain = link.RemoteErr
	case errors.As(err, &session) && session.RemoteErr != nil:
		plain = session.RemoteErr
	case errors.As(err, &conn) && conn.RemoteErr != nil:
		plain = conn.RemoteErr
	case !errors.As(err, &plain):
		t.Fatalf("error %v; want %s", err, condition)
	}
	if plain.Condition != condition {
		t.Fatalf("error %v; want %s", plain, condition)
	}
}

// management is a pair of links with the management node.
type management struct {
	c        *client
	sender   *amqp.Sender
	receiver *amqp.Receiver
	next     uint64
}

func newManagement(c *client) *management {
	c.t.Helper()
	paired := map[string]any{"paired": true}
	settled := amqp.SenderSettleModeSettled
	sender, err := c.session.NewSender(c.ctx, "/management", &amqp.SenderOptions{
		Name: "management", Properties: paired, SettlementMode: &settled, SourceAddress: "me",
	})
	must(c.t, err)
	receiver, err := c.session.NewReceiver(c.ctx, "/management", &amqp.ReceiverOptions{
		Name: "management", Properties: paired, SettlementMode: amqp.ReceiverSettleModeFirst.Ptr(),
		RequestedSenderSettleMode: &settled, TargetAddress: "me", Credit: 100,
	})
	must(c.t, err)
	return &management{c: c, sender: sender, receiver: receiver}
}

func (m *management) request(method, path string, body any) (string, any) {
	m.c.t.Helper()
	m.next++
	me := "$me"
	message := &amqp.Message{Value: body, Properties: &amqp.MessageProperties{
		MessageID: m.next, To: &path, Subject: &method, ReplyTo: &me,
	}}
	must(m.c.t, m.sender.Send(m.c.ctx, message, nil))
	response, err := m.receiver.Receive(m.c.ctx, nil)
	must(m.c.t, err)
	if response.Properties.CorrelationID != m.next {
		m.c.t.Fatalf("correlation id %v of request %d", response.Properties.CorrelationID, m.next)
	}
	return *response.Properties.Subject, response.Value
}

// Requires a status, and returns the body.
func (m *management) call(status, method, path string, body any) any {
	m.c.t.Helper()
	got, value := m.request(method, path, body)
	if got != status {
		m.c.t.Fatalf("%s %s: status %s, want %s: %v", method, path, got, status, value)
	}
	return value
}

func (m *management) queue(name, kind string, arguments map[string]any) string {
	m.c.t.Helper()
	all := map[string]any{"x-queue-type": kind}
	for key, value := range arguments {
		all[key] = value
	}
	m.call("201", "PUT", "/queues/"+name, map[string]any{"arguments": all})
	m.c.t.Cleanup(func() { m.remove(name) })
	return "/queues/" + name
}

// Deletes a queue over a connection of its own, because the test may have ended its session.
func (m *management) remove(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := amqp.Dial(ctx, url(), &amqp.ConnOptions{SASLType: amqp.SASLTypePlain("guest", "guest")})
	must(m.c.t, err)
	defer conn.Close()
	c := &client{t: m.c.t, ctx: ctx, conn: conn}
	c.session = c.newSession()
	newManagement(c).call("200", "DELETE", "/queues/"+name, nil)
}

func (c *client) sender(address string) *amqp.Sender {
	c.t.Helper()
	sender, err := c.session.NewSender(c.ctx, address, nil)
	must(c.t, err)
	return sender
}

func (c *client) receiver(address string, credit int32) *amqp.Receiver {
	c.t.Helper()
	receiver, err := c.session.NewReceiver(c.ctx, address, &amqp.ReceiverOptions{Credit: credit})
	must(c.t, err)
	return receiver
}

func (c *client) send(sender *amqp.Sender, bodies ...string) {
	c.t.Helper()
	for _, body := range bodies {
		must(c.t, sender.Send(c.ctx, amqp.NewMessage([]byte(body)), nil))
	}
}

func (c *client) receive(receiver *amqp.Receiver) *amqp.Message {
	c.t.Helper()
	message, err := receiver.Receive(c.ctx, nil)
	must(c.t, err)
	return message
}

func (c *client) expect(receiver *amqp.Receiver, bodies ...string) {
	c.t.Helper()
	for _, body := range bodies {
		message := c.receive(receiver)
		if string(message.GetData()) != body {
			c.t.Fatalf("received %q, want %q", message.GetData(), body)
		}
		must(c.t, receiver.AcceptMessage(c.ctx, message))
	}
}

// Waits until a queue has so many messages that are ready.
func (c *client) awaitReady(queue string, messages uint64) {
	c.t.Helper()
	for {
		status := c.call("200", "GET", queue, nil).(map[string]any)
		if status["message_count"] == messages {
			return
		}
		if c.ctx.Err() != nil {
			c.t.Fatalf("%s has %v messages, want %d", queue, status["message_count"], messages)
		}
	}
}

var kinds = []string{"classic", "quorum"}

// Runs a scenario on a queue of each type.
func eachKind(t *testing.T, run func(c *client, queue string)) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			c := open(t)
			name := strings.ReplaceAll(t.Name(), "/", "-")
			run(c, c.queue(name, kind, nil))
		})
	}
}

func TestMessagesArriveInOrder(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		c.send(c.sender(queue), "a", "b", "c")
		c.expect(c.receiver(queue, 1), "a", "b", "c")
		c.awaitReady(queue, 0)
	})
}

func TestManyMessagesWithManyUnconfirmed(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		const messages = 2000
		sender := c.sender(queue)
		sent := make(chan error, 1)
		go func() {
			receipts := make([]amqp.SendReceipt, 0, messages)
			for n := range messages {
				receipt, err := sender.SendWithReceipt(c.ctx, amqp.NewMessage(fmt.Appendf(nil, "%d", n)), nil)
				if err != nil {
					sent <- err
					return
				}
				receipts = append(receipts, receipt)
			}
			for _, receipt := range receipts {
				state, err := receipt.Wait(c.ctx)
				if _, ok := state.(*amqp.StateAccepted); !ok || err != nil {
					sent <- fmt.Errorf("state %v: %w", state, err)
					return
				}
			}
			sent <- nil
		}()
		receiver := c.receiver(queue, 100)
		for n := range messages {
			c.expect(receiver, fmt.Sprint(n))
		}
		must(c.t, <-sent)
	})
}

func TestLargeMessageInManyTransfers(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		body := make([]byte, 5<<20)
		for n := range body {
			body[n] = byte(rand.Uint32())
		}
		c.send(c.sender(queue), string(body), "next")
		c.expect(c.receiver(queue, 10), string(body), "next")
	})
}

func TestEveryPropertyArrivesAsSent(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		text := func(s string) *string { return &s }
		now := time.UnixMilli(1_700_000_000_123).UTC()
		sequence := uint32(7)
		message := &amqp.Message{
			Header:      &amqp.MessageHeader{Durable: true, Priority: 3, TTL: time.Minute},
			Annotations: amqp.Annotations{"x-opt-note": "kept", "x-number": int64(5)},
			Properties: &amqp.MessageProperties{
				MessageID: amqp.UUID{1, 2, 3}, UserID: []byte("guest"), To: text("somewhere"), Subject: text("subject"),
				ReplyTo: text("/queues/replies"), CorrelationID: uint64(42), ContentType: text("text/plain"),
				ContentEncoding: text("gzip"), AbsoluteExpiryTime: &now, CreationTime: &now, GroupID: text("group"),
				GroupSequence: &sequence, ReplyToGroupID: text("replies"),
			},
			ApplicationProperties: map[string]any{"text": "value", "number": int32(-5), "flag": true, "id": amqp.UUID{9}},
			Value:                 map[string]any{"nested": []any{"list", uint64(1)}},
			Footer:                amqp.Annotations{"x-checksum": "sum"},
		}
		must(c.t, c.sender(queue).Send(c.ctx, message, nil))
		got := c.receive(c.receiver(queue, 1))
		compare := func(what string, got, want any) {
			c.t.Helper()
			if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
				c.t.Errorf("%s: %#v, want %#v", what, got, want)
			}
		}
		if !got.Header.Durable || got.Header.Priority != 3 || got.Header.TTL != time.Minute || !got.Header.FirstAcquirer {
			c.t.Errorf("header %+v", got.Header)
		}
		compare("note", got.Annotations["x-opt-note"], "kept")
		compare("number", got.Annotations["x-number"], int64(5))
		compare("exchange", got.Annotations["x-exchange"], "")
		compare("key", got.Annotations["x-routing-key"], strings.TrimPrefix(queue, "/queues/"))
		compare("message id", got.Properties.MessageID, message.Properties.MessageID)
		compare("correlation id", got.Properties.CorrelationID, message.Properties.CorrelationID)
		compare("creation time", got.Properties.CreationTime.UTC(), now)
		compare("group sequence", *got.Properties.GroupSequence, sequence)
		compare("reply to", *got.Properties.ReplyTo, "/queues/replies")
		compare("application properties", got.ApplicationProperties, message.ApplicationProperties)
		compare("value", got.Value, message.Value)
		compare("footer", got.Footer["x-checksum"], "sum")
	})
}

func TestReleasedMessageIsDeliveredAgain(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		c.send(c.sender(queue), "a")
		receiver := c.receiver(queue, 1)
		must(c.t, receiver.ReleaseMessage(c.ctx, c.receive(receiver)))
		again := c.receive(receiver)
		must(c.t, receiver.AcceptMessage(c.ctx, again))
		c.awaitReady(queue, 0)
	})
}

func TestRejectedMessageIsDeadLettered(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		dead := c.queue(strings.TrimPrefix(queue, "/queues/")+"-dead", "classic", nil)
		source := c.queue(strings.TrimPrefix(queue, "/queues/")+"-source", strings.Split(c.t.Name(), "/")[1], map[string]any{
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": strings.TrimPrefix(dead, "/queues/"),
		})
		c.send(c.sender(source), "a")
		receiver := c.receiver(source, 1)
		must(c.t, receiver.RejectMessage(c.ctx, c.receive(receiver), nil))
		message := c.receive(c.receiver(dead, 1))
		if reason := message.Annotations["x-first-death-reason"]; reason != "rejected" {
			c.t.Errorf("reason %v", reason)
		}
		deaths, _ := message.Annotations["x-opt-deaths"].([]map[any]any)
		if len(deaths) != 1 || deaths[0]["count"] != uint64(1) {
			c.t.Errorf("deaths %#v", message.Annotations["x-opt-deaths"])
		}
	})
}

func TestModifiedMessageCountsAsFailedAttempt(t *testing.T) {
	c := open(t)
	queue := c.queue("modified", "quorum", nil)
	c.send(c.sender(queue), "a")
	receiver := c.receiver(queue, 1)
	must(t, receiver.ModifyMessage(c.ctx, c.receive(receiver), &amqp.ModifyMessageOptions{
		DeliveryFailed: true, Annotations: amqp.Annotations{"x-opt-reason": "busy", "x-opt-count": int64(1)},
	}))
	again := c.receive(receiver)
	if again.Header.DeliveryCount != 1 || again.Header.FirstAcquirer {
		t.Errorf("header %+v", again.Header)
	}
	if again.Annotations["x-opt-reason"] != "busy" || again.Annotations["x-opt-count"] != int64(1) {
		t.Errorf("annotations %v", again.Annotations)
	}
}

func TestUnroutableMessageIsReleased(t *testing.T) {
	c := open(t)
	sender := c.sender("/exchanges/amq.topic/nobody.listens")
	receipt, err := sender.SendWithReceipt(c.ctx, amqp.NewMessage([]byte("a")), nil)
	must(t, err)
	state, err := receipt.Wait(c.ctx)
	must(t, err)
	if _, ok := state.(*amqp.StateReleased); !ok {
		t.Errorf("state %#v", state)
	}
}

func TestMessageBeyondMaximumLengthIsRejected(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			c := open(t)
			queue := c.queue("full-"+kind, kind, map[string]any{"x-max-length": int64(1), "x-overflow": "reject-publish"})
			sender := c.sender(queue)
			for range 10 {
				receipt, err := sender.SendWithReceipt(c.ctx, amqp.NewMessage([]byte("a")), nil)
				must(t, err)
				state, err := receipt.Wait(c.ctx)
				must(t, err)
				rejected, ok := state.(*amqp.StateRejected)
				if !ok {
					continue
				}
				if rejected.Error.Condition != amqp.ErrCondResourceLimitExceeded || rejected.Error.Info["queue"] != "full-"+kind ||
					rejected.Error.Info["reason"] != "maxlen" {
					t.Errorf("error %+v", rejected.Error)
				}
				return
			}
			t.Error("no message was rejected")
		})
	}
}

func TestExchangeRoutesByKey(t *testing.T) {
	c := open(t)
	queue := c.queue("routed", "classic", nil)
	c.call("204", "PUT", "/exchanges/scenario%20x", map[string]any{"type": "topic"})
	c.call("204", "POST", "/bindings", map[string]any{
		"source": "scenario x", "destination_queue": "routed", "binding_key": "orders.#", "arguments": map[string]any{},
	})
	c.send(c.sender("/exchanges/scenario%20x/orders.new"), "a")
	message := c.receive(c.receiver(queue, 1))
	if message.Annotations["x-exchange"] != "scenario x" || message.Annotations["x-routing-key"] != "orders.new" {
		t.Errorf("annotations %v", message.Annotations)
	}
	bindings := c.call("200", "GET", "/bindings?src=scenario%20x&dstq=routed&key=orders.%23", nil).([]any)
	if len(bindings) != 1 {
		t.Fatalf("bindings %v", bindings)
	}
	location := bindings[0].(map[string]any)["location"].(string)
	c.call("204", "DELETE", location, nil)
	bindings = c.call("200", "GET", "/bindings?src=scenario%20x&dstq=routed&key=orders.%23", nil).([]any)
	if len(bindings) != 0 {
		t.Errorf("bindings %v", bindings)
	}
	c.call("204", "DELETE", "/exchanges/scenario%20x", nil)
}

func TestHeadersExchangeMatchesApplicationProperties(t *testing.T) {
	c := open(t)
	queue := c.queue("matched", "classic", nil)
	arguments := map[string]any{"x-match": "all", "kind": "order", "size": int32(5)}
	c.call("204", "POST", "/bindings", map[string]any{
		"source": "amq.headers", "destination_queue": "matched", "binding_key": "", "arguments": arguments,
	})
	sender := c.sender("/exchanges/amq.headers")
	message := amqp.NewMessage([]byte("a"))
	message.ApplicationProperties = map[string]any{"kind": "order", "size": int32(5)}
	must(t, sender.Send(c.ctx, message, nil))
	c.expect(c.receiver(queue, 1), "a")
}

func TestAnonymousTerminusRoutesByTheProperty(t *testing.T) {
	c := open(t)
	queue := c.queue("to", "quorum", nil)
	sender, err := c.session.NewSender(c.ctx, "", nil)
	must(t, err)
	message := amqp.NewMessage([]byte("a"))
	message.Properties = &amqp.MessageProperties{To: &queue}
	must(t, sender.Send(c.ctx, message, nil))
	missing := "/exchanges/nowhere/key"
	lost := amqp.NewMessage([]byte("b"))
	lost.Properties = &amqp.MessageProperties{To: &missing}
	expectError(t, sender.Send(c.ctx, lost, nil), amqp.ErrCondNotFound)
	expectError(t, sender.Send(c.ctx, amqp.NewMessage([]byte("c")), nil), amqp.ErrCondPreconditionFailed)
	must(t, sender.Send(c.ctx, message, nil))
	c.expect(c.receiver(queue, 2), "a", "a")
}

func TestSettledMessagesAreDeliveredToo(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		settled := amqp.SenderSettleModeSettled
		sender, err := c.session.NewSender(c.ctx, queue, &amqp.SenderOptions{SettlementMode: &settled})
		must(c.t, err)
		bodies := make([]string, 500)
		for n := range bodies {
			bodies[n] = fmt.Sprint(n)
		}
		c.send(sender, bodies...)
		receiver, err := c.session.NewReceiver(c.ctx, queue, &amqp.ReceiverOptions{
			Credit: 50, RequestedSenderSettleMode: &settled,
		})
		must(c.t, err)
		for _, body := range bodies {
			if message := c.receive(receiver); string(message.GetData()) != body {
				c.t.Fatalf("received %q, want %q", message.GetData(), body)
			}
		}
		c.awaitReady(queue, 0)
	})
}

func TestDrainEndsTheCredit(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		c.send(c.sender(queue), "a", "b")
		receiver, err := c.session.NewReceiver(c.ctx, queue, &amqp.ReceiverOptions{Credit: -1})
		must(c.t, err)
		must(c.t, receiver.IssueCredit(10))
		c.expect(receiver, "a", "b")
		must(c.t, receiver.DrainCredit(c.ctx, nil))
		c.send(c.sender(queue), "c")
		c.awaitReady(queue, 1)
		must(c.t, receiver.IssueCredit(1))
		c.expect(receiver, "c")
	})
}

func TestCreditLimitsDeliveries(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		c.send(c.sender(queue), "a", "b", "c")
		receiver, err := c.session.NewReceiver(c.ctx, queue, &amqp.ReceiverOptions{Credit: -1})
		must(c.t, err)
		must(c.t, receiver.IssueCredit(2))
		c.expect(receiver, "a", "b")
		c.awaitReady(queue, 1)
		must(c.t, receiver.IssueCredit(1))
		c.expect(receiver, "c")
	})
}

func TestDetachedReceiverReturnsItsMessages(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		c.send(c.sender(queue), "a", "b", "c")
		receiver := c.receiver(queue, 10)
		for range 3 {
			c.receive(receiver)
		}
		must(c.t, receiver.Close(c.ctx))
		c.expect(c.receiver(queue, 3), "a", "b", "c")
	})
}

func TestClosedConnectionReturnsItsMessages(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		c.send(c.sender(queue), "a", "b")
		other := open(c.t)
		receiver := other.receiver(queue, 10)
		for range 2 {
			other.receive(receiver)
		}
		must(c.t, other.conn.Close())
		c.expect(c.receiver(queue, 2), "a", "b")
	})
}

func TestSmallFramesSplitMessages(t *testing.T) {
	c := open(t)
	queue := c.queue("frames", "classic", nil)
	conn, err := amqp.Dial(c.ctx, url(), &amqp.ConnOptions{SASLType: amqp.SASLTypePlain("guest", "guest"), MaxFrameSize: 512})
	must(t, err)
	defer conn.Close()
	session, err := conn.NewSession(c.ctx, nil)
	must(t, err)
	body := strings.Repeat("0123456789", 20_000)
	c.send(c.sender(queue), body)
	receiver, err := session.NewReceiver(c.ctx, queue, nil)
	must(t, err)
	message, err := receiver.Receive(c.ctx, nil)
	must(t, err)
	if string(message.GetData()) != body {
		t.Error("the body differs")
	}
	must(t, receiver.AcceptMessage(c.ctx, message))
}

func TestUnknownQueueIsRefused(t *testing.T) {
	c := open(t)
	_, err := c.newSession().NewReceiver(c.ctx, "/queues/missing", nil)
	expectError(t, err, amqp.ErrCondNotFound)
	_, err = c.newSession().NewSender(c.ctx, "/queues/missing", nil)
	expectError(t, err, amqp.ErrCondNotFound)
	_, err = c.newSession().NewSender(c.ctx, "/exchanges/missing", nil)
	expectError(t, err, amqp.ErrCondNotFound)
}

func TestBadAddressesAreRefused(t *testing.T) {
	c := open(t)
	for _, address := range []string{"orders", "/queue/orders", "/queues/%", "/exchanges//key"} {
		_, err := c.newSession().NewSender(c.ctx, address, nil)
		expectError(t, err, amqp.ErrCondInvalidField)
	}
	_, err := c.newSession().NewReceiver(c.ctx, "/exchanges/amq.topic/key", nil)
	expectError(t, err, amqp.ErrCondInvalidField)
}

func TestDeletedQueueDetachesItsConsumers(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		name := queue + "-deleted"
		c.call("201", "PUT", name, map[string]any{"arguments": map[string]any{"x-queue-type": strings.Split(c.t.Name(), "/")[1]}})
		receiver := c.receiver(name, 1)
		c.call("200", "DELETE", name, nil)
		_, err := receiver.Receive(c.ctx, nil)
		expectError(c.t, err, amqp.ErrCondResourceDeleted)
	})
}

func TestWrongPasswordIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := amqp.Dial(ctx, url(), &amqp.ConnOptions{SASLType: amqp.SASLTypePlain("guest", "wrong")})
	if err == nil {
		conn.Close()
		t.Fatal("the login succeeded")
	}
}

func TestAnonymousLogin(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := amqp.Dial(ctx, url(), &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	must(t, err)
	must(t, conn.Close())
}

func TestUnknownVhostIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := amqp.Dial(ctx, url(), &amqp.ConnOptions{
		SASLType: amqp.SASLTypePlain("guest", "guest"), HostName: "vhost:missing",
	})
	if err == nil {
		// The close follows the open.
		defer conn.Close()
		_, err = conn.NewSession(ctx, nil)
	}
	expectError(t, err, amqp.ErrCondNotFound)
}

func TestManagementAnswersWithRabbitMQsStatus(t *testing.T) {
	c := open(t)
	quorum := map[string]any{"arguments": map[string]any{"x-queue-type": "quorum"}}
	created := c.call("201", "PUT", "/queues/status", quorum).(map[string]any)
	if created["name"] != "status" || created["type"] != "quorum" || created["leader"] == nil {
		t.Errorf("queue %v", created)
	}
	c.call("200", "PUT", "/queues/status", quorum)
	c.call("409", "PUT", "/queues/status", map[string]any{"arguments": map[string]any{"x-queue-type": "classic"}})
	c.call("403", "PUT", "/queues/amq.reserved", quorum)
	c.call("400", "PUT", "/exchanges/x", map[string]any{"type": "unknown"})
	c.call("409", "PUT", "/exchanges/amq.topic", map[string]any{"type": "direct"})
	c.call("404", "GET", "/queues/missing", nil)
	c.call("400", "POST", "/bindings", map[string]any{
		"source": "missing", "destination_queue": "status", "binding_key": "", "arguments": map[string]any{},
	})
	c.send(c.sender("/queues/status"), "a", "b")
	c.awaitReady("/queues/status", 2)
	purged := c.call("200", "DELETE", "/queues/status/messages", nil).(map[string]any)
	if purged["message_count"] != uint64(2) {
		t.Errorf("purged %v", purged)
	}
	c.call("200", "DELETE", "/queues/status", nil)
	c.call("200", "DELETE", "/queues/status", nil)
}

func TestExclusiveQueueBelongsToItsConnection(t *testing.T) {
	c := open(t)
	c.call("201", "PUT", "/queues/own", map[string]any{"exclusive": true})
	c.expectExclusive(open(t))
	c.send(c.sender("/queues/own"), "a")
	c.expect(c.receiver("/queues/own", 1), "a")
	must(t, c.conn.Close())
	other := open(t)
	for {
		status, _ := other.request("GET", "/queues/own", nil)
		if status == "404" {
			return
		}
	}
}

func (c *client) expectExclusive(other *client) {
	c.t.Helper()
	_, err := other.newSession().NewReceiver(other.ctx, "/queues/own", nil)
	expectError(c.t, err, "amqp:resource-locked")
}

func TestConsumersShareAQueue(t *testing.T) {
	eachKind(t, func(c *client, queue string) {
		first, second := c.receiver(queue, 1), c.receiver(queue, 1)
		c.send(c.sender(queue), "a", "b")
		one, other := c.receive(first), c.receive(second)
		if string(one.GetData()) == string(other.GetData()) {
			c.t.Errorf("both received %q", one.GetData())
		}
	})
}

func TestMessageToTwoQueuesIsAccepted(t *testing.T) {
	c := open(t)
	classic, quorum := c.queue("fan-classic", "classic", nil), c.queue("fan-quorum", "quorum", nil)
	for _, queue := range []string{"fan-classic", "fan-quorum"} {
		c.call("204", "POST", "/bindings", map[string]any{
			"source": "amq.fanout", "destination_queue": queue, "binding_key": "", "arguments": map[string]any{},
		})
	}
	c.send(c.sender("/exchanges/amq.fanout"), "a")
	c.expect(c.receiver(classic, 1), "a")
	c.expect(c.receiver(quorum, 1), "a")
}
