# Processes and cgroups of the lab. Other scripts source this file.
#
# Every process that the lab starts, with all its children, is in a cgroup below
# $LAB_CGROUP. The scripts find processes by this membership, never by name.
# shellcheck shell=bash

# Prints the mount points of all cgroup hierarchies, version 1 and 2, one per line.
cgroup_hierarchies() { awk '$3=="cgroup" || $3=="cgroup2" {print $2}' /proc/self/mounts; }

# Prints the hierarchy whose membership decides which processes belong to the lab.
tracking_hierarchy() {
  local h
  for h in /sys/fs/cgroup/pids /sys/fs/cgroup/freezer /sys/fs/cgroup/systemd; do
    [ -e "$h/cgroup.procs" ] && { echo "$h"; return; }
  done
  [ -e /sys/fs/cgroup/cgroup.procs ] || die "no cgroups are mounted on /sys/fs/cgroup."
  echo /sys/fs/cgroup
}

# make_cgroup PATH: creates PATH in every hierarchy, with all controllers that it can delegate.
make_cgroup() {
  local h part dir
  for h in $(cgroup_hierarchies); do
    dir=$h
    for part in ${1//\// }; do
      if [ -e "$dir/cgroup.subtree_control" ]; then
        local c
        for c in $(cat "$dir/cgroup.controllers"); do
          echo "+$c" >"$dir/cgroup.subtree_control" 2>/dev/null || true
        done
      fi
      mkdir -p "$dir/$part" 2>/dev/null || die "cannot make the cgroup $dir/$part (is /sys/fs/cgroup read-only?)."
      # A new cpuset is empty and accepts no process until it has processors.
      local f
      for f in cpuset.cpus cpuset.mems; do
        if [ -e "$dir/$part/$f" ] && [ ! -e "$dir/cgroup.controllers" ] && [ -z "$(cat "$dir/$part/$f")" ]; then
          cat "$dir/$f" >"$dir/$part/$f"
        fi
      done
      dir=$dir/$part
    done
  done
}

# start NAME DIR COMMAND...: starts a daemon of the lab, unless it runs already. Its
# process id goes to DIR/pids/NAME and its output to DIR/log/NAME.log.
start() {
  local name=$1 dir=$2
  shift 2
  mkdir -p "$dir/pids" "$dir/log"
  running "$dir/pids/$name" && return 0
  (
    echo "$BASHPID" >"$(tracking_hierarchy)/$LAB_CGROUP/daemons/cgroup.procs"
    exec setsid "$@" >>"$dir/log/$name.log" 2>&1 </dev/null 9>&-
  ) &
  echo $! >"$dir/pids/$name"
}

# running FILE: succeeds if the process in this file is alive and belongs to the lab.
running() {
  local pid
  pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] && grep -q "/$LAB_CGROUP/" "/proc/$pid/cgroup" 2>/dev/null
}

lab_pids() {
  local h
  for h in $(cgroup_hierarchies); do
    [ -d "$h/$LAB_CGROUP" ] && find "$h/$LAB_CGROUP" -name cgroup.procs -exec cat {} + 2>/dev/null
  done | sort -un
}

# Ends every process of the lab. It kills until none is left, which includes processes
# that start meanwhile.
kill_lab() {
  local pids end=$((SECONDS + 30))
  while pids=$(lab_pids) && [ -n "$pids" ]; do
    [ "$SECONDS" -lt "$end" ] || die "these processes of the lab do not end: $(echo $pids)"
    kill -9 $pids 2>/dev/null || true
    sleep 0.1
  done
}

remove_cgroups() {
  local h
  for h in $(cgroup_hierarchies); do
    [ -d "$h/$LAB_CGROUP" ] || continue
    find "$h/$LAB_CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [ ! -d "$h/$LAB_CGROUP" ] || die "the cgroup $h/$LAB_CGROUP is still in use"
  done
}

# Settings of the machine that a kubelet changes.
LAB_SYSCTLS="vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes"

save_sysctls() {
  local key
  [ ! -e "$LAB_DIR/sysctls" ] || return 0
  for key in $LAB_SYSCTLS; do
    echo "$key=$(sysctl -n "$key" 2>/dev/null || true)"
  done | grep -v '=$' >"$LAB_DIR/sysctls.partial"
  mv "$LAB_DIR/sysctls.partial" "$LAB_DIR/sysctls"
}

restore_sysctls() {
  local line
  [ -e "$LAB_DIR/sysctls" ] || return 0
  while read -r line; do
    [ "$(sysctl -n "${line%%=*}")" = "${line#*=}" ] || sysctl -qw "$line" || say "could not restore $line"
  done <"$LAB_DIR/sysctls"
}
