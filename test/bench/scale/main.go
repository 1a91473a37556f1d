// Command scale computes the nodes that many MQTT connections need from the cost of one connection;
// docs/explanation/scale.md has the source of the costs. It measures nothing.
package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// A cost has measured values, in bytes and in seconds of processor time.
type cost struct {
	// Resident bytes of the broker and of the kernel for a connection, on its own node.
	connection, kernel float64
	// On the node that owns a client id whose client is connected elsewhere.
	claim float64
	// On each other router, for a filter that no other client has.
	route float64
	// A message of QoS 1 in and out, and an upper bound for a PINGREQ.
	message float64
	// A filter, on each other router.
	learn float64
}

// A machine of a node.
type machine struct {
	cores  int
	memory float64
	// Usable shares of memory and of a shard's core.
	full, busy float64
}

// A scenario is the behaviour of the clients.
type scenario struct {
	name string
	// Filters of each connection that no other client has.
	filters float64
	// Seconds between a client's messages, and between its PINGREQs.
	publish, ping float64
	// Bytes of a message.
	body float64
}

// A need is the result for a number of connections.
type need struct {
	nodes, shards int
	// Of a node: bytes for connections, kernel, claims and routes.
	connections, kernel, claims, routes float64
	// Busy cores of a node.
	cores float64
	// Bytes per second in and out of a node.
	in, out float64
	// The resource that determines the number of nodes: memory or processor.
	limit string
}

var costs = cost{connection: 340, kernel: 3728, claim: 300, route: 330, message: 7.54e-6, learn: 24e-6}

const gibibyte = 1 << 30

// Bytes of Ethernet, IP and TCP with time stamps around the TCP payload.
const headers = 18 + 20 + 32

// memory returns the memory usage of a node.
func (c cost) memory(total float64, nodes, shards int, s scenario) need {
	hubs := float64(nodes * shards)
	away := (hubs - 1) / hubs
	each := total / float64(nodes)
	return need{
		nodes: nodes, shards: shards,
		connections: each * c.connection, kernel: each * c.kernel, claims: each * away * c.claim,
		routes: float64(shards) * total * s.filters * away * c.route,
	}
}

func (n need) bytes() float64 { return n.connections + n.kernel + n.claims + n.routes }

// work returns the cores for a node's share.
func (c cost) work(total float64, nodes int, s scenario) float64 {
	return total / float64(nodes) * (1/s.publish + 1/s.ping) * c.message
}

// needs returns the fewest nodes, and the fewest shards for them; false when no number of nodes is enough.
func (c cost) needs(total float64, m machine, s scenario) (need, bool) {
	var best need
	for shards := 1; shards <= m.cores; shards++ {
		n, ok := c.with(total, m, s, shards)
		if ok && (best.nodes == 0 || n.nodes < best.nodes) {
			best = n
		}
	}
	return best, best.nodes > 0
}

// with is for a given number of shards: memory falls with the number of nodes, except for routes, so the first
// sufficient number is the fewest.
func (c cost) with(total float64, m machine, s scenario, shards int) (need, bool) {
	fits := func(nodes int) bool { return c.memory(total, nodes, shards, s).bytes() <= m.full*m.memory }
	works := func(nodes int) bool { return c.work(total, nodes, s) <= m.busy*float64(shards) }
	const most = 1 << 14
	if !fits(most) || !works(most) {
		return need{}, false
	}
	nodes := least(most, func(n int) bool { return fits(n) && works(n) })
	n := c.memory(total, nodes, shards, s)
	n.cores = c.work(total, nodes, s)
	messages, pings := total/float64(nodes)/s.publish, total/float64(nodes)/s.ping
	// PUBLISH, PUBACK; PINGREQ and an acknowledgement, PINGRESP.
	n.in = messages*(s.body+32+headers) + pings*(2+2*headers)
	n.out = messages*(4+headers) + pings*(2+headers)
	n.limit = "memory"
	if nodes > 1 && fits(nodes-1) {
		n.limit = "processor"
	}
	return n, true
}

