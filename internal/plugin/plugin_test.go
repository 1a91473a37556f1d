// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/broker"
	"posthorn.io/posthorn/internal/broker/brokertest"
	"posthorn.io/posthorn/internal/names"
)

const (
	namespace = "mq"
	password  = "s3cret-password"
)

// stage is a namespace with the cluster c of three ready nodes and its fake broker.
type stage struct {
	t       *testing.T
	client  client.WithWatch
	broker  *brokertest.Server
	pods    *fakePods
	browser []string
	in      io.Reader
}

// fakePods is a PodAccess without a kubelet: ports lead to the fake broker.
type fakePods struct {
	mu     sync.Mutex
	broker *brokertest.Server
	// forwarded are the nodes to which ports were forwarded, in order.
	forwarded []string
	// ended, if not nil, is the Ended of the next tunnels.
	ended chan error
	// forwardErr and executeErr are returned instead.
	forwardErr, executeErr error
	// commands are the executed commands, each after the name of its pod; inputs are their standard inputs.
	commands [][]string
	inputs   []string
	// logs are the logs of each node, one for each request.
	logs map[string][]string
	// logOptions are the options of the requests for logs.
	logOptions map[string][]corev1.PodLogOptions
}

func (p *fakePods) Forward(_ context.Context, _, pod string, _, port int) (*Tunnel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forwardErr != nil {
		return nil, p.forwardErr
	}
	if port != names.PortManagement {
		return nil, fmt.Errorf("port %d", port)
	}
	p.forwarded = append(p.forwarded, pod)
	return &Tunnel{URL: p.broker.NodeURL(pod), Ended: p.ended, Close: func() {}}, nil
}

func (p *fakePods) Execute(_ context.Context, _, pod string, command []string, streams Streams) error {
	p.commands = append(p.commands, append([]string{pod}, command...))
	input := ""
	if streams.In != nil {
		data, err := io.ReadAll(streams.In)
		if err != nil {
			return err
		}
		input = string(data)
	}
	p.inputs = append(p.inputs, input)
	_, _ = io.WriteString(streams.Out, "answer\n")
	return p.executeErr
}

func (p *fakePods) Logs(_ context.Context, _, pod string, options corev1.PodLogOptions) (io.ReadCloser, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.logOptions[pod] = append(p.logOptions[pod], options)
	left := p.logs[pod]
	if len(left) == 0 {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, pod)
	}
	p.logs[pod] = left[1:]
	return io.NopCloser(strings.NewReader(left[0])), nil
}

func pod(name string, isReady bool) *corev1.Pod {
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[isReady]
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: names.Labels("c")},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

func cluster(name string) *posthornv1.BrokerCluster {
	c := &posthornv1.BrokerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1}}
	c.Spec.Replicas = 3
	c.Status = posthornv1.BrokerClusterStatus{
		ObservedGeneration: 1, Phase: posthornv1.PhaseReady, CurrentVersion: "1.0.0", TargetVersion: "1.0.0", ReadyReplicas: 3,
		Binding: &posthornv1.BindingReference{Name: name + "-default-user"},
	}
	for i := range 3 {
		c.Status.Members = append(c.Status.Members, posthornv1.MemberStatus{
			Name: fmt.Sprintf("%s-%d", name, i), State: posthornv1.MemberRunning, Machine: fmt.Sprintf("node-%d", i), Version: "1.0.0", Zone: "z",
		})
	}
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: posthornv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "AllNodesReady", Message: "3 of 3 nodes ready"})
	return c
}

func credentialsOf(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-default-user"},
		Data: map[string][]byte{
			"username": []byte("admin"), "password": []byte(password), "host": []byte("c.mq.svc"), "port": []byte("5672"),
			"uri": []byte("amqp://admin:" + password + "@c.mq.svc:5672"),
		},
	}
}

func newStage(t *testing.T, objects ...client.Object) *stage {
	t.Helper()
	if objects == nil {
		objects = []client.Object{cluster("c"), credentialsOf("c"), pod("c-0", true), pod("c-1", true), pod("c-2", true)}
	}
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	server := brokertest.Start("admin", password)
	t.Cleanup(server.Close)
	for i := range 3 {
		server.SetNode(fmt.Sprintf("c-%d", i), true)
	}
	return &stage{
		t: t, broker: server, in: strings.NewReader("input of the user"),
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
		pods:   &fakePods{broker: server, logs: map[string][]string{}, logOptions: map[string][]corev1.PodLogOptions{}},
	}
}

