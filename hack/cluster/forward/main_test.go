package main

import (
	"io"
	"net"
	"testing"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// through connects a client to target over join.
func through(t *testing.T, target string) *net.TCPConn {
	t.Helper()
	front := listen(t)
	go func() {
		if c, err := front.Accept(); err == nil {
			join(c.(*net.TCPConn), target)
		}
	}()
	c, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// The answer may come after the end of the request's stream, and must arrive completely.
func TestEachDirectionIsClosedSeparately(t *testing.T) {
	back := listen(t)
	go func() {
		c, err := back.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		question, _ := io.ReadAll(c)
		_, _ = c.Write(append([]byte("answer to "), question...))
	}()
	c := through(t, back.Addr().String())
	if _, err := c.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "answer to question" {
		t.Errorf("%q %v", got, err)
	}
}

func TestConnectionIsClosedWithoutAListenerInside(t *testing.T) {
	gone := listen(t)
	gone.Close()
	c := through(t, gone.Addr().String())
	if b, err := io.ReadAll(c); err == nil && len(b) > 0 {
		t.Errorf("got %q from nobody", b)
	}
}
