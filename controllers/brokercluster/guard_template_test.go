// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package brokercluster

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// inContainer is a podTemplate that says something about the broker's container.
func inContainer(what string) string {
	return `{"spec":{"containers":[{"name":"posthorn",` + what + `}]}}`
}

func TestOverrideLeavesAloneWhatTheOperatorNeeds(t *testing.T) {
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
		if found, is := isTerminal(err); !is || found.reason != "InvalidPodTemplate" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
