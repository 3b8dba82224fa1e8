{{/*
What a component is, as YAML; the other templates read it by fromYaml. Keys:
  name              of all its objects
  role              word after `baton serve`, and its label
  pool              name of its pool, if it is a worker
  kind              StatefulSet, if it is no Deployment
  asksKubernetes    whether it needs a token of the Kubernetes API
  hasAgent          whether an agent starts it, and others beside it
  image             control, cpu or cuda
  args              flags after the role
  ports             [{name, port, hostPort}]
  healthPort        port that answers grpc.health.v1
  aliveService      service whose health says that a process is sound, if it is not that of the whole process
  readyService      the same of a pod that is ready
  startSeconds      longest time until it does
  drainSeconds      what it takes to end running work
  pausesItself      whether it waits by itself before it drains, and serves meanwhile as one that goes
  source            of the model, if it needs one
  files             [{name, mountPath, volume}]: what it reads from Secrets and ConfigMaps
  resources         of its container
  runtimeClassName  of its pods
  values            the part of .Values that describes it
*/}}

{{/* Flags of settings: {maxWaiting: 8} becomes --max-waiting=8. Numbers go through JSON, which writes no exponents; what is null is left to the service. */}}
{{- define "baton.flags" -}}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
- {{ printf "--%s=%s" (kebabcase $key) (ternary (toString $value) (toJson $value) (kindIs "string" $value)) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Names by which clients call the gateway, beside those that no stranger can have: a route without any has all. */}}
{{- define "baton.gateway.hosts" -}}
{{- $hosts := list (printf "%s-gateway.%s" (include "baton.fullname" .) .Release.Namespace) -}}
{{- with .Values.gateway.ingress }}{{ if .enabled }}{{ $hosts = concat $hosts .hosts }}{{ end }}{{ end -}}
{{- with .Values.gateway.httpRoute }}{{ if .enabled }}{{ $hosts = concat $hosts (.hostnames | default (list "*")) }}{{ end }}{{ end -}}
{{- with .Values.gateway.settings.allowedHosts }}{{ $hosts = append $hosts . }}{{ end -}}
{{ join "," $hosts }}
{{- end -}}

{{- define "baton.gateway" -}}
{{- $values := .Values.gateway -}}
{{- $source := $values.modelSource | default .Values.model.source -}}
{{- $ports := include "baton.ports" . | fromYaml -}}
name: {{ include "baton.fullname" . }}-gateway
role: gateway
image: control
ports:
  - {name: http, port: {{ $ports.gatewayHttp }}}
  - {name: grpc, port: {{ $ports.gatewayGrpc }}}
  {{- if $values.tls.existingSecret }}
  - {name: health, port: {{ $ports.health }}}
  {{- end }}
healthPort: {{ ternary $ports.health $ports.gatewayGrpc (not (empty $values.tls.existingSecret)) }}
aliveService: liveness
readyService: started
pausesItself: true
startSeconds: {{ ternary 900 120 (not (empty $source.download)) }}
drainSeconds: {{ dig "drainSeconds" 20 $values.settings }}
source: {{ toJson $source }}
files:
  {{- with $values.apiKeys }}
  {{- if .existingSecret }}
  - name: api-keys
    mountPath: /etc/baton/api-keys
    volume: {secret: {secretName: {{ .existingSecret }}, items: [{key: {{ .key }}, path: keys}{{ with .tenantSecretKey }}, {key: {{ . }}, path: tenant.secret}{{ end }}]}}
  {{- end }}
  {{- end }}
  {{- with $values.tls.existingSecret }}
  - name: public-tls
    mountPath: /etc/baton/public-tls
    volume: {secret: {secretName: {{ . }}, defaultMode: 0440}}
  {{- end }}
