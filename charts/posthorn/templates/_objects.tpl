{{- /*
The objects are those of config/, copied to files/. Templates read them and change what values ask for, so a
chart with default values installs exactly what "kubectl apply -k config/default" does.
*/ -}}

{{- /* posthorn.object: one object of (list root object), in the release's namespace and with its labels. */ -}}
{{- define "posthorn.object" -}}
{{- $root := index . 0 -}}
{{- $object := index . 1 -}}
{{- if hasKey $object.metadata "namespace" -}}
{{- $_ := set $object.metadata "namespace" $root.Release.Namespace -}}
{{- end -}}
{{- range $object.subjects -}}
{{- $_ := set . "namespace" $root.Release.Namespace -}}
{{- end -}}
{{- $labels := dict "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) "app.kubernetes.io/managed-by" $root.Release.Service "app.kubernetes.io/instance" $root.Release.Name -}}
{{- $_ := set $object.metadata "labels" (merge $labels (default dict $object.metadata.labels)) -}}
---
{{ toYaml $object }}
{{ end -}}

{{- /* posthorn.objects: all objects of the file in (list root path). */ -}}
{{- define "posthorn.objects" -}}
{{- $root := index . 0 -}}
{{- range splitList "\n---\n" ($root.Files.Get (index . 1) | trimPrefix "---\n") -}}
{{- include "posthorn.object" (list $root (fromYaml .)) -}}
{{- end -}}
{{- end -}}

{{- /* posthorn.namespaces: the watched namespaces, separated by commas; empty for all. */ -}}
{{- define "posthorn.namespaces" -}}
{{- if not .Values.watchAllNamespaces -}}
{{- join "," (default (list .Release.Namespace) .Values.watchNamespaces) -}}
{{- else if .Values.watchNamespaces -}}
{{- fail "set either watchNamespaces or watchAllNamespaces" -}}
{{- end -}}
{{- end -}}