// run runs a command line and returns its outputs.
func (s *stage) run(ctx context.Context, args ...string) (out, errOut string, err error) {
	var outputs [2]bytes.Buffer
	command := NewCommand(func(options Options) (*Session, error) {
		where := options.Namespace
		if where == "" {
			where = namespace
		}
		return &Session{
			Client: s.client, Pods: s.pods, Namespace: where, Transport: http.DefaultTransport, Poll: time.Millisecond,
			OpenBrowser: func(address string) error { s.browser = append(s.browser, address); return nil },
		}, nil
	}, Streams{In: s.in, Out: &outputs[0], Err: &outputs[1]})
	command.SetArgs(args)
	err = command.ExecuteContext(ctx)
	return outputs[0].String(), outputs[1].String(), err
}

func (s *stage) must(args ...string) string {
	s.t.Helper()
	out, _, err := s.run(s.t.Context(), args...)
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return out
}

// fails expects an error with all texts.
func (s *stage) fails(code int, args []string, texts ...string) {
	s.t.Helper()
	out, _, err := s.run(s.t.Context(), args...)
	if err == nil {
		s.t.Fatalf("%v succeeded: %s", args, out)
	}
	if got := ExitCode(err); got != code {
		s.t.Errorf("%v: exit code %d, want %d", args, got, code)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			s.t.Errorf("%v: %q lacks %q", args, err, text)
		}
	}
}

// change updates an object of the fake API server.
func change[T client.Object](s *stage, object T, modify func(T)) {
	s.t.Helper()
	if err := s.client.Get(s.t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		s.t.Fatal(err)
	}
	modify(object)
	wanted, _ := object.DeepCopyObject().(client.Object)
	if err := s.client.Update(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
	if isKind[*corev1.Pod](wanted) {
		wanted.SetResourceVersion(object.GetResourceVersion())
		s.setStatus(wanted)
	}
}

// setStatus writes the status of an object, which other writes leave as it is.
func (s *stage) setStatus(object client.Object) {
	s.t.Helper()
	if err := s.client.Status().Update(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
}

// forbid makes the API server refuse requests about objects of a type.
func (s *stage) forbid(matches func(client.Object) bool) {
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("no"))
	s.client = interceptor.NewClient(s.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if matches(object) {
				return refusal
			}
			return c.Get(ctx, key, object, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if matches(object) {
				return refusal
			}
			return c.Patch(ctx, object, patch, options...)
		},
	})
}

func isKind[T client.Object](object client.Object) bool { _, is := object.(T); return is }

func TestUnknownClusterNamesTheOthers(t *testing.T) {
	s := newStage(t, cluster("c"), cluster("d"))
	for _, command := range []string{"status", "ui", "credentials", "logs", "pause", "resume"} {
		s.fails(exitFailure, []string{command, "e"}, "namespace mq has no BrokerCluster e", "it has: c, d")
		s.fails(exitUsage, []string{command}, "2 BrokerClusters", "c, d")
	}
	s.fails(exitFailure, []string{"ctl", "e", "--", "status"}, "it has: c, d")
	s.fails(exitFailure, []string{"restart", "e"}, "no node e", "its clusters are: c, d")
	s.fails(exitFailure, []string{"status", "--namespace", "other"}, "namespace other has no BrokerCluster", "--all-namespaces")
}

func TestWrongCommandLinesNameTheRemedy(t *testing.T) {
	s := newStage(t)
	s.fails(exitUsage, []string{"drain"}, "takes the name of one node and not 0 names, for example: kubectl posthorn drain c-1")
	s.fails(exitUsage, []string{"undrain", "c-1", "c-2"}, "not 2 names", "kubectl posthorn undrain c-1")
	s.fails(exitUsage, []string{"status", "c", "d"}, "takes one name and not 2")
	s.fails(exitUsage, []string{"status", "--outputs", "json"}, "unknown flag: --outputs", "kubectl posthorn status --help lists the options")
	s.fails(exitUsage, []string{"restart", "c", "--timeout", "long"}, "--timeout")
}

func TestUnknownNodeNamesTheOthers(t *testing.T) {
	s := newStage(t)
	for _, command := range []string{"drain", "undrain", "restart"} {
		s.fails(exitFailure, []string{command, "c-7"}, "namespace mq has no node c-7", "c-0, c-1, c-2")
	}
	s.fails(exitFailure, []string{"logs", "c", "--node", "c-7"}, "its nodes are: c-0, c-1, c-2")
	other := pod("web", true)
	other.Labels = nil
	s = newStage(t, other)
	s.fails(exitFailure, []string{"drain", "web"}, "has no node web, and no other node of a Posthorn cluster")
}

