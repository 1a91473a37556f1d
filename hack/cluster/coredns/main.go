// CoreDNS with only the plugins that a local cluster needs: names of Services and pods, and "no such name" for
// everything else, because the cluster cannot reach other name servers.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func init() {
	// This list determines the order of the plugins, not the Corefile: template, which answers everything, comes
	// last.
	dnsserver.Directives = []string{"bind", "ready", "errors", "kubernetes", "template"}
}

func main() { coremain.Run() }
