{{/*
Mutual TLS between the release's pods. Each gets a certificate of its own from a router, which has the authority's key;
with `tls.secretName` all bear the one of a Secret.
*/}}

{{/* Whether pods get certificates of their own. */}}
{{- define "baton.tls.enrols" -}}
{{- if and .Values.tls.enabled (not .Values.tls.secretName) -}}true{{- end -}}
{{- end -}}

{{/* Secret of the authority. */}}
{{- define "baton.tls.authority" -}}
{{- $name := printf "%s%s-authority" (include "baton.fullname" .) (ternary "-issued" "" .Values.tls.certManager.enabled) -}}
{{ .Values.tls.authoritySecret | default $name }}
{{- end -}}

{{/* A key of that Secret: (dict "root" $ "key" "ca.crt"). cert-manager has names of its own. */}}
{{- define "baton.tls.authorityItem" -}}
{{- $issued := dict "ca.crt" "tls.crt" "ca.key" "tls.key" -}}
secret:
  name: {{ include "baton.tls.authority" .root }}
  items: [{key: {{ ternary (get $issued .key) .key .root.Values.tls.certManager.enabled }}, path: {{ .key }}}]
{{- end -}}

{{/* Volumes of a component, mounted by `baton.tls.mounts`: (dict "root" $ "component" {...}). */}}
{{- define "baton.tls.volumes" -}}
{{- if include "baton.tls.enrols" .root -}}
- name: authority
  projected:
    defaultMode: 0440
    sources:
      - {{ include "baton.tls.authorityItem" (dict "root" .root "key" "ca.crt") | nindent 8 | trim }}
      {{- if eq .component.role "router" }}
      - {{ include "baton.tls.authorityItem" (dict "root" .root "key" "ca.key") | nindent 8 | trim }}
      {{- with include "baton.join.secret" .root }}
      - secret: {name: {{ . }}, items: [{key: join.secret, path: join.secret}]}
      {{- end }}
      {{- end }}
# The pod's key, in memory: it is lost with the pod.
- name: identity
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- if ne .component.role "router" }}
- name: account
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {audience: baton, expirationSeconds: 600, path: token}
{{- end }}
{{- else if .root.Values.tls.enabled -}}
- name: tls
  secret:
    secretName: {{ .root.Values.tls.secretName }}
    defaultMode: 0440
{{- end -}}
{{- end -}}

{{- define "baton.tls.mounts" -}}
{{- if include "baton.tls.enrols" .root -}}
- {name: authority, mountPath: /etc/baton/authority, readOnly: true}
- {name: identity, mountPath: /run/baton}
{{- if ne .component.role "router" }}
- {name: account, mountPath: /etc/baton/account, readOnly: true}
{{- end }}
{{- else if .root.Values.tls.enabled -}}
- {name: tls, mountPath: /etc/baton/tls, readOnly: true}
{{- end -}}
{{- end -}}

{{/* Where a pod's certificate, its key and the authorities are, by the ends of the flags' names. */}}
{{- define "baton.tls.paths" -}}
{{- if include "baton.tls.enrols" . -}}
cert-file: /run/baton/node.crt
key-file: /run/baton/node.key
ca-file: /etc/baton/authority/ca.crt
{{- else -}}
cert-file: /etc/baton/tls/tls.crt
key-file: /etc/baton/tls/tls.key
ca-file: /etc/baton/tls/ca.crt
{{- end }}
{{- end -}}

