package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"posthorn.io/posthorn/test/bench/peers"
	"posthorn.io/posthorn/test/bench/process"
	"posthorn.io/posthorn/test/bench/stream"
)

const streamListener = "stream.listeners.tcp.default=127.0.0.1:0"

// each measures our broker, then the selected others. Only ours has goals.
func (r *report) each(measure func(b *process.Broker, goal func(float64) float64) error) error {
	b, err := r.start(streamListener)
	if b == nil {
		return err
	}
	if err == nil {
		err = measure(b, func(goal float64) float64 { return goal })
	}
	b.Remove()
	if err != nil {
		return err
	}
	for _, peer := range r.peers {
		if !peer.Knows("stream") {
			continue
		}
		b, err := peer.Start(r.peersDir, peers.Demand{Streams: true})
		if b == nil {
			return err
		}
		if err == nil {
			err = measure(b, func(float64) float64 { return 0 })
		}
		b.Remove()
		if err != nil {
			return fmt.Errorf("%s: %w", peer.Name, err)
		}
	}
	return nil
}

func streamAddress(b *process.Broker) string { return fmt.Sprintf("127.0.0.1:%d", b.Ports["stream"]) }

// fill publishes messages of 12 B or more to a stream.
func fill(b *process.Broker, name string, size, messages int) error {
	rig, err := stream.Load{Stream: name, Size: size, Publish: true}.Connect(streamAddress(b))
	if err != nil {
		return err
	}
	defer rig.Close()
	_, err = rig.Run(messages)
	return err
}

// replay reads a stream from the disk, and its files with cat through a socket, in turns.
func replay(r *report) error {
	const size, rounds = 1024, 3
	messages := r.times(1_000_000) / 100 * 100
	return r.each(func(b *process.Broker, goal func(float64) float64) error {
		if err := fill(b, "replay", size, messages); err != nil {
			return err
		}
		files, bytes, err := segments(b.Dir)
		if err != nil {
			return err
		}
		var read, plain []float64
		for range rounds {
			for _, cold := range []struct {
				rates   *[]float64
				measure func() (float64, error)
			}{
				{&read, func() (float64, error) { return replayOnce(b, messages) }},
				{&plain, func() (float64, error) { return catOnce(files, bytes) }},
			} {
				if err := evict(files); err != nil {
					return fmt.Errorf("the page cache cannot be emptied: %w", err)
				}
				rate, err := cold.measure()
				if err != nil {
					return err
				}
				*cold.rates = append(*cold.rates, rate)
			}
		}
		ours, cat := median(read), median(plain)
		r.add(b.Name+": replay from the disk", ours/1e6, "MB/s", 0)
		r.add(b.Name+": cat of the same files to a socket", cat/1e6, "MB/s", 0)
		r.add(b.Name+": cat's rate over replay's", cat/ours, "", goal(1.25))
		return nil
	})
}

func replayOnce(b *process.Broker, messages int) (float64, error) {
	rig, err := stream.Load{Stream: "replay", Size: 8, Consumers: 1}.Connect(streamAddress(b))
	if err != nil {
		return 0, err
	}
	defer rig.Close()
	outcome, err := rig.Run(messages)
	return float64(outcome.Bytes) / outcome.Took.Seconds(), err
}

// catOnce returns the bytes per second through a TCP connection on loopback.
func catOnce(files []string, bytes int64) (float64, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	out, err := listener.Accept()
	if err != nil {
		return 0, err
	}
	socket, err := out.(*net.TCPConn).File()
	out.Close()
	if err != nil {
		return 0, err
	}
	cat := exec.Command("cat", files...)
	cat.Stdout, cat.Stderr = socket, os.Stderr
	began := time.Now()
	err = cat.Start()
	socket.Close()
	if err != nil {
		return 0, err
	}
	// A reader like the stream client's: a buffer of 256 KiB.
	buffer := make([]byte, 256<<10)
	var got int64
	for {
		n, err := conn.Read(buffer)
		got += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	took := time.Since(began)
	if err := cat.Wait(); err != nil {
		return 0, err
	}
	if got != bytes {
		return 0, fmt.Errorf("cat sent %d of %d bytes", got, bytes)
	}
	return float64(got) / took.Seconds(), nil
}

// segments returns the files of the only stream, and their bytes.
func segments(dir string) ([]string, int64, error) {
	var files []string
	var bytes int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, "stream") || !strings.HasSuffix(path, ".segment") {
			return err
		}
		info, err := d.Info()
		if err == nil {
			files, bytes = append(files, path), bytes+info.Size()
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no segment of a stream in %s", dir)
	}
	return files, bytes, err
}

