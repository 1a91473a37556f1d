// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

const (
	watchedCluster = "watched"
	// watchedQueue gets the messages that MQTT clients publish.
	watchedQueue = "readings"
	// prometheusNode is the node of Prometheus: the others are cut off.
	prometheusNode = "node-1"
	prometheusPod  = "prometheus-e2e-0"
	// alertTimeout is for an alert that has to be true for a minute.
	alertTimeout = 3 * time.Minute
)

// prometheusObjects are a Prometheus that selects all monitors and rules, as users of the Prometheus operator write
// it.
const prometheusObjects = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus, namespace: e2e}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-prometheus}
rules:
  - {apiGroups: [""], resources: [services, endpoints, pods], verbs: [get, list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: e2e}]
---
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: e2e, namespace: e2e}
spec:
  image: posthorn.local/prometheus:dev
  serviceAccountName: prometheus
  serviceDiscoveryRole: EndpointSlice
  scrapeInterval: 3s
  scrapeTimeout: 2s
  evaluationInterval: 3s
  serviceMonitorSelector: {}
  serviceMonitorNamespaceSelector: {}
  podMonitorSelector: {}
  podMonitorNamespaceSelector: {}
  ruleSelector: {}
  ruleNamespaceSelector: {}
  nodeSelector: {kubernetes.io/hostname: node-1}
  securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
