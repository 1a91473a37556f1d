// Messages of AMQP 0.9.1, AMQP 1.0, MQTT 5.0 and the stream protocol through a node that exports to the receiver of the OpenTelemetry collector, which
// decodes and checks the requests. The rest of a collector would take minutes to build, and would only pass on what the receiver
// has read.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/eclipse/paho.golang/paho"
	amqp091 "github.com/rabbitmq/amqp091-go"
	streamamqp "github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

// collected is what the collector has received.
type collected struct {
	sync.Mutex
	spans   []span
	metrics map[string]pmetric.Metric
	// exemplars has the number of exemplars by metric and trace id.
	exemplars map[string]map[string]int
	service   string
}

type span struct {
	ptrace.Span
	service string
}

var received = &collected{metrics: map[string]pmetric.Metric{}, exemplars: map[string]map[string]int{}}

func serviceOf(attributes interface{ AsRaw() map[string]any }) string {
	raw := attributes.AsRaw()
	return fmt.Sprint(raw["service.name"], "/", raw["service.instance.id"])
}

func (c *collected) takeTraces(_ context.Context, traces ptrace.Traces) error {
	c.Lock()
	defer c.Unlock()
	for _, resource := range traces.ResourceSpans().All() {
		for _, scope := range resource.ScopeSpans().All() {
			for _, found := range scope.Spans().All() {
				copied := ptrace.NewSpan()
				found.CopyTo(copied)
				c.spans = append(c.spans, span{copied, serviceOf(resource.Resource().Attributes())})
			}
		}
	}
	return nil
}

func (c *collected) takeMetrics(_ context.Context, metrics pmetric.Metrics) error {
	c.Lock()
	defer c.Unlock()
	for _, resource := range metrics.ResourceMetrics().All() {
		c.service = serviceOf(resource.Resource().Attributes())
		for _, scope := range resource.ScopeMetrics().All() {
			for _, found := range scope.Metrics().All() {
				copied := pmetric.NewMetric()
				found.CopyTo(copied)
				c.metrics[found.Name()] = copied
				c.countExemplars(found)
			}
		}
	}
	return nil
}

func (c *collected) countExemplars(metric pmetric.Metric) {
	if metric.Type() != pmetric.MetricTypeHistogram {
		return
	}
	counts := c.exemplars[metric.Name()]
	if counts == nil {
		counts = map[string]int{}
		c.exemplars[metric.Name()] = counts
	}
	for _, point := range metric.Histogram().DataPoints().All() {
		for _, exemplar := range point.Exemplars().All() {
			counts[exemplar.TraceID().String()]++
		}
	}
}

// startReceiver starts the collector's receiver of OTLP over HTTP, with received behind it.
func startReceiver(ctx context.Context) (stop func(context.Context) error, err error) {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	http := map[string]any{"protocols": map[string]any{"http": map[string]any{"endpoint": "127.0.0.1:4318"}}}
	if err := confmap.NewFromStringMap(http).Unmarshal(config); err != nil {
		return nil, err
	}
	traces, err := consumer.NewTraces(received.takeTraces)
	if err != nil {
		return nil, err
	}
	metrics, err := consumer.NewMetrics(received.takeMetrics)
	if err != nil {
		return nil, err
	}
	settings := receivertest.NewNopSettings(factory.Type())
	ofTraces, err := factory.CreateTraces(ctx, settings, config, traces)
	if err != nil {
		return nil, err
	}
	// Both share one server.
	ofMetrics, err := factory.CreateMetrics(ctx, settings, config, metrics)
	if err != nil {
		return nil, err
	}
	host := componenttest.NewNopHost()
	if err := errors.Join(ofTraces.Start(ctx, host), ofMetrics.Start(ctx, host)); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return errors.Join(ofTraces.Shutdown(ctx), ofMetrics.Shutdown(ctx))
	}, nil
}

