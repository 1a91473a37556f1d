package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"posthorn.io/posthorn/test/demoapp/history"
)

func delivery(p amqp.Publishing) amqp.Delivery {
	return amqp.Delivery{MessageId: p.MessageId, Headers: p.Headers, Body: p.Body, DeliveryMode: p.DeliveryMode}
}

func TestMessagesAreRecognised(t *testing.T) {
	for _, size := range []int{0, 1, 12, 200, 5000} {
		id := identity{"run", 3, 141}
		p := id.publishing(size)
		got, err := parseIdentity(p.MessageId)
		if err != nil || got != id || !got.intact(delivery(p)) {
			t.Errorf("size %d: %+v %v", size, got, err)
		}
		if size > 100 && (len(p.Body) > size || len(p.Body) < size/2) {
			t.Errorf("%d bytes of content instead of about %d", len(p.Body), size)
		}
	}
}

func TestDamageIsRecognised(t *testing.T) {
	id := identity{"run", 3, 141}
	damage := map[string]func(*amqp.Delivery){
		"a byte":         func(d *amqp.Delivery) { d.Body = append([]byte("x"), d.Body[1:]...) },
		"cut off":        func(d *amqp.Delivery) { d.Body = d.Body[:len(d.Body)-1] },
		"no size":        func(d *amqp.Delivery) { d.Headers = nil },
		"wrong size":     func(d *amqp.Delivery) { d.Headers = amqp.Table{"x-body-size": int32(-5)} },
		"huge size":      func(d *amqp.Delivery) { d.Headers = amqp.Table{"x-body-size": int32(1 << 30)} },
		"not persistent": func(d *amqp.Delivery) { d.DeliveryMode = amqp.Transient },
		"another's body": func(d *amqp.Delivery) { d.Body = identity{"run", 3, 142}.body(200) },
	}
	for name, f := range damage {
		d := delivery(id.publishing(200))
		f(&d)
		if id.intact(d) {
			t.Errorf("%s: taken for intact", name)
		}
	}
	for _, s := range []string{"", "x", "a/1", "a/1/2/3", "/1/2", "a/b/c", "a/1/"} {
		if id, err := parseIdentity(s); err == nil {
			t.Errorf("%q became %+v", s, id)
		}
	}
}

func TestBindingFromDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, v := range map[string]string{"host": "h.example", "port": "5673", "username": "u", "password": "p/@:\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(v), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := readBinding(dir, func(string) string { return "from the environment" })
	if want := (binding{"h.example", "5673", "u", "p/@:", "/"}); err != nil || b != want {
		t.Errorf("%+v %v", b, err)
	}
}

func TestBindingFromEnvironment(t *testing.T) {
	env := map[string]string{"AMQP_HOST": "h", "AMQP_USERNAME": "u", "AMQP_PASSWORD": "p", "AMQP_VHOST": "v"}
	b, err := readBinding("", func(k string) string { return env[k] })
	if want := (binding{"h", "5672", "u", "p", "v"}); err != nil || b != want {
		t.Errorf("%+v %v", b, err)
	}
	delete(env, "AMQP_PASSWORD")
	if _, err := readBinding("", func(k string) string { return env[k] }); err == nil {
		t.Error("accepted without a password")
	}
}

func TestWrongUsageIsRefused(t *testing.T) {
	for _, args := range []string{
		"", "dance", "run x", "publish", "consume", "run --publishers 0", "run --messages 2 --publishers 3",
		"run --window 0", "run --window 70000", "run --size -1", "run --rate -1", "run --nonsense", "run --binding /nonexistent",
	} {
		var out, errs bytes.Buffer
		if code := run(context.Background(), nil, strings.Fields(args), &out, &errs); code != exitUsage {
			t.Errorf("%q: exit %d", args, code)
		}
		if errs.Len() == 0 || strings.Contains(out.String(), "RESULT") {
			t.Errorf("%q: says %q and %q", args, errs.String(), out.String())
		}
	}
}

func TestSharesOfPublishersAddUp(t *testing.T) {
	for _, c := range [][2]int{{10, 3}, {10000, 4}, {7, 7}} {
		sum := 0
		for i := range c[1] {
			sum += share(c[0], c[1], i)
		}
		if sum != c[0] {
			t.Errorf("%v adds up to %d", c, sum)
		}
	}
}

func TestPublishersStopWhenEnoughIsClosed(t *testing.T) {
	told := make(chan struct{})
	close(told)
	p := &publisher{count: 100, next: 5, window: 1, interval: time.Hour, enough: told}
	if err := p.continueWith(t.Context(), session{}, nil, nil); err != nil || p.count != 5 {
		t.Errorf("%v, %d messages to send", err, p.count)
	}
	// What was sent and is not confirmed is waited for.
	p = &publisher{count: 100, next: 5, window: 1, interval: time.Hour, enough: told, pending: []int{4}, history: history.New(), stats: newStats(&bytes.Buffer{}, 100)}
	for number := range 5 {
		if err := p.history.Sent(0, number); err != nil {
			t.Fatal(err)
		}
	}
	confirms := make(chan amqp.Confirmation, 1)
	confirms <- amqp.Confirmation{Ack: true}
	if err := p.continueWith(t.Context(), session{}, confirms, nil); err != nil || p.count != 5 || len(p.pending) != 0 {
		t.Errorf("%v, %d messages to send, %v not confirmed", err, p.count, p.pending)
	}
}

func TestClientDoesNotReconnectAfterTheEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := binding{host: host, port: port, username: "u", password: "p", vhost: "/"}
	if err := keepConnected(ctx, b, "late", newStats(&bytes.Buffer{}, 1), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	defer listener.Close()
	// The first one is this one.
	own, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	first, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if first.RemoteAddr().String() != own.LocalAddr().String() {
		t.Errorf("%s connected", first.RemoteAddr())
	}
}

func TestHalfwayIsReportedOnce(t *testing.T) {
	for _, total := range []int{1, 2, 7, 10} {
		var out bytes.Buffer
		s := newStats(&out, total)
		for range total {
			s.confirm()
		}
		if n := strings.Count(out.String(), "HALFWAY\n"); n != 1 {
			t.Errorf("%d messages: said %d times", total, n)
		}
	}
}

func TestMessagesOfOtherRunsAreIgnored(t *testing.T) {
	c := &consumer{run: "mine", history: history.New(), stats: newStats(&bytes.Buffer{}, 1)}
	c.take(delivery(identity{"theirs", 0, 0}.publishing(10)))
	c.take(amqp.Delivery{MessageId: "something else"})
	if v := c.history.Judge(); c.strangers != 2 || v.Phantoms != 0 {
		t.Errorf("%d strangers, %+v", c.strangers, v)
	}
}
