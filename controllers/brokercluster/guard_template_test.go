// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
)

// inContainer returns a podTemplate with fields of the broker's container.
func inContainer(what string) string {
	return `{"spec":{"containers":[{"name":"posthorn",` + what + `}]}}`
}

func TestOverrideOfOperatorFieldsIsRefused(t *testing.T) {
	cases := map[string]struct{ template, want string }{
		"priority":             {`{"spec":{"priorityClassName":"high","nodeSelector":{"a":"b"},"tolerations":[{"operator":"Exists"}]}}`, ""},
		"grace":                {`{"spec":{"terminationGracePeriodSeconds":30}}`, ""},
		"a probe":              {inContainer(`"livenessProbe":{"periodSeconds":30}`), ""},
		"another mount":        {`{"spec":{"containers":[{"name":"posthorn","volumeMounts":[{"name":"x","mountPath":"/x"}]}],"volumes":[{"name":"x","emptyDir":{}}]}}`, ""},
		"another variable":     {inContainer(`"env":[{"name":"RUST_BACKTRACE","value":"1"}]`), ""},
		"a misspelt field":     {`{"spec":{"priorityClasName":"high"}}`, "priorityClasName"},
		"the image":            {inContainer(`"image":"other"`), "image"},
		"the command":          {inContainer(`"command":["/bin/sh"]`), "command"},
		"the arguments":        {inContainer(`"args":["serve"]`), "arguments"},
		"the node's name":      {inContainer(`"env":[{"name":"POSTHORN_CLUSTER_NODE","value":"me"}]`), "POSTHORN_CLUSTER_NODE"},
		"a setting":            {inContainer(`"env":[{"name":"POSTHORN_DATA_DIR","value":"/tmp"}]`), "POSTHORN_"},
		"no variables":         {inContainer(`"env":null`), "POD_NAME"},
		"the data's mount":     {inContainer(`"volumeMounts":[{"mountPath":"/var/lib/posthorn","name":"config"}]`), "/var/lib/posthorn"},
		"the data's volume":    {`{"spec":{"volumes":[{"name":"data","emptyDir":{}}]}}`, "the volume data"},
		"the configuration":    {`{"spec":{"volumes":[{"name":"config","$patch":"delete"}]}}`, "the volume config"},
		"no container":         {`{"spec":{"containers":[{"name":"posthorn","$patch":"delete"},{"name":"x","image":"x"}]}}`, "the container"},
		"the account":          {`{"spec":{"serviceAccountName":"admin"}}`, "serviceAccountName"},
		"restarts":             {`{"spec":{"restartPolicy":"Never"}}`, "restartPolicy"},
		"a deadline":           {`{"spec":{"activeDeadlineSeconds":60}}`, "activeDeadlineSeconds"},
		"the host's name":      {`{"spec":{"hostname":"x"}}`, "hostname"},
		"the settings' digest": {`{"metadata":{"annotations":{"posthorn.io/config":"x"}}}`, "annotation"},
	}
	for name, c := range cases {
		cluster := testCluster()
		cluster.Spec.PodTemplate = &runtime.RawExtension{Raw: []byte(c.template)}
		_, err := buildTemplate(cluster, inputsOf(cluster, "i", nil))
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if found, is := asTerminalError(err); !is || found.reason != "InvalidPodTemplate" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSchemaRefusesFieldsThatTheOperatorSets compares the rules in the schema of spec.podTemplate, which
// hack/podtemplate writes, with the pod template of a cluster that has every protocol and TLS.
func TestSchemaRefusesFieldsThatTheOperatorSets(t *testing.T) {
	text, err := os.ReadFile("../../config/crd/bases/posthorn.io_brokerclusters.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cluster := testCluster()
	cluster.Spec.TLS = &posthornv1.TLSSpec{}
	template, err := buildTemplate(cluster, inputsOf(cluster, "i", []posthornv1.Protocol{posthornv1.ProtocolAMQP, posthornv1.ProtocolMQTT}))
	if err != nil {
		t.Fatal(err)
	}
	broker := brokerOf(&template)
	set := []string{dataVolume}
	for name := range template.Labels {
		set = append(set, name)
	}
	for _, volume := range template.Spec.Volumes {
		set = append(set, volume.Name)
	}
	for _, port := range broker.Ports {
		set = append(set, port.Name)
	}
	for _, mount := range broker.VolumeMounts {
		set = append(set, mount.MountPath)
	}
	for _, variable := range broker.Env {
		if !strings.HasPrefix(variable.Name, "POSTHORN_") {
			set = append(set, variable.Name)
		}
	}
	if len(broker.Ports) < 10 {
		t.Errorf("only %d ports", len(broker.Ports))
	}
	for _, name := range set {
		if !strings.Contains(string(text), "'"+name+"'") {
			t.Errorf("no rule of the schema names %s", name)
		}
	}
}
