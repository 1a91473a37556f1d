package streams

import (
	"testing"

	"posthorn.io/posthorn/test/faults/record"
)

func TestContentIdentifiesAMessage(t *testing.T) {
	sent := record.StreamMessage{Publisher: 3, ID: 70_000}
	message := append([]byte{0x00, 0x53, 0x75, 0xA0, size}, make([]byte, size)...)
	fill(message[5:], sent)
	if got, intact := parse(message); got != sent || !intact {
		t.Errorf("%v, %v", got, intact)
	}
	for at := range message {
		changed := append([]byte(nil), message...)
		changed[at] ^= 1
		// The first three bytes are the descriptor of a data section, the same for all messages.
		if _, intact := parse(changed); intact && at > 2 {
			t.Errorf("a change of byte %d was not noticed", at)
		}
	}
	if _, intact := parse(message[:10]); intact {
		t.Error("a message that is cut off was taken for intact")
	}
}