// least returns the first of 1 to most for which the condition holds: it then holds for all later ones.
func least(most int, holds func(int) bool) int {
	low, high := 1, most
	for low < high {
		middle := (low + high) / 2
		if holds(middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

var scenarios = []scenario{
	{"publishes only", 0, 90, 60, 256},
	{"and has a filter of its own", 1, 90, 60, 256},
}

func main() {
	svg := flag.String("svg", "", "file for the plot")
	cores := flag.Int("cores", 16, "of a node")
	memory := flag.Float64("memory", 64, "of a node, GiB")
	flag.Float64Var(&costs.connection, "connection", costs.connection, "broker's bytes for a connection")
	flag.Float64Var(&costs.route, "route", costs.route, "bytes on each other router for a filter")
	flag.Parse()
	m := machine{cores: *cores, memory: *memory * gibibyte, full: 0.75, busy: 0.5}
	table(m)
	if *svg != "" {
		if err := os.WriteFile(*svg, plot(m), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "scale:", err)
			os.Exit(1)
		}
	}
}

func table(m machine) {
	fmt.Println("| each client | connections | nodes | shards each | a node's memory: connections, kernel, claims, routes, GiB | cores at work | in, out, Mbit/s | more nodes are for | all filters told again |")
	fmt.Println("|---|---:|---:|---:|---|---:|---|---|---:|")
	for _, s := range scenarios {
		for _, total := range []float64{1e6, 1e7, 1e8} {
			n, ok := costs.needs(total, m, s)
			if !ok {
				fmt.Printf("| %s | %s | **none is enough** | | routes alone: %.1f on each shard | | | memory | %s |\n", s.name, millions(total),
					total*s.filters*costs.route/gibibyte, learned(total, m, s))
				continue
			}
			fmt.Printf("| %s | %s | %d | %d | %.1f, %.1f, %.1f, %.1f | %.2f | %.0f, %.0f | %s | %s |\n", s.name, millions(total), n.nodes, n.shards,
				n.connections/gibibyte, n.kernel/gibibyte, n.claims/gibibyte, n.routes/gibibyte, n.cores, n.in*8/1e6, n.out*8/1e6, n.limit, learned(total, m, s))
		}
	}
}

func millions(n float64) string { return strconv.Itoa(int(n/1e6)) + " M" }

// The time in which every router learns all filters.
func learned(total float64, m machine, s scenario) string {
	if s.filters == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f s", total*s.filters*costs.learn/m.busy)
}

// plot draws nodes against connections, both logarithmic; a line ends where no number of nodes is enough.
func plot(m machine) []byte {
	const width, height, left, bottom, top, right = 720, 360, 60, 50, 30, 20
	const decades, mostNodes = 3, 3.0 // 10^5.5 to 10^8.5, 1 to 1,000
	x := func(exponent float64) float64 { return left + (exponent-5.5)/decades*(width-left-right) }
	y := func(exponent float64) float64 { return height - bottom - exponent/mostNodes*(height-bottom-top) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for n := range 4 {
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`, left, width-right, y(float64(n)), y(float64(n)))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n", left-6, y(float64(n))+4, math.Pow(10, float64(n)))
	}
	for n := 6; n <= 8; n++ {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(float64(n)), height-bottom+18, millions(math.Pow(10, float64(n))))
	}
	colours := []string{"#2471a3", "#c0392b"}
	for at, s := range scenarios {
		var path []string
		for e := 5.5; e <= 8.5; e += 0.02 {
			n, ok := costs.needs(math.Pow(10, e), m, s)
			if !ok || math.Log10(float64(n.nodes)) > mostNodes {
				break
			}
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(e), y(math.Log10(float64(n.nodes)))))
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`+"\n", colours[at], strings.Join(path, " "))
	}
	fmt.Fprintf(&b, `<text x="%d" y="18">nodes of %d cores and %.0f GiB: <tspan fill="%s">each client %s</tspan>, <tspan fill="%s">%s</tspan></text>`+"\n",
		left, m.cores, m.memory/gibibyte, colours[0], scenarios[0].name, colours[1], scenarios[1].name)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">connections</text>`+"\n</svg>\n", (left+width)/2, height-12)
	return []byte(b.String())
}
