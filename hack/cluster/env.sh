# Names, paths and small functions of the local cluster. Other scripts source this file.
# shellcheck shell=bash

KUBERNETES_VERSION=1.36.3
LAB_DIR=${POSTHORN_LAB_DIR:-/var/lib/posthorn-lab}  # all state of the running lab
LAB_NETNS=posthorn-lab                              # control plane; node N is in $LAB_NETNS-N
LAB_CGROUP=posthorn-lab                             # below the root of every cgroup hierarchy
LAB_API_PORT=${POSTHORN_LAB_API_PORT:-16443}        # API server, inside and on the machine's loopback
LAB_CONTROL_IP=10.89.0.1                            # node N has 10.89.0.(10+N) and pods 10.244.N.0/24
LAB_MAX_NODES=9
LAB_SERVICE_CIDR=10.96.0.0/16
LAB_DNS_IP=10.96.0.10
LAB_KUBECONFIG=$LAB_DIR/pki/admin.kubeconfig
POSTHORN_CACHE=${POSTHORN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/posthorn}

CLUSTER_SRC=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() { echo "error: $*" >&2; exit 1; }
say() { echo "lab: $*"; }

# Progress lines start with the seconds since the start of the calling script.
step() { printf 'lab: %4ds  %s\n' "$SECONDS" "$*"; }

node_ip() { echo "10.89.0.$((10 + $1))"; }
node_netns() { echo "$LAB_NETNS-$1"; }

need_root() {
  [ "$(id -u)" = 0 ] || die "this needs root (network namespaces, mounts, cgroups). Run it as root or with sudo -E."
}

# Prints the numbers of the lab's nodes, in order.
lab_nodes() {
  local d
  for d in "$LAB_DIR"/node-*/; do
    [ -d "$d" ] && basename "$d" | sed 's/^node-//'
  done | sort -n
}

# Prints the cache directory for the inputs of the build. Another version, other code or
# another Go gives another directory, so a cache entry never becomes stale.
lab_cache() {
  local hash
  hash=$(
    cd "$CLUSTER_SRC" &&
      { go version; cat go.mod go.sum build; find . ../image -name '*.go' ! -name '*_test.go' -print0 | sort -z | xargs -0 cat; } |
      sha256sum | cut -c1-12
  )
  echo "$POSTHORN_CACHE/k8s-$KUBERNETES_VERSION-$hash"
}

# wait_for SECONDS WHAT COMMAND...: polls until the command succeeds. WHAT documents the
# condition in the script.
wait_for() {
  local end=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}