func TestForbiddenRequestNamesTheRight(t *testing.T) {
	for name, row := range map[string]struct {
		matches func(client.Object) bool
		args    []string
		want    []string
	}{
		"cluster": {isKind[*posthornv1.BrokerCluster], []string{"status", "c"},
			[]string{"the right to get brokerclusters.posthorn.io", "kubectl auth can-i get brokerclusters.posthorn.io/c --namespace mq"}},
		"secret": {isKind[*corev1.Secret], []string{"credentials", "c"},
			[]string{"the right to get secrets", "kubectl auth can-i get secrets/c-default-user --namespace mq"}},
		"pod": {isKind[*corev1.Pod], []string{"drain", "c-1"}, []string{"the right to get pods", "can-i get pods/c-1"}},
		"cluster's spec": {func(o client.Object) bool { c, is := o.(*posthornv1.BrokerCluster); return is && c.Spec.Paused }, []string{"pause", "c"},
			[]string{"the right to patch brokerclusters.posthorn.io"}},
		"pod's annotation": {func(o client.Object) bool { return o.GetAnnotations()[names.AnnotationRestart] != "" }, []string{"restart", "c-1"},
			[]string{"the right to patch pods", "can-i patch pods/c-1"}},
		"cluster's annotation": {func(o client.Object) bool { return o.GetAnnotations()[names.AnnotationRestartedAt] != "" }, []string{"restart", "c"},
			[]string{"the right to patch brokerclusters.posthorn.io"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.forbid(row.matches)
			s.fails(exitFailure, row.args, row.want...)
		})
	}
	s := newStage(t)
	s.pods.forwardErr = errors.New(`error upgrading connection: pods "c-1" is forbidden: User "eve" cannot create resource "pods/portforward"`)
	s.fails(exitFailure, []string{"drain", "c-1"}, "the right to create pods/portforward", "kubectl auth can-i create pods/c-1 --namespace mq --subresource=portforward")
	s.pods.executeErr = errors.New(`pods "c-0" is forbidden: User "eve" cannot create resource "pods/exec"`)
	s.fails(exitFailure, []string{"ctl", "c", "--", "status"}, "the right to create pods/exec")
}

func TestKubernetesWithoutTheOperatorIsNamed(t *testing.T) {
	s := newStage(t)
	s.client = interceptor.NewClient(s.client, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "posthorn.io", Kind: "BrokerCluster"}}
		},
	})
	s.fails(exitFailure, []string{"status", "c"}, "does not know the kind BrokerCluster", "install the operator")
}

func TestStatusOfAHealthyClusterHasLeadersAndAlarms(t *testing.T) {
	s := newStage(t)
	s.broker.SetAlarms("c-1", true, true)
	s.broker.SetQueue(broker.Queue{Name: "q", Vhost: "/", Type: "quorum", State: "running", Leader: "c-1", Members: []string{"c-0", "c-1", "c-2"}})
	s.broker.SetQueue(broker.Queue{Name: "classic", Vhost: "/", Type: "classic", State: "running", Node: "c-1", Members: []string{"c-1"}})
	out := s.must("status")
	for _, text := range []string{
		"Cluster c in namespace mq: Ready, 3 of 3 nodes ready, version 1.0.0\n", "The operator waits for nothing.",
		"All queues are available.", "AllNodesReady",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("the table lacks %q:\n%s", text, out)
		}
	}
	if row := strings.Join(strings.Fields(rowOf(t, out, "c-1")), " "); row != "c-1 Running node-1 z 1.0.0 2 memory, disk" {
		t.Errorf("c-1: %q", row)
	}
	if row := strings.Join(strings.Fields(rowOf(t, out, "c-0")), " "); row != "c-0 Running node-0 z 1.0.0 0 none" {
		t.Errorf("c-0: %q", row)
	}
	if strings.Contains(out, password) {
		t.Errorf("the table has the password:\n%s", out)
	}
}

// rowOf returns the line of a table that begins with a name.
func rowOf(t *testing.T, table, name string) string {
	t.Helper()
	for row := range strings.Lines(table) {
		if strings.HasPrefix(row, name+" ") {
			return strings.TrimSpace(row)
		}
	}
	t.Fatalf("no row %s:\n%s", name, table)
	return ""
}

