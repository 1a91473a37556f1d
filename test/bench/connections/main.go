// Command connections measures the cost of idle connections: resident memory of the broker and of the kernel's
// sockets against the number of connections, and the time to connect.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"text/tabwriter"
	"time"

	"posthorn.io/posthorn/test/bench/amqp10"
	"posthorn.io/posthorn/test/bench/mqtt"
	"posthorn.io/posthorn/test/bench/process"
	"posthorn.io/posthorn/test/bench/wire"
)

// A kind of connection.
type kind struct {
	name, about string
	port        string
	open        func(address string, number int) (io.Closer, error)
}

var kinds = []kind{
	{"mqtt", "MQTT, nothing subscribed", "mqtt", func(address string, number int) (io.Closer, error) {
		return mqtt.Dial(address, fmt.Sprintf("c%d", number), true)
	}},
	{"mqtt-subscribed", "MQTT with one subscription of QoS 1", "mqtt", func(address string, number int) (io.Closer, error) {
		c, err := mqtt.Dial(address, fmt.Sprintf("c%d", number), true)
		if err != nil {
			return nil, err
		}
		return c, c.Subscribe(fmt.Sprintf("devices/%d/in", number), 1)
	}},
	{"mqtt-tls", "MQTT over TLS 1.3, nothing subscribed", "mqtt/ssl", func(address string, number int) (io.Closer, error) {
		// The certificate itself is not part of the measurement.
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return nil, err
		}
		return mqtt.Over(conn, fmt.Sprintf("c%d", number), true)
	}},
	{"amqp091", "AMQP 0.9.1 with two channels", "amqp", func(address string, _ int) (io.Closer, error) {
		c, err := wire.DialIdle(address, 2)
		return closer{c}, err
	}},
	{"amqp10", "AMQP 1.0 with two sessions, a sender and a receiver", "amqp", func(address string, _ int) (io.Closer, error) {
		if err := declareOnce(address); err != nil {
			return nil, err
		}
		return amqp10.DialIdle(address, "amq.fanout", receivers)
	}},
}

// receivers is the queue of the receivers of AMQP 1.0.
const receivers = "receivers"

var (
	declare  sync.Mutex
	declared string
)

// declareOnce declares the queue of receivers on the first call for a broker.
func declareOnce(address string) error {
	declare.Lock()
	defer declare.Unlock()
	if declared == address {
		return nil
	}
	c, err := wire.Dial(address)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Declare(receivers, "classic"); err != nil {
		return err
	}
	declared = address
	return nil
}

type closer struct{ *wire.Conn }

func (c closer) Close() error { c.Conn.Close(); return nil }

// Numbers of connections at which memory is measured. Many machines limit a process to 20,000 descriptors.
var counts = []int{1_000, 5_000, 10_000, 19_000}

var warm time.Duration

func main() {
	together := flag.Int("together", 64, "connections that are opened at a time")
	flag.DurationVar(&warm, "warm", 15*time.Second, "how long a node runs first: what it does every few seconds brings in pages of its program")
	nodes := flag.Int("nodes", 1, "of a cluster; all connections are to the first, the others are looked at too")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: connections [FLAGS] [KIND...]   all of them when none is named; kinds:")
		for _, k := range kinds {
			fmt.Fprintf(os.Stderr, "  %-16s %s\n", k.name, k.about)
		}
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(flag.Args(), *together, *nodes); err != nil {
		fmt.Fprintln(os.Stderr, "connections:", err)
		os.Exit(1)
	}
}

