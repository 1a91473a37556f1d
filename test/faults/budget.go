package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"posthorn.io/posthorn/test/faults/hostile"
	"posthorn.io/posthorn/test/faults/network"
	"posthorn.io/posthorn/test/faults/nodes"
)

const (
	// smallMemory is the memory limit of the attacked node.
	smallMemory = 256 << 20
	// calm and attacking are how long the honest clients are measured without an attack, and under each attack. An attack
	// that a busy machine makes too weak is repeated for twice the time, until it takes longestAttack.
	calm, attacking, longestAttack = 5 * time.Second, 6 * time.Second, 48 * time.Second
	// slower is the factor by which an honest confirm may take longer under an attack.
	slower = 3
	// leastLatency replaces a better latency without an attack: below it, a pause of the machine decides.
	leastLatency = 5 * time.Millisecond
	mqttPort     = 1883
	// measurements is how often an attack may seem to slow the honest clients before it is taken to do so.
	measurements = 3
	// mostOthers is the part of the machine's processor time that other processes may use. If they use more, latencies say
	// nothing about the node.
	mostOthers = 0.2
)

// slowerError reports that confirms took too long under an attack. others is the part of the machine's processor time that
// processes outside the test used meanwhile.
type slowerError struct {
	p99, most time.Duration
	others    float64
}

func (e slowerError) Error() string {
	return fmt.Sprintf("p99 of honest confirms is %.1f ms, more than %.1f ms; other processes used %.0f %% of the processors", ms(e.p99), ms(e.most), 100*e.others)
}

// errWeak reports that an attack reached no limit of the node.
var errWeak = errors.New("the node closed nothing (" + shedEvent + "), so this was no attack")

// shedEvent is the log event of a connection that the node closes because of its memory budget.
const shedEvent = "memory_budget.connection_closed"

// attacked applies one attack on the memory of a node after another, next to a publisher and a consumer that follow
// the protocol.
func attacked(w *world) error {
	node := w.cluster.Nodes[0]
	address := network.Address(host(node)).String()
	target := hostile.Target{
		// From the node's own host: neither its loopback nor our switch is under test.
		Dial: func(port int) (net.Conn, error) {
			return w.net.Host(host(node)).Dial(fmt.Sprintf("%s:%d", address, port))
		},
		AMQP: nodes.AMQPPort, MQTT: mqttPort, HTTP: nodes.HTTPPort,
		User: nodes.User, Password: nodes.Password,
	}
	honest, err := hostile.NewHonest(target)
	if err != nil {
		return fmt.Errorf("honest clients: %w", err)
	}
	defer honest.Close()
	usual, count, err := honest.Measure(w.ctx, calm)
	if err != nil {
		return fmt.Errorf("before any attack: %w", err)
	}
	w.say("no attack: p99 of %d confirms %.1f ms", count, ms(usual))
	for _, attack := range hostile.Attacks() {
		// An attack that slows the honest clients does so each time, and compared with a new measurement.
		during := attacking
		for attempt, slow := 1, 0; ; attempt++ {
			err := w.endure(attack, target, honest, during, slower*max(usual, leastLatency))
			var late slowerError
			if err == nil {
				break
			}
			weak := errors.Is(err, errWeak) || errors.Is(err, hostile.ErrUnfinished)
			if weak && during < longestAttack {
				during *= 2
				w.say("%s: %v; attacking again for %v", attack.Name, err, during)
				continue
			}
			if !errors.As(err, &late) {
				return fmt.Errorf("%s: %w", attack.Name, err)
			}
			if late.others <= mostOthers {
				slow++
			}
			if slow == measurements {
				return fmt.Errorf("%s: %w", attack.Name, err)
			}
			if attempt == 2*measurements {
				w.say("NOT CHECKED: the latency of confirms under %s: %v", attack.Name, err)
				break
			}
			w.say("%s: %v; measuring again", attack.Name, err)
			if usual, _, err = honest.Measure(w.ctx, calm); err != nil {
				return fmt.Errorf("after %s: %w", attack.Name, err)
			}
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// endure runs one attack of this duration: the node survives, raises no alarm, and hardly slows the honest clients.
func (w *world) endure(attack hostile.Attack, target hostile.Target, honest *hostile.Honest, during, most time.Duration) error {
	node := w.cluster.Nodes[0]
	before, err := node.Logged(shedEvent)
	if err != nil {
		return err
	}
	type outcome struct {
		hostile.Result
		error
	}
	over := make(chan outcome, 1)
	go func() {
		r, err := attack.Run(w.ctx, target, during)
		over <- outcome{r, err}
	}()
	usage, err := startCPUUsage(node)
	if err != nil {
		return err
	}
	p99, count, err := honest.Measure(w.ctx, during)
	result := <-over
	others, errUsage := usage.others()
	shed, errLog := node.Logged(shedEvent)
	switch {
	case !node.Running():
		return fmt.Errorf("the node ended")
	case err != nil:
		return err
	case errUsage != nil:
		return errUsage
	case errLog != nil:
		return errLog
	case result.error != nil:
		return result.error
	}
	shed -= before
	w.say("%s: p99 of %d confirms %.1f ms; the node took %d MiB and closed %d of %d connections", attack.Name, count, ms(p99), result.Sent>>20, shed, attack.Clients)
	if result.Refused > 0 {
		return fmt.Errorf("%d clients could not connect or log in", result.Refused)
	}
	if attack.Sheds && shed == 0 {
		return errWeak
	}
	if !attack.Sheds && shed > 0 {
		return fmt.Errorf("the node closed %d connections (%s) where it can drop instead", shed, shedEvent)
	}
	alarms, err := node.Logged("alarm.set")
	if err != nil {
		return err
	}
	if alarms > 0 {
		return fmt.Errorf("%d alarms were raised", alarms)
	}
	if p99 > most {
		return slowerError{p99, most, others}
	}
	return nil
}