func TestStatusListsUnavailableQueues(t *testing.T) {
	s := newStage(t)
	for i := range maxPrintedQueues + 5 {
		s.broker.SetQueue(broker.Queue{Name: fmt.Sprintf("q%02d", i), Vhost: "orders", Type: "quorum", State: "down", Members: []string{"c-0", "c-1"}})
	}
	s.broker.SetQueue(broker.Queue{Name: "well", Vhost: "orders", Type: "quorum", State: "running", Leader: "c-0"})
	out := s.must("status", "c")
	if !strings.Contains(out, "25 queues are not available:") || !strings.Contains(out, "and 5 more; --output json lists all") || strings.Contains(out, "q20") || strings.Contains(out, "well") {
		t.Errorf("table:\n%s", out)
	}
	var report Report
	if err := json.Unmarshal([]byte(s.must("status", "c", "--output", "json")), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Queues) != maxPrintedQueues+5 || report.Queues[0].Name != "q00" || report.Queues[0].State != "down" || len(report.Queues[0].Members) != 2 {
		t.Errorf("%+v", report.Queues)
	}
}

func TestStatusWithoutTheBrokerSaysWhyAndPrintsTheRest(t *testing.T) {
	for name, row := range map[string]struct {
		arrange func(*stage)
		want    string
	}{
		"no right to Secrets": {func(s *stage) { s.forbid(isKind[*corev1.Secret]) }, "the right to get secrets"},
		"no ready node": {func(s *stage) {
			for _, name := range []string{"c-0", "c-1", "c-2"} {
				change(s, pod(name, true), func(p *corev1.Pod) { p.Status.Conditions = nil })
			}
		}, "none of the 3 nodes of cluster c is ready"},
		"the broker does not answer": {func(s *stage) { s.broker.SetDown(true) }, "listing the nodes at c-0"},
		"another password": {func(s *stage) {
			change(s, credentialsOf("c"), func(secret *corev1.Secret) { secret.Data["password"] = []byte("other") })
		}, "the broker refused the credentials of Secret c-default-user"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			row.arrange(s)
			out := s.must("status", "c")
			if !strings.Contains(out, "Leaders, alarms and queues are unknown: ") || !strings.Contains(out, row.want) {
				t.Errorf("lacks %q:\n%s", row.want, out)
			}
			if fields := strings.Fields(rowOf(t, out, "c-1")); strings.Join(fields, " ") != "c-1 Running node-1 z 1.0.0 ? ?" {
				t.Errorf("%q", fields)
			}
			var report map[string]any
			if err := json.Unmarshal([]byte(s.must("status", "c", "-o", "json")), &report); err != nil {
				t.Fatal(err)
			}
			if report["unavailableQueues"] != nil || report["unknown"] == nil {
				t.Errorf("unknown queues must be null: %v", report)
			}
		})
	}
}

func TestStatusExplainsWhatTheOperatorWaitsFor(t *testing.T) {
	since := metav1.NewTime(time.Now().Add(-5 * time.Minute))
	for name, row := range map[string]struct {
		arrange func(*posthornv1.BrokerCluster)
		want    []string
	}{
		"a roll that needs an approval": {func(c *posthornv1.BrokerCluster) {
			c.Status.Rollout = &posthornv1.RolloutStatus{WaitingFor: "c-2", Reason: "ApprovalNeeded", Since: &since, Approve: "rev/c-2"}
		}, []string{"- c-2 (ApprovalNeeded, for 5m", "spec.upgrade.mode is Supervised", "to continue: kubectl annotate brokercluster c --namespace mq --overwrite posthorn.io/approve=rev/c-2"}},
		"queues": {func(c *posthornv1.BrokerCluster) {
			c.Status.Rollout = &posthornv1.RolloutStatus{WaitingFor: "c-1", Reason: "QuorumCritical", Queues: []string{"/a", "/b"}}
		}, []string{"- c-1 (QuorumCritical): queues would lose their majority without it", "queues: /a, /b"}},
		"a node that does not start": {func(c *posthornv1.BrokerCluster) {
			c.Status.Rollout = &posthornv1.RolloutStatus{WaitingFor: "c-2", Reason: "RevisionFails"}
			c.Status.Members[2].Message = "ImagePullBackOff: no such image"
		}, []string{"does not start with the wanted revision; correct the spec: ImagePullBackOff: no such image"}},
		"a removal": {func(c *posthornv1.BrokerCluster) {
			c.Status.Scaling = &posthornv1.ScalingStatus{Removing: "c-2", Reason: "MovingReplicas", Remaining: 4, Message: "no node takes q"}
		}, []string{"- c-2 (MovingReplicas): the node is being removed; 4 queues still have a replica on it: no node takes q"}},
		"settings": {func(c *posthornv1.BrokerCluster) {
			c.Status.Configuration = &posthornv1.ConfigurationStatus{PendingRestart: []string{"a", "b"}, PendingReload: []string{"x"}, Message: "c-1: refused"}
		}, []string{"- the restart of every node (PendingRestart): only a restart applies a, b", "- the kubelet (PendingReload): running nodes have yet to load x: c-1: refused"}},
		"a pause":      {func(c *posthornv1.BrokerCluster) { c.Spec.Paused = true }, []string{"- you (Paused)", "kubectl posthorn resume c --namespace mq"}},
		"the operator": {func(c *posthornv1.BrokerCluster) { c.Generation = 2 }, []string{"generation 2 of the spec", "check that the operator runs"}},
		"a condition": {func(c *posthornv1.BrokerCluster) {
			meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: posthornv1.ConditionReady, Status: metav1.ConditionFalse, Reason: "InvalidConfig", Message: "unknown key x"})
		}, []string{"- the cluster (InvalidConfig", "unknown key x"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster("c")
			row.arrange(c)
			s := newStage(t, c, credentialsOf("c"), pod("c-0", true))
			out := s.must("status", "c")
			for _, text := range row.want {
				if !strings.Contains(out, text) {
					t.Errorf("lacks %q:\n%s", text, out)
				}
			}
		})
	}
}

