package process

import (
	"fmt"
	"net"
	"strings"
)

// Cluster starts a number of nodes of one cluster on loopback and returns when all serve clients.
func Cluster(program string, nodes int, arguments ...string) ([]*Broker, error) {
	var all []*Broker
	err := func() error {
		var peers []string
		for range nodes {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			defer l.Close()
			peers = append(peers, l.Addr().String())
		}
		for n := range nodes {
			b, err := New(program, append([]string{
				"--set", fmt.Sprintf("cluster.node=n%d", n+1), "--set", "cluster.advertised_host=127.0.0.1",
				"--set", "cluster.listener=" + peers[n], "--set", "cluster.peers=" + strings.Join(peers, ","),
			}, arguments...)...)
			if err != nil {
				return err
			}
			all = append(all, b)
		}
		return nil
	}()
	// The ports are free again.
	for n := 0; err == nil && n < len(all); n++ {
		err = all[n].Launch()
	}
	for n := 0; err == nil && n < len(all); n++ {
		if err = all[n].Wait(); err == nil {
			err = all[n].Serves()
		}
	}
	if err == nil {
		return all, nil
	}
	for _, b := range all {
		b.Remove()
	}
	return nil, err
}
