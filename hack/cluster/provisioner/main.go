// Provisioner creates, enlarges and deletes the volumes of the local cluster's default StorageClass. All nodes share
// one machine's disk, so a volume is a directory under -root, published as a "local" PersistentVolume that is bound
// to the node which the scheduler chose.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of this program's user")
	root := flag.String("root", "", "directory that holds one directory for each volume")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, *kubeconfig, *root)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig, root string) error {
	volumes, err := openRoot(root)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, time.Minute)
	c, err := newController(client, factory, volumes)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	return c.run(ctx)
}
