package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"posthorn.io/posthorn/test/faults/network"
	"posthorn.io/posthorn/test/faults/nodes"
	"posthorn.io/posthorn/test/faults/streams"
)

const (
	storeNodes  = 3
	storePort   = 17070
	storeBucket = "segments"
	storeKey    = "test"
	storeSecret = "secret-for-tests"
	// Messages are confirmed while the server is gone.
	storeGone = 5000
	// storeFirst is the number of segments in the store before it is killed.
	storeFirst = 5
	// storeSegment is the size of a segment in bytes.
	storeSegment = 50_000
)

// storeServer is a real S3 server with its objects in a directory.
type storeServer struct {
	program, dir string
	command      *exec.Cmd
}

func (s *storeServer) address() string { return fmt.Sprintf("%s:%d", network.Address(0), storePort) }

func (s *storeServer) start(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(s.dir, "objects", storeBucket), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	s.command = exec.Command(s.program, "--port", s.address(), "posix", filepath.Join(s.dir, "objects"))
	s.command.Stdout, s.command.Stderr = log, log
	s.command.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+storeKey, "ROOT_SECRET_KEY="+storeSecret)
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.command.Start(); err != nil {
		return err
	}
	return nodes.Eventually(ctx, healing, "the S3 server listens", func() error {
		conn, err := net.Dial("tcp", s.address())
		if err == nil {
			conn.Close()
		}
		return err
	})
}

func (s *storeServer) kill() {
	if s.command != nil {
		_ = s.command.Process.Kill()
		_ = s.command.Wait()
		s.command = nil
	}
}

// segments returns how many segments have an index in the store.
func (s *storeServer) segments() (count int, err error) {
	err = filepath.WalkDir(filepath.Join(s.dir, "objects", storeBucket), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() == "index" && strings.Contains(path, "/segments/") {
			count++
		}
		// The server renames files meanwhile.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return count, err
}

// objectStore runs a stream whose sealed segments leave the disks. An error says which rule was broken.
func objectStore(ctx context.Context, o options, out io.Writer) error {
	if o.storeServer == "" {
		return errors.New("-store-server must name the program versitygw; test/tiered/run installs it")
	}
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "   %6.1f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	eventually := func(what string, holds func() error) error { return nodes.Eventually(ctx, healing, what, holds) }
	server := &storeServer{program: o.storeServer, dir: filepath.Join(o.dir, "object-store")}
	if err := os.MkdirAll(server.dir, 0o755); err != nil {
		return err
	}
	secret := filepath.Join(server.dir, "secret")
	if err := os.WriteFile(secret, []byte(storeSecret), 0o600); err != nil {
		return err
	}
	net, err := network.New(storeNodes+1, o.seed)
	if err != nil {
		return err
	}
	defer net.Close()
	if err := server.start(ctx); err != nil {
		return err
	}
	defer server.kill()
	cluster, err := nodes.Start(nodes.Options{Binary: o.binary, Dir: server.dir, Count: storeNodes, Network: net, Settings: []string{
		"stream.tiered.endpoint=http://" + server.address(), "stream.tiered.allow_http=true", "stream.tiered.bucket=" + storeBucket,
		"stream.tiered.region=us-east-1", "stream.tiered.access_key_id=" + storeKey, "stream.tiered.secret_access_key_file=" + secret,
		"stream.tiered.local_max_bytes=1",
	}})
	if err != nil {
		return err
	}
	defer cluster.Close()
	if err := eventually("the cluster forms", cluster.Whole); err != nil {
		return err
	}
	var addresses []string
	for _, n := range cluster.Nodes {
		addresses = append(addresses, n.Stream())
	}
	load, err := streams.Start(ctx, streams.Options{Addresses: addresses, User: nodes.User, Password: nodes.Password, Stream: "tiered",
		Publishers: 2, Consumers: 2, Interval: time.Millisecond, SegmentBytes: storeSegment})
	if err != nil {
		return err
	}
	defer load.Stop()
	readAll := func(n *nodes.Node) error {
		return eventually("the stream is read from "+n.Name, func() error { return load.ReadAll(ctx, n.Stream()) })
	}
	load.Resume()
	err = eventually("the first segment leaves every disk", func() error {
		n, err := server.segments()
		if err == nil && n < storeFirst {
			err = fmt.Errorf("the store has %d segments", n)
		}
		return errors.Join(err, onlyInStore(cluster, 0))
	})
	if err != nil {
		return err
	}
	say("the first segment is in the store only")
	for _, n := range cluster.Nodes {
		if err := readAll(n); err != nil {
			return err
		}
	}
	say("the stream was read from its first message on each node")

	before, err := server.segments()
	if err != nil {
		return err
	}
	server.kill()
	confirms := load.Confirms()
	err = eventually("publishing goes on without the store", func() error {
		if n := load.Confirms() - confirms; n < storeGone {
			return fmt.Errorf("%d confirms", n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	say("the S3 server was killed; %d messages were confirmed without it", load.Confirms()-confirms)

	wiped := cluster.Nodes[storeNodes-1]
	wiped.Kill()
	if err := wiped.Wipe(); err != nil {
		return err
	}
	if err := server.start(ctx); err != nil {
		return err
	}
	if err := wiped.Start(); err != nil {
		return err
	}
	say("the S3 server runs again, and %s starts without its data", wiped.Name)
	err = eventually("segments are uploaded again", func() error {
		n, err := server.segments()
		if err == nil && n <= before {
			err = fmt.Errorf("the store has %d segments, and had %d", n, before)
		}
		return err
	})
	if err != nil {
		return err
	}
	load.Pause()
	for what, holds := range map[string]func() error{"confirms": load.Idle, "every consumer reads everything": load.CaughtUp} {
		if err := eventually(what, holds); err != nil {
			return err
		}
	}
	if err := eventually("the cluster is whole", cluster.Whole); err != nil {
		return err
	}
	for _, n := range cluster.Nodes {
		if err := readAll(n); err != nil {
			return err
		}
	}
	if err := onlyInStore(cluster, 0); err != nil {
		return err
	}
	v := load.History.Judge(true)
	count, err := server.segments()
	if err != nil {
		return err
	}
	say("%d sent, %d confirmed, %d at their offsets on each node, %d segments in the store", v.Sent, v.Confirmed, v.Arrived, count)
	problems := append(load.Strange(), cluster.Faults()...)
	if !v.OK() {
		problems = append(problems, v.Examples...)
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n   | "))
	}
	return nil
}

// onlyInStore returns nil when no running node has the segment with a first offset on its disk.
func onlyInStore(cluster *nodes.Cluster, offset int) error {
	for _, n := range cluster.Nodes {
		found, err := filepath.Glob(filepath.Join(n.Data, "streams", "*", fmt.Sprintf("%020d.segment", offset)))
		if err != nil {
			return err
		}
		if len(found) > 0 {
			return fmt.Errorf("%s has the segment on its disk", n.Name)
		}
	}
	return nil
}
