# Worker nodes: each has its own network and mount namespace, containerd, kubelet and
# kube-proxy. Other scripts source this file.
# shellcheck shell=bash

node_dir() { echo "$LAB_DIR/node-$1"; }

# in_node N COMMAND...: runs a command inside the node's namespaces.
in_node() {
  local n=$1 holder
  shift
  holder=$(cat "$(node_dir "$n")/pids/holder" 2>/dev/null) || die "there is no node $n (hack/node list shows them)."
  nsenter --target "$holder" --net --mount --uts "$@"
}

make_node_netns() {
  local n=$1 ns other
  ns=$(node_netns "$n")
  [ -e "/run/netns/$ns" ] && return 0
  ip netns add "$ns"
  ip -n "$ns" link set lo up
  ip -n "$LAB_NETNS" link add "node-$n" type veth peer name eth0 netns "$ns"
  ip -n "$LAB_NETNS" link set "node-$n" master node0 up
  ip -n "$ns" addr add "$(node_ip "$n")/24" dev eth0
  ip -n "$ns" link set eth0 up
  # kubelet and kube-proxy need a default route. It leads to a network without an exit.
  ip -n "$ns" route add default via "$LAB_CONTROL_IP"
  ip -n "$LAB_NETNS" route add "10.244.$n.0/24" via "$(node_ip "$n")"
}

# Routes to the pods of a node lead through that node, in both directions.
route_between_nodes() {
  local a b
  for a in $(lab_nodes); do
    for b in $(lab_nodes); do
      [ "$a" = "$b" ] || ip -n "$(node_netns "$a")" route replace "10.244.$b.0/24" via "$(node_ip "$b")"
    done
  done
}

# The node sees the file system of the machine, except for the fixed paths that
# daemons need.
prepare_node_mounts() {
  local n=$1 r
  r=$(node_dir "$n")
  mkdir -p "$r"/{var-log,var-kubelet,var-cni}
  in_node "$n" sh -ec "
    mount --make-rshared /
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p /run/netns /run/lock
    mount --bind $r/var-log /var/log
    mount --bind $r/var-kubelet /var/lib/kubelet
    mount --bind $r/var-cni /var/lib/cni
    hostname node-$n
    sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1
  "
}

start_holder() {
  local n=$1 r
  r=$(node_dir "$n")
  running "$r/pids/holder" && return 0
  start holder "$r" nsenter --net="/run/netns/$(node_netns "$n")" \
    unshare --mount --uts --propagation private "$LAB_BIN/pause"
  wait_for 10 "node's namespaces" holder_ready "$r" || { explain holder "$r"; die "node $n did not get its own namespaces."; }
  prepare_node_mounts "$n"
}

# The holder is ready when it runs pause, in its own mount namespace.
holder_ready() {
  local pid
  pid=$(cat "$1/pids/holder")
  [ "$(readlink "/proc/$pid/exe")" = "$(readlink -f "$LAB_BIN/pause")" ]
}

configure_containerd() {
  local n=$1 r snapshotter=overlayfs
  r=$(node_dir "$n")
  mkdir -p "$r"/{containerd,cni}
  # An overlay cannot be on an overlay (a lab inside a container).
  [ "$(stat -f -c %T "$r")" = overlayfs ] && snapshotter=native
  cat >"$r/containerd/config.toml" <<TOML
version = 2
root = "$r/containerd/root"
state = "/run/containerd-node"
[grpc]
  address = "$r/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$r/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "posthorn.local/pause:1"
  # Machines without CAP_SYS_RESOURCE cannot lower it, and runc would fail.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$r/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
TOML
  cat >"$r/cni/10-bridge.conflist" <<CNI
{"cniVersion":"0.4.0","name":"posthorn-lab","plugins":[
 {"type":"bridge","bridge":"cni0","isDefaultGateway":true,"hairpinMode":true,"ipMasq":false,
  "ipam":{"type":"host-local","dataDir":"$r/cni-addresses","ranges":[[{"subnet":"10.244.$n.0/24"}]]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
CNI
}

configure_kubelet() {
  local n=$1 r
  r=$(node_dir "$n")
  mkdir -p "$r/kubelet/plugins"
  echo "nameserver $LAB_DNS_IP" >"$r/resolv.conf"
  cat >"$r/kubelet/config.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /$LAB_CGROUP/node-$n
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://$r/containerd/containerd.sock
volumePluginDir: $r/kubelet/plugins
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $LAB_PKI/ca.crt}}
authorization: {mode: Webhook}
clusterDNS: [$LAB_DNS_IP]
clusterDomain: cluster.local
resolvConf: $r/resolv.conf
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
nodeStatusUpdateFrequency: 4s
nodeLeaseDurationSeconds: 8
syncFrequency: 10s
YAML
  cat >"$r/proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: 10.244.0.0/16
hostnameOverride: node-$n
clientConnection: {kubeconfig: $LAB_PKI/proxy.kubeconfig}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
}

# start_in_node N NAME COMMAND...
start_in_node() {
  local n=$1 name=$2 r
  r=$(node_dir "$n")
  shift 2
  start "$name" "$r" nsenter --target "$(cat "$r/pids/holder")" --net --mount --uts "$@"
}

# import_image N TAR
import_image() {
  in_node "$1" ctr -a "$(node_dir "$1")/containerd/containerd.sock" -n k8s.io images import - <"$2" >/dev/null
}

node_up() {
  local n=$1 r image
  r=$(node_dir "$n")
  make_cgroup "$LAB_CGROUP/node-$n"
  make_node_certs "$n"
  start_holder "$n"
  configure_containerd "$n"
  configure_kubelet "$n"
  start_in_node "$n" containerd containerd -c "$r/containerd/config.toml"
  wait_for 30 containerd ctr -a "$r/containerd/containerd.sock" version ||
    { explain containerd "$r"; die "containerd of node $n did not start."; }
  import_image "$n" "$(dirname "$(readlink -f "$LAB_BIN")")/pause.tar" || die "node $n cannot import the pause image."
  for image in "$LAB_DIR"/images/*.tar; do
    [ -e "$image" ] && import_image "$n" "$image"
  done
  # Detect a dead connection within seconds after a partition (default 45 s).
  start_in_node "$n" kubelet env HTTP2_READ_IDLE_TIMEOUT_SECONDS=5 HTTP2_PING_TIMEOUT_SECONDS=3 \
    "$LAB_BIN/kubelet" --config="$r/kubelet/config.yaml" --kubeconfig="$LAB_PKI/node-$n.kubeconfig" \
    --hostname-override="node-$n" --node-ip="$(node_ip "$n")" --root-dir="$r/kubelet/root" --cert-dir="$r/kubelet/pki" \
    --node-labels="topology.kubernetes.io/zone=zone-$n"
  start_in_node "$n" proxy env HTTP2_READ_IDLE_TIMEOUT_SECONDS=5 HTTP2_PING_TIMEOUT_SECONDS=3 \
    "$LAB_BIN/kube-proxy" --config="$r/proxy.yaml"
  wait_for 60 "node $n" kubectl get node "node-$n" && kubectl wait --for=condition=Ready "node/node-$n" --timeout=60s >/dev/null ||
    { explain kubelet "$r"; explain containerd "$r"; die "node $n did not become Ready."; }
  step "node-$n is Ready"
}
