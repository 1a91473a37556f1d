# Sourced by the scripts of this directory, in the root of the checkout.
die() { echo "release: $*" >&2; exit 1; }
step() { echo "release: $*"; }

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' broker/Cargo.toml)
[ -n "$version" ] || die "broker/Cargo.toml names no version in [workspace.package]"
chart_version=$(sed -n 's/^version: //p' charts/posthorn/Chart.yaml)
[ "$chart_version" = "$version" ] || die "charts/posthorn/Chart.yaml has version $chart_version, and broker/Cargo.toml has $version"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
tools=${POSTHORN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/posthorn}/tools

# Names by which the broker's program implies `ctl`.
aliases="posthornctl rabbitmqctl rabbitmq-queues rabbitmq-streams rabbitmq-diagnostics"

# pack FILE.tar.gz DIRECTORY NAME...: packs files so that the archive depends on their contents only.
pack() {
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --mode=go-w,a+rX --format=gnu \
    -C "$2" -c "${@:3}" | gzip -9n >"$1"
}

# crate NAME VERSION: installs a program of crates.io into the cache and prints its directory.
crate() {
  local to=$tools/$1-$2
  if [ ! -d "$to/bin" ]; then
    echo "release: building $1 $2 (once, some minutes)" >&2
    env -u CARGO_TARGET_DIR cargo install -q --locked --root "$to" "$1@$2" "${@:3}" >&2
  fi
  echo "$to/bin"
}
