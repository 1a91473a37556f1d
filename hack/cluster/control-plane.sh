# The control plane: its network namespace and processes. Other scripts source this file.
# shellcheck shell=bash

CONTROL=$LAB_DIR/control-plane

in_control() { nsenter --net="/run/netns/$LAB_NETNS" "$@"; }
kubectl() { "$LAB_BIN/kubectl" --kubeconfig "$LAB_KUBECONFIG" "$@"; }

make_control_netns() {
  [ -e "/run/netns/$LAB_NETNS" ] && return 0
  ip netns add "$LAB_NETNS"
  ip -n "$LAB_NETNS" link set lo up
  ip -n "$LAB_NETNS" link add node0 type bridge
  ip -n "$LAB_NETNS" addr add "$LAB_CONTROL_IP/24" dev node0
  ip -n "$LAB_NETNS" link set node0 up
}

# The forwarder accepts outside the namespace and connects inside, so a plain kubectl works from every shell.
start_forward() {
  running "$CONTROL/pids/forward" && return 0
  if (exec 3<>"/dev/tcp/127.0.0.1/$LAB_API_PORT") 2>/dev/null; then
    die "port $LAB_API_PORT on 127.0.0.1 is in use. Set POSTHORN_LAB_API_PORT to a free one."
  fi
  start forward "$CONTROL" "$LAB_BIN/forward" -listen "127.0.0.1:$LAB_API_PORT" \
    -netns "/run/netns/$LAB_NETNS" -nsenter "$(command -v nsenter)"
}

start_etcd() {
  # No fsync: this store ends with the lab and is never recovered from disk.
  start etcd "$CONTROL" nsenter --net="/run/netns/$LAB_NETNS" "$LAB_BIN/etcd" \
    --data-dir "$CONTROL/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster default=http://127.0.0.1:2380
}

start_apiserver() {
  # Aggregator routing also makes webhook calls go to pod addresses directly: this
  # namespace has no kube-proxy.
  start apiserver "$CONTROL" nsenter --net="/run/netns/$LAB_NETNS" "$LAB_BIN/kube-apiserver" \
    --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address="$LAB_CONTROL_IP" --bind-address=0.0.0.0 --secure-port="$LAB_API_PORT" \
    --tls-cert-file="$LAB_PKI/apiserver.crt" --tls-private-key-file="$LAB_PKI/apiserver.key" \
    --client-ca-file="$LAB_PKI/ca.crt" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --service-account-key-file="$LAB_PKI/sa.pub" --service-account-signing-key-file="$LAB_PKI/sa.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-cluster-ip-range="$LAB_SERVICE_CIDR" --allow-privileged=true --enable-aggregator-routing=true \
    --kubelet-client-certificate="$LAB_PKI/admin.crt" --kubelet-client-key="$LAB_PKI/admin.key" \
    --kubelet-preferred-address-types=InternalIP \
    --requestheader-client-ca-file="$LAB_PKI/ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$LAB_PKI/front-proxy.crt" --proxy-client-key-file="$LAB_PKI/front-proxy.key"
}

start_controllers() {
  local kc
  kc=$LAB_PKI/controller-manager.kubeconfig
  # A node counts as lost after 16 s (default 50): short enough for the tests, and long enough
  # for a machine that is busy with builds.
  start controller-manager "$CONTROL" nsenter --net="/run/netns/$LAB_NETNS" "$LAB_BIN/kube-controller-manager" \
    --kubeconfig="$kc" --authentication-kubeconfig="$kc" --authorization-kubeconfig="$kc" \
    --leader-elect=false --use-service-account-credentials=true --bind-address=127.0.0.1 \
    --root-ca-file="$LAB_PKI/ca.crt" --service-account-private-key-file="$LAB_PKI/sa.key" \
    --cluster-signing-cert-file="$LAB_PKI/ca.crt" --cluster-signing-key-file="$LAB_PKI/ca.key" \
    --service-cluster-ip-range="$LAB_SERVICE_CIDR" \
    --node-monitor-period=2s --node-monitor-grace-period=16s
  kc=$LAB_PKI/scheduler.kubeconfig
  start scheduler "$CONTROL" nsenter --net="/run/netns/$LAB_NETNS" "$LAB_BIN/kube-scheduler" \
    --kubeconfig="$kc" --authentication-kubeconfig="$kc" --authorization-kubeconfig="$kc" \
    --leader-elect=false --bind-address=127.0.0.1
}

# DNS, volumes and network policies run here and not in pods, because they must continue when any node is
# cut off.
start_services() {
  cat >"$CONTROL/Corefile" <<COREFILE
.:53 {
  bind $LAB_CONTROL_IP
  errors
  ready $LAB_CONTROL_IP:8181
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $LAB_PKI/coredns.kubeconfig posthorn-lab
    pods insecure
    ttl 2
  }
  template ANY ANY {
    rcode NXDOMAIN
  }
}
COREFILE
  start coredns "$CONTROL" nsenter --net="/run/netns/$LAB_NETNS" "$LAB_BIN/coredns" -conf "$CONTROL/Corefile"
  start provisioner "$CONTROL" nsenter --net="/run/netns/$LAB_NETNS" "$LAB_BIN/provisioner" \
    -kubeconfig "$LAB_PKI/provisioner.kubeconfig" -root "$LAB_DIR/volumes"
  start policies "$CONTROL" nsenter --net="/run/netns/$LAB_NETNS" "$LAB_BIN/policies" \
    -kubeconfig "$LAB_PKI/policies.kubeconfig" -netns "/run/netns/$LAB_NETNS-"
}

# explain NAME DIR: prints the last log lines of a daemon that did not start.
explain() {
  echo "--- last lines of $2/log/$1.log" >&2
  tail -5 "$2/log/$1.log" >&2 || true
}

control_plane_up() {
  make_control_plane_certs
  make_control_netns
  start_forward
  start_etcd
  start_apiserver
  wait_for 120 "API server" kubectl get --raw /readyz || {
    explain etcd "$CONTROL"
    explain apiserver "$CONTROL"
    explain forward "$CONTROL"
    die "the API server did not become ready within 120 s."
  }
  start_controllers
  kubectl apply -f "$CLUSTER_SRC/manifests" >"$CONTROL/log/manifests.log" 2>&1 ||
    die "the API server refused the objects of the lab: $(tail -3 "$CONTROL/log/manifests.log")"
  start_services
}
