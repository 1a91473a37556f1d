// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/strvals"
	"sigs.k8s.io/yaml"
)

// ofHelm are the labels and annotations that only Helm's objects have.
var ofHelm = []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "helm.sh/resource-policy"}

// bare formats an object without Helm's additions.
func bare(t *testing.T, o object) string {
	t.Helper()
	metadata, _ := o["metadata"].(map[string]any)
	for _, kind := range []string{"labels", "annotations"} {
		if marks, isMap := metadata[kind].(map[string]any); isMap {
			for _, name := range ofHelm {
				delete(marks, name)
			}
			if len(marks) == 0 {
				delete(metadata, kind)
			}
		}
	}
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// same compares two sets of objects.
func same(t *testing.T, helm, kustomize map[string]object) {
	t.Helper()
	// Helm gets the namespace as an option and does not create it.
	delete(kustomize, "Namespace "+namespace)
	var names []string
	for name := range kustomize {
		names = append(names, name)
	}
	for name := range helm {
		if _, both := kustomize[name]; !both {
			t.Errorf("only the chart has %s", name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		o, both := helm[name]
		if !both {
			t.Errorf("the chart lacks %s", name)
			continue
		}
		if a, b := bare(t, o), bare(t, kustomize[name]); a != b {
			t.Errorf("%s: the chart has\n%s\nand kustomize\n%s", name, short(a), short(b))
		}
	}
	if len(names) < 10 {
		t.Errorf("%d objects", len(names))
	}
}

func short(text string) string {
	if len(text) > 4000 {
		return text[:4000] + "..."
	}
	return text
}

func TestChartInstallsTheObjectsOfKustomize(t *testing.T) {
	same(t, install(t, ""), kustomized(t, "default"))
}

func TestChartForAllNamespacesInstallsTheObjectsOfKustomize(t *testing.T) {
	same(t, install(t, "watchAllNamespaces: true"), kustomized(t, "cluster-wide"))
}

// secretRights lists the cluster-wide objects that give the operator rights, or anybody rights to Secrets.
func secretRights(objects map[string]object) []string {
	var out []string
	for name, o := range objects {
		if strings.HasPrefix(name, "ClusterRoleBinding ") {
			out = append(out, name)
		}
		rules, _ := o["rules"].([]any)
		for _, rule := range rules {
			resources, _ := at(rule, "resources").([]any)
			if strings.HasPrefix(name, "ClusterRole ") && (slices.Contains(resources, any("secrets")) || slices.Contains(resources, any("*"))) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestTheDefaultInstallationHasNoAccessToSecretsOfOtherNamespaces(t *testing.T) {
	for name, objects := range map[string]map[string]object{
		"chart": install(t, ""), "chart with a list": install(t, "watchNamespaces: [posthorn-system]"), "manifests": kustomized(t, "default"),
		"a further namespace": kustomized(t, "watched-namespace"),
	} {
		if found := secretRights(objects); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
	want := []string{"ClusterRole posthorn-operator", "ClusterRoleBinding posthorn-operator"}
	if found := secretRights(kustomized(t, "cluster-wide")); !slices.Equal(found, want) {
		t.Errorf("the check misses a ClusterRole with Secrets: %v", found)
	}
}

func TestRightsInAFurtherNamespaceAreThoseOfTheDefaultInstallation(t *testing.T) {
	further, usual := kustomized(t, "watched-namespace"), kustomized(t, "default")
	if len(further) != 2 {
		t.Errorf("%d objects", len(further))
	}
	for _, name := range []string{"Role posthorn-operator", "RoleBinding posthorn-operator"} {
		if at(further[name], "metadata", "namespace") != "staging" {
			t.Errorf("%s is in %v", name, at(further[name], "metadata", "namespace"))
		}
		for _, part := range []string{"rules", "subjects", "roleRef"} {
			if !reflect.DeepEqual(further[name][part], usual[name][part]) {
				t.Errorf("%s of %s: %v", part, name, further[name][part])
			}
		}
	}
}

func TestNoRightsOutsideTheWatchedNamespace(t *testing.T) {
	objects := install(t, "{watchNamespaces: [brokers], rbac: {userRoles: false}}")
	for name, o := range objects {
		if strings.HasPrefix(name, "ClusterRole") {
			t.Errorf("%s", name)
		}
		if strings.HasSuffix(name, "Role posthorn-operator") || name == "RoleBinding posthorn-operator" {
			if at(o, "metadata", "namespace") != "brokers" {
				t.Errorf("%s is in %v", name, at(o, "metadata", "namespace"))
			}
		}
	}
	subjects, _ := objects["RoleBinding posthorn-operator"]["subjects"].([]any)
	if len(subjects) != 1 || at(subjects[0], "namespace") != namespace {
		t.Errorf("bound to %v", subjects)
	}
	if !slices.Contains(arguments(objects), "--watch-namespaces=brokers") {
		t.Errorf("started with %v", arguments(objects))
	}
}

func TestRightsInEachWatchedNamespace(t *testing.T) {
	const values = "{watchNamespaces: [brokers, staging], rbac: {userRoles: false}}"
	texts, err := renderedTexts(t, loadedChart(t), values)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, text := range texts {
		one := map[string]object{}
		put(t, one, text)
		for name, o := range one {
			if strings.HasPrefix(name, "ClusterRole") || strings.HasPrefix(name, "Role") && strings.HasSuffix(name, " posthorn-operator") {
				found = append(found, fmt.Sprintf("%s in %v", name, at(o, "metadata", "namespace")))
			}
			if name == "Deployment posthorn-operator" && !slices.Contains(arguments(one), "--watch-namespaces=brokers,staging") {
				t.Errorf("started with %v", arguments(one))
			}
		}
	}
	slices.Sort(found)
	want := []string{
		"Role posthorn-operator in brokers", "Role posthorn-operator in staging",
		"RoleBinding posthorn-operator in brokers", "RoleBinding posthorn-operator in staging",
	}
	if !slices.Equal(found, want) {
		t.Errorf("%v", found)
	}
	for _, wrong := range []string{
		"watchNamespaces: brokers", "watchNamespaces: ['a,b']", "watchNamespaces: ['']", "watchNamespaces: [A]", "watchNamespaces: [a, a]",
		"watchNamespaces: [-a]", "watchAllNamespaces: yes please", "{watchNamespaces: [a], watchAllNamespaces: true}",
	} {
		if _, err := rendered(t, wrong); err == nil {
			t.Errorf("%s was accepted", wrong)
		}
	}
}

func TestChartTurnsExternalBrokersOff(t *testing.T) {
	const flag = "--external-brokers=false"
	if given := arguments(install(t, "externalBrokers: false")); !slices.Contains(given, flag) {
		t.Errorf("started with %v", given)
	}
	if given := arguments(install(t, "")); slices.Contains(given, flag) {
		t.Errorf("started with %v", given)
	}
}

// container returns the container of the operator.
func container(objects map[string]object) map[string]any {
	list, _ := at(objects["Deployment posthorn-operator"], "spec", "template", "spec", "containers").([]any)
	if len(list) == 0 {
		return nil
	}
	first, _ := list[0].(map[string]any)
	return first
}

func arguments(objects map[string]object) []string {
	var out []string
	list, _ := container(objects)["args"].([]any)
	for _, each := range list {
		out = append(out, fmt.Sprint(each))
	}
	return out
}

func TestValuesReachTheObjects(t *testing.T) {
	objects := install(t, `
image: {name: "example.test/op@sha256:1", pullPolicy: Always, pullSecrets: [{name: registry}]}
broker: {defaultImage: example.test/posthorn:2, repository: example.test/posthorn}
replicas: 2
resyncPeriod: 5m
extraArgs: [--zap-log-level=debug]
resources: {limits: {memory: 1Gi}}
nodeSelector: {kind: infra}
tolerations: [{key: infra, operator: Exists}]
priorityClassName: system-cluster-critical
podAnnotations: {note: x}
podLabels: {team: a}
serviceAccount: {annotations: {role: r}}
metrics: {podMonitor: true}
`)
	pod := at(objects["Deployment posthorn-operator"], "spec", "template")
	for path, want := range map[string]string{
		"spec.nodeSelector.kind": "infra", "spec.priorityClassName": "system-cluster-critical", "metadata.annotations.note": "x", "metadata.labels.team": "a",
	} {
		if got := at(pod, strings.Split(path, ".")...); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
	if tolerations, _ := at(pod, "spec", "tolerations").([]any); len(tolerations) != 3 {
		t.Errorf("tolerations %v", tolerations)
	}
	if got := container(objects); got["image"] != "example.test/op@sha256:1" || got["imagePullPolicy"] != "Always" || at(got, "resources", "limits", "memory") != "1Gi" {
		t.Errorf("container %v", got)
	}
	if at(objects["Deployment posthorn-operator"], "spec", "replicas") != float64(2) || at(objects["ServiceAccount posthorn-operator"], "metadata", "annotations", "role") != "r" {
		t.Error("replicas or annotations")
	}
	args := arguments(objects)
	sort.Strings(args)
	want := []string{"--broker-image-repository=example.test/posthorn", "--default-broker-image=example.test/posthorn:2", "--leader-elect", "--resync-period=5m", "--watch-namespaces=posthorn-system", "--zap-log-level=debug"}
	if !slices.Equal(args, want) {
		t.Errorf("arguments %v", args)
	}
	if objects["PodMonitor posthorn-operator"] == nil {
		t.Error("no PodMonitor")
	}
}

func TestAdmissionPoliciesCanOnlyWarnOrBeLeftOut(t *testing.T) {
	actions := func(values string) map[string]string {
		out := map[string]string{}
		for name, o := range install(t, values) {
			if strings.HasPrefix(name, "ValidatingAdmissionPolicyBinding ") {
				out[strings.TrimPrefix(name, "ValidatingAdmissionPolicyBinding ")] = fmt.Sprint(at(o, "spec", "validationActions"))
			}
		}
		return out
	}
	same := func(values string, want map[string]string) {
		t.Helper()
		if got := actions(values); !maps.Equal(got, want) {
			t.Errorf("%s: %v", values, got)
		}
	}
	same("", map[string]string{
		"configuration.posthorn.io": "[Deny]", "policies.posthorn.io": "[Deny]", "ineffective-policies.posthorn.io": "[Warn]", "queues.posthorn.io": "[Deny]", "unknown-arguments.posthorn.io": "[Warn]",
	})
	same("admission: {action: Audit}", map[string]string{
		"configuration.posthorn.io": "[Audit]", "policies.posthorn.io": "[Audit]", "ineffective-policies.posthorn.io": "[Warn]", "queues.posthorn.io": "[Audit]", "unknown-arguments.posthorn.io": "[Warn]",
	})
	same("admission: {install: false}", map[string]string{})
}

func TestOneValueNamesTheRegistryOfAllImages(t *testing.T) {
	images := func(values string) []string {
		objects := install(t, values)
		out := []string{fmt.Sprint(container(objects)["image"])}
		for _, argument := range arguments(objects) {
			if strings.Contains(argument, "image") {
				out = append(out, argument)
			}
		}
		sort.Strings(out)
		return out
	}
	for values, want := range map[string][]string{
		"{registry: registry.test/team/, tag: v1}": {
			"--broker-image-repository=registry.test/team/posthorn", "--default-broker-image=registry.test/team/posthorn:v1", "registry.test/team/posthorn-operator:v1",
		},
		"{registry: registry.test, image: {name: x/op:2}, broker: {defaultImage: x/b:3}}": {
			"--broker-image-repository=registry.test/posthorn", "--default-broker-image=x/b:3", "x/op:2",
		},
	} {
		if got := images(values); !slices.Equal(got, want) {
			t.Errorf("%s: %v", values, got)
		}
	}
	command := exec.Command("../../hack/with-registry", "registry.test/team", "v1")
	command.Stdin = strings.NewReader("image: posthorn.local/posthorn-operator:dev\n- --broker-image-repository=posthorn.local/posthorn\n- --default-broker-image=posthorn.local/posthorn:dev\n")
	out, err := command.Output()
	if want := "image: registry.test/team/posthorn-operator:v1\n- --broker-image-repository=registry.test/team/posthorn\n- --default-broker-image=registry.test/team/posthorn:v1\n"; err != nil || string(out) != want {
		t.Errorf("with-registry: %q (%v)", out, err)
	}
}

func TestMisspeltValueIsRefused(t *testing.T) {
	for _, values := range []string{"watchNamespace: x", "image: {nme: x}", "replicas: two", "image: {pullPolicy: Sometimes}", "resyncPeriod: often"} {
		if _, err := rendered(t, values); err == nil {
			t.Errorf("%s: taken", values)
		}
	}
}

func TestDefinitionsOutliveTheRelease(t *testing.T) {
	kept := 0
	for name, o := range install(t, "") {
		if strings.HasPrefix(name, "CustomResourceDefinition ") && at(o, "metadata", "annotations", "helm.sh/resource-policy") == "keep" {
			kept++
		}
	}
	if kept < 4 {
		t.Errorf("%d are kept", kept)
	}
	for name := range install(t, "crds: {install: false}") {
		if strings.HasPrefix(name, "CustomResourceDefinition ") {
			t.Errorf("%s", name)
		}
	}
}

// TestTheCommandsOfTheGuide renders the objects of each helm command in docs/how-to/install.md.
func TestTheCommandsOfTheGuide(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "how-to", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```helm\n")
	block, _, ended := strings.Cut(block, "```")
	if !found || !ended {
		t.Fatal("there are no helm commands")
	}
	seen := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(block), "\n") {
		words := strings.Fields(line)
		if len(words) < 4 || words[0] != "helm" || words[1] != "install" || words[3] != "charts/posthorn" {
			t.Fatalf("%q", line)
		}
		values := map[string]any{}
		for rest := words[4:]; len(rest) > 0; rest = rest[1:] {
			switch rest[0] {
			case "--create-namespace":
			case "--namespace", "--set":
				if len(rest) < 2 {
					t.Fatalf("%q", line)
				}
				if rest[0] == "--set" {
					if err := strvals.ParseInto(strings.Trim(rest[1], "'"), values); err != nil {
						t.Fatal(err)
					}
				}
				rest = rest[1:]
			default:
				t.Fatalf("%q in %q", rest[0], line)
			}
		}
		text, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := renderedTexts(t, loadedChart(t), string(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, each := range texts {
			// A Role has the same name in each watched namespace.
			one := map[string]object{}
			put(t, one, each)
			for name := range one {
				seen[name] = true
			}
		}
	}
	for _, name := range []string{"Deployment posthorn-operator", "ClusterRole posthorn-operator", "Role posthorn-operator", "PodMonitor posthorn-operator"} {
		if !seen[name] {
			t.Errorf("no command installs %s", name)
		}
	}
}
