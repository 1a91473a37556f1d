package main

import (
	"bytes"
	"flag"
	"slices"
	"strings"
	"testing"

	"posthorn.io/posthorn/test/bench/peers"
)

// The end of a run of PerfTest 2.22.
const output = `id: bench, sending rate avg: 5465 msg/s
id: bench, receiving rate avg: 5401 msg/s
id: bench, consumer latency min/median/75th/95th/99th 99/975/1320/1900/2799 µs
id: bench, confirm latency min/median/75th/95th/99th 193/1691/2113/2887/3358 µs
`

func TestPerfTestOutputIsParsed(t *testing.T) {
	if got := averageRate(output, 1); got != 5401 {
		t.Errorf("rate %v, want the slower average", got)
	}
	if median, p95, p99 := latencies(output); median != 975 || p95 != 1900 || p99 != 2799 {
		t.Errorf("latencies %v, %v, %v: want the consumers' in µs", median, p95, p99)
	}
	if _, _, p99 := latencies("consumer latency min/median/75th/95th/99th 1/2/3/4/5 ms\n"); p99 != 5000 {
		t.Errorf("latency %v, want ms as µs", p99)
	}
	if got := averageRate("id: bench, sending rate avg: 7 msg/s\nid: bench, receiving rate avg: 0 msg/s\n", 1); got != 7 {
		t.Errorf("rate %v of a run without consumers", got)
	}
	if _, _, p99 := latencies("nothing"); averageRate("nothing", 3.5) != 3.5 || p99 != 0 {
		t.Errorf("figures where PerfTest says nothing")
	}
}

func TestPerfOutputIsParsed(t *testing.T) {
	const lines = "12,,syscalls:sys_enter_fsync,1,100.00,,\n30,,syscalls:sys_enter_fdatasync,1,100.00,,\n"
	if n, ok := counted(lines); n != 42 || !ok {
		t.Errorf("%v, %v: want both calls", n, ok)
	}
	if _, ok := counted("<not supported>,,syscalls:sys_enter_fsync,0,100.00,,\n"); ok {
		t.Error("what perf cannot count is no figure")
	}
	if _, ok := counted("Error:\nno permission\n"); ok {
		t.Error("no figure where perf fails")
	}
}

func rounds(broker string, cpu ...float64) run {
	r := run{Versions: map[string]string{broker: "1.0"}}
	for n, c := range cpu {
		r.Results = append(r.Results, result{Workload: "amqp091-classic", Step: "1:1", Broker: broker, Round: n, Messages: 1000, Sent: 1000, Rate: 100 * c, CPU: c})
	}
	return r
}

func TestCommandOmitsOutputPaths(t *testing.T) {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.Int("rounds", 3, "")
	flags.String("peers", "", "")
	for _, name := range []string{"json", "against", "markdown", "svg"} {
		flags.String(name, "", "")
	}
	given := []string{"-json", "/somewhere/a.json", "-rounds", "5", "-svg=/somewhere/a.svg", "-against", "b", "-markdown", "c", "mqtt-qos1"}
	if err := flags.Parse(given); err != nil {
		t.Fatal(err)
	}
	want := []string{"test/bench/run", "-rounds", "5", "mqtt-qos1"}
	if got := command(flags); !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestFiguresAreMediansWithTheirSpread(t *testing.T) {
	r := rounds("posthorn", 9, 1, 2)
	median, least, most := r.figures()[0].spread(cpu)
	if median != 2 || least != 1 || most != 9 {
		t.Errorf("%v (%v to %v)", median, least, most)
	}
	if middle([]float64{1, 3}) != 2 {
		t.Error("the median of two is wrong")
	}
}

func TestCompareReportsChangesOfCommonFigures(t *testing.T) {
	now := rounds("posthorn", 3)
	now.Results = append(now.Results, rounds("nats", 7).Results...)
	var out bytes.Buffer
	compare(&out, rounds("posthorn", 2), now)
	if text := out.String(); !strings.Contains(text, "+50.0 %") || strings.Contains(text, "nats") {
		t.Errorf("got\n%s", text)
	}
}

func TestMarkdownHasAColumnForEachBroker(t *testing.T) {
	r := rounds("posthorn", 4)
	peer := rounds("rabbitmq", 40)
	peer.Results[0].Messages = 900
	r.add(peer.Results, peer.Versions)
	var out bytes.Buffer
	r.markdown(&out)
	for _, want := range []string{"| posthorn 1.0 | **4.00** (4.00 to 4.00) |  |", "| 10.0 x | 4,000; 90.0 % arrived |", "not synced"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if plotted := string(plot(r.figures())); strings.Count(plotted, "<rect") != 3 {
		t.Errorf("a bar for each broker and a background: %s", plotted)
	}
}

func TestPlotGroupsBrokersByStep(t *testing.T) {
	step := func(step, broker string) figure { return figure{key: key{"w", step, broker}} }
	all := beside([]figure{step("publish", "posthorn"), step("consume", "posthorn"), step("publish", "nats"), step("consume", "nats")})
	var got []string
	for _, f := range all {
		got = append(got, f.step+" "+f.broker)
	}
	if want := []string{"publish posthorn", "publish nats", "consume posthorn", "consume nats"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestFiguresAreRounded(t *testing.T) {
	for n, want := range map[float64]string{63_749: "63,700", 999: "999", 1_234_567: "1,230,000", 0: "0"} {
		if got := thousands(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[float64]float64{12_345: 12_000, 99: 99, 7: 7, 0.2: 1} {
		if got := twoDigits(n); got != want {
			t.Errorf("%v: %v, want %v", n, got, want)
		}
	}
}

func TestEveryBrokerDescribesTheDurabilityOfAConfirm(t *testing.T) {
	for _, w := range workloads {
		if len(w.kept) == 0 {
			continue // QoS 0 has no confirms
		}
		if w.kept["posthorn"] == "" {
			t.Errorf("%s: posthorn", w.name)
		}
		for _, name := range peers.Names() {
			if peers.Knows(name, w.protocol) && w.kept[name] == "" {
				t.Errorf("%s: %s", w.name, name)
			}
		}
	}
}

func TestWorkloadsAreChosenByName(t *testing.T) {
	chosen, err := choose(nil)
	if err != nil || len(chosen) >= len(workloads) {
		t.Errorf("%d of %d, %v: those that are only for their names are left out", len(chosen), len(workloads), err)
	}
	if _, err := choose([]string{"nothing"}); err == nil {
		t.Error("a workload that is not there was chosen")
	}
}
