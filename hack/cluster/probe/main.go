// Probe is the pod with which hack/cluster/check examines the local cluster: an HTTP server that returns its name,
// keeps a file on its volume, and fetches URLs from its position in the network.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// maxAnswer bounds the size of one fetched answer, in bytes.
const maxAnswer = 64 << 10

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	starts, err := recordStart("/data/starts")
	if err != nil {
		return fmt.Errorf("the volume is not writable: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /id", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	mux.HandleFunc("GET /starts", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, starts) })
	mux.HandleFunc("GET /fetch", fetch)
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { <-ctx.Done(); server.Close() }()
	log.Printf("%s listens, start %d", name, starts)
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// recordStart appends a line to the file and returns its number of lines.
func recordStart(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, "start"); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(path)
	return strings.Count(string(b), "\n"), err
}

// fetch answers with the body of ?url=, over a new connection.
func fetch(w http.ResponseWriter, r *http.Request) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(r.URL.Query().Get("url"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	w.WriteHeader(answer.StatusCode)
	if _, err := io.Copy(w, io.LimitReader(answer.Body, maxAnswer)); err != nil {
		log.Printf("fetch: %v", err)
	}
}
