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

func TestConsumerCountsFromWhereTheBrokerBegins(t *testing.T) {
	c := &Consumer{prefetch: 10}
	begin := described(descBegin, []byte{0x60, 0, 0}, number(7), number(400), number(400))[3:]
	attach := described(descAttach, text("bench"), number(0), no, []byte{0x50, 0}, []byte{0x50, 0},
		described(descSource, text("/queues/q"), null), described(descTarget, text("bench")), null, no, number(0xFFFFFFFB))[3:]
	transfer := func(id uint32) []byte { return described(descTransfer, number(0), number(id), binary8("t"))[3:] }
	for _, performative := range []struct {
		descriptor byte
		list       []byte
	}{{descBegin, begin}, {descAttach, attach}, {descTransfer, transfer(3)}, {descTransfer, transfer(4)}} {
		if err := c.note(performative.descriptor, performative.list); err != nil {
			t.Fatal(err)
		}
	}
	if !c.attached || c.taken != 2 {
		t.Fatalf("attached %t, %d taken", c.attached, c.taken)
	}
	sent := c.credit(c.accept(nil))
	want := append(frame(frameAMQP, descDisposition, yes, number(3), number(4), yes, described(descAccepted)),
		frame(frameAMQP, descFlow, number(9), number(sessionWindow), number(0), number(sessionWindow), number(0), number(0xFFFFFFFD), number(10))...)
	if !slices.Equal(sent, want) {
		t.Errorf("%x, want %x", sent, want)
	}
}

func TestFieldsOfAListThatIsCutOff(t *testing.T) {
	for _, list := range [][]byte{{0xC0, 3, 2, 0xA1, 9}, {0xC0, 2, 2, 0x00}, {0xC0, 4, 2, 0xB1, 0xFF, 0xFF}} {
		if got, err := field(list, 1); err == nil {
			t.Errorf("%x: %d", list, got)
		}
	}
	if got, err := field([]byte{0xC0, 1, 0}, 9); err != nil || got != 0 {
		t.Errorf("%d, %v", got, err)
	}
}

func TestDispositionsOfASessionSettleTheMessagesOfTheirLinks(t *testing.T) {
	l := &Links{links: make([]publishingLink, 2), owners: make([]uint8, unsettledOfAll)}
	flow := described(descFlow, number(0), number(400), number(0), number(400), number(1), number(0), number(2))[3:]
	if err := l.note(descFlow, flow); err != nil || l.permits(0) || !l.permits(1) {
		t.Fatalf("links without credit: %t %t, %v", l.permits(0), l.permits(1), err)
	}
	for _, link := range []int{0, 1, 1, 0} {
		l.transfer(link)
	}
	if l.permits(1) {
		t.Error("a link without credit may send")
	}
	many := described(descDisposition, []byte{0x41}, number(0), number(2), []byte{0x41}, described(descAccepted))[3:]
	if err := l.note(descDisposition, many); err != nil || l.links[0].settled != 1 || l.links[1].settled != 2 || l.unsettled() != 1 {
		t.Errorf("settled: %+v, %v", l.links, err)
	}
}
