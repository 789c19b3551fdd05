{{/* The Pod of a part: root, component, pool, c (its values), target (image), image, arguments, env
     (list), grace (seconds), ports (list), lifecycle, volumes, mounts (lists), account (of its own, whose
     token it gets). Restricted, no token, no links of Services: those would come as RC_… variables
     wherever a release is called rc. */}}
{{- define "rc.pod" -}}
{{- $root := .root -}}
{{- $c := .c -}}
metadata:
  labels:
    {{- include "rc.podLabels" . | nindent 4 }}
    {{- with $c.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ $root.Values.settings | toJson | sha256sum | trunc 16 }}
    checksum/secret: {{ include "rc.secretChecksum" $root }}
    {{- with merge (dict) (default dict $c.podAnnotations) $root.Values.commonAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ default (include "rc.serviceAccount" $root) .account }}
  automountServiceAccountToken: {{ not (empty .account) }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .grace }}
  {{- with $root.Values.global.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with $root.Values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- range $key := list "priorityClassName" "runtimeClassName" }}
  {{- with index $c $key }}
  {{ $key }}: {{ . }}
  {{- end }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "dnsConfig" }}
  {{- with index $c $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- if not (eq .kind "Job") }}
  topologySpreadConstraints:
    {{- if hasKey $c "topologySpreadConstraints" }}
    {{- toYaml $c.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - topologyKey: {{ . }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      matchLabelKeys: [pod-template-hash]
      labelSelector:
        matchLabels:
          {{- include "rc.selector" $ | nindent 10 }}
    {{- end }}
    {{- end }}
  {{- end }}
  {{- if eq .kind "Job" }}
  restartPolicy: OnFailure
  {{- end }}
  {{- $inits := concat (default list .inits) (default list $c.initContainers) }}
  {{- if or $inits (and $root.Values.waitForSchema.enabled (ne .kind "Job")) }}
  initContainers:
    {{- if and $root.Values.waitForSchema.enabled (ne .kind "Job") }}
    {{- if eq $root.Values.migrations.mode "initContainer" }}
    {{- include "rc.container" (merge (dict "name" "migrate" "arguments" (list "migrate" "--phase" "pre") "probes" false "resources" $root.Values.migrations.resources) .) | nindent 4 }}
    {{- end }}
    {{- include "rc.container" (merge (dict "name" "wait-for-schema" "arguments" (list "doctor" "--only" "database,schema" "--wait" "600") "probes" false "resources" $root.Values.migrations.resources) .) | nindent 4 }}
    {{- end }}
    {{- range .inits }}
    {{- include "rc.container" (merge . $) | nindent 4 }}
    {{- end }}
    {{- with $c.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- include "rc.container" (merge (dict "name" (default .component .container) "main" true) .) | nindent 4 }}
    {{- with $c.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    {{- include "rc.caVolumes" $root | nindent 4 }}
    {{- with concat (default list .volumes) (default list $c.extraVolumes) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* A container of ours. Startup waits for servers as long as it takes: /livez is well meanwhile. */}}
{{- define "rc.container" -}}
{{- $root := .root -}}
{{- $c := .c -}}
- name: {{ .name }}
  image: {{ include "rc.image" . }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args: {{ toJson .arguments }}
  {{- with $root.Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  env:
    {{- include "rc.storeEnv" $root | nindent 4 }}
    - {name: RC_HEALTH_HOST, value: "*"}
    - {name: RC_HEALTH_PORT, value: "9090"}
    {{- range default list .env }}
    - {{ toJson . }}
    {{- end }}
    {{- range $name, $value := default dict $c.settings }}
    - {name: RC_{{ $name }}, value: {{ include "rc.text" $value | quote }}}
    {{- end }}
    {{- with $c.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  envFrom:
    - configMapRef: {name: {{ include "rc.fullname" $root }}-settings}
    {{- with $c.extraEnvFrom }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if .main }}
  {{- with .ports }}
  ports:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with default .lifecycle $c.lifecycle }}
  lifecycle:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if ne .kind "Job" }}
  startupProbe:
    httpGet: {path: /livez, port: health}
    periodSeconds: 2
    timeoutSeconds: 5
    failureThreshold: 30
  livenessProbe:
    httpGet: {path: /livez, port: health}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 3
  readinessProbe:
    httpGet: {path: /readyz, port: health}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 2
  {{- end }}
  {{- end }}
  {{- with default $c.resources .resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    {{- include "rc.caMounts" $root | nindent 4 }}
    {{- with concat (default list .mounts) (default list $c.extraVolumeMounts) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* A budget: root, component, pool, name, c */}}
{{- define "rc.pdb" -}}
{{- if .c.pdb.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
{{ include "rc.metadata" . }}
spec:
  maxUnavailable: {{ .c.pdb.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "rc.selector" . | nindent 6 }}
{{- end }}
{{- end }}
