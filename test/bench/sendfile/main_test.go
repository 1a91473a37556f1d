package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Each way sends the header and the same data, also when a write takes only a part.
func TestEveryWaySendsHeaderAndData(t *testing.T) {
	const position, size = 1000, 1 << 20
	content := make([]byte, position+size)
	for i := range content {
		content[i] = byte(i * 31 >> 3)
	}
	path := filepath.Join(t.TempDir(), "chunks")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	wanted := append(append([]byte{}, header...), content[position:]...)
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err != nil {
				t.Fatal(err)
			}
			received := make(chan []byte)
			go func() {
				end := os.NewFile(uintptr(pair[1]), "reader")
				defer end.Close()
				all, _ := io.ReadAll(end)
				received <- all
			}()
			err = way.send(pair[0], file, position, content[position:], make([]byte, size))
			syscall.Close(pair[0])
			if got := <-received; err != nil || !bytes.Equal(got, wanted) {
				t.Fatalf("%d bytes arrived, %d are right: %v", len(got), len(wanted), err)
			}
		})
	}
}
