# Only one command at a time changes the lab. Other scripts source this file.
# shellcheck shell=bash

# take_lock: waits for other lab commands, and holds the lock until this shell ends.
# cluster-down removes the lock file, so the locked file must still be the existing one.
take_lock() {
  mkdir -p "$(dirname "$LAB_DIR")"
  while :; do
    exec 9>"$LAB_DIR.lock"
    flock -n 9 || { say "waiting for another command that changes the lab"; flock 9; }
    [ "$LAB_DIR.lock" -ef "/proc/self/fd/9" ] && return
  done
}