func run(names []string, together, nodes int) error {
	program := os.Getenv("POSTHORN")
	if program == "" {
		return fmt.Errorf("POSTHORN (the program) is not set")
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "kind\tconnections\tMB resident\tbytes each, since the line before\tof them no file\tsince the first line\tCPU ms per thousand\tconnects/s\ton each other node: bytes\tCPU ms per thousand")
	for _, k := range kinds {
		if len(names) > 0 && !contains(names, k.name) {
			continue
		}
		if err := k.measure(program, together, nodes, out); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		out.Flush()
	}
	return nil
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

func (k kind) measure(program string, together, nodes int, out io.Writer) error {
	dir, err := os.MkdirTemp("", "posthorn-connections.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := certificate(dir); err != nil {
		return err
	}
	settings := []string{"--set", "mqtt.listeners.tcp.default=127.0.0.1:0", "--set", "mqtt.listeners.ssl.default=127.0.0.1:0",
		"--set", "ssl_options.certfile=" + filepath.Join(dir, "cert.pem"), "--set", "ssl_options.keyfile=" + filepath.Join(dir, "key.pem")}
	brokers, err := start(program, nodes, settings)
	if err != nil {
		return err
	}
	defer func() {
		for _, b := range brokers {
			b.Remove()
		}
	}()
	b := brokers[0]
	address := fmt.Sprintf("127.0.0.1:%d", b.Ports[k.port])
	open := make([]io.Closer, 0, counts[len(counts)-1])
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	time.Sleep(warm)
	before, away, err := look(brokers)
	if err != nil {
		return err
	}
	var first process.Usage
	for _, count := range counts {
		from := len(open)
		began := time.Now()
		open, err = k.more(address, open, count, together)
		if err != nil {
			return err
		}
		took := time.Since(began)
		after, awayAfter, err := look(brokers)
		if err != nil {
			return err
		}
		n := float64(count - from)
		sinceFirst := "-"
		if from == 0 {
			first = after
		} else {
			sinceFirst = fmt.Sprintf("%.0f", (float64(after.Resident)-float64(first.Resident))/float64(count-counts[0]))
		}
		fmt.Fprintf(out, "%s\t%d\t%.1f\t%.0f\t%.0f\t%s\t%.0f\t%.0f\t%.0f\t%.0f\n", k.name, count, float64(after.Resident)/1e6,
			(float64(after.Resident)-float64(before.Resident))/n, (float64(after.Anonymous)-float64(before.Anonymous))/n, sinceFirst,
			(after.CPU-before.CPU).Seconds()*1e6/n, n/took.Seconds(), (awayAfter.bytes-away.bytes)/n, (awayAfter.seconds-away.seconds)*1e6/n)
		before, away = after, awayAfter
	}
	return nil
}

func start(program string, nodes int, settings []string) ([]*process.Broker, error) {
	if nodes > 1 {
		return process.Cluster(program, nodes, settings...)
	}
	b, err := process.Start(program, settings...)
	return []*process.Broker{b}, err
}

// others returns the usage of a node without the connections: the mean of such nodes.
type others struct{ bytes, seconds float64 }

// look reports the usage of the first node and of the others.
func look(brokers []*process.Broker) (process.Usage, others, error) {
	first, err := brokers[0].Settled()
	var mean others
	for _, b := range brokers[1:] {
		if err != nil {
			break
		}
		var usage process.Usage
		usage, err = b.Settled()
		mean.bytes += float64(usage.Resident) / float64(len(brokers)-1)
		mean.seconds += usage.CPU.Seconds() / float64(len(brokers)-1)
	}
	return first, mean, err
}

// more opens connections up to a number.
func (k kind) more(address string, open []io.Closer, count, together int) ([]io.Closer, error) {
	numbers := make(chan int)
	var wait sync.WaitGroup
	var lock sync.Mutex
	var failure error
	for range together {
		wait.Go(func() {
			for number := range numbers {
				c, err := k.open(address, number)
				lock.Lock()
				if err != nil {
					failure = err
				} else {
					open = append(open, c)
				}
				lock.Unlock()
			}
		})
	}
	for number := len(open); number < count; number++ {
		numbers <- number
	}
	close(numbers)
	wait.Wait()
	return open, failure
}

// A self-signed certificate for this machine.
func certificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
