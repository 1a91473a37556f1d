package amqp10

import "fmt"

// Links is a connection with one session and a link to each of several queues. One goroutine uses it.
type Links struct {
	connection
	links []publishingLink
	// owners has the link of each delivery that is not settled, by its id modulo the length.
	owners []uint8
	// Transfers that were sent, and that the session has room for.
	sent, window uint32
	section      []byte
}

// publishingLink counts the transfers of a link that were sent, that its credit permits, and that are settled.
type publishingLink struct{ sent, credit, settled uint32 }

// unsettledOfAll bounds the deliveries of a connection that are not settled. It is a power of two.
const unsettledOfAll = 1 << 16

// DialLinks connects as guest and attaches a link to each queue. Messages are durable and have size bytes.
func DialLinks(address string, size byte, queues ...Terminus) (*Links, error) {
	l := &Links{links: make([]publishingLink, len(queues)), owners: make([]uint8, unsettledOfAll)}
	l.section = append([]byte{0x00, 0x53, 0x70, 0xC0, 2, 1, 0x41, 0x00, 0x53, 0x75, 0xA0, size}, make([]byte, size)...)
	l.connection.note = l.note
	var attaches []byte
	for handle, queue := range queues {
		name := text(fmt.Sprintf("bench-%d", handle))
		attaches = append(attaches, frame(frameAMQP, descAttach, name, number(uint32(handle)), no, []byte{0x50, 0}, []byte{0x50, 0},
			described(descSource, name), queue.target(), null, null, number(0))...)
	}
	if err := l.open(address, attaches); err != nil {
		return nil, err
	}
	for handle := range l.links {
		for l.links[handle].credit == 0 {
			if _, err := l.next(); err != nil {
				l.Close()
				return nil, err
			}
		}
	}
	return l, nil
}

// Publish sends to every queue as fast as its link and the session permit, until the first queue has accepted this number of messages. It
// then sends no more, waits for the rest, and returns the number of messages that each queue has accepted.
func (l *Links) Publish(messages int) ([]int, error) {
	const together = 64
	before := make([]uint32, len(l.links))
	for n, link := range l.links {
		before[n] = link.settled
	}
	goal := l.links[0].settled + uint32(messages)
	for l.links[0].settled != goal || l.unsettled() > 0 {
		l.out = l.out[:0]
		for n := range l.links {
			for range together {
				if l.links[0].sent == goal || !l.permits(n) {
					break
				}
				l.transfer(n)
			}
		}
		if len(l.out) > 0 {
			if err := l.write(l.out); err != nil {
				return nil, err
			}
			if l.in.Buffered() == 0 {
				continue
			}
		}
		if _, err := l.next(); err != nil {
			return nil, fmt.Errorf("%d messages are not settled: %w", l.unsettled(), err)
		}
	}
	accepted := make([]int, len(l.links))
	for n, link := range l.links {
		accepted[n] = int(link.settled - before[n])
	}
	return accepted, nil
}

func (l *Links) unsettled() uint32 {
	count := l.sent
	for _, link := range l.links {
		count -= link.settled
	}
	return count
}

func (l *Links) permits(n int) bool {
	return l.links[n].sent != l.links[n].credit && l.sent != l.window && l.unsettled() < unsettledOfAll
}

// transfer appends a transfer of a link.
func (l *Links) transfer(n int) {
	l.out = appendTransfer(l.out, byte(n), l.sent, l.section)
	l.owners[l.sent%unsettledOfAll] = uint8(n)
	l.sent++
	l.links[n].sent++
}

func (l *Links) note(descriptor byte, list []byte) error {
	switch descriptor {
	case descFlow:
		fields := numbers(list, 7)
		l.window = fields[0] + fields[1]
		if handle := int(fields[4]); fields[6] > 0 && handle < len(l.links) {
			l.links[handle].credit = fields[5] + fields[6]
		}
	case descDisposition:
		fields := numbers(list, 3)
		if !accepts(list) {
			return fmt.Errorf("message %d is not accepted", fields[1])
		}
		for id := fields[1]; id != fields[2]+1; id++ {
			l.links[l.owners[id%unsettledOfAll]].settled++
		}
	}
	return nil
}
