# Keys, certificates and kubeconfigs of the lab. Other scripts source this file.
# shellcheck shell=bash

LAB_PKI=$LAB_DIR/pki

# Commands in a condition continue after a failure despite set -e, so && joins them.
make_ca() {
  mkdir -p -m 0700 "$LAB_PKI"
  [ -f "$LAB_PKI/sa.pub" ] && return 0
  {
    openssl ecparam -name prime256v1 -genkey -noout -out "$LAB_PKI/ca.key" &&
      openssl req -x509 -new -key "$LAB_PKI/ca.key" -subj /CN=posthorn-lab -days 3650 -out "$LAB_PKI/ca.crt" &&
      openssl genrsa -out "$LAB_PKI/sa.key" 2048 &&
      openssl rsa -in "$LAB_PKI/sa.key" -pubout -out "$LAB_PKI/sa.pub.partial" &&
      mv "$LAB_PKI/sa.pub.partial" "$LAB_PKI/sa.pub"
  } 2>"$LAB_PKI/ca.log" || die "openssl failed: $(tail -1 "$LAB_PKI/ca.log")"
}

# make_cert NAME SUBJECT EXTENSION. Calls for several nodes run at the same time and
# share nothing, so the serial number is random and not from a file.
make_cert() {
  local f=$LAB_PKI/$1
  [ -f "$f.crt" ] && return 0
  {
    openssl ecparam -name prime256v1 -genkey -noout -out "$f.key" &&
      openssl req -new -key "$f.key" -subj "$2" -out "$f.csr" &&
      openssl x509 -req -in "$f.csr" -CA "$LAB_PKI/ca.crt" -CAkey "$LAB_PKI/ca.key" -set_serial "0x$(openssl rand -hex 15)" \
        -days 3650 -extfile <(echo "$3") -out "$f.crt.partial" &&
      mv "$f.crt.partial" "$f.crt" && rm -f "$f.csr"
  } 2>"$f.log" || die "openssl failed for $1: $(tail -1 "$f.log")"
}

# make_kubeconfig NAME SERVER: writes a kubeconfig for the client certificate NAME.
make_kubeconfig() {
  local f=$LAB_PKI/$1
  cat >"$f.kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
current-context: posthorn-lab
clusters: [{name: posthorn-lab, cluster: {server: "$2", certificate-authority-data: $(base64 -w0 "$LAB_PKI/ca.crt")}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$f.crt"), client-key-data: $(base64 -w0 "$f.key")}}]
contexts: [{name: posthorn-lab, context: {cluster: posthorn-lab, user: $1}}]
CONFIG
  chmod 0600 "$f.kubeconfig"
}

make_client() { # NAME SUBJECT SERVER
  make_cert "$1" "$2" extendedKeyUsage=clientAuth
  make_kubeconfig "$1" "$3"
}

make_control_plane_certs() {
  local here="https://127.0.0.1:$LAB_API_PORT" s=kubernetes.default
  make_ca
  make_cert apiserver /CN=kube-apiserver \
    "subjectAltName=IP:127.0.0.1,IP:$LAB_CONTROL_IP,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:$s,DNS:$s.svc,DNS:$s.svc.cluster.local"
  make_cert front-proxy /CN=front-proxy-client extendedKeyUsage=clientAuth
  make_client admin /O=system:masters/CN=admin "$here"
  make_client controller-manager /CN=system:kube-controller-manager "$here"
  make_client scheduler /CN=system:kube-scheduler "$here"
  make_client coredns /CN=system:coredns "$here"
  make_client provisioner /CN=posthorn-lab-provisioner "$here"
  make_client policies /CN=posthorn-lab-policies "$here"
  make_client proxy /CN=system:kube-proxy "https://$LAB_CONTROL_IP:$LAB_API_PORT"
}

make_node_certs() { # N
  make_client "node-$1" "/O=system:nodes/CN=system:node:node-$1" "https://$LAB_CONTROL_IP:$LAB_API_PORT"
}
