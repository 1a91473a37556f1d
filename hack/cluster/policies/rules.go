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

// table of the packet filter that is this program's.
const table = "posthorn-lab-policies"

// world is what rules are made from.
type world struct {
	pods       []*corev1.Pod
	namespaces map[string]labels.Set
	policies   []*networkingv1.NetworkPolicy
}

// direction of what a policy is about, seen from its pods.
type direction struct {
	kind networkingv1.PolicyType
	// own and peer are how the packet filter calls a pod's own address and that of the other side.
	own, peer string
}

var directions = []direction{
	{networkingv1.PolicyTypeIngress, "daddr", "saddr"},
	{networkingv1.PolicyTypeEgress, "saddr", "daddr"},
}

// rules are those of one node, in nft's words: they take the place of what it had. What comes from the node itself, as
// the kubelet's probes do, is not forwarded and so not under them.
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

// addressed: the pod has an address that is its own.
func addressed(pod *corev1.Pod) bool {
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return pod.Status.PodIP != "" && !pod.Spec.HostNetwork && !over
}

// open says whether any policy is about a pod in a direction, and what all of them together let through.
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

// lines of one rule: everybody where it names no peers, every port where it names none.
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

// addresses of a peer, as matches of the packet filter.
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

// portWords is a port as matches of the packet filter; nothing for one that this program cannot match.
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

// selects says whether a selector takes labels; one that cannot be read takes none.
func selects(selector *metav1.LabelSelector, set labels.Set) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		log.Printf("a selector selects nothing: %v", err)
		return false
	}
	return s.Matches(set)
}
