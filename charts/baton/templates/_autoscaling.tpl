{{/* Autoscaling of pools on what their nodes export. Takes (dict "root" $ "component" {...}). */}}

{{- define "baton.autoscaling.target" -}}
scaleTargetRef:
  apiVersion: apps/v1
  kind: Deployment
  name: {{ .component.name }}
{{- end -}}

{{/*
Sum over the pods of one pool: those of a Deployment are named by it and two more parts, so that pool `ultra` has none of
`ultra-big`. Of each the mean over a window: what running pods clear before a new one serves should make none.
*/}}
{{- define "baton.autoscaling.query" -}}
{{- $scaling := .component.values.autoscaling -}}
sum(avg_over_time({{ .metric }}{ {{- with $scaling.namespaceLabel }}{{ . }}="{{ $.root.Release.Namespace }}",{{ end -}} baton_node_id=~"{{ .component.name }}-[a-z0-9]+-[a-z0-9]+"}[{{ $scaling.windowSeconds }}s]))
{{- end -}}

{{/* A mean per pod as a Kubernetes quantity: 0.8 is 800m. */}}
{{- define "baton.autoscaling.quantity" -}}
{{ mulf . 1000 | int64 }}m
{{- end -}}

{{- define "baton.poolAutoscaling" -}}
{{- $scaling := .component.values.autoscaling -}}
{{- if $scaling.enabled -}}
{{- if eq $scaling.kind "hpa" -}}
{{ include "baton.poolHorizontal" . }}
{{- else -}}
{{ include "baton.poolScaledObject" . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.poolHorizontal" -}}
{{- $scaling := .component.values.autoscaling -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
spec:
  {{- include "baton.autoscaling.target" . | nindent 2 }}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  behavior:
    scaleDown: {stabilizationWindowSeconds: {{ $scaling.scaleDownSeconds }}}
  metrics:
    {{- range $metric, $target := dict "baton_node_queue_seconds" $scaling.queueSeconds "baton_node_kv_used_ratio" $scaling.kvUsedRatio }}
    {{- if $target }}
    - type: Pods
      pods:
        metric: {name: {{ $metric }}}
        target: {type: AverageValue, averageValue: {{ include "baton.autoscaling.quantity" $target }}}
    {{- end }}
    {{- end }}
{{- end -}}

{{- define "baton.poolScaledObject" -}}
{{- $scaling := .component.values.autoscaling -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
spec:
  {{- include "baton.autoscaling.target" . | nindent 2 }}
  minReplicaCount: {{ $scaling.minReplicas }}
  maxReplicaCount: {{ $scaling.maxReplicas }}
  # KEDA's own cooldownPeriod counts towards no pods at all, which a pool never has.
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleDown: {stabilizationWindowSeconds: {{ $scaling.scaleDownSeconds }}}
  triggers:
    {{- range $metric, $target := dict "baton_node_queue_seconds" $scaling.queueSeconds "baton_node_kv_used_ratio" $scaling.kvUsedRatio }}
    {{- if $target }}
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ $scaling.prometheusAddress | quote }}
        query: {{ include "baton.autoscaling.query" (merge (dict "metric" $metric) $) | squote }}
        threshold: {{ $target | toString | quote }}
    {{- end }}
    {{- end }}
{{- end -}}
