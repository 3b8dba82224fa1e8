{{/* Further models: what routers want, of which the one that has the Lease leads, and the agents of worker pods. */}}

{{/* The desired state as routers read it. */}}
{{- define "baton.models.toml" -}}
{{- range .Values.models }}
[[model]]
name = {{ toJson .name }}
source = {{ toJson .source }}
{{- with .minReplicas }}
min_replicas = {{ . | int }}
{{- end }}
{{- with .maxReplicas }}
max_replicas = {{ . | int }}
{{- end }}
{{- if .onDemand }}
is_on_demand = true
{{- end }}
{{- with .keepAliveSeconds }}
keep_alive_seconds = {{ . | int }}
{{- end }}
{{- if .unloaded }}
is_unloaded = true
{{- end }}
{{ end }}
{{- end -}}

{{- define "baton.models.name" -}}
{{ include "baton.fullname" . }}-models
{{- end -}}

{{/* What the router needs to lead: a Lease of the namespace, which it makes itself. */}}
{{- define "baton.models.role" -}}
{{- if .root.Values.worker.agent -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [{{ .component.name }}]
    verbs: [get, update]
---
{{ include "baton.roleBinding" (merge (dict "kind" "Role" "name" .component.name) .) }}
{{- end -}}
{{- end -}}

{{/* Arguments of a worker pod's agent, which starts the worker: (dict "root" $ "component" {...}). */}}
{{- define "baton.models.agentArgs" -}}
{{- $ports := include "baton.ports" .root | fromYaml -}}
{{- $own := list -}}
{{- range .component.args -}}
{{- if not (or (hasPrefix "--host=" .) (hasPrefix "--port=" .) (hasPrefix "--node-id=" .) (hasPrefix "--tls-enrol-" .) (hasPrefix "--insecure" .)) -}}
{{- $own = append $own (squote .) -}}
{{- end -}}
{{- end -}}
- "--log-level={{ .root.Values.logLevel }}"
- "--host={{ .root.Values.listenHost }}"
- "--port=0"
- "--worker-role=worker"
- "--worker-port={{ $ports.worker }}"
- "--worker-node-id=$(POD_NAME)"
- "--router-address={{ include "baton.routerTarget" .root }}"
- "--stop-grace-seconds={{ add (ceil .component.drainSeconds) 5 }}"
{{- range .component.args }}
{{- if and (or (hasPrefix "--tls-" .) (hasPrefix "--insecure" .)) (not (hasPrefix "--tls-health-port" .)) }}
- {{ . | quote }}
{{- end }}
{{- end }}
- {{ printf "--worker-arguments=%s" (join " " $own) | quote }}
{{- end -}}
