package main

import (
	"fmt"
	"log"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// table is this program's table of the packet filter.
const table = "posthorn-lab-policies"

// world is the input of the rules.
type world struct {
	pods       []*corev1.Pod
	namespaces map[string]labels.Set
	policies   []*networkingv1.NetworkPolicy
}

// direction of the traffic of a policy, seen from its pods.
type direction struct {
	kind networkingv1.PolicyType
	// own and peer are the packet filter's names of a pod's own address and of the other side's.
	own, peer string
}

var directions = []direction{
	{networkingv1.PolicyTypeIngress, "daddr", "saddr"},
	{networkingv1.PolicyTypeEgress, "saddr", "daddr"},
}

// rules returns the rules of one node in nft's syntax, which replace its previous rules. Traffic from the node
// itself, such as the kubelet's probes, is not forwarded and so not filtered.
func (w world) rules(node string) string {
	var jumps, chains []string
	for _, pod := range w.pods {
		if pod.Spec.NodeName != node || !addressed(pod) {
			continue
		}
		for _, d := range directions {
			isolated, open := w.open(pod, d)
			if !isolated {
				continue
			}
			name := strings.ToLower(string(d.kind)) + "-" + strings.ReplaceAll(pod.Status.PodIP, ".", "-")
			jumps = append(jumps, fmt.Sprintf("  ip %s %s jump %s", d.own, pod.Status.PodIP, name))
			chain := append([]string{" chain " + name + " {"}, open...)
			chains = append(chains, strings.Join(append(chain, "  drop", " }"), "\n"))
		}
	}
	slices.Sort(jumps)
	slices.Sort(chains)
	lines := []string{"table ip " + table + " {}", "flush table ip " + table, "table ip " + table + " {"}
	lines = append(lines, chains...)
	lines = append(lines, " chain forward {", "  type filter hook forward priority filter; policy accept;", "  ct state established,related accept")
	lines = append(lines, jumps...)
	return strings.Join(append(lines, " }", "}", ""), "\n")
}

// addressed reports whether the pod has an address of its own.
func addressed(pod *corev1.Pod) bool {
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return pod.Status.PodIP != "" && !pod.Spec.HostNetwork && !over
}

// open reports whether any policy applies to a pod in a direction, and returns the traffic that all of them together
// allow.
func (w world) open(pod *corev1.Pod, d direction) (isolated bool, open []string) {
	for _, policy := range w.policies {
		if policy.Namespace != pod.Namespace || !slices.Contains(policy.Spec.PolicyTypes, d.kind) || !selects(&policy.Spec.PodSelector, pod.Labels) {
			continue
		}
		isolated = true
		if d.kind == networkingv1.PolicyTypeIngress {
			for _, rule := range policy.Spec.Ingress {
				open = append(open, w.lines(policy.Namespace, d, rule.From, rule.Ports)...)
			}
			continue
		}
		for _, rule := range policy.Spec.Egress {
			open = append(open, w.lines(policy.Namespace, d, rule.To, rule.Ports)...)
		}
	}
	slices.Sort(open)
	return isolated, slices.Compact(open)
}

// lines returns the lines of one rule: all peers if it names none, every port if it names none.
func (w world) lines(namespace string, d direction, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) []string {
	who := []string{""}
	if len(peers) > 0 {
		who = nil
		for _, peer := range peers {
			who = append(who, w.addresses(namespace, d, peer)...)
		}
	}
	what := []string{""}
	if len(ports) > 0 {
		what = nil
		for _, port := range ports {
			what = append(what, portWords(port)...)
		}
	}
	var out []string
	for _, a := range who {
		for _, b := range what {
			out = append(out, "  "+a+b+"return")
		}
	}
	return out
}

// addresses returns a peer's addresses as matches of the packet filter.
func (w world) addresses(namespace string, d direction, peer networkingv1.NetworkPolicyPeer) []string {
	if block := peer.IPBlock; block != nil {
		match := fmt.Sprintf("ip %s %s ", d.peer, block.CIDR)
		if len(block.Except) > 0 {
			match += fmt.Sprintf("ip %s != { %s } ", d.peer, strings.Join(block.Except, ", "))
		}
		return []string{match}
	}
	var found []string
	for _, pod := range w.pods {
		where := pod.Namespace == namespace
		if peer.NamespaceSelector != nil {
			where = selects(peer.NamespaceSelector, w.namespaces[pod.Namespace])
		}
		if where && addressed(pod) && (peer.PodSelector == nil || selects(peer.PodSelector, pod.Labels)) {
			found = append(found, pod.Status.PodIP)
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.Sort(found)
	return []string{fmt.Sprintf("ip %s { %s } ", d.peer, strings.Join(found, ", "))}
}

// portWords returns a port as matches of the packet filter; nothing for one that this program does not support.
func portWords(port networkingv1.NetworkPolicyPort) []string {
	protocol := corev1.ProtocolTCP
	if port.Protocol != nil {
		protocol = *port.Protocol
	}
	name := strings.ToLower(string(protocol))
	switch {
	case protocol != corev1.ProtocolTCP && protocol != corev1.ProtocolUDP, port.Port != nil && port.Port.Type == intstr.String:
		log.Printf("port %v %v lets nobody through: it cannot be matched", protocol, port.Port)
		return nil
	case port.Port == nil:
		return []string{"meta l4proto " + name + " "}
	case port.EndPort != nil:
		return []string{fmt.Sprintf("%s dport %d-%d ", name, port.Port.IntVal, *port.EndPort)}
	}
	return []string{fmt.Sprintf("%s dport %d ", name, port.Port.IntVal)}
}

// selects reports whether a selector matches labels; an invalid selector matches none.
func selects(selector *metav1.LabelSelector, set labels.Set) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		log.Printf("a selector selects nothing: %v", err)
		return false
	}
	return s.Matches(set)
}
