// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package setup assembles the operator: scheme, cache and controllers. The program and the tests share it.
package setup

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/controllers/backup"
	"posthorn.io/posthorn/controllers/binding"
	"posthorn.io/posthorn/controllers/brokercluster"
	"posthorn.io/posthorn/controllers/exchange"
	"posthorn.io/posthorn/controllers/permission"
	"posthorn.io/posthorn/controllers/policy"
	"posthorn.io/posthorn/controllers/queue"
	"posthorn.io/posthorn/controllers/superstream"
	"posthorn.io/posthorn/controllers/user"
	"posthorn.io/posthorn/controllers/vhost"
	"posthorn.io/posthorn/internal/clustermetrics"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
	"posthorn.io/posthorn/internal/topology"
)

// queueListInterval is the interval at which the operator lists the queues of each cluster. The condition Ready of a
// Queue follows the broker within that time.
const queueListInterval = 10 * time.Second

// Config has the values of the program's flags.
type Config struct {
	// Resync is the interval at which everything is compared when nothing happens.
	Resync time.Duration
	// WatchNamespaces: the operator may watch namespaces, which it needs only for tenants in other namespaces.
	WatchNamespaces bool
	// RefuseExternal: objects of external brokers are refused, and their Secrets are not read.
	RefuseExternal bool
	// ForgetBound is how long deleted objects wait for a broker that does not answer.
	ForgetBound time.Duration
	// ImageRepository names the broker image of a version.
	ImageRepository string
	// DefaultImage runs in clusters whose spec has neither image nor version.
	DefaultImage string
	// DefaultProtocols of new clusters whose spec has none.
	DefaultProtocols []posthornv1.Protocol
	// Resolver returns the addresses of brokers.
	Resolver connect.Resolver
	// Transport is for requests to brokers without TLS.
	Transport http.RoundTripper
	// OperatorNamespace is the namespace of the operator's pods; empty when it runs outside Kubernetes.
	OperatorNamespace string
	// Metrics registers the operator's own metrics; nil for none.
	Metrics prometheus.Registerer
	// Now is the clock.
	Now func() time.Time
}

// Scheme returns a scheme with every type that the operator reads or writes.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("adding the built-in types: %w", err)
	}
	if err := posthornv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("adding posthorn.io: %w", err)
	}
	return scheme, nil
}

// Cache keeps in memory only objects that are read often: of pods and volumes only the brokers', and no Secret's
// data. It has the objects of the given namespaces, or of all when none is given.
func Cache(namespaces ...string) (cache.Options, client.Options) {
	ours := labels.SelectorFromSet(labels.Set{names.LabelManagedBy: names.Manager})
	options := cache.Options{ByObject: map[client.Object]cache.ByObject{
		&batchv1.Job{}:                  {Label: ours},
		&corev1.Pod{}:                   {Label: ours},
		&corev1.PersistentVolumeClaim{}: {Label: ours},
	}}
	for _, namespace := range namespaces {
		if options.DefaultNamespaces == nil {
			options.DefaultNamespaces = map[string]cache.Config{}
		}
		options.DefaultNamespaces[namespace] = cache.Config{}
	}
	uncached := []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{}}
	return options, client.Options{Cache: &client.CacheOptions{DisableFor: uncached}}
}

// Controllers registers all controllers.
func Controllers(mgr ctrl.Manager, config Config) error {
	var measure func(http.RoundTripper) http.RoundTripper
	if config.Metrics != nil {
		requests := clustermetrics.NewRequests()
		config.Transport, measure = requests.Around(config.Transport), requests.Around
		for _, collector := range []prometheus.Collector{requests, clustermetrics.Collector{Reader: mgr.GetClient()}, clustermetrics.BackupCollector{Reader: mgr.GetClient()}} {
			if err := config.Metrics.Register(collector); err != nil {
				return fmt.Errorf("registering metrics: %w", err)
			}
		}
	}
	brokers := &connect.Connector{Secrets: mgr.GetAPIReader(), Resolver: config.Resolver, Transport: config.Transport, Measure: measure, RefuseExternal: config.RefuseExternal, Now: config.Now}
	clusters := &brokercluster.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Scheme: mgr.GetScheme(), Events: mgr.GetEventRecorder("posthorn-operator"),
		Brokers: brokers, ImageRepository: config.ImageRepository, DefaultImage: config.DefaultImage,
		DefaultProtocols:  config.DefaultProtocols,
		OperatorNamespace: config.OperatorNamespace, Resync: config.Resync, Now: config.Now,
	}
	if err := clusters.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("controller brokercluster: %w", err)
	}
	if err := addBackups(mgr, config); err != nil {
		return err
	}
	interval := min(queueListInterval, config.Resync)
	queues := queue.NewWatcher(mgr.GetClient(), brokers, interval)
	superStreams := superstream.NewWatcher(mgr.GetClient(), brokers, interval)
	return errors.Join(
		add(mgr, config, brokers, "vhost", topology.Kind[*posthornv1.Vhost](vhost.Kind{})),
		add(mgr, config, brokers, "queue", topology.Kind[*posthornv1.Queue](queue.Kind{Watcher: queues})),
		add(mgr, config, brokers, "superstream", topology.Kind[*posthornv1.SuperStream](superstream.Kind{Watcher: superStreams})),
		add(mgr, config, brokers, "exchange", topology.Kind[*posthornv1.Exchange](exchange.Kind{})),
		add(mgr, config, brokers, "binding", topology.Kind[*posthornv1.Binding](binding.Kind{})),
		add(mgr, config, brokers, "policy", topology.Kind[*posthornv1.Policy](policy.Kind{})),
		add(mgr, config, brokers, "user", topology.Kind[*posthornv1.User](user.Kind{})),
		add(mgr, config, brokers, "permission", topology.Kind[*posthornv1.Permission](permission.Kind{})),
		add(mgr, config, brokers, "topicpermission", topology.Kind[*posthornv1.TopicPermission](permission.TopicKind{})),
	)
}

// addBackups registers the controllers of Backups, ScheduledBackups and Restores.
func addBackups(mgr ctrl.Manager, config Config) error {
	jobs := &backup.Jobs{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Scheme: mgr.GetScheme(), Events: mgr.GetEventRecorder("posthorn-operator"),
		Resync: config.Resync, ForgetBound: config.ForgetBound, Now: config.Now,
	}
	for name, controller := range map[string]interface{ SetupWithManager(ctrl.Manager) error }{
		"backup": &backup.Reconciler{Jobs: jobs}, "scheduledbackup": &backup.ScheduleReconciler{Jobs: jobs}, "restore": &backup.RestoreReconciler{Jobs: jobs},
	} {
		if err := controller.SetupWithManager(mgr); err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
	}
	return nil
}

func add[T topology.Object](mgr ctrl.Manager, config Config, brokers *connect.Connector, name string, kind topology.Kind[T]) error {
	r := &topology.Reconciler[T]{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Scheme: mgr.GetScheme(),
		Events: mgr.GetEventRecorder("posthorn-operator"), Brokers: brokers, Kind: kind,
		Resync: config.Resync, ForgetBound: config.ForgetBound, WatchNamespaces: config.WatchNamespaces, Now: config.Now,
	}
	if err := r.SetupWithManager(mgr, name); err != nil {
		return fmt.Errorf("controller %s: %w", name, err)
	}
	return nil
}
