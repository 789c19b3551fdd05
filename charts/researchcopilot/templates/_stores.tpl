{{/* Where the servers are, and the secrets that open them. */}}

{{- define "rc.secret" -}}
{{ include "rc.fullname" . }}
{{- end }}

{{/* The name of the secret with the api key, empty if there is none; root is given. */}}
{{- define "rc.apiKeySecret" -}}
{{- if .Values.apiKey.existingSecret -}}
{{ .Values.apiKey.existingSecret }}
{{- else if or .Values.apiKey.create .Values.apiKey.value -}}
{{ include "rc.secret" . }}
{{- end -}}
{{- end }}

{{- define "rc.apiKeyKey" -}}
{{ ternary .Values.apiKey.existingSecretKey "api-key" (not (empty .Values.apiKey.existingSecret)) }}
{{- end }}

{{/* Environment that opens Postgres and Redis; the dependent ones stand after what they depend on. */}}
{{- define "rc.storeEnv" -}}
{{- $full := include "rc.fullname" . -}}
{{- if .Values.postgresql.enabled }}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ default (include "rc.secret" .) .Values.postgresql.auth.existingSecret }}
      key: {{ ternary "postgres-password" .Values.postgresql.auth.existingSecretKey (empty .Values.postgresql.auth.existingSecret) }}
- name: RC_DATABASE_URL
  value: postgresql://researchcopilot@{{ $full }}-postgresql:5432/researchcopilot
{{- else }}
{{- with .Values.externalDatabase }}
{{- if .passwordSecret }}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ .passwordSecret }}, key: {{ .passwordSecretKey }}}}
{{- end }}
{{- if .caSecret }}
- name: PGSSLROOTCERT
  value: /etc/researchcopilot/database-ca/{{ .caSecretKey }}
{{- end }}
- name: RC_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ default (include "rc.secret" $) .existingSecret }}
      key: {{ ternary "database-url" .existingSecretKey (empty .existingSecret) }}
{{- end }}
{{- end }}
{{- if .Values.valkey.enabled }}
- name: VALKEY_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ default (include "rc.secret" .) .Values.valkey.auth.existingSecret }}
      key: {{ ternary "valkey-password" .Values.valkey.auth.existingSecretKey (empty .Values.valkey.auth.existingSecret) }}
- name: RC_REDIS_URL
  value: redis://:$(VALKEY_PASSWORD)@{{ $full }}-valkey:6379/0
{{- else }}
{{- with .Values.externalRedis }}
- name: RC_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ default (include "rc.secret" $) .existingSecret }}
      key: {{ ternary "redis-url" .existingSecretKey (empty .existingSecret) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rc.caVolumes" -}}
{{- if and (not .Values.postgresql.enabled) .Values.externalDatabase.caSecret }}
- name: database-ca
  secret: {secretName: {{ .Values.externalDatabase.caSecret }}}
{{- end }}
{{- if and (not .Values.valkey.enabled) .Values.externalRedis.caSecret }}
- name: redis-ca
  secret: {secretName: {{ .Values.externalRedis.caSecret }}}
{{- end }}
{{- end }}

{{- define "rc.caMounts" -}}
{{- if and (not .Values.postgresql.enabled) .Values.externalDatabase.caSecret }}
- {name: database-ca, mountPath: /etc/researchcopilot/database-ca, readOnly: true}
{{- end }}
{{- if and (not .Values.valkey.enabled) .Values.externalRedis.caSecret }}
- {name: redis-ca, mountPath: /etc/researchcopilot/redis-ca, readOnly: true}
{{- end }}
{{- end }}

{{/* What a secret holds, on a cluster that lets us look; root and name are given. Its checksum makes
     Pods anew that read it. */}}
{{- define "rc.liveSecret" -}}
{{- $live := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{ printf "%s %s" .name (default dict $live.data | toJson) }}
{{- end }}

{{/* Changes when a secret that a Pod reads does: what is given here, and on a cluster what the
     secrets hold. Generated values never change, so they are no part of it. */}}
{{- define "rc.secretChecksum" -}}
{{- $v := .Values -}}
{{- $parts := list $v.externalDatabase.url $v.externalRedis.url $v.apiKey.value -}}
{{- range list $v.externalDatabase.existingSecret $v.externalDatabase.passwordSecret $v.externalDatabase.caSecret $v.externalRedis.existingSecret $v.externalRedis.caSecret $v.postgresql.auth.existingSecret $v.valkey.auth.existingSecret -}}
{{- if . -}}
{{- $parts = append $parts (include "rc.liveSecret" (dict "root" $ "name" .)) -}}
{{- end -}}
{{- end -}}
{{ $parts | toJson | sha256sum | trunc 16 }}
{{- end }}
