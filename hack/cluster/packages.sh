# Requirements of the machine. Other scripts source this file.
# shellcheck shell=bash

# program, Debian package
LAB_PROGRAMS="
containerd containerd
ctr containerd
runc runc
iptables iptables
conntrack conntrack
ipset ipset
nft nftables
socat socat
openssl openssl
ip iproute2
nsenter util-linux
unshare util-linux
flock util-linux
mount mount
sysctl procps
modprobe kmod
"

missing_packages() {
  local program package
  while read -r program package; do
    [ -n "$program" ] || continue
    command -v "$program" >/dev/null || echo "$package"
  done <<<"$LAB_PROGRAMS" | sort -u
  [ -x /usr/lib/cni/bridge ] || echo containernetworking-plugins
}

install_packages() {
  local missing
  PATH=$PATH:/usr/sbin:/sbin
  missing=$(missing_packages | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null || die "missing: $missing(Debian's names). This system has no apt-get; install them with its package manager."
  say "installing from Debian: $missing"
  if ! "$CLUSTER_SRC/../apt-install" --no-install-recommends $missing >"$LAB_DIR/apt.log" 2>&1; then
    tail -5 "$LAB_DIR/apt.log" >&2
    die "apt-get could not install: $missing. Is a Debian mirror reachable? Full log: $LAB_DIR/apt.log"
  fi
  missing=$(missing_packages | tr '\n' ' ')
  [ -z "$missing" ] || die "still missing after the installation: $missing"
}

# The kernel must support bridges, overlay mounts and bridge filtering.
check_kernel() {
  local module
  for module in overlay br_netfilter; do
    modprobe -q "$module" 2>/dev/null || true
  done
  grep -qw overlay /proc/filesystems || die "this kernel has no overlay file system, which containerd needs."
  [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || die "this kernel has no br_netfilter, which Services need (modprobe br_netfilter failed)."
}
