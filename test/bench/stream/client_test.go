package stream

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// over returns a client that has logged in, and reads these bytes.
func over(t *testing.T, bytes []byte) *Client {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	go func() { _, _ = theirs.Write(bytes); theirs.Close() }()
	return &Client{options: Options{Patience: time.Minute}, net: ours, in: bufio.NewReaderSize(ours, 4096)}
}

func TestBatchHasIdsFiltersAndBodies(t *testing.T) {
	for _, c := range []struct {
		size    int
		filter  string
		version uint16
	}{{12, "", 1}, {1024, "", 1}, {12, "red", 2}} {
		b := NewBatch(7, 3, c.size, c.filter)
		for n := range 3 {
			binary.BigEndian.PutUint64(b.Body(n), uint64(100+n))
		}
		ours, theirs := net.Pipe()
		client := &Client{net: ours}
		go func() { _ = client.Publish(b, 40); ours.Close() }()
		var sent bytes.Buffer
		if _, err := sent.ReadFrom(theirs); err != nil {
			t.Fatal(err)
		}
		in := fields{rest: sent.Bytes()}
		if size := in.u32(); int(size) != len(in.rest) {
			t.Errorf("a frame of %d bytes says %d", len(in.rest), size)
		}
		if key, version := in.u16(), in.u16(); key != publish || version != c.version {
			t.Errorf("command %d, version %d", key, version)
		}
		if id, count := in.take(1)[0], in.u32(); id != 7 || count != 3 {
			t.Errorf("publisher %d, %d messages", id, count)
		}
		for n := range 3 {
			if id := in.u64(); id != uint64(40+n) {
				t.Errorf("publishing id %d of message %d", id, n)
			}
			if c.filter != "" && in.text() != c.filter {
				t.Error("the filter value is wrong")
			}
			body, err := Body(in.take(int(in.u32())))
			if err != nil || len(body) != c.size || binary.BigEndian.Uint64(body) != uint64(100+n) {
				t.Errorf("message %d: %x, %v", n, body, err)
			}
		}
		if len(in.rest) > 0 || in.cut {
			t.Errorf("%d bytes are left", len(in.rest))
		}
	}
}

// delivery returns a deliver command with a chunk of messages, whose filter is not sent and whose data has the size.
func delivery(first uint64, records int, data []byte, size uint32) []byte {
	header := make([]byte, chunkHeader)
	binary.BigEndian.PutUint32(header[4:], uint32(records))
	binary.BigEndian.PutUint64(header[24:], first)
	binary.BigEndian.PutUint32(header[36:], size)
	header[44] = 16
	return frame(nil, deliver, 1, append(append([]byte{0}, header...), data...))
}

func TestChunkHasItsMessages(t *testing.T) {
	data := append(u32(nil, 3), "one"...)
	data = append(u32(data, 3), "two"...)
	for _, padding := range []int{0, 10_000} { // with and without a frame larger than the buffer
		large := append(append([]byte(nil), data...), append(u32(nil, uint32(padding)), make([]byte, padding)...)...)
		chunk, err := over(t, delivery(50, 3, large, uint32(len(large)))).Take()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		err = chunk.Messages(func(offset uint64, message []byte) error {
			if offset != 50+uint64(len(got)) {
				t.Errorf("offset %d of message %d", offset, len(got))
			}
			got = append(got, string(message))
			return nil
		})
		if err != nil || len(got) != 3 || strings.Join(got[:2], " ") != "one two" {
			t.Errorf("%d messages, %v", len(got), err)
		}
	}
}

func TestChunksThatAreCutOffAreErrors(t *testing.T) {
	data := append(u32(nil, 3), "one"...)
	if _, err := over(t, delivery(0, 1, data, uint32(len(data)+1))).Take(); err == nil {
		t.Error("a chunk with less data than its header says was accepted")
	}
	for _, bad := range [][]byte{data[:5], {0x80, 0, 0, 0}, nil} {
		chunk := Chunk{Records: 1, Data: bad}
		if err := chunk.Messages(func(uint64, []byte) error { return nil }); err == nil {
			t.Errorf("%x was taken for a message", bad)
		}
	}
}

func TestConfirmsAreCounted(t *testing.T) {
	ids := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 8), 9)
	confirm := frame(nil, publishConfirm, 1, append(u32([]byte{0}, 2), ids...))
	count, got, err := over(t, append(frame(nil, heartbeat, 1, nil), confirm...)).Confirmed()
	if err != nil || count != 2 || !bytes.Equal(got, ids) {
		t.Errorf("%d, %x, %v", count, got, err)
	}
	refusal := frame(nil, publishError, 1, make([]byte, 15))
	if _, _, err := over(t, refusal).Confirmed(); err == nil {
		t.Error("a refused message was not reported")
	}
}

// A super stream is created with a name and a binding key for each partition, and its partitions come in order.
func TestSuperStreamHasItsPartitions(t *testing.T) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	client := &Client{options: Options{Patience: time.Minute}, net: ours, in: bufio.NewReaderSize(ours, 4096)}
	requests := make(chan []byte, 3)
	go func() {
		cut := text(u32(nil, 2), "orders-0")
		for _, answer := range [][]byte{nil, text(cut, "orders-1"), cut} {
			head := make([]byte, 4)
			if _, err := io.ReadFull(theirs, head); err != nil {
				return
			}
			request := make([]byte, binary.BigEndian.Uint32(head))
			if _, err := io.ReadFull(theirs, request); err != nil {
				return
			}
			requests <- request
			key := binary.BigEndian.Uint16(request)
			body := append(append([]byte{}, request[4:8]...), 0, codeOK)
			_, _ = theirs.Write(frame(nil, response|key, 1, append(body, answer...)))
		}
	}()
	if err := client.CreateSuper("orders", 2, map[string]string{"max-age": "1h"}); err != nil {
		t.Fatal(err)
	}
	want := text(u32(text(text(u32(text(nil, "orders"), 2), "orders-0"), "orders-1"), 2), "0")
	want = pairs(text(want, "1"), map[string]string{"max-age": "1h"})
	if got := <-requests; binary.BigEndian.Uint16(got) != 29 || !bytes.Equal(got[8:], want) {
		t.Errorf("the request is %x", got)
	}
	got, err := client.Partitions("orders")
	if err != nil || !slices.Equal(got, []string{"orders-0", "orders-1"}) {
		t.Errorf("%q, %v", got, err)
	}
	if got := <-requests; binary.BigEndian.Uint16(got) != 25 {
		t.Errorf("the request is %x", got)
	}
	if got, err := client.Partitions("orders"); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("a list that is cut off is %q, %v", got, err)
	}
}
