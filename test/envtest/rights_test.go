// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// rights records the operator's requests to the API server in the form of a role's rules.
type rights struct {
	mu      sync.Mutex
	used    map[string]bool
	refused map[string]bool
	// writes are the requests that change an object, as "METHOD path".
	writes []string
}

var asked = &rights{used: map[string]bool{}, refused: map[string]bool{}}

// wrap is for rest.Config.Wrap.
func (r *rights) wrap(next http.RoundTripper) http.RoundTripper {
	return &noting{rights: r, next: next}
}

type noting struct {
	*rights
	next http.RoundTripper
}

func (n *noting) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := n.next.RoundTrip(request)
	right := rightOf(request)
	if err != nil || right == "" {
		return response, err
	}
	lacks, err := lacksRight(response)
	n.mu.Lock()
	defer n.mu.Unlock()
	if lacks {
		n.refused[right] = true
	} else {
		n.used[right] = true
	}
	if request.Method != http.MethodGet {
		n.writes = append(n.writes, request.Method+" "+request.URL.Path)
	}
	return response, err
}

// maxRefusal bounds the size of a refusal, in bytes.
const maxRefusal = 1 << 16

// lacksRight reports whether a request was refused because of a missing permission. Admission also answers Forbidden,
// for example in a namespace that is being deleted.
func lacksRight(response *http.Response) (bool, error) {
	if response.StatusCode != http.StatusForbidden {
		return false, nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	if err != nil {
		return false, err
	}
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	return authorizerSays.Match(body), nil
}

// authorizerSays is the message of the API server's authorizer.
var authorizerSays = regexp.MustCompile(`cannot [a-z]+ resource`)

// rightOf returns "group/resource verb"; empty for a request that is not about objects.
func rightOf(request *http.Request) string {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	group := ""
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		group = parts[1]
		parts = parts[3:]
	default:
		return ""
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	resource, named := parts[0], len(parts) > 1
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[request.Method]
	switch {
	case verb != "":
	case named:
		verb = "get"
	case request.URL.Query().Get("watch") != "":
		verb = "watch"
	default:
		verb = "list"
	}
	return group + "/" + resource + " " + verb
}

// unusedRights are permissions of the role that no spec makes the operator use, with the reason why the role has
// them.
var unusedRights = map[string]string{
	"/events patch":                      "an event that comes again is counted in the first",
	"/serviceaccounts update":            "mends what somebody changed",
	"policy/poddisruptionbudgets update": "mends what somebody changed",

	"monitoring.coreos.com/servicemonitors update": "mends what somebody changed, like prometheusrules",
}

// needless reports whether a permission is superfluous, given the used ones.
func needless(right string, all map[string]bool) bool {
	what, verb, _ := strings.Cut(right, " ")
	switch {
	case asked.used[right] || unusedRights[right] != "":
		return false
	case strings.HasSuffix(what, "/finalizers"):
		// No request uses it: the admission plugin OwnerReferencesPermissionEnforcement requires it to own objects.
		return false
	case verb == "get" || verb == "list":
		// A watch already returns all objects; older API servers require a list first.
		return !all[what+" watch"]
	}
	return true
}

// given returns the permissions in config/rbac/role.yaml.
func given() map[string]bool {
	GinkgoHelper()
	out := map[string]bool{}
	for _, object := range manifests(filepath.Join("..", "..", "config", "rbac", "role.yaml")) {
		var role rbacv1.ClusterRole
		Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role)).To(Succeed())
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						out[fmt.Sprintf("%s/%s %s", group, resource, verb)] = true
					}
				}
			}
		}
	}
	return out
}

// The operator has exactly the permissions that it needs: every spec ran with its role.
var _ = AfterSuite(func() {
	suite, _ := GinkgoConfiguration()
	if len(suite.FocusStrings)+len(suite.SkipStrings)+len(suite.FocusFiles)+len(suite.SkipFiles) > 0 || suite.LabelFilter != "" {
		return
	}
	asked.mu.Lock()
	defer asked.mu.Unlock()
	if len(asked.used) == 0 {
		// The operator was never started, which another spec reports.
		return
	}
	var refused, unused []string
	for right := range asked.refused {
		refused = append(refused, right)
	}
	all := given()
	for right := range all {
		if needless(right, all) {
			unused = append(unused, right)
		}
	}
	sort.Strings(unused)
	verdict := fmt.Sprintf("lacking: %v; given and never used: %v", refused, unused)
	Expect(verdict).To(Equal("lacking: []; given and never used: []"))
})
