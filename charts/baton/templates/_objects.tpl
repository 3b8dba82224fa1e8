{{/* The objects that every component has. All take (dict "root" $ "component" {...}). */}}

{{- define "baton.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
automountServiceAccountToken: false
{{- end -}}

{{/* What discovery needs: reading the EndpointSlices of the namespace. */}}
{{- define "baton.discoveryRole" -}}
{{- if .component.asksKubernetes -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
rules:
  - apiGroups: [discovery.k8s.io]
    resources: [endpointslices]
    verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .component.name }}
subjects:
  - kind: ServiceAccount
    name: {{ .component.name }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}
{{- end -}}

{{- define "baton.deployment" -}}
{{- $values := .component.values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
spec:
  {{- if not (dig "autoscaling" "enabled" false $values) }}
  replicas: {{ $values.replicas }}
  {{- end }}
  {{- if dig "accelerator" "resource" "" $values }}
  # The pool may hold every accelerator of its kind: a new pod waits for an old one's.
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}
  {{- else }}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  {{- end }}
  selector:
    matchLabels:
      {{- include "baton.selector" . | nindent 6 }}
  template:
    {{- include "baton.pod" . | nindent 4 }}
{{- end -}}

{{- define "baton.podDisruptionBudget" -}}
{{- $budget := .component.values.podDisruptionBudget -}}
{{- if or $budget.minAvailable $budget.maxUnavailable -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
spec:
  {{- if $budget.minAvailable }}
  minAvailable: {{ $budget.minAvailable }}
  {{- else }}
  maxUnavailable: {{ $budget.maxUnavailable }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "baton.selector" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{/* A Service inside the cluster for each port of the component. */}}
{{- define "baton.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
spec:
  type: ClusterIP
  selector:
    {{- include "baton.selector" . | nindent 4 }}
  ports:
    {{- range .component.ports }}
    {{- if has .name (list "grpc" "health") }}
    - {name: {{ .name }}, port: {{ .port }}, targetPort: {{ .name }}{{ include "baton.tls.appProtocol" $ }}}
    {{- end }}
    {{- end }}
{{- end -}}
