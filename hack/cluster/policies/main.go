// Policies enforces NetworkPolicies on the local cluster, whose network plug-in does not: it translates them into
// packet filter rules in the network namespace of each node. It supports TCP and UDP over IPv4, and no named ports.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// resync is the interval at which all rules are checked when nothing happens; a new node gets its rules then.
	resync = 10 * time.Second
	// settle is the time to wait for more changes before applying them together.
	settle = 20 * time.Millisecond
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of this program's user")
	spaces := flag.String("netns", "", "files of the nodes' network namespaces, without the number at their end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, *kubeconfig, *spaces)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig, spaces string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, namespaces := factory.Core().V1().Pods(), factory.Core().V1().Namespaces()
	policies := factory.Networking().V1().NetworkPolicies()
	changed := make(chan struct{}, 1)
	for _, informer := range []cache.SharedIndexInformer{pods.Informer(), namespaces.Informer(), policies.Informer()} {
		tell := func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() },
		}); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	e := enforcer{spaces: spaces, applied: map[string]string{}}
	for ctx.Err() == nil {
		var w world
		var failures [3]error
		w.pods, failures[0] = pods.Lister().List(labels.Everything())
		w.policies, failures[1] = policies.Lister().List(labels.Everything())
		var list []*corev1.Namespace
		list, failures[2] = namespaces.Lister().List(labels.Everything())
		if err := errors.Join(failures[:]...); err != nil {
			return err
		}
		w.namespaces = map[string]labels.Set{}
		for _, each := range list {
			w.namespaces[each.Name] = each.Labels
		}
		e.enforce(ctx, w)
		select {
		case <-ctx.Done():
		case <-time.After(resync):
		case <-changed:
			time.Sleep(settle)
		}
	}
	return ctx.Err()
}

// enforcer has the rules that each node has.
type enforcer struct {
	spaces  string
	applied map[string]string // rules by file of the node's network namespace
}

// enforce sets the rules of each node whose rules differ, all at once.
func (e *enforcer) enforce(ctx context.Context, w world) {
	files, err := filepath.Glob(e.spaces + "[1-9]")
	if err != nil {
		log.Fatalf("-netns %q: %v", e.spaces, err)
	}
	for _, file := range files {
		rules := w.rules("node-" + strings.TrimPrefix(file, e.spaces))
		if e.applied[file] == rules {
			continue
		}
		command := exec.CommandContext(ctx, "nsenter", "--net="+file, "nft", "-f", "-")
		command.Stdin, command.Env = strings.NewReader(rules), append(os.Environ(), "LC_ALL=C")
		var said bytes.Buffer
		command.Stdout, command.Stderr = &said, &said
		if err := command.Run(); err != nil {
			log.Printf("%s: %v: %s\n%s", file, err, said.String(), rules)
			continue
		}
		e.applied[file] = rules
		log.Printf("%s: %d lines of rules", file, strings.Count(rules, "\n"))
	}
}
