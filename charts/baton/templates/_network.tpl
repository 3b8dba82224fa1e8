{{/* Parts of NetworkPolicies. A component's policy lies in its folder and names its arrows. */}}

{{/* The pods of a role: (dict "root" $ "role" "decode"). */}}
{{- define "baton.network.peer" -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ include "baton.name" .root }}
      app.kubernetes.io/instance: {{ .root.Release.Name }}
      app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "baton.network.head" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "baton.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "baton.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end -}}

{{/* Machines outside the cluster. */}}
{{- define "baton.network.bareMetalPeers" -}}
{{- range .Values.bareMetal.cidrs }}
- ipBlock: {cidr: {{ . | quote }}}
{{- end }}
{{- end -}}

{{/* Egress to whatever answers DNS. */}}
{{- define "baton.network.dnsEgress" -}}
- ports:
    {{- range .Values.networkPolicy.dnsPorts }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicy.dns }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Egress that every component needs: names, and telemetry where it is on. */}}
{{- define "baton.network.commonEgress" -}}
{{ include "baton.network.dnsEgress" . }}
{{- if .Values.telemetry.otlpEndpoint }}
- {{- with .Values.networkPolicy.otlp }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - {protocol: TCP, port: {{ include "baton.network.otlpPort" . }}}
{{- end }}
{{- end -}}

{{/* Ingress of those that scrape metrics. */}}
{{- define "baton.network.scrapes" -}}
{{- with .Values.networkPolicy.metrics }}
# Scrapes.
- from:
    {{- toYaml . | nindent 4 }}
  ports:
    - {protocol: TCP, port: {{ (include "baton.ports" $ | fromYaml).metrics }}}
{{- end }}
{{- end -}}

{{- define "baton.network.otlpPort" -}}
{{- $host := (urlParse .Values.telemetry.otlpEndpoint).host -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $host) | default "4317" -}}
{{- end -}}

{{/* Egress of the container that fetches a model: (dict "source" {...}). */}}
{{- define "baton.network.downloadEgress" -}}
{{- with .source.download }}
- {{- with .cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
  ports:
    - {protocol: TCP, port: {{ regexFind "[0-9]+$" (regexFind ":[0-9]+$" (urlParse .url).host) | default (ternary "443" "80" (hasPrefix "https:" .url)) }}}
{{- end }}
{{- end -}}

{{/* A call of a router: (dict "root" $ "calls" true), without `calls` for a certificate alone. */}}
{{- define "baton.network.routerEgress" -}}
{{- $ports := include "baton.ports" .root | fromYaml -}}
{{- if or .calls (include "baton.tls.enrols" .root) -}}
- to:
    {{- include "baton.network.peer" (dict "root" .root "role" "router") | nindent 4 }}
  ports:
    {{- if .calls }}
    - {protocol: TCP, port: {{ $ports.router }}}
    {{- end }}
    {{- if include "baton.tls.enrols" .root }}
    - {protocol: TCP, port: {{ $ports.join }}}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* Egress to the Kubernetes API. */}}
{{- define "baton.network.apiEgress" -}}
# The Kubernetes API.
- {{- with .Values.networkPolicy.apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
  ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end -}}

{{/* What a node calls, whatever its role. */}}
{{- define "baton.network.nodeEgress" -}}
{{- $ports := include "baton.ports" . | fromYaml -}}
# Register.
{{ include "baton.network.routerEgress" (dict "root" . "calls" true) }}
{{- if or .Values.discovery.enabled .Values.discovery.readNodes }}
{{ include "baton.network.apiEgress" . }}
{{- end }}
# Publish.
- to:
    {{- include "baton.network.peer" (dict "root" . "role" "cache-index") | nindent 4 }}
  ports:
    - {protocol: TCP, port: {{ $ports.cacheIndex }}}
{{- end -}}

{{/* What nodes call that decode: those from which they take KV. */}}
{{- define "baton.network.kvEgress" -}}
{{- $ports := include "baton.ports" . | fromYaml -}}
# Prefill, PullBlocks, ProbeLink.
{{- range $role := list "prefill" "decode" "worker" }}
- to:
    {{- include "baton.network.peer" (dict "root" $ "role" $role) | nindent 4 }}
  {{- if not (and (eq $role "worker") $.Values.worker.agent) }}
  ports:
    - {protocol: TCP, port: {{ get $ports $role }}}
    {{- with get $ports (printf "%sFast" $role) }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- end }}
{{- end }}
{{- if .Values.bareMetal.enabled }}
- to:
    {{- include "baton.network.bareMetalPeers" . | trim | nindent 4 }}
  ports:
    {{- range .Values.bareMetal.workerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- end -}}
