{{/* How machines outside the cluster join by a token; and pods, by that of their account. */}}

{{/* Secret with the secret of tokens; empty: no machine joins by one. */}}
{{- define "baton.join.secret" -}}
{{- $join := .Values.bareMetal.join -}}
{{- if $join.existingSecret -}}
{{ $join.existingSecret }}
{{- else if and .Values.bareMetal.enabled $join.assignments (include "baton.tls.enrols" .) -}}
{{ include "baton.tls.authority" . }}
{{- end -}}
{{- end -}}

{{/* Whether routers have the port on which pods and machines join. */}}
{{- define "baton.join.isOpen" -}}
{{- if or (include "baton.tls.enrols" .) (include "baton.join.secret" .) -}}true{{- end -}}
{{- end -}}

{{/* What the router reads for it, as items of a component's `files`. */}}
{{- define "baton.join.files" -}}
{{- if include "baton.join.secret" . }}
{{- with .Values.bareMetal.join }}
{{- if not (include "baton.tls.enrols" $) }}
- name: join
  mountPath: /etc/baton/authority
  volume:
    projected:
      defaultMode: 0440
      sources:
        - secret: {name: {{ .existingSecret }}, items: [{key: join.secret, path: join.secret}]}
        - secret: {name: {{ .authority.existingSecret | default .existingSecret }}, items: [{key: {{ .authority.key }}, path: ca.key}]}
{{- end }}
- name: assignments
  mountPath: /etc/baton/assignments
  volume: {configMap: {name: {{ include "baton.fullname" $ }}-machines}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "baton.join.flags" -}}
{{- if include "baton.join.isOpen" . }}
- "--join-port={{ (include "baton.ports" . | fromYaml).join }}"
- "--join-authority-key-file=/etc/baton/authority/ca.key"
{{- end }}
{{- if include "baton.tls.enrols" . }}
- "--join-pods={{ include "baton.tls.pods" . }}"
- "--join-pod-hours={{ .Values.tls.certificateHours }}"
{{- end }}
{{- if include "baton.join.secret" . }}
{{- with .Values.bareMetal.join }}
- "--join-secret-file=/etc/baton/authority/join.secret"
- "--join-assignments-file=/etc/baton/assignments/machines.toml"
- "--join-certificate-days={{ .certificateDays }}"
- "--join-router-address={{ include "baton.join.routerAddress" $ }}"
- "--join-cache-index-address={{ .cacheIndexAddress }}"
{{- end }}
{{- end }}
{{- end -}}

{{/*
What machines outside reach, each by a Service of its own: every router, for nodes register with each, and the cache index.
*/}}
{{- define "baton.bareMetal.targets" -}}
{{- $name := include "baton.fullname" . -}}
{{- $replicas := int .Values.router.replicas -}}
{{- if eq $replicas 1 -}}
- {role: router, name: {{ $name }}-router-outside, number: 0, listener: ""}
{{- end }}
{{- if gt $replicas 1 }}
{{- range $number := until $replicas }}
- {role: router, name: {{ $name }}-router-{{ $number }}-outside, pod: {{ $name }}-router-{{ $number }}, number: {{ $number }}, listener: "-{{ $number }}"}
{{- end }}
{{- end }}
- {role: cache-index, name: {{ $name }}-cache-index-outside, number: 0}
{{- end -}}

{{/* Router and join service share a Service, so a port alone says enough. */}}
{{- define "baton.join.routerAddress" -}}
{{- $service := .Values.bareMetal.service -}}
{{- $port := ternary $service.routerNodePort (include "baton.ports" . | fromYaml).router (eq $service.type "NodePort") -}}
{{ .Values.bareMetal.join.routerAddress | default (printf ":%v" $port) }}
{{- end -}}

{{/* The assignments as the router reads them: TOML, whose texts, numbers and truths are written as in JSON. */}}
{{- define "baton.join.assignments" -}}
{{- range .Values.bareMetal.join.assignments }}
[[node]]
node_id = {{ .nodeId | default "*" | toJson }}
role = {{ .role | toJson }}
model_name = {{ $.Values.model.name | toJson }}
{{- range $key, $value := .settings }}
{{ $key | kebabcase | replace "-" "_" }} = {{ toJson $value }}
{{- end }}
{{ end }}
{{- end -}}
