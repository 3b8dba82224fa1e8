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
{{- if and .component.asksKubernetes .root.Values.discovery.enabled -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
rules:
  - apiGroups: [discovery.k8s.io]
    resources: [endpointslices]
    verbs: [get, list, watch]
---
{{ include "baton.roleBinding" (merge (dict "kind" "Role" "name" .component.name) .) }}
{{- end -}}
{{- end -}}

{{/* What a node needs to say where it runs: getting the Kubernetes node under it. Nodes belong to no namespace. */}}
{{- define "baton.nodeReaderRole" -}}
{{- if and .component.asksKubernetes .root.Values.discovery.readNodes -}}
{{- $name := printf "%s-%s" .root.Release.Namespace .component.name -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels:
    {{- include "baton.labels" . | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [nodes]
    verbs: [get]
---
{{ include "baton.roleBinding" (merge (dict "kind" "ClusterRole" "name" $name) .) }}
{{- end -}}
{{- end -}}

{{/* Gives a component's account a role: (dict "root" $ "component" {...} "kind" "Role" "name" "..."). */}}
{{- define "baton.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .name }}
  {{- if eq .kind "Role" }}
  namespace: {{ .root.Release.Namespace }}
  {{- end }}
  labels:
    {{- include "baton.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .component.name }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* Its kind is Deployment, unless the component says StatefulSet: pods with names that Services can choose. */}}
{{- define "baton.deployment" -}}
{{- $values := .component.values -}}
apiVersion: apps/v1
kind: {{ .component.kind | default "Deployment" }}
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
spec:
  {{- if not (dig "autoscaling" "enabled" false $values) }}
  replicas: {{ $values.replicas }}
  {{- end }}
  {{- if eq (default "" .component.kind) "StatefulSet" }}
  serviceName: {{ .component.name }}
  podManagementPolicy: Parallel
  {{- else if dig "accelerator" "resource" "" $values }}
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
    {{- if has .name (list "grpc" "health" "join") }}
    - {name: {{ .name }}, port: {{ .port }}, targetPort: {{ .name }}{{ include "baton.tls.appProtocol" $ }}}
    {{- end }}
    {{- end }}
{{- end -}}

{{/* A Service that stands for each pod of the component by itself, for commands that ask all of them. */}}
{{- define "baton.podsService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .component.name }}-pods
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "baton.labels" . | nindent 4 }}
spec:
  type: ClusterIP
  clusterIP: None
  selector:
    {{- include "baton.selector" . | nindent 4 }}
  ports:
    {{- range .component.ports }}
    {{- if eq .name "grpc" }}
    - {name: grpc, port: {{ .port }}, targetPort: grpc{{ include "baton.tls.appProtocol" $ }}}
    {{- end }}
    {{- end }}
{{- end -}}