{{/* Flags of a component: (dict "root" $ "role" "router"). A server's health is probed on a port without TLS. */}}
{{- define "baton.tls.flags" -}}
{{- $isServer := ne .role "gateway" -}}
{{- $ports := include "baton.ports" .root | fromYaml -}}
{{- if .root.Values.tls.enabled }}
{{- $paths := include "baton.tls.paths" .root | fromYaml }}
{{- range $end := list "cert-file" "key-file" "ca-file" }}
- "--tls-{{ $end }}={{ get $paths $end }}"
{{- end }}
- "--tls-server-name={{ .root.Values.tls.serverName }}"
{{- if $isServer }}
- "--tls-health-port={{ $ports.health }}"
{{- end }}
{{- if and (include "baton.tls.enrols" .root) (ne .role "router") }}
- "--tls-enrol-address={{ include "baton.fullname" .root }}-router.{{ .root.Release.Namespace }}.svc:{{ $ports.join }}"
- "--tls-enrol-token-file=/etc/baton/account/token"
{{- end }}
{{- else if $isServer }}
- "--insecure=true"
{{- end }}
{{- end -}}

{{/* Accounts of the release's pods, and what their certificates say, for routers. */}}
{{- define "baton.tls.pods" -}}
{{- $name := include "baton.fullname" . -}}
{{- $accounts := list (printf "%s-gateway=gateway" $name) (printf "%s-cache-index=cache-index" $name) -}}
{{- range $role := list "prefill" "decode" "worker" -}}
{{- range $pool := keys (get $.Values $role).pools | sortAlpha -}}
{{- $accounts = append $accounts (printf "%s-%s-%s=node" $name $role $pool) -}}
{{- end -}}
{{- end -}}
{{ join "," $accounts }}
{{- end -}}

{{/* Which of the gateway's public ports have no TLS: none of their own, and nothing before them that ends it. */}}
{{- define "baton.tls.plainPorts" -}}
{{- $gateway := .Values.gateway -}}
{{- $own := $gateway.tls.existingSecret -}}
{{- $plain := list -}}
{{- if not (or $own $gateway.httpRoute.enabled (and $gateway.ingress.enabled $gateway.ingress.tlsSecret)) -}}
{{- $plain = append $plain "REST" -}}
{{- end -}}
{{- if not (or (and $own (dig "grpcTls" true $gateway.settings)) $gateway.grpcRoute.enabled) -}}
{{- $plain = append $plain "gRPC" -}}
{{- end -}}
{{ join " and " $plain }}
{{- end -}}

{{/* Whether whoever reaches a public port may ask: it asks for no key, and for no certificate. */}}
{{- define "baton.tls.isOpen" -}}
{{- $gateway := .Values.gateway -}}
{{- if not (or $gateway.apiKeys.existingSecret (and $gateway.tls.clientCertificates (dig "grpcTls" true $gateway.settings))) -}}true{{- end -}}
{{- end -}}

{{/* What the gateway's public ports rely on: who ends TLS before them; else that none but friends reach them. */}}
{{- define "baton.tls.publicFlags" -}}
{{- $gateway := .Values.gateway -}}
{{- $own := $gateway.tls.existingSecret -}}
{{- $plain := include "baton.tls.plainPorts" . -}}
{{- if $own }}
- "--https-cert-file=/etc/baton/public-tls/tls.crt"
- "--https-key-file=/etc/baton/public-tls/tls.key"
- "--health-port={{ (include "baton.ports" . | fromYaml).health }}"
{{- if $gateway.tls.clientCertificates }}
- "--client-ca-file=/etc/baton/public-tls/ca.crt"
{{- end }}
{{- end }}
{{- if and (not $plain) (not (and $own (dig "grpcTls" true $gateway.settings))) }}
- "--tls-ends-upstream=true"
{{- end }}
{{- if or $plain (include "baton.tls.isOpen" .) }}
- "--insecure=true"
{{- end }}
{{- end -}}

{{/* What a port speaks, for whoever stands between: gRPC without TLS, or nothing that can be looked into. */}}
{{- define "baton.tls.appProtocol" -}}
{{ if not .root.Values.tls.enabled }}, appProtocol: kubernetes.io/h2c{{ end }}
{{- end -}}

{{/* Port on which a component's health is asked for: (dict "root" $ "port" 8010). */}}
{{- define "baton.tls.healthPort" -}}
{{ ternary (include "baton.ports" .root | fromYaml).health .port .root.Values.tls.enabled }}
{{- end -}}
