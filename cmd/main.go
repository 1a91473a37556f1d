// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// The operator of Posthorn.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"posthorn.io/posthorn/controllers/brokercluster"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/convert"
	"posthorn.io/posthorn/internal/setup"
)

// convertCommand is the subcommand that converts manifests of RabbitMQ's messaging topology operator.
const convertCommand = "convert"

// options are the flags of the command line.
type options struct {
	// namespaces are watched; none stands for all.
	namespaces     namespaceList
	metrics, probe string
	leaderElection bool
	// leaderNamespace has the lease; empty stands for the operator's own namespace.
	leaderNamespace string
	// namespaceOfPods is the namespace of the operator's pods.
	namespaceOfPods string
	resync          time.Duration
	forgetBound     time.Duration
	externalBrokers bool
	repository      string
	defaultImage    string
	logging         zap.Options
}

// namespaceList is a flag with names of namespaces, separated by commas.
type namespaceList []string

func (l *namespaceList) String() string { return strings.Join(*l, ",") }

// Set replaces the list.
func (l *namespaceList) Set(text string) error {
	*l = nil
	if text == "" {
		return nil
	}
	for _, name := range strings.Split(text, ",") {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return fmt.Errorf("%q is not the name of a namespace: %s", name, strings.Join(problems, "; "))
		}
		if slices.Contains(*l, name) {
			return fmt.Errorf("the namespace %s is listed twice", name)
		}
		*l = append(*l, name)
	}
	return nil
}

func parse(args []string) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("posthorn-operator", flag.ContinueOnError)
	flags.Var(&o.namespaces, "watch-namespaces", "watch only these namespaces, separated by commas (empty: all)")
	flags.StringVar(&o.metrics, "metrics-bind-address", ":8080", "address of the metrics endpoint (0 disables it)")
	flags.StringVar(&o.probe, "health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	flags.BoolVar(&o.leaderElection, "leader-elect", false, "elect a leader, so that only one of several operators is active")
	flags.StringVar(&o.leaderNamespace, "leader-election-namespace", "", "namespace of the lease (empty: the operator's own namespace)")
	flags.StringVar(&o.namespaceOfPods, "operator-namespace", os.Getenv("POD_NAMESPACE"), "namespace of the operator's pods, which NetworkPolicies admit (default: POD_NAMESPACE)")
	flags.DurationVar(&o.resync, "resync-period", time.Minute, "interval at which all objects are compared when nothing happens")
	flags.DurationVar(&o.forgetBound, "forget-timeout", 5*time.Minute, "how long deleted objects wait for a broker that does not answer")
	flags.BoolVar(&o.externalBrokers, "external-brokers", true, "manage objects in brokers that a connection Secret describes; false: refuse those objects and read no such Secret")
	flags.StringVar(&o.repository, "broker-image-repository", "posthorn.local/posthorn", "image repository for spec.version")
	flags.StringVar(&o.defaultImage, "default-broker-image", "posthorn.local/posthorn:dev", "image of new clusters without image and version")
	// A broker that does not answer is an ordinary error: its message is enough, and a stack trace adds nothing.
	o.logging.StacktraceLevel = zapcore.PanicLevel
	o.logging.BindFlags(flags)
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag", flags.Arg(0))
	}
	if o.resync < time.Second || o.forgetBound < time.Second {
		return o, fmt.Errorf("--resync-period and --forget-timeout must be at least 1s")
	}
	return o, nil
}

// convertFiles converts manifests in files, or in the standard input when there are none.
func convertFiles(files []string, in io.Reader, out io.Writer) error {
	if len(files) == 0 {
		return convert.Manifests(in, out)
	}
	for _, name := range files {
		if strings.HasPrefix(name, "-") {
			return fmt.Errorf("%s: %q is not a file; usage: posthorn-operator convert [FILE...]", convertCommand, name)
		}
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("%s: %w", convertCommand, err)
		}
		err = convert.Manifests(file, out)
		_ = file.Close()
		if err != nil {
			return fmt.Errorf("%s: %s: %w", convertCommand, name, err)
		}
	}
	return nil
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == convertCommand {
		if err := convertFiles(os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "posthorn-operator:", err)
			os.Exit(1)
		}
		return
	}
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "posthorn-operator:", err)
		os.Exit(2)
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.logging)))
	if err := run(o); err != nil {
		ctrl.Log.Error(err, "the operator exits")
		os.Exit(1)
	}
}

func run(o options) error {
	scheme, err := setup.Scheme()
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig or the service account: %w", err)
	}
	cacheOptions, clientOptions := setup.Cache(o.namespaces...)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cacheOptions,
		Client:                        clientOptions,
		Metrics:                       metricsserver.Options{BindAddress: o.metrics},
		HealthProbeBindAddress:        o.probe,
		LeaderElection:                o.leaderElection,
		LeaderElectionID:              "posthorn-operator",
		LeaderElectionNamespace:       o.leaderNamespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return fmt.Errorf("creating the manager: %w", err)
	}
	for name, add := range map[string]func(string, healthz.Checker) error{
		"healthz": mgr.AddHealthzCheck, "readyz": mgr.AddReadyzCheck,
	} {
		if err := add(name, healthz.Ping); err != nil {
			return fmt.Errorf("adding %s: %w", name, err)
		}
	}
	err = setup.Controllers(mgr, setup.Config{
		Resync: o.resync, ForgetBound: o.forgetBound, ImageRepository: o.repository, DefaultImage: o.defaultImage,
		Resolver: connect.DNS{}, Transport: broker.NewTransport(), Now: time.Now,
		RefuseExternal:    !o.externalBrokers,
		DefaultProtocols:  brokercluster.DefaultProtocols(),
		WatchNamespaces:   len(o.namespaces) == 0,
		OperatorNamespace: o.namespaceOfPods, Metrics: metrics.Registry,
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