func TestMain(m *testing.M) {
	ctx := context.Background()
	stop, err := startReceiver(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the collector's receiver does not start:", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within repeats look until it succeeds.
func within(t *testing.T, what string, look func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !look(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// trace is the id of the test's own trace, with the number of the protocol.
func trace(n int) string  { return fmt.Sprintf("%032x", 0xabcdef00+n) }
func parent(n int) string { return "00-" + trace(n) + "-00f067aa0ba902b7-01" }

// spansOf waits until the trace has the named spans, and checks what they have in common.
func spansOf(t *testing.T, n int, names ...string) map[string]span {
	t.Helper()
	found := map[string]span{}
	within(t, strings.Join(names, " and "), func() bool {
		received.Lock()
		defer received.Unlock()
		for _, s := range received.spans {
			if s.TraceID().String() == trace(n) {
				found[s.Name()] = s
			}
		}
		for _, name := range names {
			if _, is := found[name]; !is {
				return false
			}
		}
		return true
	})
	for name, s := range found {
		if got := s.ParentSpanID().String(); got != "00f067aa0ba902b7" {
			t.Errorf("%s: parent %s", name, got)
		}
		if s.service != "posthorn/one" {
			t.Errorf("%s: service %s", name, s.service)
		}
		if s.EndTimestamp() < s.StartTimestamp() || time.Since(s.StartTimestamp().AsTime()).Abs() > time.Hour {
			t.Errorf("%s: from %v to %v", name, s.StartTimestamp(), s.EndTimestamp())
		}
		expect(t, s, "messaging.system", "posthorn")
	}
	if len(found) != len(names) {
		t.Errorf("spans %v, expected %v", found, names)
	}
	return found
}

// measured waits until the node has exported the latency of a delivery from a queue of this type.
func measured(t *testing.T, queueType string) {
	t.Helper()
	within(t, "the latency of a delivery of type "+queueType, func() bool {
		received.Lock()
		defer received.Unlock()
		metric := received.metrics["posthorn_delivery_latency_seconds"]
		if metric == (pmetric.Metric{}) {
			return false
		}
		for _, point := range metric.Histogram().DataPoints().All() {
			if kind, _ := point.Attributes().Get("queue_type"); kind.AsString() == queueType && point.Count() > 0 {
				return true
			}
		}
		return false
	})
}

// spansWith counts the spans of a trace so far.
func spansWith(n int) (count int) {
	received.Lock()
	defer received.Unlock()
	for _, s := range received.spans {
		if s.TraceID().String() == trace(n) {
			count++
		}
	}
	return count
}

// expect checks an attribute. An empty value: the span has no such attribute.
func expect(t *testing.T, s span, name, value string) {
	t.Helper()
	got := ""
	if found, has := s.Attributes().Get(name); has {
		got = found.AsString()
	}
	if got != value {
		t.Errorf("%s: %s is %q, expected %q", s.Name(), name, got, value)
	}
}

func TestAmqp091(t *testing.T) {
	conn, err := amqp091.Dial("amqp://guest:guest@127.0.0.1:5672/")
	must(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	must(t, err)
	must(t, channel.Confirm(false))
	_, err = channel.QueueDeclare("one", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", "one", false, false, amqp091.Publishing{
		Headers: amqp091.Table{"traceparent": parent(1), "tracestate": "vendor=x"},
		Body:    []byte("hello"),
	})
	must(t, err)
	if is, err := confirm.WaitContext(ctx); err != nil || !is {
		t.Fatal(is, err)
	}
	deliveries, err := channel.Consume("one", "", false, false, false, false, nil)
	must(t, err)
	delivery := <-deliveries
	if got := delivery.Headers["traceparent"]; got != parent(1) {
		t.Errorf("the context of the message became %v", got)
	}
	must(t, delivery.Ack(false))
	spans := spansOf(t, 1, "publish amq.default", "deliver one")
	publish, deliver := spans["publish amq.default"], spans["deliver one"]
	if publish.Kind() != ptrace.SpanKindServer || deliver.Kind() != ptrace.SpanKindInternal {
		t.Error(publish.Kind(), deliver.Kind())
	}
	if got := publish.TraceState().AsRaw(); got != "vendor=x" {
		t.Error("tracestate", got)
	}
	expect(t, publish, "network.protocol.version", "0.9.1")
	expect(t, publish, "messaging.message.body.size", "5")
	expect(t, deliver, "posthorn.outcome", "accepted")
	measured(t, "quorum")
}

func TestAmqp10(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The queue is declared with the other protocol.
	other, err := amqp091.Dial("amqp://guest:guest@127.0.0.1:5672/")
	must(t, err)
	defer other.Close()
	channel, err := other.Channel()
	must(t, err)
	_, err = channel.QueueDeclare("two", true, false, false, false, nil)
	must(t, err)
	conn, err := amqp.Dial(ctx, "amqp://127.0.0.1:5672", &amqp.ConnOptions{SASLType: amqp.SASLTypePlain("guest", "guest")})
	must(t, err)
	defer conn.Close()
	session, err := conn.NewSession(ctx, nil)
	must(t, err)
	sender, err := session.NewSender(ctx, "/queues/two", nil)
	must(t, err)
	annotated := amqp.NewMessage([]byte("hello"))
	annotated.Annotations = amqp.Annotations{"traceparent": parent(2)}
	must(t, sender.Send(ctx, annotated, nil))
	property := amqp.NewMessage([]byte("hello"))
	property.ApplicationProperties = map[string]any{"traceparent": parent(3)}
	must(t, sender.Send(ctx, property, nil))
	receiver, err := session.NewReceiver(ctx, "/queues/two", nil)
	must(t, err)
	first, err := receiver.Receive(ctx, nil)
	must(t, err)
	must(t, receiver.AcceptMessage(ctx, first))
	second, err := receiver.Receive(ctx, nil)
	must(t, err)
	must(t, receiver.RejectMessage(ctx, second, nil))
	for n, outcome := range map[int]string{2: "accepted", 3: "rejected"} {
		spans := spansOf(t, n, "publish amq.default", "deliver two")
		expect(t, spans["publish amq.default"], "network.protocol.version", "1.0")
		expect(t, spans["deliver two"], "posthorn.outcome", outcome)
	}
	measured(t, "classic")
}

// mqttClient connects a client of MQTT 5.0. Its session lasts for expiry seconds.
func mqttClient(ctx context.Context, t *testing.T, id string, expiry uint32) (*paho.Client, chan *paho.Publish) {
	t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:1883")
	must(t, err)
	messages := make(chan *paho.Publish, 1)
	client := paho.NewClient(paho.ClientConfig{
		Conn: conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			messages <- p.Packet
			return true, nil
		}},
	})
	_, err = client.Connect(ctx, &paho.Connect{
		ClientID: id, CleanStart: true, KeepAlive: 30,
		Username: "guest", UsernameFlag: true, Password: []byte("guest"), PasswordFlag: true,
		Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry},
	})
	must(t, err)
	return client, messages
}

func TestMqtt5(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, row := range []struct {
		name    string
		number  int
		qos     byte
		expiry  uint32
		outcome string
	}{
		{"acknowledged", 4, 1, 0, ""},
		{"at-most-once", 6, 0, 0, ""},
		// The session has a queue, so the delivery lasts until the client acknowledges it.
		{"queued", 7, 1, 60, "accepted"},
		{"queued-once", 8, 2, 60, "accepted"},
	} {
		t.Run(row.name, func(t *testing.T) {
			client, messages := mqttClient(ctx, t, row.name, row.expiry)
			topic := "a/" + row.name
			_, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: row.qos}}})
			must(t, err)
			user := paho.UserProperties{{Key: "traceparent", Value: parent(row.number)}, {Key: "tracestate", Value: "vendor=x"}}
			_, err = client.Publish(ctx, &paho.Publish{
				Topic: topic, QoS: row.qos, Payload: []byte("hello"), Properties: &paho.PublishProperties{User: user},
			})
			must(t, err)
			got := (<-messages).Properties.User
			if got.Get("traceparent") != parent(row.number) || got.Get("tracestate") != "vendor=x" {
				t.Errorf("the context of the message became %v", got)
			}
			deliver := fmt.Sprintf("deliver mqtt-subscription-%sqos%d", row.name, min(row.qos, 1))
			spans := spansOf(t, row.number, "publish amq.topic", deliver)
			for _, s := range spans {
				expect(t, s, "network.protocol.name", "mqtt")
				expect(t, s, "network.protocol.version", "5.0")
				if got := s.TraceState().AsRaw(); got != "vendor=x" {
					t.Error("tracestate", got)
				}
			}
			expect(t, spans["publish amq.topic"], "messaging.destination.name", "amq.topic:a."+row.name)
			expect(t, spans[deliver], "posthorn.outcome", row.outcome)
			must(t, client.Disconnect(&paho.Disconnect{}))
		})
	}
	measured(t, "none")
}

