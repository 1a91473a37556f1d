# Waits for conditions of custom resources. Other scripts source this file, after env.sh;
# they define the function k (kubectl).
# shellcheck shell=bash

# wait_condition NAMESPACE OBJECT TYPE SECONDS: waits until the condition is True for the
# object's current generation, and shows every change of it.
wait_condition() {
  local end=$((SECONDS + $4)) shown='' now
  while :; do
    now=$(k -n "$1" get "$2" -o jsonpath="{.metadata.generation} {.status.observedGeneration} {.status.conditions[?(@.type==\"$3\")].status} {.status.conditions[?(@.type==\"$3\")].reason}: {.status.conditions[?(@.type==\"$3\")].message}" 2>&1) || true
    if [ "$now" != "$shown" ]; then
      step "$2 $3: $(cut -d' ' -f3- <<<"$now")"
      shown=$now
    fi
    read -r generation observed status _ <<<"$now"
    [ "$generation" = "$observed" ] && [ "$status" = True ] && return 0
    [ "$SECONDS" -lt "$end" ] || die "$2 did not become $3 within $4 s: $now"
    sleep 0.3
  done
}
