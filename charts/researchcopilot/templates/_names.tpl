{{/* Names, labels and images. Names are short enough that what Kubernetes appends still fits. */}}

{{- define "rc.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- end }}

{{- define "rc.labels" -}}
{{- include "rc.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: researchcopilot
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of a Pod. Without the chart's version: a new chart alone must not restart everybody. */}}
{{- define "rc.podLabels" -}}
{{- include "rc.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: researchcopilot
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What a selector may name: it can never be changed. */}}
{{- define "rc.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
researchcopilot/pool: {{ . }}
{{- end }}
{{- end }}

{{/* metadata of an object: root, component, name (whole), pool, annotations, labels */}}
{{- define "rc.metadata" -}}
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "rc.labels" . | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with merge (dict) (default dict .annotations) .root.Values.commonAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* The same of an object that belongs to the cluster. */}}
{{- define "rc.clusterMetadata" -}}
metadata:
  name: {{ .name }}
  labels:
    {{- include "rc.labels" . | nindent 4 }}
  {{- with merge (dict) (default dict .annotations) .root.Values.commonAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* An image of ours: root, target, image (what the component says of its own) */}}
{{- define "rc.image" -}}
{{- $own := default dict .image -}}
{{- $all := .root.Values.image -}}
{{- $registry := coalesce $own.registry .root.Values.global.imageRegistry $all.registry -}}
{{- $repository := default (printf "%s-%s" $all.repository .target) $own.repository -}}
{{- $name := ternary $repository (printf "%s/%s" $registry $repository) (empty $registry) -}}
{{- if $own.digest -}}
{{ $name }}@{{ $own.digest }}
{{- else -}}
{{ $name }}:{{ coalesce $own.tag $all.tag .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Another's image, from the registry of this installation if there is one: root, image */}}
{{- define "rc.foreignImage" -}}
{{- with .root.Values.global.imageRegistry -}}
{{ . }}/{{ regexReplaceAll "^[^/]*[.:][^/]*/" $.image "" }}
{{- else -}}
{{ .image }}
{{- end -}}
{{- end }}

{{- define "rc.serviceAccount" -}}
{{- default (ternary (include "rc.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end }}

{{/* A value as text. Helm reads every number as a float: a plain toString of a million is 1e+06. */}}
{{- define "rc.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}

{{/* The operator's own: it alone has rights, and a token. */}}
{{- define "rc.operatorAccount" -}}
{{- $a := .Values.operator.serviceAccount -}}
{{- default (ternary (printf "%s-operator" (include "rc.fullname" .)) "default" $a.create) $a.name -}}
{{- end }}
