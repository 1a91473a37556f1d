# One command at a time changes the lab. Sourced, never run.
# shellcheck shell=bash

# take_lock: waits for other lab commands; the lock is held until this shell ends.
# cluster-down removes the file, so the one locked must still be the one there.
take_lock() {
  mkdir -p "$(dirname "$LAB_DIR")"
  while :; do
    exec 9>"$LAB_DIR.lock"
    flock -n 9 || { say "waiting for another command that changes the lab"; flock 9; }
    [ "$LAB_DIR.lock" -ef "/proc/self/fd/9" ] && return
  done
}