// posixFadvDontneed is POSIX_FADV_DONTNEED of posix_fadvise(2).
const posixFadvDontneed = 4

// evict removes files from the page cache. Pages that are not on disk yet would stay.
func evict(files []string) error {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		if err := f.Sync(); err == nil {
			if _, _, code := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, posixFadvDontneed, 0, 0); code != 0 {
				f.Close()
				return code
			}
		}
		f.Close()
	}
	return nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// filterValues is the number of filter values of the messages.
const filterValues = 50

// filtered publishes messages with filter values, and compares the bytes of a consumer of one value with those of a
// consumer of all.
func filtered(r *report) error {
	return r.each(func(b *process.Broker, goal func(float64) float64) error {
		for _, load := range []struct {
			name string
			// Publish commands in flight, each with messages of one value.
			window int
			goal   float64
		}{
			{"one publish command in flight", 1, goal(0.2)},
			{"four in flight", 4, 0},
			{"a hundred in flight", 100, 0},
		} {
			c, err := stream.Dial(streamAddress(b))
			if err != nil {
				return err
			}
			all, one, err := filterOnce(c, fmt.Sprintf("filter-%d", load.window), r.times(2_000), load.window)
			c.Close()
			if err != nil {
				return err
			}
			r.add(fmt.Sprintf("%s: bytes with the filter over those without, %s", b.Name, load.name), float64(one)/float64(all), "", load.goal)
		}
		return nil
	})
}

func filterOnce(c *stream.Client, name string, commands, window int) (all, one int, err error) {
	const together = 100
	if err := c.Create(name, map[string]string{"max-length-bytes": stream.Retention}); err != nil {
		return 0, 0, err
	}
	if err := c.Publisher(0, "", name); err != nil {
		return 0, 0, err
	}
	var batches []*stream.Batch
	for n := range filterValues {
		batches = append(batches, stream.NewBatch(0, together, 100, fmt.Sprintf("value-%d", n)))
	}
	confirmed := 0
	for n := range commands {
		if err := c.Publish(batches[n%filterValues], uint64(n*together)); err != nil {
			return 0, 0, err
		}
		for (n+1)*together-confirmed >= window*together || n == commands-1 && confirmed < commands*together {
			count, _, err := c.Confirmed()
			if err != nil {
				return 0, 0, err
			}
			confirmed += count
		}
	}
	// The last chunk has the last value, so that a consumer with a filter knows the end.
	last := fmt.Sprintf("value-%d", (commands-1)%filterValues)
	for _, properties := range []map[string]string{nil, {"filter.0": last}} {
		if err := c.Subscribe(0, name, stream.First, 10, properties); err != nil {
			return 0, 0, err
		}
		bytes := 0
		for end := uint64(commands * together); ; {
			chunk, err := c.Take()
			if err != nil {
				return 0, 0, err
			}
			bytes += chunk.Bytes
			if chunk.First+uint64(chunk.Records) >= end {
				break
			}
			if err := c.Credit(0, 1); err != nil {
				return 0, 0, err
			}
		}
		if err := c.Unsubscribe(0); err != nil {
			return 0, 0, err
		}
		if properties == nil {
			all = bytes
		} else {
			one = bytes
		}
	}
	return all, one, nil
}

// parallel is the number of connections that create or read many streams.
const parallel = 16

// overStreams calls a function for the name of each of many streams, over several connections.
func overStreams(b *process.Broker, streams int, of func(c *stream.Client, name string) error) error {
	var wait sync.WaitGroup
	failures := make([]error, parallel)
	for n := range parallel {
		wait.Go(func() {
			failures[n] = func() error {
				c, err := stream.Dial(streamAddress(b))
				if err != nil {
					return err
				}
				defer c.Close()
				for at := n; at < streams; at += parallel {
					if err := of(c, fmt.Sprintf("many-%d", at)); err != nil {
						return fmt.Errorf("stream %d: %w", at, err)
					}
				}
				return nil
			}()
		})
	}
	wait.Wait()
	return errors.Join(failures...)
}

// createWithMessage creates a stream and publishes a message.
func createWithMessage(c *stream.Client, name string) error {
	if err := c.Create(name, nil); err != nil {
		return err
	}
	if err := c.Publisher(0, "", name); err != nil {
		return err
	}
	if err := c.Publish(stream.NewBatch(0, 1, 12, ""), 0); err != nil {
		return err
	}
	if _, _, err := c.Confirmed(); err != nil {
		return err
	}
	return c.DeletePublisher(0)
}

