package network

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	device = "/dev/net/tun"
	name   = "net0"
	// mtu is large, because each packet costs the switch a system call on both sides.
	mtu = 9000
	// dialling bounds the time to connect.
	dialling = 10 * time.Second
)

// Host is a network namespace with an interface whose other end is the switch.
type Host struct {
	tun   *os.File
	tasks chan func() // run in the namespace
}

// newHost creates the namespace (for all but host 0, which is the present one) on a thread that stays in it.
func newHost(number int) (*Host, error) {
	h := &Host{tasks: make(chan func())}
	made := make(chan error)
	go func() {
		// Never unlocked: the thread stays in its namespace, and ends with the goroutine.
		runtime.LockOSThread()
		made <- h.enter(number)
		for task := range h.tasks {
			task()
		}
	}()
	if err := <-made; err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *Host) close() {
	close(h.tasks)
	if h.tun != nil {
		_ = h.tun.Close()
	}
}

func (h *Host) enter(number int) error {
	if number > 0 {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
	}
	tun, err := openTun()
	if err != nil {
		return err
	}
	h.tun = tun
	return configure(number)
}

// openTun creates the interface in this thread's namespace.
func openTun() (*os.File, error) {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", device, err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, fmt.Errorf("%s: %w", device, err)
	}
	return os.NewFile(uintptr(fd), device), nil
}

// configure sets the address of the interface and enables it and loopback.
func configure(number int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	address, mask := Address(number).As4(), [4]byte{255, 255, 255, 0}
	steps := []struct {
		what   uint
		device string
		set    func(*unix.Ifreq) error
	}{
		{unix.SIOCSIFADDR, name, func(r *unix.Ifreq) error { return r.SetInet4Addr(address[:]) }},
		{unix.SIOCSIFNETMASK, name, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask[:]) }},
		{unix.SIOCSIFMTU, name, func(r *unix.Ifreq) error { r.SetUint32(mtu); return nil }},
		{unix.SIOCSIFFLAGS, name, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil }},
		{unix.SIOCSIFFLAGS, "lo", func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil }},
	}
	for _, s := range steps {
		request, err := unix.NewIfreq(s.device)
		if err != nil {
			return err
		}
		if err := s.set(request); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, s.what, request); err != nil {
			return fmt.Errorf("%s: %w", s.device, err)
		}
	}
	return nil
}

// Start starts a process on this host.
func (h *Host) Start(c *exec.Cmd) error {
	result := make(chan error)
	h.tasks <- func() { result <- c.Start() }
	return <-result
}

// Dial connects from this host over TCP.
func (h *Host) Dial(address string) (c net.Conn, err error) {
	done := make(chan struct{})
	h.tasks <- func() {
		defer close(done)
		c, err = net.DialTimeout("tcp", address, dialling)
	}
	<-done
	return c, err
}

// deliver passes a packet to the host. A packet that the host cannot accept is lost, as on any network.
func (h *Host) deliver(packet []byte) { _, _ = h.tun.Write(packet) }