// streamMessage is a message for a stream with a context, in its annotations or in its application properties.
func streamMessage(n int, inAnnotations bool) message.StreamMessage {
	m := streamamqp.NewMessage([]byte("hello"))
	if inAnnotations {
		m.Annotations = streamamqp.Annotations{"traceparent": parent(n)}
	} else {
		m.ApplicationProperties = map[string]any{"traceparent": parent(n)}
	}
	return m
}

func TestStream(t *testing.T) {
	options := stream.NewEnvironmentOptions().SetUri("rabbitmq-stream://guest:guest@127.0.0.1:5552")
	environment, err := stream.NewEnvironment(options)
	must(t, err)
	defer environment.Close()
	must(t, environment.DeclareStream("five", nil))
	confirmed := make(chan bool, 9)
	publish := func(options *stream.ProducerOptions, messages ...message.StreamMessage) {
		producer, err := environment.NewProducer("five", options)
		must(t, err)
		confirms := producer.NotifyPublishConfirmation()
		must(t, producer.BatchSend(messages))
		go func() {
			for left := len(messages); left > 0; {
				for _, status := range <-confirms {
					confirmed <- status.IsConfirmed()
					left--
				}
			}
		}()
		for range messages {
			if !<-confirmed {
				t.Error("a message is not confirmed")
			}
		}
		must(t, producer.Close())
	}
	publish(stream.NewProducerOptions(), streamMessage(10, true), streamMessage(11, false))
	uncompressed := stream.NewProducerOptions().SetSubEntrySize(2).SetCompression(stream.Compression{}.None())
	publish(uncompressed, streamMessage(12, true), streamMessage(13, false))
	compressed := stream.NewProducerOptions().SetSubEntrySize(2).SetCompression(stream.Compression{}.Gzip())
	publish(compressed, streamMessage(14, true), streamMessage(15, false))

	contexts := make(chan any, 9)
	consumer, err := environment.NewConsumer("five", func(_ stream.ConsumerContext, m *streamamqp.Message) {
		if m.Annotations != nil {
			contexts <- m.Annotations["traceparent"]
		} else {
			contexts <- m.ApplicationProperties["traceparent"]
		}
	}, stream.NewConsumerOptions().SetOffset(stream.OffsetSpecification{}.First()))
	must(t, err)
	for n := 10; n < 16; n++ {
		if got := <-contexts; got != parent(n) {
			t.Errorf("the context of message %d became %v", n, got)
		}
	}
	must(t, consumer.Close())
	for n := 10; n < 14; n++ {
		spans := spansOf(t, n, "publish five", "deliver five")
		publish, deliver := spans["publish five"], spans["deliver five"]
		if publish.Kind() != ptrace.SpanKindServer || deliver.Kind() != ptrace.SpanKindInternal {
			t.Error(publish.Kind(), deliver.Kind())
		}
		for _, s := range spans {
			expect(t, s, "messaging.destination.name", "five")
			expect(t, s, "network.protocol.name", "rabbitmq-stream")
			expect(t, s, "posthorn.queue", "five")
		}
	}
	// The spans of the compressed messages would have come before those of a later one.
	publish(stream.NewProducerOptions(), streamMessage(16, true))
	spansOf(t, 16, "publish five")
	if n := spansWith(14) + spansWith(15); n > 0 {
		t.Error(n, "spans of messages that are compressed")
	}
	measured(t, "stream")
}

