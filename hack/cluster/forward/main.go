// Forward makes the local cluster's API server reachable from every shell of the machine: it accepts connections on a
// loopback port of the network namespace in which it starts, and connects to the same port inside the cluster's
// namespace.
//
//	forward -listen 127.0.0.1:16443 -netns /run/netns/NAME -nsenter /usr/bin/nsenter
//
// It opens the listening socket first and passes it to a second instance that nsenter starts in the other namespace.
// A socket stays in the namespace in which it was created, so that instance accepts outside and dials inside.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"syscall"
	"time"
)

// inheritedListener is the descriptor of the listening socket in the second instance.
const inheritedListener = 3

func main() {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	listen := flag.String("listen", "", "address to accept on, and to connect to inside the namespace")
	netns := flag.String("netns", "", "file of the network namespace to connect in")
	nsenter := flag.String("nsenter", "/usr/bin/nsenter", "the nsenter program")
	inside := flag.Bool("inside", false, "internal: the second instance")
	flag.Parse()
	var err error
	if *inside {
		err = serve(*listen)
	} else {
		err = enter(*listen, *netns, *nsenter)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// enter opens the listening socket and replaces this process with the second instance.
func enter(listen, netns, nsenter string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("duplicate the listening socket: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if f.Fd() != inheritedListener {
		if err := syscall.Dup3(int(f.Fd()), inheritedListener, 0); err != nil {
			return fmt.Errorf("move the listening socket: %w", err)
		}
	} else if _, _, e := syscall.Syscall(syscall.SYS_FCNTL, inheritedListener, syscall.F_SETFD, 0); e != 0 {
		return fmt.Errorf("keep the listening socket over exec: %w", e)
	}
	argv := []string{nsenter, "--net=" + netns, self, "-inside", "-listen", listen}
	return fmt.Errorf("exec %s: %w", nsenter, syscall.Exec(nsenter, argv, os.Environ()))
}

// serve accepts connections on the inherited socket and joins each to target.
func serve(target string) error {
	l, err := net.FileListener(os.NewFile(inheritedListener, "listener"))
	if err != nil {
		return fmt.Errorf("inherited socket: %w", err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			log.Printf("accept: %v", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors: wait for some to close
			continue
		}
		go join(c.(*net.TCPConn), target)
	}
}

// join copies in both directions and passes on the end of each stream separately.
func join(outer *net.TCPConn, target string) {
	defer outer.Close()
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.Dial("tcp", target)
	if err != nil {
		log.Printf("connect inside: %v", err)
		return
	}
	inner := c.(*net.TCPConn)
	defer inner.Close()
	done := make(chan struct{}, 2)
	pipe := func(to, from *net.TCPConn) {
		if _, err := io.Copy(to, from); err != nil {
			from.Close()
		}
		_ = to.CloseWrite()
		done <- struct{}{}
	}
	go pipe(inner, outer)
	go pipe(outer, inner)
	<-done
	<-done
}
