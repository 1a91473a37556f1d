package amqp10

import (
	"slices"
	"testing"
)

func TestNumbersOfAListAreRead(t *testing.T) {
	for name, c := range map[string]struct {
		list  []byte
		count int
		want  []uint32
	}{
		"types of every width":             {described(0, null, []byte{0x43}, []byte{0x52, 9}, []byte{0x60, 1, 0}, number(70_000))[3:], 5, []uint32{0, 0, 9, 256, 70_000}},
		"a text is skipped":                {described(0, text("four"), []byte{0x52, 9})[3:], 2, []uint32{0, 9}},
		"absent fields":                    {described(0, []byte{0x52, 9})[3:], 3, []uint32{9, 0, 0}},
		"a disposition of one delivery":    {described(0, []byte{0x41}, []byte{0x52, 9}, null)[3:], 3, []uint32{0, 9, 9}},
		"a number that is cut off":         {[]byte{0xC0, 3, 1, 0x70, 0}, 1, []uint32{0}},
		"an empty list":                    {[]byte{0x45}, 2, []uint32{0, 0}},
		"a list of more than 255 bytes":    {[]byte{0xD0, 0, 0, 0, 6, 0, 0, 0, 1, 0x52, 7}, 1, []uint32{7}},
		"an unknown type ends the reading": {[]byte{0xC0, 3, 2, 0x00, 0x52, 7}, 2, []uint32{0, 0}},
	} {
		if got := numbers(c.list, c.count); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestDispositionsSettleRanges(t *testing.T) {
	accepted := described(descAccepted)
	p := &Publisher{}
	one := described(descDisposition, []byte{0x41}, number(0), null, []byte{0x41}, accepted)[3:]
	many := described(descDisposition, []byte{0x41}, number(1), number(5), []byte{0x41}, accepted)[3:]
	if err := p.note(descDisposition, one); err != nil || p.settled != 1 {
		t.Errorf("%d are settled, %v", p.settled, err)
	}
	if err := p.note(descDisposition, many); err != nil || p.settled != 6 {
		t.Errorf("%d are settled, %v", p.settled, err)
	}
	rejected := described(descDisposition, []byte{0x41}, number(6), null, []byte{0x41}, described(0x25))[3:]
	if err := p.note(descDisposition, rejected); err == nil {
		t.Error("a rejected message was not reported")
	}
}
