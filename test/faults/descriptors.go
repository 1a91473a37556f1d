package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"posthorn.io/posthorn/test/faults/nodes"
)

const (
	// spare is how many descriptors a node may open when its limit is lowered.
	spare = 4
	// idleClients connect and say nothing, until there are no descriptors.
	idleClients = 400
	// classicQueues are declared before the shortage, and lateQueues at a time during it.
	classicQueues, lateQueues = 20, 5
	// answering bounds how long a node may take to answer a publish or a declaration during a shortage.
	answering = 30 * time.Second
	// damagedEvent may not be logged: a file that cannot be opened for want of descriptors is not damaged.
	damagedEvent = "classic_queue_damaged"
	// shortResource is what the health check names.
	shortResource = "file_descriptors"
)

// starvation is a node without descriptors, and a client that was connected before.
type starvation struct {
	*world
	node      *nodes.Node
	client    *amqp.Connection
	channel   *amqp.Channel
	watcher   *nodes.Watcher
	restore   func() error
	idle      []net.Conn
	published int
	// confirmed are the messages that each queue has to have.
	confirmed map[string][]string
}

// starved: clients take all descriptors of this node, and classic queues are declared and published to there.
func (w *world) starved(n *nodes.Node) fault {
	s := &starvation{world: w, node: n, confirmed: map[string][]string{}}
	return fault{n.Name + " is out of descriptors", s.begin, s.end}
}

func (s *starvation) begin() (err error) {
	if s.client, err = dialNode(s.node); err != nil {
		return err
	}
	if s.channel, err = s.client.Channel(); err != nil {
		return err
	}
	if err = s.channel.Confirm(false); err != nil {
		return err
	}
	for i := range classicQueues {
		if err = declareClassic(s.channel, fmt.Sprintf("early-%02d", i)); err != nil {
			return err
		}
		s.confirmed[fmt.Sprintf("early-%02d", i)] = nil
	}
	if refused, err := s.publishToAll(); err != nil || refused > 0 {
		return fmt.Errorf("before the shortage: %d publishes refused, %w", refused, err)
	}
	if s.watcher, err = s.node.Watch(); err != nil {
		return err
	}
	if s.restore, err = s.node.LimitDescriptors(spare); err != nil {
		return err
	}
	for range idleClients {
		// The kernel completes the connection, whether the node accepts it or not.
		c, err := net.DialTimeout("tcp", s.node.AMQP(), answering)
		if err != nil {
			return err
		}
		s.idle = append(s.idle, c)
	}
	// The node closes files of classic queues that it can do without, and waiting clients take their descriptors.
	var declared, asked, refused int
	err = s.eventually("the health check names the shortage", func() error {
		n, err := s.declareLate(asked)
		if err != nil {
			return err
		}
		declared, asked = declared+n, asked+lateQueues
		n, err = s.publishToAll()
		if err != nil {
			return err
		}
		refused += n
		alarms, err := s.watcher.Alarms()
		if err == nil && !slices.Contains(alarms, shortResource) {
			err = fmt.Errorf("%d queues declared, alarms %v", declared, alarms)
		}
		return err
	})
	s.say("during the shortage: %d of %d queues declared, %d publishes refused", declared, asked, refused)
	return err
}

// declareLate declares some queues during the shortage, numbered from first; how many. Each declaration is answered, if only with an error.
func (s *starvation) declareLate(first int) (declared int, err error) {
	type outcome struct {
		name string
		err  error
	}
	over := make(chan outcome, lateQueues)
	for i := range lateQueues {
		channel, err := s.client.Channel()
		if err != nil {
			return 0, err
		}
		go func() {
			name := fmt.Sprintf("late-%02d", first+i)
			over <- outcome{name, declareClassic(channel, name)}
		}()
	}
	deadline := time.After(answering)
	for range lateQueues {
		select {
		case o := <-over:
			if o.err == nil {
				declared++
				s.confirmed[o.name] = nil
			}
		case <-deadline:
			return declared, fmt.Errorf("a declaration is not answered within %v", answering)
		}
	}
	return declared, nil
}

// publishToAll publishes a message to each queue; how many were refused. Each publish is answered.
func (s *starvation) publishToAll() (refused int, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var unanswered []string
	for _, name := range slices.Sorted(maps.Keys(s.confirmed)) {
		s.published++
		body := fmt.Sprintf("%s %d", name, s.published)
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
		confirm, err := s.channel.PublishWithDeferredConfirm("", name, false, false, message)
		if err != nil {
			return 0, err
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(s.ctx, answering)
			defer cancel()
			taken, err := confirm.WaitContext(ctx)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				unanswered = append(unanswered, body)
			case taken:
				s.confirmed[name] = append(s.confirmed[name], body)
			default:
				refused++
			}
		})
	}
	all.Wait()
	if len(unanswered) > 0 {
		return refused, fmt.Errorf("%d publishes are not answered within %v: %q", len(unanswered), answering, unanswered)
	}
	return refused, nil
}

// end gives the descriptors back, and sees that everything recovers without a restart.
func (s *starvation) end() error {
	for _, c := range s.idle {
		_ = c.Close()
	}
	if err := s.restore(); err != nil {
		return err
	}
	if err := s.eventually("the health check is green", func() error {
		alarms, err := s.watcher.Alarms()
		if err == nil && len(alarms) > 0 {
			err = fmt.Errorf("alarms %v", alarms)
		}
		return err
	}); err != nil {
		return err
	}
	if err := s.eventually("every queue takes messages", func() error {
		refused, err := s.publishToAll()
		if err == nil && refused > 0 {
			err = fmt.Errorf("%d of %d publishes refused", refused, len(s.confirmed))
		}
		return err
	}); err != nil {
		return err
	}
	for name, confirmed := range s.confirmed {
		if err := s.hasAll(name, confirmed); err != nil {
			return err
		}
		if _, err := s.channel.QueueDelete(name, false, false, false); err != nil {
			return err
		}
	}
	s.watcher.Close()
	damaged, err := s.node.Logged(damagedEvent)
	if err == nil && damaged > 0 {
		err = fmt.Errorf("%s was logged %d times", damagedEvent, damaged)
	}
	return errors.Join(err, s.client.Close())
}

// hasAll is nil when every confirmed message is in the queue.
func (s *starvation) hasAll(name string, confirmed []string) error {
	got := map[string]bool{}
	for {
		delivery, found, err := s.channel.Get(name, true)
		if err != nil {
			return fmt.Errorf("queue %s: %w", name, err)
		}
		if !found {
			break
		}
		got[string(delivery.Body)] = true
	}
	for _, body := range confirmed {
		if !got[body] {
			return fmt.Errorf("queue %s: confirmed message %q is lost", name, body)
		}
	}
	return nil
}

func declareClassic(channel *amqp.Channel, name string) error {
	_, err := channel.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "classic"})
	return err
}

func dialNode(n *nodes.Node) (*amqp.Connection, error) {
	login := []amqp.Authentication{&amqp.PlainAuth{Username: nodes.User, Password: nodes.Password}}
	return amqp.DialConfig("amqp://"+n.AMQP()+"/", amqp.Config{SASL: login, Heartbeat: 10 * time.Second})
}
