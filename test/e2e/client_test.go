// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clientTimeout bounds one client.
const clientTimeout = lifecycleTimeout

// endless is more than a client can publish in its time: it publishes until enough is called.
const endless = 1_000_000

// work describes a client pod.
type work struct {
	command  string // run, publish or consume
	queue    string
	messages int // endless: until enough is called
	rate     int
	pubs     int      // publishers; the client's own number when 0
	overlap  bool     // consume while publishing
	declare  bool     // declare the queue
	secret   string   // service binding; the application's user when empty
	notOn    []string // nodes it must not run on
	ledger   string   // claim that keeps the ledger from publish to consume
}

// clientRun is one client pod.
type clientRun struct {
	name  string
	work  work
	node  string
	shown int // number of output lines already written to the log
}

// verdict is the client's last line, with the names of its history package.
type verdict struct {
	OK          bool     `json:"ok"`
	Lost        int      `json:"lost"`
	Reordered   int      `json:"reordered"`
	Phantoms    int      `json:"phantoms"`
	Corrupted   int      `json:"corrupted"`
	Unconfirmed int      `json:"unconfirmed"`
	Confirmed   int      `json:"confirmed"`
	Arrived     int      `json:"arrived"`
	Duplicates  int      `json:"duplicates"`
	Rejected    int      `json:"rejected"`
	Reconnects  int      `json:"reconnects"`
	LongestWait float64  `json:"longest_wait_for_a_confirm_seconds"`
	Seconds     float64  `json:"seconds"`
	Examples    []string `json:"examples"`
	Error       string   `json:"error"`
}

// summary has a line for each client, which the end of the run prints.
var summary []string

// start creates the client's pod and waits until it runs.
func start(name string, w work) *clientRun {
	GinkgoHelper()
	c := &clientRun{name: name, work: w}
	Expect(k8s.Create(ctx, clientPod(name, w))).To(Succeed())
	DeferCleanup(func() {
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, &corev1.Pod{ObjectMeta: meta(name)}, client.GracePeriodSeconds(1)))).To(Succeed())
	})
	Eventually(func() (corev1.PodPhase, error) {
		pod, err := c.pod()
		c.node = pod.Spec.NodeName
		return pod.Status.Phase, err
	}).ShouldNot(Or(Equal(corev1.PodPending), BeEmpty()), "the client %s does not start", name)
	say("client %s runs on %s", name, c.node)
	return c
}

func clientPod(name string, w work) *corev1.Pod {
	args := []string{w.command, "--binding", "/binding", "--queue", w.queue, "--timeout", clientTimeout.String()}
	if w.messages > 0 {
		args = append(args, "--messages", strconv.Itoa(w.messages), "--rate", strconv.Itoa(w.rate))
	}
	if w.pubs > 0 {
		args = append(args, "--publishers", strconv.Itoa(w.pubs))
	}
	if w.overlap {
		args = append(args, "--overlap")
	}
	if w.declare {
		args = append(args, "--declare")
	}
	secret := w.secret
	if secret == "" {
		secret = appUser + "-binding"
	}
	mode := int32(0o440)
	pod := restrictedPod(corev1.Container{
		Name: "client", Image: clientImg, Args: args,
		VolumeMounts: []corev1.VolumeMount{{Name: "binding", MountPath: "/binding", ReadOnly: true}},
	})
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/name": "demo-client"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "binding", VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: secret, DefaultMode: &mode},
	}}}
	if len(w.notOn) > 0 {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: w.notOn,
			}}}},
		}}}
	}
	if w.ledger != "" {
		one := &pod.Spec.Containers[0]
		one.Args = append(one.Args, "--ledger", "/ledger/ledger.json")
		one.VolumeMounts = append(one.VolumeMounts, corev1.VolumeMount{Name: "ledger", MountPath: "/ledger"})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "ledger", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: w.ledger},
		}})
	}
	return pod
}

// restrictedPod returns a pod that satisfies the restricted Pod Security standard.
func restrictedPod(container corev1.Container) *corev1.Pod {
	no, yes, user, grace := false, true, int64(10001), int64(2)
	container.ImagePullPolicy = corev1.PullIfNotPresent
	container.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	return &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{container},
	}}
}

func (c *clientRun) pod() (corev1.Pod, error) {
	var pod corev1.Pod
	err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: c.name}, &pod)
	return pod, err
}

