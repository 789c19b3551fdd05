{{/* What a pool says replaces, key by key, what all workers share. Not by `merge`: that would take
     false and 0 for nothing. */}}
{{- define "rc.pool" -}}
{{- $c := omit .root.Values.worker "pools" "enabled" | deepCopy -}}
{{- range $key, $value := .pool -}}
{{- $_ := set $c $key $value -}}
{{- end -}}
{{ toJson $c }}
{{- end }}

{{- define "rc.poolName" -}}
{{ include "rc.fullname" .root }}-worker-{{ .pool }}
{{- end }}

{{/* `replicas: N` or nothing. Nothing unless asked for: then nobody owns the field and `kubectl scale`
     is free. Asked for, the live number is kept, since another one would undo `kubectl scale`, or
     under server-side apply fail the upgrade with a conflict. */}}
{{- define "rc.poolReplicas" -}}
{{- if and (hasKey .c "replicas") (not (kindIs "invalid" .c.replicas)) (not (dig "autoscaling" "enabled" false .c)) -}}
{{- $live := lookup "apps/v1" "Deployment" .root.Release.Namespace .name -}}
{{- if and $live (eq .c.replicasPolicy "preserve") -}}
replicas: {{ $live.spec.replicas }}
{{- else -}}
replicas: {{ .c.replicas }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* {"runs": 8, "system": 2} → runs=8,system=2 */}}
{{- define "rc.queues" -}}
{{- $all := list -}}
{{- range $queue, $slots := . -}}
{{- $all = append $all (printf "%s=%d" $queue (int $slots)) -}}
{{- end -}}
{{ join "," $all }}
{{- end }}