func readFirst(c *stream.Client, name string) error {
	if err := c.Subscribe(0, name, stream.First, 1, nil); err != nil {
		return err
	}
	if _, err := c.Take(); err != nil {
		return err
	}
	return c.Unsubscribe(0)
}

// streamsStart restarts a node with many streams after SIGTERM and after SIGKILL.
func streamsStart(r *report) error {
	streams := r.times(10_000)
	b, err := r.start(streamListener)
	if b == nil {
		return err
	}
	defer b.Remove()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := overStreams(b, streams, createWithMessage); err != nil {
		return err
	}
	r.add(fmt.Sprintf("create %d streams with a message each", streams), time.Since(began).Seconds(), "s", 0)
	for _, end := range []struct {
		name string
		end  func()
	}{{"SIGTERM", b.End}, {"SIGKILL", b.Kill}} {
		end.end()
		began := time.Now()
		if err := b.Launch(); err != nil {
			return err
		}
		if err := b.Wait(); err != nil {
			return err
		}
		r.add("until it listens, after "+end.name, time.Since(began).Seconds(), "s", 0)
		if err := overStreams(b, streams, readFirst); err != nil {
			return err
		}
		r.add("until the message of each stream was read", time.Since(began).Seconds(), "s", 5)
	}
	return nil
}

// streamsIdle compares the processor time of a node with idle streams with that of an empty node.
func streamsIdle(r *report) error {
	const settle, measured = 10 * time.Second, 30 * time.Second
	streams := r.times(1_000)
	return r.each(func(b *process.Broker, _ func(float64) float64) error {
		for _, count := range []int{0, streams} {
			if err := overStreams(b, count, createWithMessage); err != nil {
				return err
			}
			time.Sleep(settle)
			before, err := b.Usage()
			if err != nil {
				return err
			}
			time.Sleep(measured)
			after, err := b.Usage()
			if err != nil {
				return err
			}
			r.add(fmt.Sprintf("%s: CPU of %d idle streams in %s", b.Name, count, measured), float64((after.CPU - before.CPU).Milliseconds()), "ms", 0)
		}
		return nil
	})
}

// streamsBacklog compares the traffic of one stream before and after another has ten million messages that its
// consumer does not take.
func streamsBacklog(r *report) error {
	behind := r.times(10_000_000)
	return r.each(func(b *process.Broker, goal func(float64) float64) error {
		rig, err := stream.Load{Stream: "traffic", Size: 100, Publish: true, Consumers: 1}.Connect(streamAddress(b))
		if err != nil {
			return err
		}
		defer rig.Close()
		traffic := func() (cpu, rate float64, err error) {
			const rounds, messages = 5, 1_000_000
			var cpus, rates []float64
			for range rounds {
				before, err := b.Usage()
				if err != nil {
					return 0, 0, err
				}
				outcome, err := rig.Run(messages)
				if err != nil {
					return 0, 0, err
				}
				after, err := b.Usage()
				if err != nil {
					return 0, 0, err
				}
				cpus = append(cpus, (after.CPU-before.CPU).Seconds()/messages*1e6)
				rates = append(rates, messages/outcome.Took.Seconds())
			}
			return median(cpus), median(rates), nil
		}
		if _, _, err := traffic(); err != nil { // warms up
			return err
		}
		cpuBefore, rateBefore, err := traffic()
		if err != nil {
			return err
		}
		slow, err := stream.Dial(streamAddress(b))
		if err != nil {
			return err
		}
		defer slow.Close()
		if err := slow.Create("behind", map[string]string{"max-length-bytes": stream.Retention}); err != nil {
			return err
		}
		// Its credit ends with the first chunk.
		if err := slow.Subscribe(0, "behind", stream.First, 1, nil); err != nil {
			return err
		}
		if err := fill(b, "behind", 12, behind); err != nil {
			return err
		}
		cpu, rate, err := traffic()
		if err != nil {
			return err
		}
		of := fmt.Sprintf("%s: publish and consume 100 B", b.Name)
		r.add(of, rateBefore, "messages/s", 0)
		r.add(fmt.Sprintf("%s with %d messages behind another consumer", of, behind), rate, "messages/s", 0)
		r.add(of, cpuBefore, "CPU s per million", 0)
		r.add(of+" with the messages behind", cpu, "CPU s per million", 0)
		r.add(b.Name+": CPU with the messages behind over without", cpu/cpuBefore, "", goal(1.1))
		return nil
	})
}