func TestCredentialsHideThePasswordUnlessAsked(t *testing.T) {
	s := newStage(t)
	for _, format := range []string{"table", "json", "yaml"} {
		out := s.must("credentials", "c", "--output", format)
		if strings.Contains(out, password) || !strings.Contains(out, "admin") || !strings.Contains(out, "c.mq.svc") {
			t.Errorf("%s: %s", format, out)
		}
		if out = s.must("credentials", "c", "--show", "--output", format); !strings.Contains(out, password) {
			t.Errorf("%s with --show: %s", format, out)
		}
	}
	if out := s.must("credentials", "c"); !strings.Contains(out, "--show prints it") {
		t.Errorf("the remedy is missing: %s", out)
	}
	s.fails(exitUsage, []string{"credentials", "c", "--output", "xml"}, "--output xml is not a format")
	s = newStage(t, cluster("c"))
	s.fails(exitFailure, []string{"credentials", "c"}, "no Secret c-default-user", "check that the operator runs")
	empty := credentialsOf("c")
	delete(empty.Data, "password")
	s = newStage(t, cluster("c"), empty)
	s.fails(exitFailure, []string{"credentials", "c"}, "the Secret c-default-user", "lacks the key username or password", "c-operator")
}

func TestUIForwardsToAReadyNodeAndMovesOnWhenItEnds(t *testing.T) {
	s := newStage(t)
	change(s, pod("c-0", true), func(p *corev1.Pod) { p.Status.Conditions = nil })
	s.pods.ended = make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		out, _, err = s.run(ctx, "ui", "c", "--open")
	}()
	await(t, func() bool { return s.pods.count() == 1 })
	change(s, pod("c-1", true), func(p *corev1.Pod) { p.Status.Conditions = nil })
	s.pods.ended <- errors.New("lost connection to pod")
	await(t, func() bool { return s.pods.count() == 2 })
	cancel()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.pods.forwarded, " "); got != "c-1 c-2" {
		t.Errorf("forwarded to %s", got)
	}
	if len(s.browser) != 1 || !strings.HasPrefix(s.browser[0], "http://127.0.0.1:") {
		t.Errorf("the browser opened %v", s.browser)
	}
	if !strings.Contains(out, "is the web UI of cluster c at node c-1") || strings.Contains(out, password) {
		t.Errorf("%s", out)
	}
}

// TestUIMovesOnWhenItsPodIsReplaced: a tunnel that nobody uses does not notice the end of its pod.
func TestUIMovesOnWhenItsPodIsReplaced(t *testing.T) {
	s := newStage(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var errOut string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, errOut, err = s.run(ctx, "ui", "c")
	}()
	await(t, func() bool { return s.pods.count() == 1 })
	if err := s.client.Delete(t.Context(), pod("c-0", true)); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return s.pods.count() == 2 })
	cancel()
	<-done
	if got := strings.Join(s.pods.forwarded, " "); err != nil || got != "c-0 c-1" || !strings.Contains(errOut, "the connection to node c-0 ended: its pod was deleted") {
		t.Errorf("%v: forwarded to %s: %s", err, got, errOut)
	}
}

func (p *fakePods) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.forwarded)
}

// await waits for a condition, far longer than it takes on a busy machine.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-limit:
			t.Fatal("the condition does not hold after a minute")
		case <-tick.C:
		}
	}
}

