{{/* How machines outside the cluster join by a token. */}}

{{/* What the router reads for it, as items of a component's `files`. */}}
{{- define "baton.join.files" -}}
{{- with .Values.bareMetal.join }}
{{- if .existingSecret }}
- name: join
  mountPath: /etc/baton/join
  volume:
    projected:
      defaultMode: 0440
      sources:
        - secret: {name: {{ .existingSecret }}, items: [{key: join.secret, path: join.secret}]}
        - secret: {name: {{ .authority.existingSecret | default .existingSecret }}, items: [{key: {{ .authority.key }}, path: ca.key}]}
- name: assignments
  mountPath: /etc/baton/assignments
  volume: {configMap: {name: {{ include "baton.fullname" $ }}-machines}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "baton.join.flags" -}}
{{- with .Values.bareMetal.join }}
{{- if .existingSecret }}
- "--join-port={{ (include "baton.ports" $ | fromYaml).join }}"
- "--join-secret-file=/etc/baton/join/join.secret"
- "--join-authority-key-file=/etc/baton/join/ca.key"
- "--join-assignments-file=/etc/baton/assignments/machines.toml"
- "--join-certificate-days={{ .certificateDays }}"
- "--join-router-address={{ include "baton.join.routerAddress" $ }}"
- "--join-cache-index-address={{ .cacheIndexAddress }}"
{{- end }}
{{- end }}
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