// output returns the client's output so far, and writes the new part to the log.
func (c *clientRun) output() ([]string, error) {
	data, err := logs.CoreV1().Pods(namespace).GetLogs(c.name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	for ; c.shown < len(lines); c.shown++ {
		if strings.HasPrefix(lines[c.shown], "RECONNECT ") {
			say("client %s: %s", c.name, lines[c.shown])
		}
	}
	return lines, nil
}

// progress returns the numbers of confirmed and of delivered messages.
var progressLine = regexp.MustCompile(`^PROGRESS .*"confirmed_so_far":(\d+),"deliveries":(\d+)`)

// said waits until the client has written a line with this prefix, and returns it.
func (c *clientRun) said(word string) string {
	GinkgoHelper()
	found, progress := "", ""
	Eventually(func(g Gomega) {
		lines, err := c.output()
		g.Expect(err).NotTo(HaveOccurred())
		for _, line := range lines {
			if strings.HasPrefix(line, word) {
				found = line
			}
			if match := progressLine.FindStringSubmatch(line); match != nil {
				progress = fmt.Sprintf("%s confirmed, %s delivered", match[1], match[2])
			}
		}
		if found == "" {
			pod, err := c.pod()
			g.Expect(err).NotTo(HaveOccurred())
			if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				StopTrying("the client ended without saying "+word).Attach("output", lines).Now()
			}
		}
		g.Expect(found).NotTo(BeEmpty(), progress)
	}).WithTimeout(clientTimeout+30*time.Second).Should(Succeed(), "client %s", c.name)
	return found
}

// confirmed returns the number of confirmed messages that the client reported last.
func (c *clientRun) confirmed() (int, error) {
	lines, err := c.output()
	count := 0
	for _, line := range lines {
		if match := progressLine.FindStringSubmatch(line); match != nil {
			count, _ = strconv.Atoi(match[1])
		}
	}
	return count, err
}

// confirmedAtLeast waits until that many messages are confirmed. It fails when no further message is confirmed within
// patience, so that a busy machine only makes it wait longer.
func (c *clientRun) confirmedAtLeast(count int) {
	GinkgoHelper()
	for now := 0; now < count; {
		last := now
		Eventually(func() (int, error) {
			var err error
			now, err = c.confirmed()
			return now, err
		}).Should(BeNumerically(">", last), func() string { return c.describe(count) })
	}
}

// describe returns why the test needs more confirms, and the end of the client's output. It begins with a short line, because
// a summary shows the first lines only.
func (c *clientRun) describe(count int) string {
	lines, err := c.output()
	if err != nil {
		lines = append(lines, err.Error())
	}
	last := lines[max(0, len(lines)-5):]
	return fmt.Sprintf("confirms of client %s, of which the test needs %d; its output ends with\n%s", c.name, count, strings.Join(last, "\n"))
}

// result returns the client's verdict, and whether it passes.
func (c *clientRun) result() verdict {
	GinkgoHelper()
	var v verdict
	line := strings.TrimPrefix(c.said("RESULT "), "RESULT ")
	Expect(json.Unmarshal([]byte(line), &v)).To(Succeed(), line)
	text := fmt.Sprintf("%-22s %6d confirmed %6d arrived %3d lost %3d out of order %5d twice, %d reconnects, longest wait for a confirm %.1fs, %.0fs",
		c.name, v.Confirmed, v.Arrived, v.Lost, v.Reordered, v.Duplicates, v.Reconnects, v.LongestWait, v.Seconds)
	say("%s", text)
	summary = append(summary, text)
	return v
}

// keptItsWord waits for the end and requires that every message was confirmed and arrived intact and in its
// publisher's order.
func (c *clientRun) keptItsWord() verdict {
	GinkgoHelper()
	v := c.result()
	Expect(v.Error).To(BeEmpty())
	Expect(v.Examples).To(BeEmpty())
	Expect([]int{v.Lost, v.Reordered, v.Phantoms, v.Corrupted, v.Unconfirmed}).To(HaveEach(0), "lost, reordered, phantoms, corrupted, unconfirmed")
	Expect(v.OK).To(BeTrue())
	if c.work.command == "run" {
		Expect(v.Arrived).To(Equal(v.Confirmed))
		if c.work.messages != endless {
			Expect(v.Confirmed).To(Equal(c.work.messages))
		}
	}
	return v
}

// moreConfirmed waits until that many more messages are confirmed.
func (c *clientRun) moreConfirmed(count int) {
	GinkgoHelper()
	now, err := c.confirmed()
	Expect(err).NotTo(HaveOccurred())
	c.confirmedAtLeast(now + count)
}

// enough stops the publishers, and requires that the verdict passes.
func (c *clientRun) enough() verdict {
	GinkgoHelper()
	pod, err := c.pod()
	Expect(err).NotTo(HaveOccurred())
	if pod.Status.Phase != corev1.PodRunning {
		c.keptItsWord()
		Fail(c.name + " ended before it was told to")
	}
	process, err := strconv.Atoi(filepath.Base(processOf(&pod)))
	Expect(err).NotTo(HaveOccurred())
	Expect(syscall.Kill(process, syscall.SIGUSR1)).To(Succeed())
	return c.keptItsWord()
}

// ended waits for the client's end, and returns its exit code and output.
func (c *clientRun) ended() (int, string) {
	GinkgoHelper()
	code := -1
	Eventually(func(g Gomega) {
		pod, err := c.pod()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pod.Status.ContainerStatuses).NotTo(BeEmpty())
		state := pod.Status.ContainerStatuses[0].State.Terminated
		g.Expect(state).NotTo(BeNil())
		code = int(state.ExitCode)
	}).Should(Succeed())
	lines, err := c.output()
	Expect(err).NotTo(HaveOccurred())
	return code, strings.Join(lines, "\n")
}
