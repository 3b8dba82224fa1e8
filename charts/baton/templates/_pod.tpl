{{/* The one pod template. Takes (dict "root" $ "component" {...}); see _component.tpl for a component's keys. */}}

{{- define "baton.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "baton.podSecurity" -}}
runAsNonRoot: true
{{- with .root.Values.runAsUser | int64 }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "baton.pod" -}}
{{- $values := .component.values -}}
{{- $context := dict "root" .root "component" .component "source" .component.source -}}
metadata:
  labels:
    {{- include "baton.labels" . | nindent 4 }}
  {{- with $values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ .component.name }}
  automountServiceAccountToken: {{ .component.asksKubernetes | default false }}
  # Kubernetes would set BATON_ROUTER_PORT=tcp://... for a Service of that name, which is a setting of the router.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add $values.preStopSeconds (ceil .component.drainSeconds) 10 }}
  securityContext:
    {{- include "baton.podSecurity" . | nindent 4 }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .component.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with include "baton.initContainers" $context | trim }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - {{ include "baton.container" $context | nindent 6 | trim }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    {{- if .root.Values.development.syncCode }}
    - name: code
      emptyDir: {}
    {{- end }}
    {{- if .component.source }}
    {{- with include "baton.model.volumes" $context | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- with include "baton.tls.volumes" . }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- range .component.files }}
    - name: {{ .name }}
      {{- toYaml .volume | nindent 6 }}
    {{- end }}
  {{- with include "baton.scheduling" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "baton.initContainers" -}}
{{- if .root.Values.development.syncCode }}
- name: copy-code
  image: {{ include "baton.image" . }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [sh, -c, "cp -r /opt/baton/lib/python3.*/site-packages/baton /code/"]
  resources:
    requests: {cpu: 100m, memory: 64Mi}
    limits: {memory: 128Mi}
  securityContext:
    {{- include "baton.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: code, mountPath: /code}
{{- end }}
{{- if .component.source }}
{{ include "baton.model.initContainers" . }}
{{- end }}
{{- end -}}

{{- define "baton.container" -}}
{{- $values := .component.values -}}
name: {{ .component.role }}
image: {{ include "baton.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args:
  - serve
  {{- if .component.hasAgent }}
  - agent
  {{- include "baton.models.agentArgs" . | nindent 2 }}
  {{- else }}
  - {{ .component.role }}
  {{- range .component.args }}
  - {{ . | quote }}
  {{- end }}
  {{- end }}
env:
  {{- include "baton.environment" . | nindent 2 }}
ports:
  {{- range .component.ports }}
  - name: {{ .name }}
    containerPort: {{ .port }}
    {{- with .hostPort }}
    hostPort: {{ . }}
    {{- end }}
  {{- end }}
{{- include "baton.probes" . | nindent 0 }}
{{- if not .component.pausesItself }}
lifecycle:
  preStop:
    exec: {command: [sleep, {{ $values.preStopSeconds | int | quote }}]}
{{- end }}
resources:
  {{- toYaml .component.resources | nindent 2 }}
securityContext:
  {{- include "baton.containerSecurity" . | nindent 2 }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- if .root.Values.development.syncCode }}
  - name: code
    mountPath: /code
  {{- end }}
  {{- if .source }}
  {{- with include "baton.model.mounts" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- with include "baton.tls.mounts" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- range .component.files }}
  - name: {{ .name }}
    mountPath: {{ .mountPath }}
    readOnly: true
  {{- end }}
{{- end -}}

{{/*
Health is that of the gRPC server; a worker's serves once its model is loaded and measured. Ready is what its service's
health says: a worker once a router has accepted it, a gateway once it could serve (`started`; under other names its health
follows the router and the nodes, for load balancers), and both from then on whatever becomes of the router. A worker whose engine stands still is not ready; its process is started again only where it stands still for
ten times as long.
*/}}
{{- define "baton.probes" -}}
startupProbe:
  grpc: {port: {{ .component.healthPort }}{{ with .component.aliveService }}, service: {{ . }}{{ end }}}
  periodSeconds: 1
  failureThreshold: {{ .component.startSeconds }}
readinessProbe:
  grpc: {port: {{ .component.healthPort }}{{ with .component.readyService }}, service: {{ . }}{{ end }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 3
livenessProbe:
  grpc: {port: {{ .component.healthPort }}{{ with .component.aliveService }}, service: {{ . }}{{ end }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{- define "baton.environment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- if .component.pool }}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end }}
{{- if eq (default "podIP" .component.values.advertise) "hostPort" }}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- end }}
- name: HOME
  value: /tmp
# What `baton nodes`, `plan`, `doctor` and `explain` take, so that they need no flags in a pod.
- name: BATON_ROUTER_ADDRESS
  value: {{ include "baton.routersAddress" .root }}
{{- if .root.Values.tls.enabled }}
{{- range $end, $path := include "baton.tls.paths" .root | fromYaml }}
- {name: BATON_TLS_{{ $end | replace "-" "_" | upper }}, value: {{ $path }}}
{{- end }}
- {name: BATON_TLS_SERVER_NAME, value: {{ .root.Values.tls.serverName | quote }}}
{{- end }}
{{- if ne .root.Values.logFormat "text" }}
- name: BATON_LOG_FORMAT
  value: {{ .root.Values.logFormat }}
{{- end }}
{{- if .root.Values.development.syncCode }}
- name: PYTHONPATH
  value: /code
{{- end }}
{{- with .root.Values.telemetry.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ $.root.Values.telemetry.traceRatio | toString | quote }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: "k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME){{ with $.component.pool }},baton.pool={{ . }}{{ end }}"
{{- end }}
{{- with .component.values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "baton.scheduling" -}}
{{- $values := .component.values -}}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.spreadOver }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    # Each generation of pods by itself: counted with those that it replaces, it would be spread to where these were not.
    matchLabelKeys: [{{ ternary "controller-revision-hash" "pod-template-hash" (eq (default "" $.component.kind) "StatefulSet") }}]
    labelSelector:
      matchLabels:
        {{- include "baton.selector" $ | nindent 8 }}
{{- end }}
{{- end -}}