func TestUIPrintsCredentialsOnlyIfAsked(t *testing.T) {
	s := newStage(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out, _, err := s.run(ctx, "ui", "c", "--credentials")
	if err != nil || !strings.Contains(out, password) || len(s.browser) != 0 {
		t.Errorf("%v: %s, %v", err, out, s.browser)
	}
	s.fails(exitUsage, []string{"ui", "c", "--port", "70000"}, "--port 70000 is not a port")
	hibernated := cluster("c")
	hibernated.Spec.Hibernated = true
	s = newStage(t, hibernated)
	s.fails(exitFailure, []string{"ui", "c"}, "cluster c is hibernated", `"hibernated":false`)
}

func TestDrainWaitsUntilTheLeadersHaveMoved(t *testing.T) {
	s := newStage(t)
	s.broker.SetLeaders("c-1", 2)
	var out, progress string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		out, progress, err = s.run(t.Context(), "drain", "c-1")
	}()
	await(t, func() bool { return s.broker.Drained("c-1") })
	select {
	case <-done:
		t.Fatal("drain returned while leaders were left")
	default:
	}
	s.broker.SetLeaders("c-1", 0)
	<-done
	if err != nil || !strings.Contains(out, "c-1 is drained") || !strings.Contains(progress, "c-1: 2 leaders are left") {
		t.Errorf("%v, %q, %q", err, out, progress)
	}
	s.must("undrain", "c-1")
	if s.broker.Drained("c-1") {
		t.Error("c-1 is still drained")
	}
}

func TestDrainThatTakesTooLongContinues(t *testing.T) {
	s := newStage(t)
	s.broker.SetLeaders("c-1", 2)
	s.fails(exitFailure, []string{"drain", "c-1", "--timeout", "200ms"}, "node c-1 is still being drained: 2 leaders are left", "kubectl posthorn undrain c-1")
	if !s.broker.Drained("c-1") {
		t.Error("the drain ended")
	}
}

func TestDrainRefusesTheSecondNodeUnlessForced(t *testing.T) {
	s := newStage(t)
	s.must("drain", "c-0")
	s.fails(exitFailure, []string{"drain", "c-1"}, "node c-0 is drained already", "kubectl posthorn undrain c-0", "--force")
	s.must("drain", "c-1", "--force")
	s.must("undrain", "c-0")
	s.must("undrain", "c-1")
	change(s, pod("c-2", true), func(p *corev1.Pod) { p.Status.Conditions = nil })
	s.fails(exitFailure, []string{"drain", "c-1"}, "node c-2 is not ready", "--force")
	s.fails(exitFailure, []string{"drain", "c-2", "--force"}, "node c-2 is not ready and cannot be drained")
	if err := s.client.Delete(t.Context(), pod("c-2", true)); err != nil {
		t.Fatal(err)
	}
	s.fails(exitFailure, []string{"drain", "c-1"}, "cluster c has 2 of 3 pods")
	if s.broker.Drained("c-1") {
		t.Error("a refused drain began")
	}
}

func TestUndrainLeavesDrainsOfTheOperator(t *testing.T) {
	for purpose, want := range map[string]string{names.DrainingForRemoval: "to remove it; raise spec.replicas", "revision": "to replace its pod"} {
		s := newStage(t)
		change(s, pod("c-1", true), func(p *corev1.Pod) { p.Annotations = map[string]string{names.AnnotationDraining: purpose} })
		s.fails(exitFailure, []string{"undrain", "c-1"}, "the operator drains node c-1", want)
		if calls := s.broker.Calls("/api/nodes", http.MethodDelete); len(calls) != 0 {
			t.Errorf("%v", calls)
		}
	}
}

func TestRestartSetsTheAnnotationOfTheOperator(t *testing.T) {
	s := newStage(t)
	before := cluster("c")
	if out := s.must("restart", "c"); !strings.Contains(out, "restarts the 3 nodes of cluster c one by one") || !strings.Contains(out, "kubectl posthorn status c --namespace mq") {
		t.Error(out)
	}
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(before), before); err != nil {
		t.Fatal(err)
	}
	first := before.Annotations[names.AnnotationRestartedAt]
	if _, err := time.Parse(time.RFC3339Nano, first); err != nil {
		t.Errorf("%q is not a time", first)
	}
	s.must("restart")
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(before), before); err != nil || before.Annotations[names.AnnotationRestartedAt] == first {
		t.Errorf("the second restart changed nothing: %v", err)
	}
	s.must("restart", "c-1")
	for name, want := range map[string]string{"c-0": "", "c-1": "true", "c-2": ""} {
		p := pod(name, true)
		if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil || p.Annotations[names.AnnotationRestart] != want {
			t.Errorf("%s: %v, %v", name, p.Annotations, err)
		}
	}
}