// metricsPage returns the metrics of the node in a format.
func metricsPage(t *testing.T, accept string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:15692/metrics", nil)
	must(t, err)
	request.Header.Set("Accept", accept)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	if got := response.Header.Get("Content-Type"); !strings.HasPrefix(got, accept) {
		t.Errorf("the page for %s has the type %s", accept, got)
	}
	return string(body)
}

func TestExemplars(t *testing.T) {
	conn, err := amqp091.Dial("amqp://guest:guest@127.0.0.1:5672/")
	must(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	must(t, err)
	must(t, channel.Confirm(false))
	_, err = channel.QueueDeclare("six", true, false, false, false, nil)
	must(t, err)
	deliveries, err := channel.Consume("six", "", true, false, false, false, nil)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exemplarOf := func(histogram string) *regexp.Regexp {
		line := `(?m)^posthorn_` + histogram + `_seconds_bucket\{queue_type="classic",le="[0-9.]+"\} [0-9]+ # \{trace_id="` + trace(17) + `"\} [0-9.]+ [0-9]+\.[0-9]{3}$`
		return regexp.MustCompile(line)
	}
	// The node measures a sample of the messages.
	within(t, "exemplars of both histograms", func() bool {
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", "six", false, false, amqp091.Publishing{
			Headers: amqp091.Table{"traceparent": parent(17)},
		})
		must(t, err)
		if is, err := confirm.WaitContext(ctx); err != nil || !is {
			t.Fatal(is, err)
		}
		<-deliveries
		page := metricsPage(t, "application/openmetrics-text")
		return exemplarOf("confirm_duration").MatchString(page) && exemplarOf("delivery_latency").MatchString(page)
	})
	within(t, "exemplars at the collector", func() bool {
		received.Lock()
		defer received.Unlock()
		count := func(histogram string) int { return received.exemplars["posthorn_"+histogram+"_seconds"][trace(17)] }
		return count("confirm_duration") > 0 && count("delivery_latency") > 0
	})
	if strings.Contains(metricsPage(t, "text/plain"), "trace_id") {
		t.Error("the plain page has exemplars")
	}
}

func TestMetrics(t *testing.T) {
	within(t, "metrics", func() bool {
		received.Lock()
		defer received.Unlock()
		return len(received.metrics) > 0
	})
	received.Lock()
	defer received.Unlock()
	if received.service != "posthorn/one" {
		t.Error("service", received.service)
	}
	if len(received.metrics) < 50 {
		t.Error("only", len(received.metrics), "metrics")
	}
	for name, kind := range map[string]pmetric.MetricType{
		"rabbitmq_queue_messages_ready":           pmetric.MetricTypeGauge,
		"rabbitmq_global_messages_received_total": pmetric.MetricTypeSum,
		"posthorn_wal_write_duration_seconds":     pmetric.MetricTypeHistogram,
	} {
		if got := received.metrics[name]; got == (pmetric.Metric{}) || got.Type() != kind {
			t.Errorf("%s is not a %v", name, kind)
		}
	}
}
