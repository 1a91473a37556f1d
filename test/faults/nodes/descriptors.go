package nodes

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"posthorn.io/posthorn/test/faults/network"
)

// LimitDescriptors lets the running process open so many descriptors more than it has. The function that it returns restores the limit.
func (n *Node) LimitDescriptors(more int) (restore func() error, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil {
		return nil, fmt.Errorf("%s does not run", n.Name)
	}
	pid := n.process.command.Process.Pid
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, err
	}
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		return nil, err
	}
	less := before
	less.Cur = uint64(len(open) + more)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &less, nil); err != nil {
		return nil, err
	}
	return func() error { return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil) }, nil
}

// Watcher asks a node over one connection, which stays open: it gets answers also where the node can accept no other.
type Watcher struct {
	node   *Node
	client *http.Client
}

// Watch connects a watcher.
func (n *Node) Watch() (*Watcher, error) {
	w := &Watcher{n, &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{MaxConnsPerHost: 1}}}
	_, err := w.Alarms()
	return w, err
}

// Close ends the connection.
func (w *Watcher) Close() { w.client.CloseIdleConnections() }

// Alarms are the resources that the node says it is short of.
func (w *Watcher) Alarms() ([]string, error) {
	address := fmt.Sprintf("http://%s:%d/api/health/checks/local-alarms", network.Address(w.node.Number+1), HTTPPort)
	request, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth(User, Password)
	answer, err := w.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var said struct {
		Alarms []struct {
			Resource string `json:"resource"`
		} `json:"alarms"`
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, fmt.Errorf("%s: %s: %s: %w", w.node.Name, answer.Status, body, err)
	}
	var resources []string
	for _, alarm := range said.Alarms {
		resources = append(resources, alarm.Resource)
	}
	return resources, nil
}
