// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// uiOptions are the flags of ui.
type uiOptions struct {
	port            int
	open, showLogin bool
}

func (r *runner) uiCommand() *cobra.Command {
	options := uiOptions{}
	command := &cobra.Command{
		Use:   "ui [CLUSTER]",
		Short: "Forward a local port to the web UI of a cluster",
		Long: `Forwards a local port to the web UI and the HTTP API of a ready node and prints the address. It runs until it is
interrupted. When the node stops, it forwards the port to another ready node.

The port is open on the loopback interface of this machine only. The credentials are printed with --credentials only.`,
		Example: `  kubectl posthorn ui c --open
  kubectl posthorn ui c --port 15672 --credentials`,
		Args: atMostOneCluster,
		RunE: r.withSession(func(ctx context.Context, s *Session, args []string) error {
			if options.port < 0 || options.port > 65535 {
				return usageErrorf("--port %d is not a port; use 1 to 65535, or 0 for a free one", options.port)
			}
			cluster, err := s.findCluster(ctx, optional(args))
			if err != nil {
				return err
			}
			return r.forwardUI(ctx, s, cluster, options)
		}),
	}
	command.Flags().IntVar(&options.port, "port", 0, "local port; 0 chooses a free one")
	command.Flags().BoolVar(&options.open, "open", false, "open the address in the browser")
	command.Flags().BoolVar(&options.showLogin, "credentials", false, "print the user name and the password of the default user")
	return command
}

// errPodReplaced is why a tunnel to a pod that was deleted or replaced leads nowhere.
var errPodReplaced = errors.New("its pod was deleted")

// awaitEnd waits until a tunnel leads nowhere and returns why; nil when the context ended. The API server reports the end
// of a pod only when somebody uses the tunnel.
func (s *Session) awaitEnd(ctx context.Context, tunnel *Tunnel, pod *corev1.Pod) error {
	ticker := time.NewTicker(s.Poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-tunnel.Ended:
			return cmp.Or(err, errPodReplaced)
		case <-ticker.C:
		}
		var now corev1.Pod
		err := s.Client.Get(ctx, client.ObjectKeyFromObject(pod), &now)
		if apierrors.IsNotFound(err) || err == nil && (now.UID != pod.UID || now.DeletionTimestamp != nil) {
			return errPodReplaced
		}
	}
}

// forwardUI forwards the port until the context ends.
func (r *runner) forwardUI(ctx context.Context, s *Session, cluster *posthornv1.BrokerCluster, options uiOptions) error {
	if options.showLogin {
		secret, err := s.credentialsSecret(ctx, cluster)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(r.Out, "user name: %s\npassword:  %s\n", secret.Data[usernameKey], secret.Data[passwordKey])
	}
	isFirst := true
	for {
		pod, err := s.readyPod(ctx, cluster)
		if err != nil {
			return err
		}
		tunnel, err := s.forward(ctx, pod.Name, options.port)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(r.Out, "%s/ is the web UI of cluster %s at node %s; interrupt to end\n", tunnel.URL, cluster.Name, pod.Name)
		if options.open && isFirst {
			if err := s.OpenBrowser(tunnel.URL + "/"); err != nil {
				_, _ = fmt.Fprintf(r.Err, "cannot start a browser: %v; open the address yourself\n", err)
			}
		}
		// A browser keeps the address.
		if options.port, err = portOf(tunnel.URL); err != nil {
			return err
		}
		isFirst = false
		end := s.awaitEnd(ctx, tunnel, pod)
		tunnel.Close()
		if end == nil {
			return nil
		}
		_, _ = fmt.Fprintf(r.Err, "the connection to node %s ended: %v\n", pod.Name, end)
		// The pod that ended may count as ready for a moment.
		if err := s.awaitOther(ctx, cluster, pod.Name); err != nil {
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
	}
}
