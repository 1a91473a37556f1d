package main

import (
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(namespace, app, node, address string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{PodIP: address, Phase: corev1.PodRunning},
	}
}

func selector(name, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{name: value}}
}

// places has two namespaces on two nodes, with policies in one of them.
func places(ingress ...networkingv1.NetworkPolicyIngressRule) world {
	over := pod("mq", "over", "node-1", "10.0.1.9")
	over.Status.Phase = corev1.PodSucceeded
	return world{
		pods: []*corev1.Pod{
			pod("mq", "broker", "node-1", "10.0.1.1"), pod("mq", "broker", "node-2", "10.0.2.1"),
			pod("mq", "other", "node-1", "10.0.1.2"), pod("shop", "app", "node-2", "10.0.2.2"), over,
		},
		namespaces: map[string]labels.Set{"mq": {"team": "mq"}, "shop": {"team": "shop"}},
		policies: []*networkingv1.NetworkPolicy{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mq"},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: *selector("app", "broker"), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: ingress,
			},
		}},
	}
}

// chain returns the rules that admit traffic to the broker on node-1, one in each line.
func chain(t *testing.T, rules string) string {
	t.Helper()
	_, after, found := strings.Cut(rules, " chain ingress-10-0-1-1 {\n")
	inside, _, closed := strings.Cut(after, "  drop\n }")
	if !found || !closed {
		t.Fatalf("no chain:\n%s", rules)
	}
	return inside
}

func TestRulesFollowThePolicies(t *testing.T) {
	port, end, udp := intstr.FromInt32(5672), int32(5680), corev1.ProtocolUDP
	named := intstr.FromString("amqp")
	brokers := networkingv1.NetworkPolicyPeer{PodSelector: selector("app", "broker")}
	shop := networkingv1.NetworkPolicyPeer{NamespaceSelector: selector("team", "shop")}
	block := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.0.3.0/24"}}}
	on := func(ports ...networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyPort { return ports }
	from := func(peers ...networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyPeer { return peers }
	for name, c := range map[string]struct {
		rule networkingv1.NetworkPolicyIngressRule
		want string
	}{
		"everybody, everything": {networkingv1.NetworkPolicyIngressRule{}, "  return\n"},
		"everybody, a port":     {networkingv1.NetworkPolicyIngressRule{Ports: on(networkingv1.NetworkPolicyPort{Port: &port})}, "  tcp dport 5672 return\n"},
		"several ports":         {networkingv1.NetworkPolicyIngressRule{Ports: on(networkingv1.NetworkPolicyPort{Port: &port, EndPort: &end})}, "  tcp dport 5672-5680 return\n"},
		"another protocol":      {networkingv1.NetworkPolicyIngressRule{Ports: on(networkingv1.NetworkPolicyPort{Protocol: &udp})}, "  meta l4proto udp return\n"},
		"a name opens nothing":  {networkingv1.NetworkPolicyIngressRule{Ports: on(networkingv1.NetworkPolicyPort{Port: &named})}, ""},
		"pods of its namespace": {networkingv1.NetworkPolicyIngressRule{From: from(brokers)}, "  ip saddr { 10.0.1.1, 10.0.2.1 } return\n"},
		"another namespace":     {networkingv1.NetworkPolicyIngressRule{From: from(shop)}, "  ip saddr { 10.0.2.2 } return\n"},
		"pods of it, none there": {networkingv1.NetworkPolicyIngressRule{From: from(networkingv1.NetworkPolicyPeer{
			NamespaceSelector: selector("team", "shop"), PodSelector: selector("app", "broker"),
		})}, ""},
		"addresses": {networkingv1.NetworkPolicyIngressRule{From: from(block), Ports: on(networkingv1.NetworkPolicyPort{Port: &port})},
			"  ip saddr 10.0.0.0/8 ip saddr != { 10.0.3.0/24 } tcp dport 5672 return\n"},
	} {
		if got := chain(t, places(c.rule).rules("node-1")); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestRulesCoverOnlySelectedPodsOfTheNode(t *testing.T) {
	rules := places().rules("node-1")
	if n := strings.Count(rules, " jump "); n != 1 || !strings.Contains(rules, "ip daddr 10.0.1.1 jump ingress-10-0-1-1") {
		t.Errorf("%d jumps:\n%s", n, rules)
	}
	w := places()
	w.policies[0].Spec.PolicyTypes = append(w.policies[0].Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	if rules := w.rules("node-1"); !strings.Contains(rules, "ip saddr 10.0.1.1 jump egress-10-0-1-1") {
		t.Errorf("no egress:\n%s", rules)
	}
	w.policies = nil
	if rules := w.rules("node-1"); strings.Contains(rules, "jump") {
		t.Errorf("without policies:\n%s", rules)
	}
}

// TestNftAcceptsTheRules runs nft if it is installed.
func TestNftAcceptsTheRules(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no nft")
	}
	port := intstr.FromInt32(5672)
	rules := places(networkingv1.NetworkPolicyIngressRule{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: selector("app", "broker")}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
	}).rules("node-1")
	command := exec.Command("unshare", "--net", "nft", "-f", "-")
	command.Stdin = strings.NewReader(rules)
	if said, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %s\n%s", err, said, rules)
	}
}