func TestRestartRefusesClustersThatCannotBeRestarted(t *testing.T) {
	for text, arrange := range map[string]func(*posthornv1.BrokerCluster){
		"cluster c is paused": func(c *posthornv1.BrokerCluster) { c.Spec.Paused = true },
		"is hibernated":       func(c *posthornv1.BrokerCluster) { c.Spec.Hibernated = true },
	} {
		c := cluster("c")
		arrange(c)
		s := newStage(t, c, pod("c-1", true))
		s.fails(exitFailure, []string{"restart", "c"}, text)
		s.fails(exitFailure, []string{"restart", "c-1"}, text)
	}
	s := newStage(t, cluster("c"), cluster("c-1"), pod("c-1", true))
	s.fails(exitUsage, []string{"restart", "c-1"}, "c-1 is a cluster and a node of cluster c", "cluster/c-1 or node/c-1")
	s.must("restart", "node/c-1")
	p := pod("c-1", true)
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil || p.Annotations[names.AnnotationRestart] != "true" {
		t.Errorf("%v, %v", p.Annotations, err)
	}
	s.must("restart", "cluster/c-1")
}

func TestRestartWaitsForTheNewPods(t *testing.T) {
	s := newStage(t)
	var out string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		out, _, err = s.run(t.Context(), "restart", "c-1", "--wait")
	}()
	p := pod("c-1", true)
	await(t, func() bool {
		return s.client.Get(t.Context(), client.ObjectKeyFromObject(p), p) == nil && p.Annotations[names.AnnotationRestart] == "true"
	})
	select {
	case <-done:
		t.Fatal("restart returned before the pod was replaced")
	default:
	}
	if err := s.client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	replaced := pod("c-1", true)
	replaced.UID = "uid-new"
	status := replaced.Status
	if err := s.client.Create(t.Context(), replaced); err != nil {
		t.Fatal(err)
	}
	replaced.Status = status
	s.setStatus(replaced)
	<-done
	if err != nil || !strings.Contains(out, "restarted 1 nodes") {
		t.Errorf("%v: %s", err, out)
	}
	s.fails(exitFailure, []string{"restart", "c-2", "--wait", "--timeout", "200ms"}, "not complete after 200ms: 0 of 1 nodes are restarted", "kubectl posthorn status c")
}

func TestPauseAndResumeChangeTheSpec(t *testing.T) {
	s := newStage(t)
	c := cluster("c")
	for _, row := range []struct {
		command, want string
		paused        bool
	}{
		{"pause", "cluster c is paused; ", true}, {"pause", "cluster c is paused already", true},
		{"resume", "cluster c is resumed; ", false}, {"resume", "cluster c is not paused", false},
	} {
		if out := s.must(row.command, "c"); !strings.Contains(out, row.want) {
			t.Errorf("%s: %s", row.command, out)
		}
		if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil || c.Spec.Paused != row.paused {
			t.Errorf("%s: paused is %v, %v", row.command, c.Spec.Paused, err)
		}
	}
}

func TestCtlRunsInAReadyPodWithoutThePasswordInItsArguments(t *testing.T) {
	s := newStage(t)
	change(s, pod("c-0", true), func(p *corev1.Pod) { p.Status.Conditions = nil })
	if out := s.must("ctl", "c", "--", "list_queues", "--vhost", "orders"); out != "answer\n" {
		t.Errorf("%q", out)
	}
	s.must("ctl", "--node", "c-2", "--", "status")
	s.must("ctl", "c", "--", "--user=me", "--password=mine", "status")
	want := []string{
		"c-1 /posthorn ctl --user admin --password-file /dev/stdin list_queues --vhost orders",
		"c-2 /posthorn ctl --user admin --password-file /dev/stdin status",
		"c-1 /posthorn ctl --user=me --password=mine status",
	}
	for i, command := range s.pods.commands {
		if got := strings.Join(command, " "); got != want[i] {
			t.Errorf("command %s, want %s", got, want[i])
		}
	}
	if got := strings.Join(s.pods.inputs, "|"); got != password+"|"+password+"|input of the user" {
		t.Errorf("inputs %s", got)
	}
}

func TestCtlHasTheExitCodeOfTheOperation(t *testing.T) {
	s := newStage(t)
	s.pods.executeErr = exec.CodeExitError{Err: errors.New("command terminated with exit code 69"), Code: 69}
	_, _, err := s.run(t.Context(), "ctl", "c", "--", "health")
	if ExitCode(err) != 69 || err.Error() != "" {
		t.Errorf("exit code %d, %q", ExitCode(err), err)
	}
}

