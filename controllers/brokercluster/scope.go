// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/connect"
	"posthorn.io/posthorn/internal/names"
)

// scope is what the phases of one attempt share.
type scope struct {
	*Reconciler
	cluster *posthornv1.BrokerCluster

	// image and version that the pods are to run.
	image, version string
	// protocols that clients may speak.
	protocols []posthornv1.Protocol
	// sts is the StatefulSet as the API server has it; nil before it is made.
	sts *appsv1.StatefulSet
	// sizes: how many nodes and pods there are to be.
	sizes sizes
	// pods is how many pods there are, and podsBeyond says that some belong to nodes that were removed.
	pods       int
	podsBeyond bool
	// condemned: the StatefulSet was made smaller, and a pod that it is to delete is still there.
	condemned bool
	// leftover is a node that the broker knows and that has no place in the StatefulSet; empty: none.
	leftover string
	// scaling is what was found about the removal of a node.
	scaling scaling
	// reach is by which ports people can ask nodes, and listener where the operator asks any ready node.
	reach    reach
	listener connect.Listener
	// scraped is by which ports nodes give metrics, and scrape by which of them they are asked for these.
	scraped, scrape reach
	// mounted are the Secrets with certificates that nodes show, the spec's first.
	mounted []string
	// volumes is what was found about growing volumes.
	volumes volumes
	// members of the cluster, one an ordinal.
	members []memberView
	// lost are queues whose only copy was on a lost disk; lostKnown says that a node told.
	lost      []broker.LostQueue
	lostKnown bool
	// storage is a description of volumes that are not bound; empty when all are.
	storage string
	// certificateEnd is when the inter-node certificate expires.
	certificateEnd time.Time
	// serving is the certificate that clients see.
	serving serving
	// held is why the StatefulSet is not brought to what the spec says; nil when it is.
	held *finding
	// invalidConfig is why the broker refuses the settings of the spec; empty: it does not.
	invalidConfig string
	// monitoring is what became of spec.monitoring.
	monitoring finding
	// credentials of the default user.
	credentials credentials
	// decision about rolling; the zero value when it was not come to.
	decision rollDecision
	// step is what people have to say about the roll.
	step stepState
	// refusal is why the spec's version is not run; the zero value when it is.
	refusal versionRefusal
	// bootstrapping is why definitions were not imported yet; empty when nothing is to be imported.
	bootstrapping string
	// requeue is when to look again at the latest; 0 is the resync period.
	requeue time.Duration
}

// key of the cluster.
func (s *scope) key() client.ObjectKey { return client.ObjectKeyFromObject(s.cluster) }

// lookAgain makes the next attempt come no later than after d.
func (s *scope) lookAgain(d time.Duration) {
	if s.requeue == 0 || d < s.requeue {
		s.requeue = d
	}
}

// terminalError is an error that trying again does not cure.
type terminalError struct {
	reason string
	err    error
}

func (e *terminalError) Error() string { return e.err.Error() }
func (e *terminalError) Unwrap() error { return e.err }

func terminal(reason, format string, args ...any) error {
	return &terminalError{reason: reason, err: fmt.Errorf(format, args...)}
}

func isTerminal(err error) (*terminalError, bool) {
	var t *terminalError
	found := errors.As(err, &t)
	return t, found
}

// ensure makes a child or brings it to what update sets. An object of that name that is not the
// cluster's is left alone. An event tells of a repair that no change of the spec asked for.
func (s *scope) ensure(ctx context.Context, child client.Object, update func() error) error {
	done, err := s.apply(ctx, child, update)
	switch done {
	case controllerutil.OperationResultUpdated:
		s.childRepaired(child)
	case controllerutil.OperationResultCreated:
		s.childCreated(child)
	default:
		// Nothing was written, or the status alone.
	}
	return err
}

// childRepaired tells of an update, unless a change of the spec explains it.
func (s *scope) childRepaired(child client.Object) {
	if s.cluster.Status.ObservedGeneration == s.cluster.Generation {
		s.childUpdated(child)
	}
}

// childCreated tells that a child was missing. Children of a cluster that was never available are new.
func (s *scope) childCreated(child client.Object) {
	available := meta.IsStatusConditionTrue(s.cluster.Status.Conditions, posthornv1.ConditionAvailable)
	if available && s.cluster.Status.ObservedGeneration == s.cluster.Generation {
		s.event(corev1.EventTypeNormal, "ChildCreated", "Reconcile", "created %s %s, which was missing", kindOf(child), child.GetName())
	}
}

func (s *scope) childUpdated(child client.Object) {
	s.event(corev1.EventTypeNormal, "ChildUpdated", "Reconcile", "updated %s %s, which was not as it must be", kindOf(child), child.GetName())
}

// apply is ensure without the events.
func (s *scope) apply(ctx context.Context, child client.Object, update func() error) (controllerutil.OperationResult, error) {
	child.SetNamespace(s.cluster.Namespace)
	done, err := controllerutil.CreateOrUpdate(ctx, s.Client, child, func() error {
		if err := s.mayChange(child); err != nil {
			return err
		}
		s.label(child)
		if err := update(); err != nil {
			return err
		}
		return controllerutil.SetControllerReference(s.cluster, child, s.Scheme)
	})
	if err != nil {
		return controllerutil.OperationResultNone, fmt.Errorf("%T %s: %w", child, child.GetName(), err)
	}
	return done, nil
}

// remove removes a child that is not wanted any more. An object of that name that is not the cluster's
// is left alone.
func (s *scope) remove(ctx context.Context, child client.Object) error {
	child.SetNamespace(s.cluster.Namespace)
	err := s.Client.Get(ctx, client.ObjectKeyFromObject(child), child)
	if apierrors.IsNotFound(err) || (err == nil && !ownedBy(child, s.cluster)) {
		return nil
	}
	if err == nil {
		err = client.IgnoreNotFound(s.Client.Delete(ctx, child))
	}
	if err != nil {
		return fmt.Errorf("removing %s %s: %w", kindOf(child), child.GetName(), err)
	}
	return nil
}

// mayChange is an error when a child exists and is not the cluster's.
func (s *scope) mayChange(child client.Object) error {
	if child.GetUID() == "" || ownedBy(child, s.cluster) {
		return nil
	}
	return terminal("NameTaken", "%s %s exists and does not belong to this BrokerCluster", kindOf(child), child.GetName())
}

func ownedBy(child client.Object, cluster *posthornv1.BrokerCluster) bool {
	for _, ref := range child.GetOwnerReferences() {
		if ref.UID == cluster.UID && ref.Controller != nil && *ref.Controller {
			return true
		}
	}
	return false
}

func kindOf(child client.Object) string {
	if kind := child.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	name := fmt.Sprintf("%T", child)
	return name[strings.LastIndex(name, ".")+1:]
}

// label adds the operator's labels and leaves others.
func (s *scope) label(child client.Object) {
	labels := child.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for name, value := range names.Labels(s.cluster.Name) {
		labels[name] = value
	}
	child.SetLabels(labels)
}

// podName of an ordinal.
func (s *scope) podName(ordinal int32) string {
	return s.cluster.Name + "-" + strconv.Itoa(int(ordinal))
}

// listPods gives the cluster's pods by name.
func (s *scope) listPods(ctx context.Context) (map[string]*corev1.Pod, error) {
	var list corev1.PodList
	err := s.Client.List(ctx, &list, client.InNamespace(s.cluster.Namespace), client.MatchingLabels(names.Selector(s.cluster.Name)))
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	pods := make(map[string]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods, nil
}

// sortedKeys gives a map's keys in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
