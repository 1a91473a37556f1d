// Command sendfile compares three ways to send chunks of a file to consumers over loopback: from memory that all
// consumers share, with a read of the file for each consumer, and with sendfile. It reports the processor time of the
// sender in seconds per gigabyte that one consumer receives. The readers are processes of their own, so their copies do
// not count.
//
// A chunk has a header of 61 bytes that differs between consumers, as in the stream protocol: the frame and the header
// of the chunk. The program reads a temporary file from the page cache.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
	"unsafe"
)

const (
	headerBytes = 61
	fileBytes   = 64 << 20
	// Linux: the socket waits for the next write before it sends a part of a segment.
	msgMore = 0x8000
)

// A way to send one chunk, header included.
type way struct {
	name string
	send func(socket int, file *os.File, position int64, shared, own []byte) error
}

var header = make([]byte, headerBytes)

var ways = []way{
	{"shared memory, writev", func(socket int, _ *os.File, _ int64, shared, _ []byte) error {
		return writeBoth(socket, shared)
	}},
	{"pread, then writev", func(socket int, file *os.File, position int64, _, own []byte) error {
		if _, err := syscall.Pread(int(file.Fd()), own, position); err != nil {
			return err
		}
		return writeBoth(socket, own)
	}},
	{"send, then sendfile", func(socket int, file *os.File, position int64, shared, _ []byte) error {
		if err := syscall.Sendto(socket, header, msgMore, nil); err != nil {
			return err
		}
		for left := len(shared); left > 0; {
			n, err := syscall.Sendfile(socket, int(file.Fd()), &position, left)
			if err != nil && !errors.Is(err, syscall.EINTR) {
				return err
			}
			left -= max(n, 0)
		}
		return nil
	}},
}

// writeBoth writes the header and the data with writev.
func writeBoth(socket int, data []byte) error {
	parts := [][]byte{header, data}
	for len(parts) > 0 {
		vectors := make([]syscall.Iovec, len(parts))
		for i, part := range parts {
			vectors[i].Base = &part[0]
			vectors[i].SetLen(len(part))
		}
		n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, uintptr(socket), uintptr(unsafe.Pointer(&vectors[0])), uintptr(len(vectors)))
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			return errno
		}
		for written := int(n); len(parts) > 0 && written >= len(parts[0]); parts = parts[1:] {
			written -= len(parts[0])
			n = uintptr(written)
		}
		if len(parts) > 0 {
			parts[0] = parts[0][n:]
		}
	}
	return nil
}

func main() {
	consumers := flag.Int("consumers", 10, "number of consumers")
	rounds := flag.Int("rounds", 5, "rounds; each measures every way once")
	megabytes := flag.Int("megabytes", 32, "megabytes to each consumer in one measurement")
	sizes := flag.String("chunks", "4096,16384,65536,262144", "sizes of a chunk's data in bytes")
	reader := flag.String("reader", "", "internal: read everything from this address")
	flag.Parse()
	var err error
	if *reader != "" {
		err = read(*reader)
	} else {
		err = run(*consumers, *rounds, int64(*megabytes)<<20, *sizes)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sendfile:", err)
		os.Exit(1)
	}
}

func read(address string) error {
	socket, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	buffer := make([]byte, 256<<10)
	for {
		if _, err := socket.Read(buffer); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func run(consumers, rounds int, bytes int64, sizes string) error {
	file, err := os.CreateTemp("", "posthorn-sendfile")
	if err != nil {
		return err
	}
	defer file.Close()
	defer func() { _ = os.Remove(file.Name()) }()
	if _, err := file.Write(make([]byte, fileBytes)); err != nil {
		return err
	}
	sockets, readers, err := connect(consumers)
	defer func() {
		for _, socket := range sockets {
			syscall.Close(socket)
		}
		for _, reader := range readers {
			_ = reader.Wait()
		}
	}()
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "chunk\tway\tseconds of processor time per GB: median\tleast\tmost\n")
	for text := range strings.SplitSeq(sizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil || size <= 0 || size > fileBytes {
			return fmt.Errorf("%q is not the size of a chunk, which is from 1 to %d bytes", text, fileBytes)
		}
		found := make([][]float64, len(ways))
		for range rounds {
			for i, way := range ways {
				seconds, err := measure(way, sockets, file, bytes, size)
				if err != nil {
					return fmt.Errorf("%s: %w", way.name, err)
				}
				found[i] = append(found[i], seconds)
			}
		}
		for i, way := range ways {
			sort.Float64s(found[i])
			fmt.Fprintf(table, "%d\t%s\t%.3f\t%.3f\t%.3f\n", size, way.name, found[i][rounds/2], found[i][0], found[i][rounds-1])
		}
	}
	return table.Flush()
}

// connect starts a process for each consumer and returns blocking sockets to them.
func connect(consumers int) (sockets []int, readers []*exec.Cmd, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	for range consumers {
		reader := exec.Command(os.Args[0], "-reader", listener.Addr().String())
		reader.Stderr = os.Stderr
		if err := reader.Start(); err != nil {
			return sockets, readers, err
		}
		readers = append(readers, reader)
		accepted, err := listener.Accept()
		if err != nil {
			return sockets, readers, err
		}
		// A copy of the descriptor, in blocking mode, without Go's poller.
		copied, err := accepted.(*net.TCPConn).File()
		accepted.Close()
		if err != nil {
			return sockets, readers, err
		}
		socket, err := syscall.Dup(int(copied.Fd()))
		copied.Close()
		if err != nil {
			return sockets, readers, err
		}
		syscall.CloseOnExec(socket)
		sockets = append(sockets, socket)
	}
	return sockets, readers, nil
}

// measure sends chunks to all consumers in turn and returns the seconds of processor time per gigabyte sent.
func measure(way way, sockets []int, file *os.File, bytes int64, size int) (float64, error) {
	shared, own := make([]byte, size), make([]byte, size)
	before, err := processorTime()
	if err != nil {
		return 0, err
	}
	chunks := bytes / int64(size)
	for chunk := range chunks {
		position := chunk * int64(size) % (fileBytes - int64(size) + 1)
		for _, socket := range sockets {
			if err := way.send(socket, file, position, shared, own); err != nil {
				return 0, err
			}
		}
	}
	after, err := processorTime()
	sent := float64(chunks) * float64(size) * float64(len(sockets))
	return (after - before).Seconds() / sent * 1e9, err
}

func processorTime() (time.Duration, error) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}
