{{/* Ports on which services listen inside their pods. */}}

{{- define "baton.ports" -}}
gatewayHttp: 8000
gatewayGrpc: 8001
router: 8010
cacheIndex: 8011
prefill: 8020
decode: 8030
{{- end -}}

{{/* host:port of the router and of the cache index inside the cluster. */}}
{{- define "baton.routerAddress" -}}
{{ include "baton.fullname" . }}-router.{{ .Release.Namespace }}.svc:8010
{{- end -}}

{{- define "baton.cacheIndexAddress" -}}
{{ include "baton.fullname" . }}-cache-index.{{ .Release.Namespace }}.svc:8011
{{- end -}}
