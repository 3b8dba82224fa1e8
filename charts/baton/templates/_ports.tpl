{{/* Ports on which services listen inside their pods. */}}

{{- define "baton.ports" -}}
gatewayHttp: 8000
gatewayGrpc: 8001
router: 8010
cacheIndex: 8011
join: 8012
prefill: 8020
prefillFast: 8021
health: 8009
metrics: 8008
decode: 8030
worker: 8050
workerFast: 8051
{{- end -}}

{{/* host:port of the router and of the cache index inside the cluster. */}}
{{- define "baton.routerAddress" -}}
{{ include "baton.fullname" . }}-router.{{ .Release.Namespace }}.svc:8010
{{- end -}}

{{/* What commands in pods are told: of several routers each remembers what it placed, and a Service's address is one of them. */}}
{{- define "baton.routersAddress" -}}
{{ include "baton.fullname" . }}-router{{ if .Values.discovery.enabled }}-pods{{ end }}.{{ .Release.Namespace }}.svc:8010
{{- end -}}

{{/* What nodes are told: the Services' names, or the Services whose pods they follow. */}}
{{- define "baton.routerTarget" -}}
{{ if .Values.discovery.enabled }}kubernetes://{{ include "baton.fullname" . }}-router:grpc{{ else }}{{ include "baton.routerAddress" . }}{{ end }}
{{- end -}}

{{- define "baton.cacheIndexTarget" -}}
{{ if .Values.discovery.enabled }}kubernetes://{{ include "baton.fullname" . }}-cache-index:grpc{{ else }}{{ include "baton.cacheIndexAddress" . }}{{ end }}
{{- end -}}

{{- define "baton.cacheIndexAddress" -}}
{{ include "baton.fullname" . }}-cache-index.{{ .Release.Namespace }}.svc:8011
{{- end -}}
