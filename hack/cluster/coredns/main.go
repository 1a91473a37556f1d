// CoreDNS with only the plugins a local cluster needs: names of Services and
// pods, and a plain "no such name" for everything else, since the cluster has
// no way out to other name servers.
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
	// The order of plugins in a chain is this list's, not the Corefile's: template,
	// which answers everything, comes last.
	dnsserver.Directives = []string{"bind", "ready", "errors", "kubernetes", "template"}
}

func main() { coremain.Run() }