resources: {{ toJson $values.resources }}
args:
  - "--log-level={{ .Values.logLevel }}"
  - "--model-dir={{ include "baton.model.dir" (dict "root" . "source" $source) }}"
  - "--model-name={{ .Values.model.name }}"
  - "--router-address={{ include "baton.routerAddress" . }}"
  - "--http-host={{ .Values.listenHost }}"
  - "--http-port={{ $ports.gatewayHttp }}"
  - "--grpc-host={{ .Values.listenHost }}"
  - "--grpc-port={{ $ports.gatewayGrpc }}"
  - "--drain-pause-seconds={{ $values.preStopSeconds }}"
  {{- if $values.apiKeys.existingSecret }}
  - "--api-keys-file=/etc/baton/api-keys/keys"
  {{- end }}
  {{- if and $values.apiKeys.existingSecret $values.apiKeys.tenantSecretKey }}
  - "--tenant-secret-file=/etc/baton/api-keys/tenant.secret"
  {{- end }}
  {{- include "baton.tls.publicFlags" . | trim | nindent 2 }}
  {{- with include "baton.tls.flags" (dict "root" . "role" "gateway") | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "baton.flags" (omit $values.settings "allowedHosts") | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  - "--allowed-hosts={{ include "baton.gateway.hosts" . }}"
values: {{ toJson $values }}
{{- end -}}

{{- define "baton.router" -}}
{{- $values := .Values.router -}}
{{- $ports := include "baton.ports" . | fromYaml -}}
name: {{ include "baton.fullname" . }}-router
role: router
{{- if .Values.bareMetal.enabled }}
kind: StatefulSet
{{- end }}
asksKubernetes: {{ or .Values.worker.agent (not (empty (include "baton.tls.enrols" .))) }}
image: control
ports:
  - {name: grpc, port: {{ $ports.router }}}
  {{- if include "baton.join.isOpen" . }}
  - {name: join, port: {{ $ports.join }}}
  {{- end }}
  - {name: metrics, port: {{ $ports.metrics }}}
  {{- if .Values.tls.enabled }}
  - {name: health, port: {{ include "baton.tls.healthPort" (dict "root" . "port" 0) }}}
  {{- end }}
healthPort: {{ include "baton.tls.healthPort" (dict "root" . "port" $ports.router) }}
startSeconds: 60
drainSeconds: {{ dig "drainSeconds" 2 $values.settings }}
files:
  {{- include "baton.join.files" . | nindent 2 }}
  {{- if .Values.worker.agent }}
  - {name: models, mountPath: /etc/baton/models, volume: {configMap: {name: {{ include "baton.models.name" . }}}}}
  {{- end }}
resources: {{ toJson $values.resources }}
args:
  - "--log-level={{ .Values.logLevel }}"
  - "--host={{ .Values.listenHost }}"
  - "--port={{ $ports.router }}"
  - "--metrics-port={{ $ports.metrics }}"
  - "--cache-index-address={{ include "baton.cacheIndexAddress" . }}"
  {{- if .Values.worker.agent }}
  - "--models-file=/etc/baton/models/models.toml"
  - "--models-lease={{ include "baton.fullname" . }}-router"
  {{- end }}
  {{- with include "baton.join.flags" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "baton.tls.flags" (dict "root" . "role" "router") | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "baton.flags" $values.settings | trim }}
  {{- . | nindent 2 }}
  {{- end }}
values: {{ toJson $values }}
{{- end -}}

{{- define "baton.cacheIndex" -}}
{{- $values := .Values.cacheIndex -}}
{{- $ports := include "baton.ports" . | fromYaml -}}
name: {{ include "baton.fullname" . }}-cache-index
role: cache-index
image: control
ports:
  - {name: grpc, port: {{ $ports.cacheIndex }}}
  - {name: metrics, port: {{ $ports.metrics }}}
  {{- if .Values.tls.enabled }}
  - {name: health, port: {{ include "baton.tls.healthPort" (dict "root" . "port" 0) }}}
  {{- end }}
healthPort: {{ include "baton.tls.healthPort" (dict "root" . "port" $ports.cacheIndex) }}
startSeconds: 60
drainSeconds: {{ dig "drainSeconds" 0.5 $values.settings }}
resources: {{ toJson $values.resources }}
args:
  - "--log-level={{ .Values.logLevel }}"
  - "--host={{ .Values.listenHost }}"
  - "--port={{ $ports.cacheIndex }}"
  - "--metrics-port={{ $ports.metrics }}"
  {{- with include "baton.tls.flags" (dict "root" . "role" "cache-index") | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "baton.flags" $values.settings | trim }}
  {{- . | nindent 2 }}
  {{- end }}
values: {{ toJson $values }}
{{- end -}}

{{/* A pool, of role prefill or decode, which pin its part, or worker: (dict "root" $ "role" "prefill" "pool" "h200" "given" {...}). */}}
{{- define "baton.worker" -}}
{{- $values := include "baton.poolValues" . | fromYaml -}}
{{- $source := $values.modelSource | default .root.Values.model.source -}}
{{- $port := get (include "baton.ports" .root | fromYaml) .role -}}
{{- $fastPort := get (include "baton.ports" .root | fromYaml) (printf "%sFast" .role) -}}
{{- $metricsPort := (include "baton.ports" .root | fromYaml).metrics -}}
{{- $accelerator := $values.accelerator -}}
{{- $resources := deepCopy $values.resources -}}
{{- if $accelerator.resource -}}
{{- $limits := set (dict) $accelerator.resource (toString $accelerator.count) -}}
{{- $resources = merge (dict "limits" $limits) $resources -}}
{{- end -}}
name: {{ include "baton.fullname" .root }}-{{ .role }}-{{ .pool }}
role: {{ .role }}
pool: {{ .pool }}
asksKubernetes: {{ or .root.Values.discovery.enabled .root.Values.discovery.readNodes }}
hasAgent: {{ and (eq .role "worker") .root.Values.worker.agent }}
image: {{ $values.image | default (ternary "control" (ternary "cuda" "cpu" (not (empty $accelerator.resource))) (eq $values.engine "mock")) }}
ports:
  - {name: grpc, port: {{ $port }}{{ if eq $values.advertise "hostPort" }}, hostPort: {{ $port }}{{ end }}}
  - {name: metrics, port: {{ $metricsPort }}}
  {{- if $fastPort }}
  - {name: fast, port: {{ $fastPort }}{{ if eq $values.advertise "hostPort" }}, hostPort: {{ $fastPort }}{{ end }}}
  {{- end }}
  {{- if .root.Values.tls.enabled }}
  - {name: health, port: {{ include "baton.tls.healthPort" (dict "root" .root "port" 0) }}}
  {{- end }}
healthPort: {{ include "baton.tls.healthPort" (dict "root" .root "port" $port) }}
readyService: {{ printf "baton.internal.v1.%sService" (title .role) }}
startSeconds: {{ $values.startSeconds }}
drainSeconds: {{ dig "drainSeconds" 20 $values.settings }}
source: {{ toJson $source }}
resources: {{ toJson $resources }}
runtimeClassName: {{ $accelerator.runtimeClassName | quote }}
args:
  - "--log-level={{ .root.Values.logLevel }}"
  - "--host={{ .root.Values.listenHost }}"
  - "--port={{ $port }}"
  - "--metrics-port={{ $metricsPort }}"
  {{- if $fastPort }}
  - "--fast-port={{ $fastPort }}"
  {{- end }}
  - "--node-id=$(POD_NAME)"
  - "--kubernetes-node=$(NODE_NAME)"
  {{- if .root.Values.discovery.readNodes }}
  - "--read-kubernetes-node=true"
  {{- end }}
  {{- with $accelerator.resource }}
  - "--accelerators={{ . }}={{ $accelerator.count }}"
  {{- end }}
  - "--advertise-address=$({{ ternary "HOST_IP" "POD_IP" (eq $values.advertise "hostPort") }})"
  - "--router-address={{ include "baton.routerTarget" .root }}"
  - "--cache-index-address={{ include "baton.cacheIndexTarget" .root }}"
  - "--engine={{ $values.engine }}"
  - "--model-dir={{ include "baton.model.dir" (dict "root" .root "source" $source) }}"
  - "--model-name={{ .root.Values.model.name }}"
  {{- with include "baton.tls.flags" (dict "root" .root "role" .role) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "baton.flags" $values.settings | trim }}
  {{- . | nindent 2 }}
  {{- end }}
values: {{ toJson $values }}
{{- end -}}

{{- define "baton.poolValues" -}}
{{- mergeOverwrite (deepCopy .root.Values.poolDefaults) (deepCopy (.given | default dict)) | toJson -}}
{{- end -}}
