{{/* metadata of a CRD, which belongs to the cluster: root, name */}}
{{- define "rc.crdMetadata" -}}
{{- $keep := ternary (dict "helm.sh/resource-policy" "keep") (dict) .root.Values.crds.keep }}
{{- include "rc.clusterMetadata" (dict "root" .root "component" "crd" "name" .name "annotations" $keep) }}
{{- end }}

{{/* The conditions of a status, as every kind of Kubernetes has them. */}}
{{- define "rc.crdConditions" -}}
conditions:
  description: What is true of it, by type; `kubectl wait --for=condition=…` looks here.
  type: array
  maxItems: 8
  x-kubernetes-list-type: map
  x-kubernetes-list-map-keys: [type]
  items:
    description: One condition.
    type: object
    required: [type, status, reason, message, lastTransitionTime]
    properties:
      type:
        description: {{ .types }}
        type: string
        maxLength: 316
      status:
        description: "True, False, or Unknown while it goes on."
        type: string
        enum: ["True", "False", "Unknown"]
      reason:
        description: Why, in one word.
        type: string
        minLength: 1
        maxLength: 1024
        pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
      message:
        description: Why, in a sentence; empty where there is nothing to say.
        type: string
        maxLength: 32768
      observedGeneration:
        description: The generation of the object that it was found for.
        type: integer
        format: int64
        minimum: 0
      lastTransitionTime:
        description: Since when the status of this condition is what it is.
        type: string
        format: date-time
{{- end }}