`

// hack/e2e prometheus runs this spec separately, because its programs take long to build.
var _ = Describe("three brokers that a Prometheus watches", Label("prometheus"), Ordered, func() {
	It("are scraped over TLS once the Prometheus operator is installed, like the operator", beScraped)
	It("have valid rules, and data for every query of the dashboards", haveData)
	It("fire alerts while two of them are cut off, and no longer", haveAlerts)
})

func watched() *posthornv1.BrokerCluster {
	cluster := newCluster()
	cluster.Name = watchedCluster
	cluster.Spec.TLS = &posthornv1.TLSSpec{DisablePlaintext: true}
	return cluster
}

// beScraped creates a cluster, and then its monitoring.
func beScraped() {
	cluster := watched()
	Expect(k8s.Create(ctx, cluster)).To(Succeed())
	becomesReady(cluster)
	Expect(apimeta.FindStatusCondition(cluster.Status.Conditions, posthornv1.ConditionMonitoringReady)).
		To(HaveField("Reason", "PrometheusOperatorMissing"))
	startPrometheusOperator()
	applyText(prometheusObjects)
	runScript("kubectl", "apply", "-k", filepath.Join(root, "config", "prometheus"))
	Eventually(func() *metav1.Condition {
		readiness(cluster)()
		return apimeta.FindStatusCondition(cluster.Status.Conditions, posthornv1.ConditionMonitoringReady)
	}).WithTimeout(lifecycleTimeout).Should(HaveField("Reason", "Monitored"))
	Eventually(func() map[string]string {
		targets, err := targets()
		if err != nil {
			return map[string]string{"": err.Error()}
		}
		return targets
	}).WithTimeout(lifecycleTimeout).Should(And(
		HaveKeyWithValue(watchedCluster+"-nodes/"+watchedCluster+"-0", "up https 15691"),
		HaveKeyWithValue(watchedCluster+"-nodes/"+watchedCluster+"-1", "up https 15691"),
		HaveKeyWithValue(watchedCluster+"-nodes/"+watchedCluster+"-2", "up https 15691"),
		HaveKeyWithValue(HavePrefix(operatorNamespace+"/posthorn-operator/"), "up http 8080"),
	))
}

// haveData sends messages and runs Grafana's queries on Prometheus.
func haveData() {
	pod := brokerPod(watchedCluster + "-0")
	owner, err := askOverTLS(watchedCluster, &pod, authorities(watchedCluster))
	Expect(err).NotTo(HaveOccurred())
	Expect(owner.ImportDefinitions(ctx, []byte(`{
		"queues": [{"vhost": "/", "name": "`+watchedQueue+`", "durable": true, "auto_delete": false, "arguments": {"x-queue-type": "quorum"}}],
		"bindings": [{"vhost": "/", "source": "amq.topic", "destination": "`+watchedQueue+`", "destination_type": "queue", "routing_key": "halls.#", "arguments": {}}]
	}`))).To(Succeed())
	connection, err := dialTLS(watchedCluster, &pod)
	Expect(err).NotTo(HaveOccurred())
	sensor, err := enterMQTT(connection, watchedCluster, "sensor")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(connection.Close)
	Expect(sensor.write(mqttSubscribe, append(mqttText([]byte{0, 1}, "answers/+"), 1))).To(Succeed())
	Expect(sensor.expect(mqttSuback)).To(Equal([]byte{0, 1, 1}))

	queries := boardQueries()
	say("%d queries", len(queries))
	left := queries
	Eventually(func(g Gomega) {
		g.Expect(sensor.write(mqttPublish, append(append(mqttText(nil, "halls/1"), 0, 2), "warm"...))).To(Succeed())
		g.Expect(sensor.expect(mqttPuback)).To(Equal([]byte{0, 2}))
		missing := map[string]string{}
		for place, query := range left {
			found, err := series(query)
			g.Expect(err).NotTo(HaveOccurred(), "%s: %s", place, query)
			if found == 0 {
				missing[place] = query
			}
		}
		left = missing
		g.Expect(left).To(BeEmpty(), "queries without data")
	}).WithPolling(2 * time.Second).Should(Succeed())
	Eventually(ruleHealth).Should(And(Not(BeEmpty()), HaveEach("ok")), "the rules")
	now, err := alerts("firing")
	Expect(err).NotTo(HaveOccurred())
	Expect(now).To(BeEmpty(), "nothing is wrong")
}

// haveAlerts cuts two nodes off: the lost majority raises an alert after a minute.
func haveAlerts() {
	var away []string
	for at := range replicas {
		pod := brokerPod(fmt.Sprintf("%s-%d", watchedCluster, at))
		if pod.Spec.NodeName != prometheusNode {
			away = append(away, pod.Name)
			cutNode(pod.Spec.NodeName)
			DeferCleanup(healNode, pod.Spec.NodeName)
		}
	}
	Expect(away).To(HaveLen(2))
	for _, name := range away {
		Eventually(alerts).WithArguments("pending").Should(HaveKeyWithValue("PosthornNodeDown watched "+name, "warning: Node "+name+" of e2e/watched does not answer"))
	}
	Eventually(alerts).WithArguments("firing").WithTimeout(alertTimeout).
		Should(Equal(map[string]string{"PosthornNoMajority watched": "critical: Cluster e2e/watched has no majority"}))
	for _, name := range away {
		healNode(brokerPod(name).Spec.NodeName)
	}
	Eventually(alerts).WithArguments("firing").Should(BeEmpty())
	becomesReady(watched())
}

// fromPrometheus queries its HTTP API, and reads the data of the answer.
func fromPrometheus(path string, query url.Values, data any) error {
	var pod corev1.Pod
	if err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: prometheusPod}, &pod); err != nil {
		return err
	}
	where := "http://" + net.JoinHostPort(pod.Status.PodIP, "9090") + "/api/v1/" + path + "?" + query.Encode()
	response, err := (&http.Client{Transport: podTransport, Timeout: patience}).Get(where)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return nil
}

// targets returns the targets of Prometheus by job and pod, each with its health, scheme and port.
func targets() (map[string]string, error) {
	var said struct {
		ActiveTargets []struct {
			Labels            map[string]string
			ScrapeURL, Health string
			LastError         string
		}
	}
	if err := fromPrometheus("targets", url.Values{"state": {"active"}}, &said); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, each := range said.ActiveTargets {
		place, err := url.Parse(each.ScrapeURL)
		if err != nil {
			return nil, err
		}
		out[each.Labels["job"]+"/"+each.Labels["pod"]] = strings.TrimSpace(fmt.Sprintf("%s %s %s %s", each.Health, place.Scheme, place.Port(), each.LastError))
	}
	return out, nil
}

// series returns the number of series in the answer to a query.
func series(expr string) (int, error) {
	var said struct{ Result []json.RawMessage }
	err := fromPrometheus("query", url.Values{"query": {expr}}, &said)
	return len(said.Result), err
}

// boardQueries returns the queries of the dashboards that Grafana would load, by location.
func boardQueries() map[string]string {
	GinkgoHelper()
	var files corev1.ConfigMap
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: names.Dashboards(watchedCluster)}, &files)).To(Succeed())
	out := map[string]string{}
	for file, text := range files.Data {
		var board struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr, RefID string }
			}
		}
		Expect(json.Unmarshal([]byte(text), &board)).To(Succeed())
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				// Four scrapes, like Grafana's value.
				out[file+": "+panel.Title+" "+target.RefID] = strings.ReplaceAll(target.Expr, "$__rate_interval", "15s")
			}
		}
	}
	Expect(len(out)).To(BeNumerically(">", 40))
	return out
}

// ruleHealth returns the health of each rule of the cluster in Prometheus.
func ruleHealth() (map[string]string, error) {
	var said struct {
		Groups []struct {
			Name  string
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := fromPrometheus("rules", nil, &said); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, group := range said.Groups {
		if group.Name != "posthorn."+namespace+"."+watchedCluster {
			continue
		}
		for _, rule := range group.Rules {
			out[rule.Name] = strings.TrimSpace(rule.Health + " " + rule.LastError)
		}
	}
	return out, nil
}

// alerts returns the pending or firing alerts, each with severity and summary.
func alerts(state string) (map[string]string, error) {
	var said struct {
		Alerts []struct {
			Labels, Annotations map[string]string
			State               string
		}
	}
	if err := fromPrometheus("alerts", nil, &said); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, each := range said.Alerts {
		name := strings.TrimSpace(each.Labels["alertname"] + " " + each.Labels["brokercluster"] + " " + each.Labels["pod"])
		if each.State == state {
			out[name] = each.Labels["severity"] + ": " + each.Annotations["summary"]
		}
	}
	return out, nil
}

// startPrometheusOperator installs its API, and runs it on this machine until the suite's end.
func startPrometheusOperator() {
	GinkgoHelper()
	program, definitions := os.Getenv("POSTHORN_E2E_PROMETHEUS_OPERATOR"), os.Getenv("POSTHORN_E2E_PROMETHEUS_CRDS")
	Expect(program).NotTo(BeEmpty(), "hack/e2e prometheus builds it")
	define(definitions)
	runBeside("prometheus-operator", program, "--web.listen-address=127.0.0.1:0", "--prometheus-config-reloader=posthorn.local/prometheus-config-reloader:dev",
		"--config-reloader-cpu-limit=0", "--config-reloader-memory-limit=0", "--kubelet-endpoints=false")
}
