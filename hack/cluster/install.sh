# Installs the operator into the local cluster. Other scripts source this file, after env.sh;
# they define the function k (kubectl).
# shellcheck shell=bash

# install_operator ROOT: applies config/cluster-wide of the checkout and waits for its Deployments.
install_operator() {
  local objects deployments there=0
  objects=$(k kustomize "$1/config/cluster-wide") || die "config/cluster-wide is not a valid kustomization."
  deployments=$(k create --dry-run=client -f - -o \
    jsonpath='{.kind}{" "}{.metadata.namespace}{" "}{.metadata.name}{"\n"}' <<<"$objects" |
    awk '$1=="Deployment"{print $2"/"$3}')
  [ -n "$deployments" ] || die "config/cluster-wide has no Deployment."
  local d
  for d in $deployments; do
    k -n "${d%/*}" get deployment "${d#*/}" >/dev/null 2>&1 && there=1
  done
  k apply --server-side --force-conflicts -f - <<<"$objects" >/dev/null
  for d in $deployments; do
    # A new build of the image has the same name, so a restart is necessary.
    [ "$there" = 0 ] || k -n "${d%/*}" rollout restart "deployment/${d#*/}" >/dev/null
    k -n "${d%/*}" rollout status "deployment/${d#*/}" --timeout=120s >/dev/null ||
      die "the operator did not start: $(k -n "${d%/*}" get pods; k -n "${d%/*}" logs "deployment/${d#*/}" --tail=5)"
  done
}
