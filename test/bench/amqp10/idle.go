package amqp10

import (
	"encoding/binary"
	"net"
)

// DialIdle connects as guest and begins two sessions, one with a link to an exchange and one with a link from a queue. The client
// keeps no buffers.
func DialIdle(address, exchange, queue string) (net.Conn, error) {
	attached := 0
	c := &connection{note: func(descriptor byte, _ []byte) error {
		if descriptor == descAttach {
			attached++
		}
		return nil
	}}
	name := text("bench")
	to := Terminus{Address: "/exchanges/" + exchange}
	sender := frame(frameAMQP, descAttach, name, number(0), no, []byte{0x50, 0}, []byte{0x50, 0},
		described(descSource, name), to.target(), null, null, number(0))
	if err := c.open(address, sender); err != nil {
		return nil, err
	}
	begin := frame(frameAMQP, descBegin, null, number(0), number(sessionWindow), number(sessionWindow))
	receiver := frame(frameAMQP, descAttach, name, number(0), yes, []byte{0x50, 0}, []byte{0x50, 0}, Queue(queue).source(), described(descTarget, name))
	err := c.write(append(onChannel(1, begin), onChannel(1, receiver)...))
	for err == nil && attached < 2 {
		_, err = c.next()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c.net, nil
}

// onChannel sets the channel of a frame.
func onChannel(channel uint16, frame []byte) []byte {
	binary.BigEndian.PutUint16(frame[6:], channel)
	return frame
}