func TestCtlRefusesAnIncompleteCommandLine(t *testing.T) {
	s := newStage(t)
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"ctl", "c", "list_queues"}, "after two dashes"},
		{[]string{"ctl", "c", "d", "--", "list_queues"}, "one cluster before the dashes"},
		{[]string{"ctl", "c", "--"}, "needs an operation"},
	} {
		s.fails(exitUsage, row.args, row.want)
	}
	s = newStage(t, cluster("c"), cluster("d"), credentialsOf("d"), pod("c-0", true))
	s.fails(exitUsage, []string{"ctl", "d", "--node", "c-0", "--", "status"}, "node c-0 belongs to cluster c")
}

func TestLogsAreMergedInTheOrderOfTime(t *testing.T) {
	s := newStage(t)
	s.pods.logs = map[string][]string{
		"c-0": {"2026-01-01T00:00:01Z first\n2026-01-01T00:00:04.5Z fourth\n"},
		"c-1": {"2026-01-01T00:00:02Z second\n2026-01-01T00:00:05Z fifth"},
		"c-2": {"2026-01-01T00:00:03Z third with\ta tab\n"},
	}
	want := "c-0 first\nc-1 second\nc-2 third with\ta tab\nc-0 fourth\nc-1 fifth\n"
	if out := s.must("logs", "c", "--tail", "7", "--since", "1h"); out != want {
		t.Errorf("%q", out)
	}
	options := s.pods.logOptions["c-1"][0]
	if *options.TailLines != 7 || options.SinceTime == nil || options.Follow || options.Previous {
		t.Errorf("%+v", options)
	}
	s.pods.logs["c-1"] = []string{"2026-01-01T00:00:02Z second\n"}
	if out := s.must("logs", "c", "--node", "c-1", "--timestamps", "--previous"); out != "c-1 2026-01-01T00:00:02Z second\n" {
		t.Errorf("%q", out)
	}
	s.fails(exitFailure, []string{"logs", "c", "--node", "c-1"}, "reading the log of node c-1")
	s.fails(exitUsage, []string{"logs", "c", "--follow", "--previous"}, "exclude each other")
	s = newStage(t, cluster("c"))
	s.fails(exitFailure, []string{"logs", "c"}, "cluster c has no pods")
}

func TestFollowedLogsContinueWithTheNextPodWithoutRepetition(t *testing.T) {
	s := newStage(t, cluster("c"), pod("c-0", true))
	s.pods.logs = map[string][]string{"c-0": {
		"2026-01-01T00:00:01Z one\n2026-01-01T00:00:02.5Z two\n",
		"2026-01-01T00:00:02.5Z two\n2026-01-01T00:00:03Z three\n",
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		out, _, err = s.run(ctx, "logs", "c", "--follow")
	}()
	requests := func() int {
		s.pods.mu.Lock()
		defer s.pods.mu.Unlock()
		return len(s.pods.logOptions["c-0"])
	}
	// The third request is answered that the pod does not exist.
	await(t, func() bool { return requests() >= 4 })
	cancel()
	<-done
	if err != nil || out != "c-0 one\nc-0 two\nc-0 three\n" {
		t.Errorf("%v: %q", err, out)
	}
	if second := s.pods.logOptions["c-0"][1]; second.SinceTime == nil || second.TailLines != nil {
		t.Errorf("%+v", second)
	}
}

func TestLongLinesOfLogsAreCut(t *testing.T) {
	s := newStage(t, cluster("c"), pod("c-0", true))
	s.pods.logs = map[string][]string{"c-0": {"2026-01-01T00:00:01Z " + strings.Repeat("x", maxLine+10) + "\n2026-01-01T00:00:02Z next\n"}}
	out := s.must("logs", "c")
	if len(out) > maxLine+100 || !strings.Contains(out, "x [cut]\nc-0 next\n") {
		t.Errorf("%d bytes, the end is %q", len(out), out[len(out)-20:])
	}
}

func TestHelpOfEveryCommandHasAnExample(t *testing.T) {
	root := NewCommand(nil, Streams{})
	for _, command := range append(root.Commands(), root) {
		if command.Name() == "help" || command.Name() == "completion" {
			continue
		}
		if command.Long == "" || !strings.Contains(command.Example, "kubectl posthorn") {
			t.Errorf("%s lacks a description or an example", command.Name())
		}
	}
	s := newStage(t)
	if out := s.must("status", "--help"); !strings.Contains(out, "kubectl posthorn status [CLUSTER]") {
		t.Errorf("%s", out)
	}
}
